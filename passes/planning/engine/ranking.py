# SPDX-License-Identifier: Apache-2.0
"""Which of several plans is better, and where to stop looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.coalesce import Coalesced, apart, coalesce
from passes.planning.plan import Plan, Status
from passes.planning.planner import BudgetTracker
from passes.planning.problem import Problem

PROVEN = (Status.OPTIMAL, Status.INFEASIBLE)


def rank(problem: Problem, plan: Plan) -> tuple[int, int, int]:
    """Return what to minimise: a plan that fits, its penalty, its peak.

    Among plans that do not fit, the lower peak comes first: it is nearer to fitting.
    """
    if problem.capacity is not None and plan.peak > problem.capacity:
        return (1, plan.peak, plan.penalty)
    return (0, plan.penalty, plan.peak)


def better(problem: Problem, plans: Iterable[Plan], tracker: BudgetTracker | None = None) -> Plan:
    """Return the best of `plans`, the first among equals, with all that is proven of it.

    Looks no further once a plan is proven optimal, or the tracker is late.
    """
    best: Plan | None = None
    for plan in plans:
        if best is None or rank(problem, plan) < rank(problem, best):
            best = plan
        elif rank(problem, plan) == rank(problem, best) and plan.status in PROVEN:
            best = replace(best, status=plan.status)
        if best.status is Status.OPTIMAL or (tracker is not None and tracker.expired):
            break
    assert best is not None, "there is always a first plan"
    return best


def on_each_coalescing(problem: Problem, run: Callable[[BlockList], Plan]) -> Plan:
    """Plan with the in-place pairs merged, then, if that is not proven best, kept apart."""
    whole = BlockList(problem)
    if not problem.in_place:
        return run(whole)

    def planned(reduced: Coalesced) -> Plan:
        found = run(BlockList(reduced.problem))
        return whole.plan_of(reduced.restore(found, problem), found.planner, found.nodes)

    return better(problem, (planned(reduce(problem)) for reduce in (coalesce, apart)))
