# SPDX-License-Identifier: Apache-2.0
"""Search for the best plan, to the end where the problem is small, and say what is proven of it.

A dense set of penalties has far too many to branch on. So where not everything can be placed
without a penalty, a plan that fits is found with no regard to penalties, and from there buffers are
moved a few at a time (see `passes.planning.planners.relocation`).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from passes.planning.engine.blocks import BlockList, widened
from passes.planning.engine.coalesce import better, cost_free, on_each_coalescing, rank
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.exact import WeightedSearch, widenings
from passes.planning.planners.feasibility import FeasibilityCheck, Outcome
from passes.planning.planners.first_fit import fit
from passes.planning.planners.relocation import MOST_PAIRS, improved
from passes.planning.problem import Problem

NAME = "best"
EXACT_BLOCKS = 24
"""Blocks up to which costs and in-place pairs are searched to the end, if the budget allows."""
EXACT_NODES = 6000  # Nodes that this may take: each takes ten times as long as in the other search
EXACT_WIDENINGS = 64  # Ways to give buffers more offsets than slots, up to which all are searched
FREE_PART = 4  # The part of the budget for a plan that pays nothing
SEARCHED_PAIRS = 60_000_000
"""Pairs of blocks live together up to which there is a search: first fit ends each question."""
QUESTION_NODES = 50_000  # Nodes for each question of the first round below the best plan
PATIENCE = 4  # Rounds of moves without a better plan after which other ways are tried first


@register(NAME)
def best(problem: Problem, budget: Budget) -> Plan:
    """Search depth-first over canonical placements, with heuristics as a start.

    Asks whether the capacity can be met, then the lower bound, then halves what is left between
    the bound and the best plan. Deterministic in the budget's nodes; says what it has proven.
    Time that is given is used up unless the penalty is proven; nodes alone are a limit.
    """
    tracker = BudgetTracker(budget)
    whole = BlockList(problem)
    # Pairs in place are searched one way, then the other, which first fit has time for.
    first = _fitted(whole, tracker) if problem.in_place and not problem.penalties else None
    if first is not None and (first.status is Status.OPTIMAL or not tracker.left):
        return replace(first, planner=NAME)
    to_the_end = len(whole) <= EXACT_BLOCKS and bool(problem.in_place or problem.penalties)
    share = tracker.share(2 if to_the_end else 1)
    plan = on_each_coalescing(whole, lambda block_list: _cheapest(block_list, share))
    if first is not None and plan.status is not Status.INFEASIBLE:
        plan = better(problem, (plan, first))
    if plan.status is not Status.OPTIMAL and (problem.in_place or problem.penalties):
        plan = _exactly(whole, plan, tracker)
    if plan.status is Status.FEASIBLE and plan.penalty and budget.seconds is not None:
        plan = _relocated(whole, plan, tracker, inf)
    is_open = plan.status in (Status.FEASIBLE, Status.NOT_FOUND)
    if is_open and problem.penalties and not tracker.expired:
        plan = better(problem, (plan, _fitted(whole, tracker)))
    return replace(plan, planner=NAME, nodes=tracker.used)


def _fitted(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of the planner `first_fit`."""
    return on_each_coalescing(block_list, lambda each: fit(each, tracker))


def _exactly(block_list: BlockList, plan: Plan, tracker: BudgetTracker) -> Plan:
    """Return the best plan if the problem is small enough to be searched to the end."""
    problem = block_list.problem
    variants = widenings(problem, EXACT_WIDENINGS) if len(block_list) <= EXACT_BLOCKS else None
    if variants is None or plan.status is Status.INFEASIBLE:
        return plan
    tracker = tracker.share(1, at_most=EXACT_NODES)
    complete = True
    worst = (sum(penalty.cost for penalty in problem.penalties) + 1, 0)  # no plan is as bad
    for variant in variants:
        wide = block_list if variant is problem else BlockList(variant)
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
            plan = block_list.plan_of(wide.plan(exact.best, "best").offsets, NAME)
    if not complete or plan.status is Status.OPTIMAL:
        return plan
    return replace(plan, status=Status.OPTIMAL if plan.fits else Status.INFEASIBLE)


def _cheapest(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the best plan found for a block list without undecided in-place pairs."""
    if not block_list.soft:
        return minimise(block_list, tracker)
    problem = block_list.problem
    free = BlockList(cost_free(problem))
    found = fitting(free, tracker.share(FREE_PART))
    if found.fits:
        found = minimise(free, tracker)
        return replace(block_list.plan(free.flat(found), NAME), status=found.status)
    blind = BlockList(replace(problem, penalties=()))
    found = fitting(blind, tracker.share(2))
    start = block_list.plan(blind.flat(found), NAME)
    if not found.fits:
        return replace(start, status=found.status)
    return _relocated(block_list, start, tracker)


def _relocated(
    block_list: BlockList, plan: Plan, tracker: BudgetTracker, patience: float = PATIENCE
) -> Plan:
    """Return the best plan found by moving buffers, each with the offsets that it has now."""
    problem, wide = block_list.problem, _as_wide(block_list, plan)
    is_large = wide.live_pairs + len(problem.penalties) > MOST_PAIRS
    if plan.penalty == 0 or is_large or not tracker.left:
        return plan
    moved = wide.plan(improved(wide, wide.flat(plan), tracker, patience), NAME)
    other = block_list.plan_of(moved.offsets, NAME)
    return other if rank(problem, other) < rank(problem, plan) else plan


def _as_wide(block_list: BlockList, plan: Plan) -> BlockList:
    """Return the block list in which each buffer has as many slots as offsets in `plan`."""
    wide = widened(block_list.problem, {name: len(at) for name, at in plan.offsets.items()})
    return block_list if wide is block_list.problem else BlockList(wide)


# The lowest peak, penalties apart: a heuristic, then placements below falling capacities


def fitting(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return a plan within the capacity if one is found, penalties apart.

    That is a heuristic's, or what the search finds. If none is found, the status says whether that
    is proven.
    """
    capacity = block_list.problem.capacity
    best = fit(block_list, tracker)
    if (
        best.status is Status.NOT_FOUND
        and capacity is not None
        and block_list.live_pairs <= SEARCHED_PAIRS
    ):
        outcome, offsets = FeasibilityCheck(block_list).run(capacity, tracker)
        if outcome is Outcome.EXHAUSTED:
            return replace(best, status=Status.INFEASIBLE)
        if outcome is Outcome.FOUND:
            return block_list.plan(offsets, "best")
    return best


def minimise(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the plan of the lowest peak found, penalties apart.

    The peak is brought down round by round, each with twice the nodes for a question. A round asks
    for the bound, then halves what is left between it and the best plan. A question that is left
    open is taken for a no, but not for a proof; the last open thousandth is left to the next round.
    """
    best = fitting(block_list, tracker)
    if best.status is not Status.FEASIBLE or block_list.live_pairs > SEARCHED_PAIRS:
        return best
    check = FeasibilityCheck(block_list)
    proven = block_list.bound  # The lowest peak that is not ruled out
    nodes = QUESTION_NODES
    while proven < best.peak and tracker.left:
        used = tracker.used
        low = question = proven
        while tracker.left and best.peak - low > (block_list.bound // 1000 if low > proven else 0):
            outcome, offsets = check.run(question, tracker.share(1, at_most=nodes))
            if offsets and block_list.peak(offsets) < best.peak:
                best = block_list.plan(offsets, "best")
            if outcome is not Outcome.FOUND:
                low = question + 1
                if outcome is Outcome.EXHAUSTED:
                    proven = low
            question = max(low, (low + best.peak - 1) // 2)
        if tracker.used == used:
            break  # More nodes would change nothing.
        nodes *= 2
    return replace(best, status=Status.OPTIMAL) if best.peak <= proven else best
