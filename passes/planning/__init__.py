# SPDX-License-Identifier: Apache-2.0
"""Planners: plain data in, plain data out. Nothing here knows TVM.

A `Problem` says which buffers compete for a memory; `solve` asks a planner by name for a `Plan`;
`verify` says whether the plan is right, and `lower_bound` what no plan can do better than. A
planner's module is imported when the planner is first asked for.
"""

from passes.planning.bound import live_bytes, lower_bound, may_fit
from passes.planning.buffer import (
    ADDRESS_LIMIT,
    Buffer,
    LiveRange,
    Penalty,
    PipelineUse,
    common,
    join_ranges,
    live_together,
)
from passes.planning.clocks import concurrent_lives
from passes.planning.html_table import html_table
from passes.planning.memories import MemoriesPlan, MemoriesProblem, Traffic
from passes.planning.overflow import (
    Bindings,
    Overflow,
    Places,
    TextPlaces,
    does_not_fit,
    live_at_the_peak,
)
from passes.planning.plan import Plan, Reuse, Status
from passes.planning.planner import (
    Budget,
    BudgetTracker,
    Solver,
    as_budget,
    declare,
    get_planner,
    planner_names,
    register,
)
from passes.planning.problem import (
    InPlacePair,
    Problem,
    Sharing,
    compressed,
    slots_that_meet,
    widest_alignment,
)
from passes.planning.solving import solve
from passes.planning.verify import PlanError, check, verify
from passes.planning.violations import Violation, charge
