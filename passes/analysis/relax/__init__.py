# SPDX-License-Identifier: Apache-2.0
"""What the Relax functions of a module keep in memory, and when."""
