# SPDX-License-Identifier: Apache-2.0
"""Plans of one problem for a cost model: penalties guide the planners, cycles decide.

First come the plan of the least penalty and those of the reuse levels. From there pairs of buffers
are kept apart that the cost model says wait for one another, the longest wait first, and the
problem is planned again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from passes.ascend.planning.level_limit import LEVELS, plan_at_level
from passes.ascend.planning.slot_choice import Cost, Planner
from passes.planning.bound import lower_bound
from passes.planning.engine.blocks import BlockList
from passes.planning.plan import Plan
from passes.planning.planner import BudgetTracker
from passes.planning.problem import Problem
from passes.planning.verify import verify

FIRST_PART = 4
"""The part of what is left that the plan of the least penalty may take."""

LEVEL_NODES = 1_000
"""For the plan of one reuse level."""

APART_NODES = 1_000
"""For the plan with some pairs kept apart."""

MOST_APART = 16
"""Plans with pairs kept apart that are asked for."""

WAITS = 3
"""Pairs that wait longest in a plan, each of which is kept apart in a next one."""

Pairs = frozenset[frozenset[str]]


def may_fit(problem: Problem) -> bool:
    """Whether no proof is at hand that a problem does not fit."""
    return problem.capacity is None or lower_bound(problem) <= problem.capacity


def is_right(problem: Problem, plan: Plan) -> bool:
    """Whether a plan fits, and the verifier finds nothing wrong with it."""
    return plan.fits and not verify(problem, plan, limit=1)


def waits_in(problem: Problem, cost: Cost) -> list[tuple[str, str]]:
    """Return the pairs of a problem's own buffers that wait for one another and can be moved."""
    movable = {buffer.name for buffer in problem.buffers if buffer.pinned is None}
    return [pair for pair in cost.waits if movable.issuperset(pair)]


def first_plans(
    problem: Problem, planner: Planner, meter: BudgetTracker, nodes: int
) -> Iterator[Plan]:
    """Yield plans that fit, no two alike: of the least penalty, and of the reuse levels.

    `planner` seeks the least penalty, within `nodes`; `meter` pays for all.
    """
    seen = []
    for plan in _planned(problem, planner, meter, nodes):
        meter.spend(plan.nodes)
        if plan.offsets not in seen and is_right(problem, plan):
            seen.append(plan.offsets)
            yield plan


def _planned(
    problem: Problem, planner: Planner, meter: BudgetTracker, nodes: int
) -> Iterator[Plan]:
    yield planner(problem, meter.share(FIRST_PART, at_most=nodes).rest())
    for level in LEVELS:
        yield plan_at_level(problem, level, meter.share(1, at_most=LEVEL_NODES).rest())


def plans_apart(
    problem: Problem,
    known: Sequence[Cost],
    planner: Planner,
    price: Callable[[Plan], Cost],
    meter: BudgetTracker,
    enough: int,
) -> None:
    """Price plans in which pairs are kept apart that wait for one another in other plans.

    The next ones are made from the plan of the fewest cycles, beginning with those whose costs are
    `known`, until one takes `enough` cycles, below which no plan is.
    """
    serial = count()
    waiting = [(cost.cycles, next(serial), cost, Pairs()) for cost in known]
    heapq.heapify(waiting)
    best = min((cost.cycles for cost in known), default=enough)
    asked: set[Pairs] = set()
    while waiting and best > enough:
        _, _, cost, apart = heapq.heappop(waiting)
        for pair in waits_in(problem, cost)[:WAITS]:
            pairs = apart | {frozenset(pair)}
            if pairs in asked:
                continue
            if len(asked) == MOST_APART or not meter.left:
                return
            asked.add(pairs)
            plan = _plan_apart(problem, pairs, planner, meter)
            if plan is not None:
                found = price(plan)
                best = min(best, found.cycles)
                heapq.heappush(waiting, (found.cycles, next(serial), found, pairs))


def _plan_apart(
    problem: Problem, pairs: Pairs, planner: Planner, meter: BudgetTracker
) -> Plan | None:
    """Return a plan of `problem` in which some pairs share nothing, if one is found."""
    known = {frozenset(pair) for pair in problem.separations}
    first_and_second = sorted(sorted(pair) for pair in pairs - known)
    changed = replace(
        problem,
        separations=(*problem.separations, *((one, two) for one, two in first_and_second)),
        in_place=tuple(pair for pair in problem.in_place if frozenset(pair) not in pairs),
        penalties=tuple(
            penalty
            for penalty in problem.penalties
            if frozenset((penalty.first, penalty.second)) not in pairs
        ),
    )
    if not may_fit(changed):
        return None
    found = planner(changed, meter.share(1, at_most=APART_NODES).rest())
    meter.spend(found.nodes)
    plan = BlockList(problem).plan_of(found.offsets, found.planner, found.nodes)
    return plan if is_right(problem, plan) else None
