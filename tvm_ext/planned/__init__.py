# SPDX-License-Identifier: Apache-2.0
"""A program's memories, each planned by several planners: `comparison` and `map` show them."""
