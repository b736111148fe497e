# SPDX-License-Identifier: Apache-2.0
"""What planners are made of: blocks, gaps, orders, and the search over placements."""

from passes.planning.engine.blocks import BlockList, NewMemory
from passes.planning.engine.coalesce import avoidable, merged_groups

__all__ = ["BlockList", "NewMemory", "avoidable", "merged_groups"]
