# SPDX-License-Identifier: Apache-2.0
"""The buffers that compete for one memory, planned by several planners."""

from __future__ import annotations

from collections.abc import Sequence

from passes.gmem.planning.gmem_layout import aligned
from passes.planning import Budget, Plan, Problem, lower_bound
from tvm_ext.comparison.planner_results import ScopeResult
from tvm_ext.planned_memory import plan_memory

SEARCH_NODES = 100_000
"""Placements that a planner may try by default: an answer within seconds."""

Placed = tuple[tuple[Problem, Plan], ...]


def plan_scope(
    function: str,
    scope: str,
    problems: Sequence[Problem],
    planners: Sequence[str],
    budget: Budget,
    stock: int | None = None,
) -> tuple[ScopeResult, dict[str, Placed]]:
    """Plan the problems of one memory, one for each point of the function where there is memory.

    `function` and `scope` are what the result calls them; bytes of several problems are added up.
    `stock` is what the stock pass allocates in all. Returned are the result and, by planner, what
    it made of each problem.
    """
    results, placed = [], {}
    for name in planners:
        result, plans = plan_memory(problems, name, budget)
        results.append(result)
        placed[name] = tuple(zip(problems, plans, strict=True))
    buffers = [buffer for problem in problems for buffer in problem.buffers]
    has_slots = any(buffer.slots > 1 for buffer in buffers)
    whole = ScopeResult(
        function,
        scope,
        len(buffers),
        problems[0].capacity,
        sum(end_of((problem,), _without_reuse(problem)) for problem in problems),
        None if stock is None or has_slots else end_of(problems, stock),
        tuple(results),
        sum(map(lower_bound, problems)),
        sum(end - begin for begin, end in problems[0].memory.reserved),
    )
    return whole, placed


def _without_reuse(problem: Problem) -> int:
    return sum(aligned(b.size, problem.alignment_of(b)) * b.slots for b in problem.buffers)


def end_of(problems: Sequence[Problem], nbytes: int) -> int:
    """Return where allocations end in a memory, as a plan's peak says it: above what is reserved.

    The problems are those of one memory, and `nbytes` is what is allocated for all of them
    together. Each but the last is taken to have as much of that as it needs at least.
    """
    total = 0
    for number, problem in enumerate(problems, 1):
        bound, part = lower_bound(problem), nbytes
        if number < len(problems):
            reserved = problem.memory.reserved
            part = min(nbytes, bound - sum(max(0, min(bound, e) - b) for b, e in reserved))
        nbytes -= part
        for begin, end in problem.memory.reserved:
            part += end - begin if begin < part else 0
        total += part
    return total
