# SPDX-License-Identifier: Apache-2.0
"""The plan of the lowest peak: a heuristic, then canonical placements below falling capacities."""

from __future__ import annotations

from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.orders import FAST_ORDERS
from passes.planning.plan import Plan, Status
from passes.planning.planner import BudgetTracker
from passes.planning.planners.feasibility import WHOLE_BLOCKS, FeasibilityCheck, Outcome
from passes.planning.planners.first_fit import fit
from passes.planning.planners.skyline import lowest_skyline

REST_PART = 4
"""The part of the budget for all but skylines where there are too many conflicts to list them."""
QUESTION_NODES = 50_000  # Nodes for each question of the first round below the best plan
FIRST_PART = 10  # The part of the budget for the first question where there are many blocks
MANY_BLOCKS = 1000
"""Blocks beyond which many skylines are made before the search asks for less and less."""
MOST_SCANNED = 200_000
"""Blocks above which quadratic first fit is skipped."""


def fitting(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return a plan within the capacity if one is found, penalties apart.

    That is a heuristic's, or what the search finds. If none is found, the status says whether that
    is proven.
    """
    capacity = block_list.problem.capacity
    if block_list.is_listed:
        orders = FAST_ORDERS if len(block_list) <= WHOLE_BLOCKS else FAST_ORDERS[:1]
        best = fit(block_list, tracker, "first", orders)
    else:
        share = tracker.reserve(REST_PART) if _is_searched(block_list) else tracker
        best = block_list.plan(lowest_skyline(block_list, share), "best")
    if best.status is Status.NOT_FOUND and capacity is not None and _is_searched(block_list):
        outcome, offsets = FeasibilityCheck(block_list).run(capacity, tracker.share(2))
        if outcome is Outcome.EXHAUSTED:
            return replace(best, status=Status.INFEASIBLE)
        if outcome is Outcome.FOUND:
            return block_list.plan(offsets, "best")
        if block_list.is_listed:
            return fit(block_list, tracker, "first")
    return best


def _is_searched(block_list: BlockList) -> bool:
    return block_list.is_listed or len(block_list) <= MOST_SCANNED


def minimise(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of the lowest peak found, penalties apart."""
    best = fitting(block_list, tracker)
    if best.status is not Status.FEASIBLE or tracker.left == 0 or not _is_searched(block_list):
        return best
    check = FeasibilityCheck(block_list)
    if block_list.is_listed and len(block_list) > MANY_BLOCKS:
        share = tracker.share(FIRST_PART, at_most=QUESTION_NODES)
        _, offsets = check.run(block_list.bound, share)
        found = block_list.plan(offsets or lowest_skyline(block_list, tracker.share(2)), "best")
        best = min(best, found, key=lambda plan: plan.peak)
    return _lower(block_list, check, best, tracker)


def _lower(
    block_list: BlockList, check: FeasibilityCheck, best: Plan, tracker: BudgetTracker
) -> Plan:
    """Bring the peak down, round by round, each with twice the nodes for a question.

    A round asks for the bound, then halves what is left between it and the best plan. A question
    that is left open is taken for a no, but not for a proof; the last open thousandth is left to
    the next round.
    """
    proven = block_list.bound  # The lowest peak that is not ruled out
    nodes = QUESTION_NODES
    while proven < best.peak and tracker.left:
        used = tracker.used
        low = question = proven
        while tracker.left and best.peak - low > (block_list.bound // 1000 if low > proven else 0):
            outcome, offsets = check.run(question, tracker.share(1, at_most=nodes))
            if outcome is Outcome.FOUND:
                best = block_list.plan(offsets, "best")
            else:
                low = question + 1
                if outcome is Outcome.EXHAUSTED:
                    proven = low
            question = max(low, (low + best.peak - 1) // 2)
        if tracker.used == used:
            break  # More nodes would change nothing.
        nodes *= 2
    return replace(best, status=Status.OPTIMAL) if best.peak <= proven else best
