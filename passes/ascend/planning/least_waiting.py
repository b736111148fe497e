# SPDX-License-Identifier: Apache-2.0
"""The search for the plan that makes pipelines wait least, on the engine of the byte offsets.

A dense set of penalties has far too many to branch on. So the engine is asked what it is good at,
whether there is a plan at all, with all pairs separated that cost as much as a limit or more: the
lowest limit that can be met is found by bisection. From there buffers are moved a few at a time
(see `passes.planning.planners.neighborhood`). Those that stall a multi-buffered one get all of its
offsets, where that costs less. At last the peak is brought down, with all that is not shared kept
apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.ranking import on_each_coalescing, rank
from passes.planning.engine.widen import widened
from passes.planning.plan import Plan, Status
from passes.planning.planner import BudgetTracker
from passes.planning.planners.branch_and_bound.feasibility import FeasibilityCheck
from passes.planning.planners.neighborhood.improve import MOST_BLOCKS, improved
from passes.planning.planners.search import (
    EXACT_BLOCKS,
    cost_free,
    exactly,
    is_due,
    lowered,
    minimise,
)
from passes.planning.problem import Penalty, Problem
from passes.planning.verify import verify

NAME = "three_level"
LIMIT_NODES = 40_000
LIMIT_PART = 8
"""Nodes for one question whether a limit can be met, and the part of what is left of them."""
TURNS = 2
"""Sets of orders that are tried for it, one after the other."""
PEAK_NODES = 20_000
"""Nodes for a lower peak at the same penalty."""


def least_waiting(problem: Problem, known: Plan, meter: BudgetTracker) -> Plan:
    """Return the plan of least penalty, then lowest peak, that is found; or `known`, if better.

    In-place pairs are merged, then kept apart. Small problems are searched to the end, for which
    half of the meter is kept.
    """
    share = meter.share(2 if sum(b.slots for b in problem.buffers) <= EXACT_BLOCKS else 1)
    plan = on_each_coalescing(problem, lambda block_list: _cheapest(block_list, share))
    if known.fits and rank(problem, known) < rank(problem, plan):
        plan = _improved(problem, known, share)
    if plan.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        plan = exactly(problem, plan, meter)
    return replace(plan, planner=NAME)


def _cheapest(block_list: BlockList, meter: BudgetTracker) -> Plan:
    """Return the best plan found for a block list without undecided in-place pairs."""
    problem = block_list.problem
    if not block_list.soft:
        return minimise(block_list, meter)
    if problem.capacity is None:
        start: Plan | None = _at_no_cost(block_list, meter)
    else:
        start = _below_limits(block_list, meter)
    if start is None:
        blind = BlockList(replace(problem, penalties=()))
        found = minimise(blind, meter)
        start = block_list.plan(blind.flat(found), NAME)
        if not found.fits:
            return replace(start, status=found.status)
    if start.penalty == 0:
        found = _at_no_cost(block_list, meter)
        return min(found, start, key=lambda plan: rank(problem, plan))
    return _improved(problem, start, meter)


def _at_no_cost(block_list: BlockList, meter: BudgetTracker) -> Plan:
    """Return the plan of the lowest peak found that no penalty is due for."""
    free = BlockList(cost_free(block_list.problem))
    found = minimise(free, meter)
    return replace(block_list.plan(free.flat(found), NAME), status=found.status)


def _below_limits(block_list: BlockList, meter: BudgetTracker) -> Plan | None:
    """Return a plan within the capacity that shares nothing that costs as much as a limit.

    The limit is the lowest that was met in a bisection of all costs.
    """
    penalties = block_list.problem.penalties
    best = _without(block_list, (), meter.share(2))
    if best is None:
        return None
    costs = sorted({penalty.cost for penalty in penalties})
    low, high = 0, len(costs)  # `costs[high:]` was met
    while low < high and meter.left:
        at = (low + high) // 2
        dear = [penalty for penalty in penalties if penalty.cost >= costs[at]]
        plan = _without(block_list, dear, meter.share(LIMIT_PART, at_most=LIMIT_NODES))
        if plan is None:
            low = at + 1
        else:
            high = at
            best = plan if plan.penalty < best.penalty else best
    return best


def _without(block_list: BlockList, dear: Iterable[Penalty], meter: BudgetTracker) -> Plan | None:
    """Return a plan within the capacity that some penalties are not due for, if one is found."""
    problem = block_list.problem
    assert problem.capacity is not None, "without a capacity nothing need be shared"
    check = FeasibilityCheck(BlockList(cost_free(replace(problem, penalties=tuple(dear)))))
    for turn in range(TURNS):
        answer = check.run(problem.capacity, meter.share(TURNS - turn), turn)
        if answer.offsets is not None:
            return block_list.plan(answer.offsets, NAME)
    return None


def _improved(problem: Problem, plan: Plan, meter: BudgetTracker) -> Plan:
    """Return `plan`, which fits, or a better one that is found from there."""
    plan = _relocated(problem, plan, meter)
    while plan.penalty and meter.left:
        wider = _upgraded(problem, plan)
        if wider is None:
            break
        plan = _relocated(problem, wider, meter)
    return _lowered(problem, plan, meter.share(1, at_most=PEAK_NODES))


def _relocated(problem: Problem, plan: Plan, meter: BudgetTracker) -> Plan:
    """Return the best plan found by moving buffers, each with the offsets that it has now."""
    wide = _as_wide(problem, plan)
    if len(wide) > MOST_BLOCKS or plan.penalty == 0:
        return plan
    return _better(problem, plan, wide.plan(improved(wide, wide.flat(plan), meter), NAME))


def _as_wide(problem: Problem, plan: Plan) -> BlockList:
    """Return the block list in which each buffer has as many slots as offsets in `plan`."""
    return BlockList(widened(problem, {name: len(plan.offsets[name]) for name in plan.offsets}))


def _better(problem: Problem, plan: Plan, other: Plan) -> Plan:
    """Return the better of two plans, the second in terms of `problem`."""
    other = BlockList(problem).plan_of(other.offsets, NAME)
    return other if rank(problem, other) < rank(problem, plan) else plan


def _upgraded(problem: Problem, plan: Plan) -> Plan | None:
    """Return a better plan in which a buffer has all offsets of one that it stalls, or None."""
    block_list = BlockList(problem)
    for single, multiple in _stalled(problem, plan):
        wider = block_list.plan_of({**plan.offsets, single: plan.offsets[multiple]}, NAME)
        if rank(problem, wider) < rank(problem, plan) and not verify(problem, wider, limit=1):
            return wider
    return None


def _stalled(problem: Problem, plan: Plan) -> list[tuple[str, str]]:
    """Return (buffer that may have more offsets, one that has more and that it stalls)."""
    wide = _as_wide(problem, plan)
    flat = wide.flat(plan)
    found = []
    for penalty in sorted(problem.penalties, key=lambda p: p.cost_if_slots_match - p.cost):
        names = penalty.first, penalty.second
        single, multiple = sorted(names, key=lambda name: len(plan.offsets[name]))
        if (
            penalty.cost_if_slots_match < penalty.cost
            and len(plan.offsets[single]) < len(plan.offsets[multiple])
            and problem.buffers[problem.index[single]].may_widen
            and is_due(wide, flat, penalty)
        ):
            found.append((single, multiple))
    return found


def _lowered(problem: Problem, plan: Plan, meter: BudgetTracker) -> Plan:
    """Return a plan of a lower peak that shares nothing at a cost but what `plan` shares."""
    if plan.penalty == 0 or problem.in_place:
        return plan
    wide = _as_wide(problem, plan)
    found = lowered(wide, wide.plan(wide.flat(plan), NAME), meter)
    return _better(problem, plan, found)
