# SPDX-License-Identifier: Apache-2.0
"""Fill one memory with what is worth most, where not all that was chosen for it has a place.

First fit places what was chosen, then whatever else finds a gap. From there a block that lies
outside is put where what is in its way is worth least; that goes out, and comes back where there is
a gap. A step that loses is taken ever less often: the rule of simulated annealing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import UNPLACED, BlockList, Ints
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit import ORDERS, fit_blocks, ordered

STEPS = 50  # Between two looks at the clock
HOT = 0.5  # What a step may lose at first with probability 1/e, in mean worths of a block


def first_fillings(
    block_list: BlockList, worth: Sequence[float], wanted: Sequence[bool], tracker: BudgetTracker
) -> list[list[int]]:
    """Return fillings by first fit under several orders, the one that loses least first.

    Each has the offset of each block, in bytes; `UNPLACED` where there is no place. `worth` says
    for each block what it costs to leave it out, infinity for one that must not be; those that are
    `wanted` are placed first. Once the tracker is expired, one order has to do.
    """
    limit = block_list.problem.capacity
    life = [sum(end - begin for begin, end in live) for live in block_list.live]
    area = [max(1, size * length) for size, length in zip(block_list.sizes, life, strict=True)]
    rest = sorted(range(len(block_list)), key=lambda b: (-worth[b] / area[b], b))
    fillings: list[list[int]] = []
    for order in ORDERS[:3]:
        if fillings and tracker.expired:
            break
        first = [block for block in ordered(block_list, order) if wanted[block]]
        first.sort(key=lambda block: worth[block] < math.inf)
        offsets = fit_blocks(block_list, first, limit=limit)
        there = {block: offset for block, offset in enumerate(offsets) if offset != UNPLACED}
        offsets = fit_blocks(block_list, rest, fixed=there, limit=limit)
        for begin, buffer in zip(block_list.first, block_list.problem.buffers, strict=False):
            slots = range(begin, begin + buffer.slots)
            if any(offsets[slot] == UNPLACED for slot in slots):
                for slot in slots:
                    offsets[slot] = UNPLACED
        fillings.append(offsets)

    def left_out(offsets: Sequence[int]) -> float:
        return sum(value for at, value in zip(offsets, worth, strict=True) if at == UNPLACED)

    return sorted(fillings, key=left_out)


def better_filling(
    block_list: BlockList,
    worth: Sequence[float],
    fillings: Sequence[Sequence[int]],
    tracker: BudgetTracker,
) -> list[int]:
    """Return the best filling found from some, until the tracker is used up.

    Half of it is shared among all, the rest goes to the best. A node is a block that is tried.
    Blocks that are pinned, or slots of a buffer with several, stay where they are.
    """
    searches = [_Filling(block_list, worth, filling) for filling in fillings]
    for number, search in enumerate(searches):
        search.run(tracker.share(2 * len(searches) - number))
    best = min(searches, key=lambda search: search.lost)
    again = _Filling(block_list, worth, best.best)
    again.run(tracker)
    return min(best, again, key=lambda search: search.lost).best


class _Filling:
    """A filling that is being changed, and the best one so far."""

    def __init__(
        self, block_list: BlockList, worth: Sequence[float], offsets: Sequence[int]
    ) -> None:
        self._block_list = block_list
        self._rng = random.Random(0)
        self._sizes, self._offsets = block_list.size_array, np.array(offsets, dtype=np.int64)
        problem = block_list.problem
        assert problem.capacity is not None, "a memory without end leaves nothing out"
        self._capacity = problem.capacity
        self._reserved: Ints = np.array(problem.memory.reserved, dtype=np.int64).reshape(-1, 2)
        finite = [value for value in worth if value < math.inf]
        self._never = 1.0 + sum(finite)
        self._unit = HOT * sum(finite) / max(1, len(finite))
        self._worth = np.array([min(value, self._never) for value in worth])
        moves = np.array([problem.buffers[b].slots == 1 for b in block_list.buffer_of])
        moves[list(block_list.pinned)] = False
        # What an ejection of a block costs: more than anything is worth, if it stays.
        self._price = np.where(moves, self._worth, 2 * self._never)
        out = moves & (self._offsets == UNPLACED) & (self._sizes <= self._capacity)
        self.outside: list[int] = np.flatnonzero(out).tolist()
        self._lost = self.lost = float(self._worth[out].sum())
        self.best = list(offsets)

    def run(self, tracker: BudgetTracker) -> None:
        """Cool down until the tracker is used up."""
        budget = tracker.rest()
        while self.outside and tracker.left:
            done = tracker.used / max(1, budget.nodes)
            if budget.seconds:
                done = max(done, 1 - (tracker.rest().seconds or 0.0) / budget.seconds)
            for _ in range(STEPS):
                if self.outside:
                    self.step(1 - done)
                    tracker.spend(1)

    def step(self, heat: float) -> None:
        """Try to put one block in that lies outside; `heat` is between 0 and 1."""
        at = self._rng.randrange(len(self.outside))
        block, drawn = self.outside[at], self._rng.random()
        found = self._cheapest(block)
        if found is None:
            return
        price, offset, ejected = found
        gain = self._worth[block] - price
        if gain < 0 and not -gain < -math.log(1 - drawn) * heat * self._unit:
            return
        self._offsets[ejected] = UNPLACED
        self._offsets[block] = offset
        self.outside[at] = self.outside[-1]
        self.outside.pop()
        self._lost -= gain
        for other in sorted(ejected.tolist(), key=lambda b: (-self._worth[b], b)):
            found = self._cheapest(other)
            if found is not None and not found[0]:
                self._offsets[other] = found[1]
                self._lost -= self._worth[other]
            else:
                self.outside.append(other)
        if self._lost < self.lost:
            self.lost = self._lost
            self.best = self._offsets.tolist()

    def _cheapest(self, block: int) -> tuple[float, int, npt.NDArray[np.intp]] | None:
        """Return the least that a place for a block costs, where, and what it ejects."""
        size, alignment = self._block_list.sizes[block], self._block_list.alignments[block]
        met = self._block_list.met_by(block)
        met = met[self._offsets[met] != UNPLACED]
        begins = np.concatenate((self._offsets[met], self._reserved[:, 0]))
        ends = np.concatenate((self._offsets[met] + self._sizes[met], self._reserved[:, 1]))
        price = np.append(self._price[met], np.full(len(self._reserved), 2 * self._never))
        above, below = ends + -ends % alignment, begins - size
        places = np.concatenate(([0], above, below - below % alignment))
        places = places[(places >= 0) & (places + size <= self._capacity)]
        if not len(places):
            return None
        # What begins below a place's end, less what ends at its begin or below.
        by_begin, by_end = begins.argsort(kind="stable"), ends.argsort(kind="stable")
        started = np.searchsorted(begins[by_begin], places + size, side="left")
        ended = np.searchsorted(ends[by_end], places, side="right")
        begun = np.append(0.0, np.cumsum(price[by_begin]))[started]
        total = begun - np.append(0.0, np.cumsum(price[by_end]))[ended]
        at = int(total.argmin())
        offset = int(places[at])
        in_the_way = (begins < offset + size) & (ends > offset)
        if (price[in_the_way] > self._never).any():
            return None
        ejected = met[in_the_way[: len(met)]]
        return float(self._worth[ejected].sum()), offset, ejected
