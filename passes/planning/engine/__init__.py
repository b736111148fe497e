# SPDX-License-Identifier: Apache-2.0
"""Building blocks of planners: blocks, gaps, merged pairs, and compiled loops."""

from passes.planning.engine.blocks import BlockList, NewMemory
from passes.planning.engine.coalesce import better, merged_groups
