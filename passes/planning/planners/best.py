# SPDX-License-Identifier: Apache-2.0
"""Search for the best plan, to the end where the problem is small, and say what is proven of it."""

from __future__ import annotations

from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.ranking import on_each_coalescing
from passes.planning.engine.widen import widenings
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.exact import WeightedSearch
from passes.planning.planners.least_penalty import cheapest, prolonged
from passes.planning.problem import Problem

EXACT_BLOCKS = 24
"""Blocks up to which costs and in-place pairs are searched to the end, if the budget allows."""
EXACT_NODES = 6000  # Nodes that this may take: each takes ten times as long as in the other search
EXACT_WIDENINGS = 64  # Ways to give buffers more offsets than slots, up to which all are searched


@register("best")
def best(problem: Problem, budget: Budget) -> Plan:
    """Search depth-first over canonical placements, with heuristics as a start.

    Asks whether the capacity can be met, then the lower bound, then halves what is left between
    the bound and the best plan. Deterministic in the budget's nodes; says what it has proven.
    Time that is given is used up unless the penalty is proven; nodes alone are a limit.
    """
    tracker = BudgetTracker(budget)
    blocks = sum(buffer.slots for buffer in problem.buffers)
    to_the_end = blocks <= EXACT_BLOCKS and bool(problem.in_place or problem.penalties)
    share = tracker.share(2 if to_the_end else 1)
    plan = on_each_coalescing(problem, lambda block_list: cheapest(block_list, share))
    if plan.status is not Status.OPTIMAL and (problem.in_place or problem.penalties):
        plan = _exactly(problem, plan, tracker)
    if plan.status is Status.FEASIBLE and plan.penalty and budget.seconds is not None:
        plan = prolonged(problem, plan, tracker)
    return replace(plan, planner="best", nodes=tracker.used)


def _exactly(problem: Problem, plan: Plan, tracker: BudgetTracker) -> Plan:
    """Return the best plan if the problem is small enough to be searched to the end."""
    block_list = BlockList(problem)
    variants = widenings(problem, EXACT_WIDENINGS) if len(block_list) <= EXACT_BLOCKS else None
    if variants is None or plan.status is Status.INFEASIBLE:
        return plan
    tracker = tracker.share(1, at_most=EXACT_NODES)
    complete = True
    worst = (sum(penalty.cost for penalty in problem.penalties) + 1, 0)  # no plan is as bad
    for variant in variants:
        wide = BlockList(variant)
        incumbent = (plan.penalty, plan.peak) if plan.fits else worst
        if len(wide) > EXACT_BLOCKS:
            complete = False
            continue
        if problem.capacity is not None and wide.bound > problem.capacity:
            continue
        exact = WeightedSearch(wide, incumbent, tracker)
        exact.run()
        complete = complete and exact.complete
        if exact.best is not None:
            plan = block_list.plan_of(wide.plan(exact.best, "best").offsets, "best")
    if not complete or plan.status is Status.OPTIMAL:
        return plan
    return replace(plan, status=Status.OPTIMAL if plan.fits else Status.INFEASIBLE)
