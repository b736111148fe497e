# SPDX-License-Identifier: Apache-2.0
"""What planners are made of: blocks, gaps, orders, and the search over placements."""
