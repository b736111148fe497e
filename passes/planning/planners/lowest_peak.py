# SPDX-License-Identifier: Apache-2.0
"""The plan of the lowest peak: heuristics, then canonical placements below falling capacities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.orders import FAST_ORDERS
from passes.planning.engine.ranking import better
from passes.planning.plan import Plan, Status
from passes.planning.planner import BudgetTracker
from passes.planning.planners.branch_and_bound.feasibility import WHOLE_BLOCKS, FeasibilityCheck
from passes.planning.planners.branch_and_bound.search import Outcome
from passes.planning.planners.first_fit import fit
from passes.planning.planners.skyline.planner import best_skyline
from passes.planning.planners.skyline.squeaky_wheel import lowest_skyline

REST_PART = 4
"""The part of the budget for all but skylines where there are too many conflicts to list them."""
QUESTION_NODES = 50_000  # Nodes for each question of the first round below the best plan
FIRST_PART = 10  # The part of the budget for the first question where there are many blocks
MANY_BLOCKS = 1000
"""Blocks beyond which many skylines are made before the search asks for less and less."""
MOST_SCANNED = 200_000
"""Blocks beyond which no time is enough to fit one after the other between all others."""


def minimise(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of the lowest peak found, penalties apart."""
    if not block_list.is_listed and len(block_list) > MOST_SCANNED:
        return best_skyline(block_list, tracker)
    capacity = block_list.problem.capacity
    best = better(block_list.problem, _quick(block_list, tracker), tracker)
    if best.status in (Status.OPTIMAL, Status.INFEASIBLE) or tracker.left == 0:
        return best
    check = FeasibilityCheck(block_list)
    if not best.fits and capacity is not None:
        answer = check.run(capacity, tracker.share(2))
        if answer.outcome is Outcome.EXHAUSTED:
            return replace(best, status=Status.INFEASIBLE)
        if answer.offsets is not None:
            best = block_list.plan(answer.offsets, "best")
    if block_list.is_listed and len(block_list) > MANY_BLOCKS:
        best = better(block_list.problem, _skylines(block_list, check, best, tracker), tracker)
    return _lower(block_list, check, best, tracker) if best.fits else best


def _skylines(
    block_list: BlockList, check: FeasibilityCheck, best: Plan, tracker: BudgetTracker
) -> Iterator[Plan]:
    """Yield `best`, what the search finds at the bound, and the lowest of many skylines."""
    yield best
    if best.fits:
        answer = check.run(block_list.bound, tracker.share(FIRST_PART, at_most=QUESTION_NODES))
        if answer.offsets is not None:
            yield block_list.plan(answer.offsets, "best")
    yield block_list.plan(lowest_skyline(block_list, tracker.share(2)), "best")


def _quick(block_list: BlockList, tracker: BudgetTracker) -> Iterator[Plan]:
    """Yield the plans of the heuristics, the cheapest to make first."""
    if not block_list.is_listed:
        yield best_skyline(block_list, tracker.reserve(REST_PART))
        return
    if len(block_list) > WHOLE_BLOCKS:  # where one costs as much as a core
        yield fit(block_list, tracker, "first", FAST_ORDERS[:1])
        return
    yield fit(block_list, tracker, "first", FAST_ORDERS)
    yield fit(block_list, tracker, "best", FAST_ORDERS[:2])
    yield best_skyline(block_list, tracker)


def _lower(
    block_list: BlockList, check: FeasibilityCheck, best: Plan, tracker: BudgetTracker
) -> Plan:
    """Bring the peak down, round by round, each with twice the nodes for a question.

    A round asks for the bound, then halves what is left between it and the best plan. A question
    that is left open is taken for a no, but not for a proof; the last open thousandth is left to
    the next round.
    """
    step = _granularity(block_list)
    proven = -(-block_list.bound // step) * step  # The lowest peak that is not ruled out
    turn = 0
    while proven < best.peak and tracker.left:
        used = tracker.used
        low = question = proven
        while tracker.left and best.peak - low > (block_list.bound // 1000 if low > proven else 0):
            answer = check.run(question, tracker.share(1, at_most=QUESTION_NODES << turn), turn)
            if answer.offsets is not None:
                best = block_list.plan(answer.offsets, "best")
            else:
                low = question + step
                if answer.outcome is Outcome.EXHAUSTED:
                    proven = low
            question = max(low, (low + best.peak - step) // 2 // step * step)
        if tracker.used == used:
            break  # more nodes would change nothing
        turn += 1
    return replace(best, status=Status.OPTIMAL) if best.peak <= proven else best


def _granularity(block_list: BlockList) -> int:
    """Return a number of bytes that every peak of a canonical placement is a multiple of."""
    fixed = [bound for pair in block_list.problem.memory.reserved for bound in pair]
    return (
        math.gcd(*block_list.sizes, *block_list.alignments, *block_list.pinned.values(), *fixed)
        or 1
    )
