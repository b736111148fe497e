# SPDX-License-Identifier: Apache-2.0
"""The allocations of a PrimFunc: problems are read from it, and plans are written into it."""

from passes.prim_func.address import drop_addresses, write_addresses
from passes.prim_func.arena import Arena, write_arenas
from passes.prim_func.function_problems import (
    Allocation,
    AllocationNote,
    AttachedProblem,
    FunctionProblems,
)
from passes.prim_func.module_calls import Callers, CallGraph, call_sites, callers_of, find_calls
from passes.prim_func.problem_options import DEFAULT_ALIGNMENT, ProblemOptions
from passes.prim_func.problems import find_problems
from passes.prim_func.sink_allocations import sink_allocations
from passes.prim_func.statement_lines import overflow_in, statement_lines

__all__ = [
    "DEFAULT_ALIGNMENT",
    "Allocation",
    "AllocationNote",
    "Arena",
    "AttachedProblem",
    "CallGraph",
    "Callers",
    "FunctionProblems",
    "ProblemOptions",
    "call_sites",
    "callers_of",
    "drop_addresses",
    "find_calls",
    "find_problems",
    "overflow_in",
    "sink_allocations",
    "statement_lines",
    "write_addresses",
    "write_arenas",
]
