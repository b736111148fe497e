# SPDX-License-Identifier: Apache-2.0
"""The steps inside the passes, for readers who take a pass apart.

What a user needs is in `tvm_ext` itself. The names here are those of the passes' own parts, and a
new version of this project may change them.
"""

from passes.ascend import (
    AscendOptions,
    core_kernel,
    plan_cost,
    plan_levels,
    with_level_penalties,
)
from passes.gmem import GMEMOptions, plan_gmem, trace
from passes.ir import find_linear_access
from passes.order import OrderProblem, Tensor, find_order, live_bytes, peak_of
from passes.planning import PipelineUse
from passes.planning.engine import BlockList, avoidable
from passes.prim_func import ProblemOptions, find_problems
from passes.simulation import Cause, Loop, Statement, simulate
from passes.storage_rewrite import InplaceOpVerifier, PlanMemory, liveness_analysis

__all__ = [
    "AscendOptions",
    "BlockList",
    "Cause",
    "GMEMOptions",
    "InplaceOpVerifier",
    "Loop",
    "OrderProblem",
    "PipelineUse",
    "PlanMemory",
    "ProblemOptions",
    "Statement",
    "Tensor",
    "avoidable",
    "core_kernel",
    "find_linear_access",
    "find_order",
    "find_problems",
    "live_bytes",
    "liveness_analysis",
    "peak_of",
    "plan_cost",
    "plan_gmem",
    "plan_levels",
    "simulate",
    "trace",
    "with_level_penalties",
]
