# SPDX-License-Identifier: Apache-2.0
"""LayerGroup: layers cut into slices that stay in local memory."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names
from passes.planning import declare

if TYPE_CHECKING:
    from passes.layer_group.planning.cost import total
    from passes.layer_group.planning.network import Tensor
    from passes.layer_group.planning.planned_group import GROUP_BUDGET, PlannedGroup, place
    from passes.layer_group.planning.search import silent
    from passes.layer_group.planning.time_steps import STORE
    from passes.layer_group.rewrite.local_buffers import SCOPE
    from passes.layer_group.transform import (
        LOGGER,
        LayerGroup,
        LayerGroupOptions,
        chip_of,
        has_operators,
        local_memory,
        plan_groups,
        saved_groups,
    )
else:
    __getattr__ = lazy_names(__name__)

declare("lmem", "passes.layer_group.planning.lmem")
