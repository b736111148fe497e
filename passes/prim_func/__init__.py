# SPDX-License-Identifier: Apache-2.0
"""The allocations of a PrimFunc: problems are read from it, and plans are written into it."""

from passes.prim_func.address import (
    VIEWS_REFUSE,
    before_branches,
    before_carrying_loops,
    drop_addresses,
    write_addresses,
)
from passes.prim_func.arena import Arena, names_with_pointers, write_arenas
from passes.prim_func.arena_views import index_type, offset_in_elements
from passes.prim_func.element_order import comes_first
from passes.prim_func.function_problems import (
    AllocationNote,
    AttachedProblem,
    FunctionProblems,
    pairs_that_take_turns,
)
from passes.prim_func.module_calls import (
    Callers,
    CallGraph,
    call_sites,
    callers_of,
    find_calls,
)
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.prim_func.statement_lines import overflow_in, statement_lines
from passes.prim_func.target_memory import (
    ADDRESS_SPACES,
    has_exact_dtype,
    limits_of,
    memory_of,
    options_of,
    warn_of_limit,
)
from passes.prim_func.thread_races import races_with_any
