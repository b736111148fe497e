# SPDX-License-Identifier: Apache-2.0
"""A local search for the plan that a judge likes best: over orders in which first fit places.

A penalty says that two buffers share, and not how. Which slot lies on which, and whether two share
in the first half of a loop or in the second, is left to orders: those of blocks that first fit
places one after the other, with some pairs in place. A step moves one block or two to another
place of the order, mostly of buffers that wait for one another, or changes what is in place; it is
kept where the kernel takes no more cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from passes.ascend.planning.choice import Verdict
from passes.ascend.planning.judged_plans import Judged, is_right, waits_in
from passes.planning.engine.blocks import BlockList
from passes.planning.engine.coalesce import Coalesced, coalesce
from passes.planning.engine.widen import widened
from passes.planning.plan import Plan
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit.gaps import UNPLACED, fit_blocks
from passes.planning.problem import Problem

NAME = "first fit in order"
SEED = 0
STEPS = 200
"""Orders that are tried for one problem."""

MOST_BLOCKS = 200
"""Slots beyond which orders are too many for so few steps."""

RESTART, PAIR, WAITING, SECOND = 0.05, 0.15, 0.5, 0.3
"""Chances that a step draws a new order, changes what is in place, moves a block that waits, and
moves a second one."""

Item = tuple[str, int]
"""A buffer and one of its slots."""
Pair = tuple[str, str]


@dataclass(frozen=True)
class _Order:
    """In which order blocks look for a place, and which pairs may be in place."""

    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]


def plans_in_order(
    problem: Problem,
    start: Judged,
    judge: Callable[[Plan], Verdict],
    meter: BudgetTracker,
    enough: int,
) -> Iterator[Judged]:
    """Yield plans that are no worse than the best one before them.

    Parameters
    ----------
    problem : Problem
        What the plans are for.
    start : (Plan, Verdict)
        A plan to start from. Each buffer keeps as many offsets as it has there.
    judge : callable
        From a plan of `problem` to what it costs.
    meter : BudgetTracker
        Pays for the blocks that are placed.
    enough : int
        Cycles that no plan is below; the search ends there.
    """
    search = _Search(problem, start[0])
    if search.blocks > MOST_BLOCKS or search.blocks < 2:
        return
    order, (_, verdict) = search.order_of(start[0]), start
    seen = {tuple(sorted(start[0].offsets.items()))}
    for _ in range(STEPS):
        if verdict.cycles <= enough or not meter.left:
            return
        moved = search.moved(order, verdict)
        meter.spend(search.blocks)
        plan = search.plan(moved)
        if plan is None or (key := tuple(sorted(plan.offsets.items()))) in seen:
            continue
        seen.add(key)
        found = judge(plan)
        if found.cycles <= verdict.cycles:
            order, verdict = moved, found
            yield plan, found


class _Search:
    """Orders of one problem, and what first fit makes of them."""

    def __init__(self, problem: Problem, start: Plan) -> None:
        self._problem, self._random = problem, Random(SEED)
        self._wide = widened(problem, {name: len(start.offsets[name]) for name in start.offsets})
        self._coalesced = lru_cache(maxsize=64)(self._coalesce)
        self._items = [(b.name, slot) for b in self._wide.buffers for slot in range(b.slots)]

    @property
    def blocks(self) -> int:
        """How many blocks there are to place."""
        return len(self._items)

    def order_of(self, plan: Plan) -> _Order:
        """Return an order that is near to a plan: from the lowest offset up."""
        offsets = plan.offsets
        items = sorted(self._items, key=lambda item: (offsets[item[0]][item[1]], item))
        pairs = (p for p in self._problem.in_place if offsets[p[0]] == offsets[p[1]])
        return _Order(tuple(items), tuple(pairs))

    def moved(self, order: _Order, verdict: Verdict) -> _Order:
        """Return another order near to one, or now and then anywhere."""
        random, items = self._random, list(order.items)
        if random.random() < RESTART:
            random.shuffle(items)
            pairs = tuple(pair for pair in self._problem.in_place if random.random() < 0.5)
            return _Order(tuple(items), pairs)
        if self._problem.in_place and random.random() < PAIR:
            changed = random.choice(self._problem.in_place)
            kept = {*order.pairs} ^ {changed}
            order = replace(order, pairs=tuple(p for p in self._problem.in_place if p in kept))
        waiting = [name for pair in waits_in(self._problem, verdict) for name in pair]
        for _ in range(2 if random.random() < SECOND else 1):
            among = items
            if waiting and random.random() < WAITING:
                name = random.choice(waiting)
                among = [item for item in items if item[0] == name]
            item = random.choice(among)
            items.remove(item)
            items.insert(random.randrange(len(items) + 1), item)
        return replace(order, items=tuple(items))

    def plan(self, order: _Order) -> Plan | None:
        """Return what first fit makes of an order, if it fits and is right."""
        merged, block_list = self._coalesced(order.pairs)
        # Of buffers in one place, the first in the order decides; the blocks of the others are
        # placed by then.
        leader = merged.leader
        blocks = [block_list.blocks_of(leader[name])[slot] for name, slot in order.items]
        flat = fit_blocks(block_list, blocks, limit=self._problem.capacity)
        if UNPLACED in flat:
            return None
        offsets = merged.restore(block_list.plan(flat, NAME), self._problem)
        plan = BlockList(self._problem).plan_of(offsets, NAME)
        return plan if is_right(self._problem, plan) else None

    def _coalesce(self, pairs: tuple[Pair, ...]) -> tuple[Coalesced, BlockList]:
        merged = coalesce(replace(self._wide, in_place=pairs))
        return merged, BlockList(merged.problem)
