# SPDX-License-Identifier: Apache-2.0
"""GMEMAllocate: global memory planned as Sophgo's tpu-mlir does it, for Relax and PrimFuncs."""

from typing import TYPE_CHECKING

from passes.lazy_names import lazy_names
from passes.planning import declare

if TYPE_CHECKING:
    from passes.gmem.analysis.stock_sharing import stock_pass, stock_placement
    from passes.gmem.options import BEST, GMEMOptions, Solvers
    from passes.gmem.planning.pool import Pieces, Placement, each_storage
    from passes.gmem.planning.slot_search import plan_slots
    from passes.gmem.relax_functions import FunctionPlan, plan_gmem
    from passes.gmem.relax_memory import host_scopes
    from passes.gmem.serving import ServedMemory, served_memory
    from passes.gmem.several_memories import memories_problem
    from passes.gmem.transform import GMEMAllocate
else:
    __getattr__ = lazy_names(__name__)

declare("rec_tbl", "passes.gmem.planning.rec_tbl")
