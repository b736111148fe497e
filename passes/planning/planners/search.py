# SPDX-License-Identifier: Apache-2.0
"""Search for the best plan: heuristics, then canonical placements below falling capacities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.exact import WeightedSearch
from passes.planning.engine.orders import FAST_ORDERS
from passes.planning.engine.penalty_bound import penalty_bound
from passes.planning.engine.ranking import better, on_each_coalescing, rank
from passes.planning.engine.widen import widenings
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.branch_and_bound.feasibility import WHOLE_BLOCKS, FeasibilityCheck
from passes.planning.planners.branch_and_bound.search import Outcome
from passes.planning.planners.first_fit.planner import fit
from passes.planning.planners.neighborhood.improve import MOST_BLOCKS, improved
from passes.planning.planners.skyline.planner import best_skyline
from passes.planning.planners.skyline.squeaky_wheel import lowest_skyline
from passes.planning.problem import Penalty, Problem

EXACT_BLOCKS = 24
"""Blocks up to which costs and in-place pairs are searched to the end, if the budget allows."""
EXACT_NODES = 6000
"""Nodes that this may take: each takes ten times as long as in the other search."""
EXACT_WIDENINGS = 64
"""Ways to give buffers more offsets than slots, up to which all are searched."""
FREE_PART = 4
"""The part of the budget for a plan that pays nothing."""
REST_PART = 4
"""The part of the budget for all but skylines where there are too many conflicts to list them."""
PEAK_PART = 10
"""The part of what is left for a lower peak at the same penalty."""
QUESTION_NODES = 50_000
"""Nodes for each question of the first round below the best plan."""
FIRST_PART = 10
"""The part of the budget for the first question where there are many blocks."""
MANY_BLOCKS = 1000
"""Blocks beyond which many skylines are made before the search asks for less and less."""
MOST_SCANNED = 200_000
"""Blocks beyond which no time is enough to fit one after the other between all others."""


@register("search")
def search(problem: Problem, budget: Budget) -> Plan:
    """Search depth-first over canonical placements, with heuristics as a start.

    Asks whether the capacity can be met, then the lower bound, then halves what is left between
    the bound and the best plan. Deterministic in the budget's nodes; says what it has proven.
    """
    tracker = BudgetTracker(budget)
    blocks = sum(buffer.slots for buffer in problem.buffers)
    to_the_end = blocks <= EXACT_BLOCKS and bool(problem.in_place or problem.penalties)
    share = tracker.share(2 if to_the_end else 1)
    plan = on_each_coalescing(problem, lambda block_list: _search(block_list, share))
    if plan.status is not Status.OPTIMAL and (problem.in_place or problem.penalties):
        plan = exactly(problem, plan, tracker)
    return replace(_judged(problem, plan), planner="search", nodes=tracker.used)


def _search(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the best plan found for a block list without undecided in-place pairs."""
    if not block_list.soft:
        return minimise(block_list, tracker)
    free = BlockList(cost_free(block_list.problem))
    found = minimise(free, tracker.share(FREE_PART))
    if found.fits:
        return replace(block_list.plan(free.flat(found), "search"), status=found.status)
    return _cheapen(block_list, tracker)


def minimise(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of the lowest peak found, penalties apart."""
    capacity = block_list.problem.capacity
    best = better(block_list.problem, _quick(block_list, tracker), tracker)
    if best.status in (Status.OPTIMAL, Status.INFEASIBLE) or tracker.left == 0:
        return best
    if len(block_list) > MOST_SCANNED and not block_list.is_listed:
        return best
    check = FeasibilityCheck(block_list)
    if not best.fits and capacity is not None:
        answer = check.run(capacity, tracker.share(2))
        if answer.outcome is Outcome.EXHAUSTED:
            return replace(best, status=Status.INFEASIBLE)
        if answer.offsets is not None:
            best = block_list.plan(answer.offsets, "search")
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
            yield block_list.plan(answer.offsets, "search")
    yield block_list.plan(lowest_skyline(block_list, tracker.share(2)), "search")


def _quick(block_list: BlockList, tracker: BudgetTracker) -> Iterator[Plan]:
    """Yield the plans of the heuristics, the cheapest to make first."""
    low = None
    if not block_list.is_listed:
        large = len(block_list) > MOST_SCANNED
        low = best_skyline(block_list, tracker if large else tracker.reserve(REST_PART))
        yield low
        if large:
            return
    if len(block_list) > WHOLE_BLOCKS:  # where one costs as much as a core
        yield fit(block_list, tracker, "first", FAST_ORDERS[:1], low)
        return
    yield fit(block_list, tracker, "first", FAST_ORDERS)
    yield fit(block_list, tracker, "best", FAST_ORDERS[:2])
    yield best_skyline(block_list, tracker)


def _lower(
    block_list: BlockList, check: FeasibilityCheck, best: Plan, tracker: BudgetTracker
) -> Plan:
    """Bring the peak down, round by round, each with twice the nodes for a question."""
    step = _granularity(block_list)
    proven = -(-block_list.bound // step) * step
    turn = 0
    while proven < best.peak and tracker.left:
        used = tracker.used
        best, proven = _halve(block_list, check, best, proven, tracker, turn)
        if tracker.used == used:
            break  # more nodes would change nothing
        turn += 1
    if best.peak <= proven:
        best = replace(best, status=Status.OPTIMAL)
    return best


def _halve(
    block_list: BlockList,
    check: FeasibilityCheck,
    best: Plan,
    proven: int,
    tracker: BudgetTracker,
    turn: int,
) -> tuple[Plan, int]:
    """Ask for the bound, then halve what is left between it and the best plan.

    `proven` is the lowest peak that is not ruled out. A question that is left open is taken for a
    no, but not for a proof; the last open thousandth is left to the next round.
    """
    step = _granularity(block_list)
    effort = QUESTION_NODES << turn
    low = question = proven
    while tracker.left and best.peak - low > (block_list.bound // 1000 if low > proven else 0):
        answer = check.run(question, tracker.share(1, at_most=effort), turn)
        if answer.offsets is not None:
            best = block_list.plan(answer.offsets, "search")
        else:
            low = question + step
            if answer.outcome is Outcome.EXHAUSTED:
                proven = low
        question = max(low, (low + best.peak - step) // 2 // step * step)
    return best, proven


def _granularity(block_list: BlockList) -> int:
    """Return a number of bytes that every peak of a canonical placement is a multiple of."""
    fixed = [bound for pair in block_list.problem.memory.reserved for bound in pair]
    return (
        math.gcd(*block_list.sizes, *block_list.alignments, *block_list.pinned.values(), *fixed)
        or 1
    )


def _cheapen(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of least penalty found where some penalty seems to be needed."""
    best = better(block_list.problem, _starts(block_list, tracker), tracker)
    if not best.fits:
        blind = BlockList(replace(block_list.problem, penalties=()))
        found = minimise(blind, tracker.share(2))
        best = block_list.plan(blind.flat(found), "search")
        if not found.fits:
            return replace(best, status=found.status)
    if len(block_list) <= MOST_BLOCKS:
        offsets = improved(block_list, block_list.flat(best), tracker.reserve(PEAK_PART))
        best = block_list.plan(offsets, "search")
    return lowered(block_list, best, tracker)


def _starts(block_list: BlockList, tracker: BudgetTracker) -> Iterator[Plan]:
    yield fit(block_list, tracker, "first", FAST_ORDERS)
    yield best_skyline(block_list, tracker)


def lowered(block_list: BlockList, plan: Plan, tracker: BudgetTracker) -> Plan:
    """Return a plan of a lower peak that shares nothing at a cost but what `plan` shares.

    That is `plan` itself where no better one was found. It fits, with as many offsets for each
    buffer as there are slots, and no pair of the block list is in place.
    """
    problem, flat = block_list.problem, block_list.flat(plan)
    kept = tuple(p for p in problem.penalties if not is_due(block_list, flat, p))
    free = BlockList(cost_free(replace(problem, penalties=kept)))
    found = minimise(free, tracker)
    other = block_list.plan(free.flat(found), plan.planner)
    return other if rank(problem, other) < rank(problem, plan) else plan


def is_due(block_list: BlockList, flat: list[int], penalty: Penalty) -> bool:
    """Whether the buffers of a penalty share bytes; `flat` is an offset in bytes for each block."""
    sizes = block_list.sizes
    return any(
        flat[one] < flat[two] + sizes[two] and flat[two] < flat[one] + sizes[one]
        for one, two in block_list.sized_pairs(penalty.first, penalty.second)
    )


def cost_free(problem: Problem) -> Problem:
    """Return the problem, which has no pairs in place, with all separated that has a cost."""
    separations = (*problem.separations, *avoidable(problem))
    return replace(problem, separations=separations, penalties=())


def avoidable(problem: Problem) -> list[tuple[str, str]]:
    """Return the penalized pairs that may be kept apart, and are not yet.

    What pinned buffers share cannot be changed, so it is left out.
    """
    apart = {frozenset(pair) for pair in problem.separations}
    return [
        (penalty.first, penalty.second)
        for penalty in problem.penalties
        if frozenset((penalty.first, penalty.second)) not in apart
        and any(
            problem.buffers[problem.index[name]].pinned is None
            for name in (penalty.first, penalty.second)
        )
    ]


def _judged(problem: Problem, plan: Plan) -> Plan:
    """Return `plan` as optimal if the lower bounds prove that no plan is better."""
    if not problem.penalties or plan.status is not Status.FEASIBLE:
        return plan
    block_list = BlockList(problem)
    if plan.penalty > penalty_bound(block_list, problem.capacity):
        return plan
    if plan.peak > block_list.bound and plan.penalty >= penalty_bound(block_list, plan.peak - 1):
        return plan
    return replace(plan, status=Status.OPTIMAL)


def exactly(problem: Problem, plan: Plan, tracker: BudgetTracker) -> Plan:
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
            plan = block_list.plan_of(wide.plan(exact.best, "search").offsets, "search")
    if not complete or plan.status is Status.OPTIMAL:
        return plan
    return replace(plan, status=Status.OPTIMAL if plan.fits else Status.INFEASIBLE)
