"""Search for the best plan: heuristics, then canonical placements below falling capacities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from passes.planning.engine.blocks import Instance
from passes.planning.engine.canonical import Outcome
from passes.planning.engine.exact import WeightedSearch
from passes.planning.engine.orders import FAST_ORDERS
from passes.planning.engine.question import WHOLE_BLOCKS, Decider
from passes.planning.engine.ranking import better, on_each_coalescing
from passes.planning.engine.reorder import cost_free, reorder
from passes.planning.engine.widen import widenings
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, Meter, register
from passes.planning.planners.fit import fit
from passes.planning.planners.skyline import rise
from passes.planning.problem import Problem

EXACT_BLOCKS = 24
"""Blocks up to which costs and in-place pairs are searched to the end, if the budget allows."""
EXACT_NODES = 6000
"""Nodes that this may take: each takes ten times as long as in the other search."""
EXACT_WIDENINGS = 64
"""Ways to give buffers more offsets than slots, up to which all are searched."""
QUESTION_NODES = 50_000
"""Nodes for each question of the first round below the best plan."""
WORST = (1 << 62, 1 << 62)
"""A penalty and a peak above those of any plan."""


@register("search")
def search(problem: Problem, budget: Budget) -> Plan:
    """Search depth-first over canonical placements, with heuristics as a start.

    Asks whether the capacity can be met, then the lower bound, then halves what is left between
    the bound and the best plan. Deterministic in the budget's nodes; says what it has proven.
    """
    meter = Meter(budget)
    plan = on_each_coalescing(problem, lambda instance: _search(instance, meter))
    if plan.status is not Status.OPTIMAL and (problem.in_place or problem.penalties):
        plan = exactly(problem, plan, meter)
    return replace(plan, planner="search", nodes=meter.used)


def _search(instance: Instance, meter: Meter) -> Plan:
    """Return the best plan found for an instance without undecided in-place pairs."""
    if not instance.soft:
        return minimise(instance, meter)
    free = Instance(cost_free(instance.problem))
    found = minimise(free, meter.share(2))
    plan = instance.plan(free.flat(found), "search")
    if found.fits:
        return replace(plan, status=found.status)
    return _cheapen(instance, meter)


def minimise(instance: Instance, meter: Meter) -> Plan:
    """Return the plan of the lowest peak found, penalties apart."""
    capacity = instance.problem.capacity
    best = better(instance.problem, _quick(instance, meter), meter)
    if best.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return best
    decider = Decider(instance)
    if not best.fits and capacity is not None:
        answer = decider.ask(capacity, meter.share(2))
        if answer.outcome is Outcome.EXHAUSTED:
            return replace(best, status=Status.INFEASIBLE)
        if answer.offsets is None:
            return best
        best = instance.plan(answer.offsets, "search")
    return _lower(instance, decider, best, meter)


def _quick(instance: Instance, meter: Meter) -> Iterator[Plan]:
    """Yield the plans of the heuristics, the cheapest to make first."""
    if len(instance) > WHOLE_BLOCKS:  # where one costs as much as a core
        yield fit(instance, meter, "first", FAST_ORDERS[:1])
        return
    yield fit(instance, meter, "first", FAST_ORDERS)
    yield fit(instance, meter, "best", FAST_ORDERS[:2])
    yield rise(instance, meter)


def _lower(instance: Instance, decider: Decider, best: Plan, meter: Meter) -> Plan:
    """Bring the peak down, round by round, each with twice the nodes for a question."""
    step = _granularity(instance)
    proven = -(-instance.bound // step) * step
    turn = 0
    while proven < best.peak and meter.left:
        used = meter.used
        best, proven = _halve(instance, decider, best, proven, meter, turn)
        if meter.used == used:
            break  # more nodes would change nothing
        turn += 1
    if best.peak <= proven:
        best = replace(best, status=Status.OPTIMAL)
    return best


def _halve(
    instance: Instance, decider: Decider, best: Plan, proven: int, meter: Meter, turn: int
) -> tuple[Plan, int]:
    """Ask for the bound, then halve what is left between it and the best plan.

    `proven` is the lowest peak that is not ruled out. A question that is left open is taken for a
    no, but not for a proof; the last open thousandth is left to the next round.
    """
    step = _granularity(instance)
    effort = QUESTION_NODES << turn
    low = question = proven
    while meter.left and best.peak - low > (instance.bound // 1000 if low > proven else 0):
        answer = decider.ask(question, meter.share(1, at_most=effort), turn)
        if answer.offsets is not None:
            best = instance.plan(answer.offsets, "search")
        else:
            low = question + step
            if answer.outcome is Outcome.EXHAUSTED:
                proven = low
        question = max(low, (low + best.peak - step) // 2 // step * step)
    return best, proven


def _granularity(instance: Instance) -> int:
    """Return a number of bytes that every peak of a canonical placement is a multiple of."""
    fixed = [bound for pair in instance.problem.memory.reserved for bound in pair]
    return math.gcd(*instance.sizes, *instance.alignments, *instance.pinned.values(), *fixed) or 1


def _cheapen(instance: Instance, meter: Meter) -> Plan:
    """Return the plan of least penalty found where some penalty seems to be needed."""
    blind = Instance(replace(instance.problem, penalties=()))
    best = better(instance.problem, _starts(instance, blind, meter), meter)
    if best.status is Status.INFEASIBLE:
        return best
    return reorder(instance, best, meter)


def _starts(instance: Instance, blind: Instance, meter: Meter) -> Iterator[Plan]:
    yield fit(instance, meter, "first")
    yield rise(instance, meter)
    found = minimise(blind, meter.share(2))
    # A plan of the blind problem is as good as the search can tell only if it does not fit.
    status = found.status if not found.fits else Status.FEASIBLE
    yield replace(instance.plan(blind.flat(found), "search"), status=status)


def exactly(problem: Problem, plan: Plan, meter: Meter) -> Plan:
    """Return the best plan if the problem is small enough to be searched to the end."""
    instance = Instance(problem)
    variants = widenings(problem, EXACT_WIDENINGS) if len(instance) <= EXACT_BLOCKS else None
    if variants is None or plan.status is Status.INFEASIBLE:
        return plan
    meter = meter.share(1, at_most=EXACT_NODES)
    complete = True
    for variant in variants:
        wide = Instance(variant)
        incumbent = (plan.penalty, plan.peak) if plan.fits else WORST
        if len(wide) > EXACT_BLOCKS:
            complete = False
            continue
        if problem.capacity is not None and wide.bound > problem.capacity:
            continue
        exact = WeightedSearch(wide, incumbent, meter)
        exact.run()
        complete = complete and exact.complete
        if exact.best is not None:
            plan = instance.plan_of(wide.plan(exact.best, "search").offsets, "search")
    if not complete or plan.status is Status.OPTIMAL:
        return plan
    return replace(plan, status=Status.OPTIMAL if plan.fits else Status.INFEASIBLE)
