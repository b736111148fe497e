# SPDX-License-Identifier: Apache-2.0
"""A local search for the plan of the fewest cycles: over orders in which first fit places blocks.

A penalty says that two buffers share, and not how. Which slot lies on which, and whether two share
in the first half of a loop or in the second, is left to orders: those of blocks that first fit
places one after the other, with some pairs in place. A step moves one block or two to another
place of the order, mostly of buffers that wait for one another, or changes what is in place; it is
kept where the kernel takes no more cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from passes.ascend.planning.plan_search import is_right, waits_in
from passes.ascend.planning.slot_choice import Cost
from passes.planning.engine.blocks import BlockList
from passes.planning.engine.coalesce import Coalesced, coalesce
from passes.planning.engine.widen import widened
from passes.planning.plan import Plan
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit.gaps import UNPLACED, fit_blocks
from passes.planning.problem import Problem

SEED = 0
STEPS = 200
"""Orders that are tried for one problem."""

MOST_BLOCKS = 200
"""Slots beyond which orders are too many for so few steps."""

RESTART, PAIR, WAITING, SECOND = 0.05, 0.15, 0.5, 0.3
"""Chances that a step draws a new order, changes what is in place, moves a block that waits, and
moves a second one."""

Slot = tuple[str, int]
"""A buffer, and which of its slots."""
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Order:
    """In which order slots look for a place, and which pairs may be in place."""

    slots: tuple[Slot, ...]
    pairs: Pairs


def plans_in_order(
    problem: Problem,
    start: Plan,
    cost: Cost,
    price: Callable[[Plan], Cost],
    meter: BudgetTracker,
    enough: int,
) -> None:
    """Price plans near to the best one that is known, until one takes `enough` cycles.

    Each buffer keeps as many offsets as it has in `start`, which has a known `cost`. `meter` pays
    for the slots that are placed.
    """
    placer = _Placer(problem, start)
    if not 2 <= len(placer.slots) <= MOST_BLOCKS:
        return
    random, order = Random(SEED), placer.order_of(start)
    seen = {tuple(sorted(start.offsets.items()))}
    for _ in range(STEPS):
        if cost.cycles <= enough or not meter.left:
            return
        moved = _moved(order, problem, cost, random)
        meter.spend(len(placer.slots))
        plan = placer.plan(moved)
        if plan is None or (key := tuple(sorted(plan.offsets.items()))) in seen:
            continue
        seen.add(key)
        found = price(plan)
        if found.cycles <= cost.cycles:
            order, cost = moved, found


def _moved(order: _Order, problem: Problem, cost: Cost, random: Random) -> _Order:
    """Return another order near to one, or now and then anywhere."""
    slots, pairs = list(order.slots), order.pairs
    if random.random() < RESTART:
        random.shuffle(slots)
        pairs = tuple(pair for pair in problem.in_place if random.random() < 0.5)
        return _Order(tuple(slots), pairs)
    if problem.in_place and random.random() < PAIR:
        kept = {*pairs} ^ {random.choice(problem.in_place)}
        pairs = tuple(pair for pair in problem.in_place if pair in kept)
    waiting = [name for pair in waits_in(problem, cost) for name in pair]
    for _ in range(2 if random.random() < SECOND else 1):
        among = slots
        if waiting and random.random() < WAITING:
            name = random.choice(waiting)
            among = [slot for slot in slots if slot[0] == name]
        slot = random.choice(among)
        slots.remove(slot)
        slots.insert(random.randrange(len(slots) + 1), slot)
    return _Order(tuple(slots), pairs)


class _Placer:
    """What first fit makes of orders of one problem's slots."""

    def __init__(self, problem: Problem, start: Plan) -> None:
        self._problem = problem
        self._wide = widened(problem, {name: len(start.offsets[name]) for name in start.offsets})
        self._coalesced = lru_cache(maxsize=64)(self._coalesce)
        self.slots = [(b.name, slot) for b in self._wide.buffers for slot in range(b.slots)]

    def order_of(self, plan: Plan) -> _Order:
        """Return an order that is near to a plan: from the lowest offset up."""
        offsets = plan.offsets
        slots = sorted(self.slots, key=lambda slot: (offsets[slot[0]][slot[1]], slot))
        pairs = (p for p in self._problem.in_place if offsets[p[0]] == offsets[p[1]])
        return _Order(tuple(slots), tuple(pairs))

    def plan(self, order: _Order) -> Plan | None:
        """Return what first fit makes of an order, if it fits and is right."""
        merged, block_list = self._coalesced(order.pairs)
        # Of buffers in one place, the first in the order decides; the blocks of the others are
        # placed by then.
        blocks = [block_list.blocks_of(merged.leader[name])[slot] for name, slot in order.slots]
        flat = fit_blocks(block_list, blocks, limit=self._problem.capacity)
        if UNPLACED in flat:
            return None
        name = "first fit in order"
        offsets = merged.restore(block_list.plan(flat, name), self._problem)
        plan = BlockList(self._problem).plan_of(offsets, name)
        return plan if is_right(self._problem, plan) else None

    def _coalesce(self, pairs: Pairs) -> tuple[Coalesced, BlockList]:
        merged = coalesce(replace(self._wide, in_place=pairs))
        return merged, BlockList(merged.problem)
