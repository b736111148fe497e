# SPDX-License-Identifier: Apache-2.0
"""The default planner, and the policy of not sharing without need."""

from __future__ import annotations

from passes.planning.engine.ranking import better
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.bump import bump
from passes.planning.planners.first_fit.planner import first_fit
from passes.planning.planners.search import search
from passes.planning.problem import Problem

LARGE = 500
"""Buffers beyond which first fit costs more than the search, which has heuristics of its own."""


@register("best")
def best(problem: Problem, budget: Budget) -> Plan:
    """Take the plan of first fit where it is proven optimal, else search.

    Best fit and skylines by themselves found no better plan on any public instance, and took as
    much time again (`benchmarks/planner_ablation.py`). The plan names the planner that made it.
    """
    if problem.penalties or len(problem.buffers) > LARGE:
        return search(problem, budget)
    tracker = BudgetTracker(budget)
    quick = first_fit(problem, budget)
    if quick.status is Status.OPTIMAL or tracker.expired:
        return quick
    return better(problem, (quick, search(problem, tracker.rest())))


@register("bump_or_best")
def bump_or_best(problem: Problem, budget: Budget) -> Plan:
    """Share nothing where everything fits without; else plan as `best` does.

    The policy for on-chip memory, where sharing can cost time and free bytes are worth nothing:
    AscendNPU-IR's PlanMemory starts with the same question. Without a capacity it is `bump`.
    """
    plan = bump(problem, budget)
    if plan.fits:
        return plan
    return best(problem, budget)
