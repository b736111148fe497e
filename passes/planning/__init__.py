"""Planners: plain data in, plain data out. Nothing here knows TVM.

A `Problem` says which buffers compete for a memory; `solve` asks a planner by name for a `Plan`;
`verify` says whether the plan is right, and `lower_bound` what no plan can do better than.
"""

# A planner's module registers it when it is imported.
from passes.planning.ascend import planner as _ascend  # noqa: F401
from passes.planning.bound import live_bytes, lower_bound
from passes.planning.plan import Plan, Reuse, Status
from passes.planning.planner import (
    ALL_FEATURES,
    Budget,
    Planner,
    get_planner,
    planners,
    register,
    solve,
)
from passes.planning.planners import bump, fit, portfolio, search, skyline  # noqa: F401
from passes.planning.problem import Buffer, Feature, Penalty, PipelineUse, Problem
from passes.planning.sophgo import rec_tbl  # noqa: F401
from passes.planning.storage_rewrite import sharing  # noqa: F401
from passes.planning.verify import PlanError, Violation, check, verify

__all__ = [
    "ALL_FEATURES",
    "Budget",
    "Buffer",
    "Feature",
    "Penalty",
    "PipelineUse",
    "Plan",
    "PlanError",
    "Planner",
    "Problem",
    "Reuse",
    "Status",
    "Violation",
    "check",
    "get_planner",
    "live_bytes",
    "lower_bound",
    "planners",
    "register",
    "solve",
    "verify",
]
