"""Less penalty: leave out all that costs, or find the order of first fit that shares for least."""

from __future__ import annotations

import random
from dataclasses import replace

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.gaps import place
from passes.planning.engine.orders import ORDERS, Measures, ordered
from passes.planning.engine.ranking import rank
from passes.planning.plan import Plan, Status
from passes.planning.planner import Meter
from passes.planning.problem import Problem

MOVES = 100
"""Changes tried to the best order of first fit to bring the penalty down."""
VARIANTS = 2
"""Orders tried beside each order of `ORDERS`, with every block moved by up to `SHIFT` places."""
SHIFT = 5


def cost_free(problem: Problem) -> Problem:
    """Return the problem in which all that has a cost is separated.

    What pinned buffers share cannot be changed, so it is left out.
    """
    apart = {frozenset(pair) for pair in problem.kept_apart}
    pairs = [
        (penalty.first, penalty.second)
        for penalty in problem.penalties
        if frozenset((penalty.first, penalty.second)) not in apart
        and any(
            problem.buffers[problem.index[name]].pinned is None
            for name in (penalty.first, penalty.second)
        )
    ]
    return replace(problem, separations=(*problem.separations, *pairs), penalties=())


def reorder(block_list: BlockList, best: Plan, meter: Meter) -> Plan:
    """Return the best plan that first fit makes under many orders, or `best` if that is better.

    Starts from the best of `ORDERS` and their variants, then moves single blocks within the order
    as long as the plan gets no worse. Deterministic: the moves are drawn from a fixed seed.
    """
    rng = random.Random(0)
    measures = Measures(block_list)
    orders = [ordered(measures, name) for name in ORDERS]
    for name in ORDERS:
        orders += [_perturbed(ordered(measures, name), rng) for _ in range(VARIANTS)]

    def planned(order: list[int]) -> Plan:
        meter.spend(len(order))
        return block_list.plan(place(block_list, order, costs=True), "search")

    current, order = min(
        ((planned(order), order) for order in orders),
        key=lambda entry: rank(block_list.problem, entry[0]),
    )
    for _ in range(MOVES):
        if meter.left == 0 or current.status is Status.OPTIMAL:
            break
        candidate = _moved(order, rng)
        plan = planned(candidate)
        if rank(block_list.problem, plan) <= rank(block_list.problem, current):
            current, order = plan, candidate
    return min(best, current, key=lambda plan: rank(block_list.problem, plan))


def _perturbed(order: list[int], rng: random.Random) -> list[int]:
    """Return the order with each block moved by a few places."""
    places = {block: at + rng.uniform(0, SHIFT) for at, block in enumerate(order)}
    return sorted(order, key=places.__getitem__)


def _moved(order: list[int], rng: random.Random) -> list[int]:
    """Return the order with one block moved."""
    moved = list(order)
    moved.insert(rng.randrange(len(order)), moved.pop(rng.randrange(len(order))))
    return moved
