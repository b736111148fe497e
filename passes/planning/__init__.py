# SPDX-License-Identifier: Apache-2.0
"""Planners: plain data in, plain data out. Nothing here knows TVM.

A `Problem` says which buffers compete for a memory; `solve` asks a planner by name for a `Plan`;
`verify` says whether the plan is right, and `lower_bound` what no plan can do better than. A
planner's module is imported when the planner is first asked for.
"""

from passes.planning.bound import live_bytes, lower_bound
from passes.planning.plan import Plan, Reuse, Status
from passes.planning.planner import (
    Budget,
    Planner,
    get_planner,
    planner_names,
    register,
    solve,
)
from passes.planning.problem import Buffer, Penalty, PipelineUse, Problem
from passes.planning.verify import PlanError, Violation, check, verify

__all__ = [
    "Budget",
    "Buffer",
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
    "planner_names",
    "register",
    "solve",
    "verify",
]
