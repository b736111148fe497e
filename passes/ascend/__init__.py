# SPDX-License-Identifier: Apache-2.0
"""AscendPlanMemory: byte offsets in the memories of an Ascend core, as AscendNPU-IR plans."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names
from passes.planning import declare

if TYPE_CHECKING:
    from passes.ascend.kernel import (
        RULES,
        WORKSPACE,
        AscendOptions,
        level_planner,
        machine_of,
        memory_requests,
        plan_cost,
        simulated_cost,
    )
    from passes.ascend.planning.fewer_slots import choose
    from passes.ascend.planning.levels import reuse_of, with_level_penalties
    from passes.ascend.planning.planner import plan_workspace
    from passes.ascend.transform import WORKSPACE_BYTES, AscendPlanMemory
else:
    __getattr__ = lazy_names(__name__)

declare("three_level", "passes.ascend.planning.planner")
declare("three_level_mirror", "passes.ascend.planning.planner")
