# SPDX-License-Identifier: Apache-2.0
"""AscendPlanMemory: byte offsets in the memories of an Ascend core, as HIVM plans them."""

from passes.planning.planner import declare

declare("three_level", "passes.ascend.planning.planner")
declare("three_level_mirror", "passes.ascend.planning.planner")
