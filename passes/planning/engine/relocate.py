"""Less penalty by moving buffers: take a few out of a plan, put each back where it costs least.

A large neighbourhood search: what is taken out is a buffer that pays, the one that it pays for, and
some that stand in their way. A step that costs no more is kept, so that the plan drifts over its
equals; now and then one that costs a little more is, too, as in simulated annealing. The best plan
is remembered.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.planner import Meter

Bools = npt.NDArray[np.bool_]

MOST_BLOCKS = 1500
"""Blocks beyond which this is too slow: it takes memory and time with the square of them."""
MOST_OUT = 6
"""Buffers that are taken out at once, at most."""
PATIENCE = 1000
"""Steps without a better plan after which the search ends."""
WARMTH = 0.02
"""At first, a step that costs this share of the penalty more is kept with probability 1/e."""
NOWHERE = -1


class Relocation:
    """A plan that is being changed step by step.

    Parameters
    ----------
    block_list : BlockList
        Its in-place pairs are honoured, slot by slot.
    offsets : sequence of int
        A right placement within the capacity: bytes, for each block.

    Attributes
    ----------
    best : list of int
        The best placement so far.
    score : (int, int)
        Its penalty and its peak in bytes.
    """

    def __init__(self, block_list: BlockList, offsets: Sequence[int]) -> None:
        self._block_list = block_list
        self._low = np.array(offsets, dtype=np.int64)
        self._size = np.array(block_list.sizes, dtype=np.int64)
        count = len(block_list)
        hard = np.zeros((count, count), dtype=bool)
        for block, row in enumerate(block_list.conflicts):
            hard[block, row] = True
        partner = _partners(block_list) & hard
        self._charge = _charges(block_list)
        # What follows holds for each block only of its relations: all that it must not or should
        # not share with.
        self._others = [np.flatnonzero(row) for row in hard | (self._charge > 0)]
        self._hard = [hard[block, row] for block, row in enumerate(self._others)]
        self._partner = [partner[block, row] for block, row in enumerate(self._others)]
        self._price = [
            self._charge[block, row].astype(np.float64) for block, row in enumerate(self._others)
        ]
        self._owner = block_list.buffer_of
        self._blocks = [list(block_list.blocks_of(b.name)) for b in block_list.problem.buffers]
        self._first = np.array([blocks[0] for blocks in self._blocks], dtype=np.int64)
        self._in_step = [self._one_offset(block) for block in range(count)]
        self._ends = np.array(
            [0, *(end for _, end in block_list.problem.memory.reserved)], dtype=np.int64
        )
        capacity = block_list.problem.capacity
        self._capacity = np.iinfo(np.int64).max if capacity is None else capacity
        self._rng = random.Random(0)
        buffers = len(self._blocks)
        self._due = np.zeros((buffers, buffers), dtype=np.int64)
        for buffer in range(buffers):
            self._due[buffer] = self._due_of(buffer)
        self._cost = int(self._due.sum()) // 2
        self.best = self._low.tolist()
        self.score = (self._cost, self._peak())

    def _one_offset(self, block: int) -> Bools:
        """Return for which relations it can pay to have the same offset as they."""
        slots = [len(self._blocks[self._owner[other]]) for other in self._others[block]]
        same = [self._block_list.in_step(block, int(other)) for other in self._others[block]]
        in_step = np.array(same, dtype=bool) & (np.array(slots, dtype=np.int64) > 1)
        found: Bools = self._partner[block] | (in_step & ~self._hard[block])
        return found

    def _peak(self) -> int:
        return int((self._low + self._size).max(initial=0))

    def _due_of(self, buffer: int) -> Ints:
        """Return what one buffer pays for each other: the most that two of their slots ask for."""
        blocks = self._blocks[buffer]
        low, high = self._low[blocks, None], (self._low + self._size)[blocks, None]
        meets = (low < self._low + self._size) & (self._low < high)
        most = (meets * self._charge[blocks]).max(axis=0)
        return np.maximum.reduceat(most, self._first)

    def run(self, meter: Meter) -> None:
        """Take steps until nothing is paid, nothing has become better for long, or time is up."""
        idle = 0
        heat = WARMTH * self._cost
        while self._cost and idle < PATIENCE and meter.left:
            buffers = self._choose()
            blocks = [block for buffer in buffers for block in self._free(buffer)]
            low, due = self._low[blocks], self._due[buffers]
            cost = self._cost
            idle += 1
            if len(blocks) > meter.left:
                break
            meter.spend(len(blocks))
            kept = self._put_back(blocks)
            if kept:
                for buffer in buffers:
                    self._pay(buffer, self._due_of(buffer))
                warmth = heat * (1 - idle / (PATIENCE + 1))
                kept = self._rng.random() < math.exp(min(0.0, (cost - self._cost) / warmth))
            if not kept:
                self._low[blocks] = low
                for buffer, row in zip(buffers, due, strict=True):
                    self._pay(buffer, row)
                self._cost = cost
            elif self._cost < self.score[0] or (
                self._cost == self.score[0] and self._peak() < self.score[1]
            ):
                self.best, self.score = self._low.tolist(), (self._cost, self._peak())
                idle = 0

    def _pay(self, buffer: int, due: Ints) -> None:
        self._cost += int((due - self._due[buffer]).sum())
        self._due[buffer] = due
        self._due[:, buffer] = due

    def _free(self, buffer: int) -> list[int]:
        """Return the blocks of a buffer that can be moved."""
        pinned = self._block_list.pinned
        return [b for b in self._blocks[buffer] if b not in pinned and self._block_list.sizes[b]]

    def _choose(self) -> list[int]:
        """Return the buffers to take out, in the order in which they are put back."""
        rng = self._rng
        one = self._drawn(self._due.sum(axis=1))
        chosen = [one]
        if rng.random() < 0.5:
            chosen.append(self._drawn(self._due[one]))
        near = self._others[self._blocks[one][0]]
        for _ in range(rng.randrange(MOST_OUT - len(chosen) + 1)):
            chosen.append(self._owner[near[rng.randrange(len(near))]])
        chosen = list(dict.fromkeys(chosen))
        order = rng.random()
        if order < 0.4:
            rng.shuffle(chosen)
        elif order < 0.8:
            chosen.sort(key=lambda b: -self._block_list.problem.buffers[b].size)
        return chosen

    def _drawn(self, weights: Ints) -> int:
        """Return an index, drawn with these weights."""
        sums = weights.cumsum()
        return int(sums.searchsorted(self._rng.randrange(int(sums[-1])), side="right"))

    def _put_back(self, blocks: Sequence[int]) -> bool:
        """Place blocks one by one at the least cost; whether all found a place."""
        self._low[list(blocks)] = NOWHERE
        for block in blocks:
            offset = self._cheapest(block)
            if offset == NOWHERE:
                return False
            self._low[block] = offset
        return True

    def _cheapest(self, block: int) -> int:
        """Return the lowest of the offsets that cost least, among what is placed."""
        others = self._others[block]
        low = self._low[others]
        high = low + self._size[others]
        high[low == NOWHERE] = NOWHERE
        size, alignment = int(self._size[block]), self._block_list.alignments[block]
        starts = np.concatenate((self._ends, high))
        starts += -starts % alignment
        equal = low[self._in_step[block]]
        if len(equal):
            starts = np.concatenate((starts, equal[equal % alignment == 0]))
        starts = starts[(starts <= self._capacity - size) & (starts >= 0)]
        starts.sort()
        if len(starts):
            starts = starts[np.concatenate(([True], starts[1:] != starts[:-1]))]
        for begin, end in self._block_list.problem.memory.reserved:
            starts = starts[(starts >= end) | (starts + size <= begin)]
        column = starts[:, None]
        meets = (column < high) & (low < column + size)
        blocked = meets & self._hard[block]
        if self._partner[block].any():
            blocked &= ~(self._partner[block] & (column == low))
        free = np.flatnonzero(~blocked.any(axis=1))
        if not len(free):
            return NOWHERE
        cost = meets[free].astype(np.float64) @ self._price[block]
        return int(starts[free[cost.argmin()]])


def _partners(block_list: BlockList) -> Bools:
    """Return which blocks may have one offset while both are live."""
    partners = np.zeros((len(block_list), len(block_list)), dtype=bool)
    for one, two in block_list.in_place_pairs():
        partners[one, two] = partners[two, one] = True
    return partners


def _charges(block_list: BlockList) -> Ints:
    """Return what it costs that two blocks share bytes."""
    charge = np.zeros((len(block_list), len(block_list)), dtype=np.int64)
    for block, others in block_list.soft.items():
        for other, penalty in others:
            due = block_list.problem.penalties[penalty]
            in_step = block_list.in_step(block, other)
            charge[block, other] = due.cost_in_step if in_step else due.cost
    return charge
