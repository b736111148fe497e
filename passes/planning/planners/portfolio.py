# SPDX-License-Identifier: Apache-2.0
"""The portfolio: every way of planning that pays, and the policy of not sharing without need."""

from __future__ import annotations

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.ranking import better
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.bump import bump
from passes.planning.planners.first_fit.planner import best_fit, first_fit
from passes.planning.planners.search import search
from passes.planning.planners.skyline.planner import skyline
from passes.planning.problem import Problem

LARGE = 500
"""Buffers beyond which the search comes first: there it costs less than the other planners."""
HUGE = 200_000
"""Buffers beyond which the search alone takes all time that there is.

So it does where the pairs live together are too many to be listed.
"""


@register("best")
def best(problem: Problem, budget: Budget) -> Plan:
    """Ask first fit, best fit, skyline and search, and keep the best plan.

    Stops at the first plan that is proven optimal. The plan names the planner that made it.
    """
    tracker = BudgetTracker(budget)
    asked = [first_fit, best_fit, skyline, search]
    many = len(problem.buffers) > LARGE
    if many or problem.penalties:
        asked = [search, first_fit, best_fit, skyline]
    if len(problem.buffers) > HUGE or (many and not BlockList(problem).is_listed):
        asked = [search]
    return better(problem, (run(problem, tracker.rest()) for run in asked), tracker)


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
