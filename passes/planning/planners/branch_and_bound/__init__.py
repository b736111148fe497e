# SPDX-License-Identifier: Apache-2.0
"""Branch and bound over the orders in which blocks are put down."""
