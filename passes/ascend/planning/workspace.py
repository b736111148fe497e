# SPDX-License-Identifier: Apache-2.0
"""Planning of a workspace: memory without an end, whose size is what is asked for.

Source of the rules: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect, mode
``global-work-space-plan``.
"""

from __future__ import annotations

from dataclasses import replace

from passes.ascend.planning.entries import by_buffer, entries_of, granule, sequential
from passes.ascend.planning.mirror import mirror
from passes.planning.engine.blocks import BlockList
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, solve
from passes.planning.problem import Problem, widest_alignment


def plan_workspace(
    problem: Problem, budget: Budget | None = None, *, reuse: bool = False, search: str = "search"
) -> Plan:
    """Lay buffers out one after the other; with `reuse` those not live together may share bytes.

    Then "search" looks for the lowest peak, and "mirror" is the original: first fit. A capacity of
    the memory is not looked at.
    """
    problem = replace(problem, memory=replace(problem.memory, capacity=None))
    if reuse and search == "search":
        return solve(problem, "best", budget)
    if granule(problem) > widest_alignment(problem):
        # Nothing can stand at multiples of all alignments at once.
        return solve(problem, "bump")
    entries, block_list = entries_of(problem), BlockList(problem)
    if not reuse:
        return block_list.plan_of(by_buffer(entries, sequential(problem, entries)), "sequential")
    placed = mirror(problem, entries, BudgetTracker(budget or Budget()))
    return block_list.plan_of(by_buffer(entries, placed.offsets), "three_level_mirror")
