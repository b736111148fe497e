# SPDX-License-Identifier: Apache-2.0
"""Planners: plain data in, plain data out. Nothing here knows TVM.

A `Problem` says which buffers compete for a memory; `solve` asks a planner by name for a `Plan`;
`verify` says whether the plan is right, and `lower_bound` what no plan can do better than. A
planner's module is imported when the planner is first asked for.
"""

from passes.planning.bound import live_bytes, lower_bound
from passes.planning.memories import Copy, MemoriesPlan, MemoriesProblem, Stay, Traffic
from passes.planning.plan import Plan, Reuse, Status
from passes.planning.planner import (
    Budget,
    Planner,
    get_planner,
    planner_names,
    register,
)
from passes.planning.problem import Buffer, Penalty, PipelineUse, Problem
from passes.planning.solving import check, solve, verify
from passes.planning.verify import PlanError, Violation

__all__ = [
    "Budget",
    "Buffer",
    "Copy",
    "MemoriesPlan",
    "MemoriesProblem",
    "Penalty",
    "PipelineUse",
    "Plan",
    "PlanError",
    "Planner",
    "Problem",
    "Reuse",
    "Status",
    "Stay",
    "Traffic",
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
