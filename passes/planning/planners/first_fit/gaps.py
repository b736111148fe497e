# SPDX-License-Identifier: Apache-2.0
"""Place blocks in a fixed order, each in a gap between those that are placed before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from passes.planning.engine.blocks import BlockList, Ints, settle
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.first_fit.scan import scanned

UNPLACED = -1
"""The offset of a block that has no place."""
CHUNK = 64
"""Blocks between two looks at the clock."""
MOST_WORK = 20_000_000_000
"""Placed blocks looked at, at most, for all blocks: some ten seconds."""
NO_END = np.iinfo(np.int64).max
"""Where the gap above all blocks ends."""


def fit_blocks(
    block_list: BlockList,
    order: Iterable[int],
    rule: str = "first",
    costs: bool = False,
    fixed: dict[int, int] | None = None,
    limit: int | None = None,
    tracker: BudgetTracker | None = None,
) -> list[int]:
    """Place blocks one by one.

    Where the pairs that conflict are too many to be listed, costs are not looked at, and blocks are
    left `UNPLACED` once `MOST_WORK` placed blocks have been looked at.

    Parameters
    ----------
    block_list : BlockList
        What to place.
    order : iterable of int
        Blocks; those that are pinned or fixed are passed over.
    rule : str
        "first" or "best".
    costs : bool
        Whether to prefer offsets that share nothing that has a cost.
    fixed : dict of int to int, optional
        Offsets (bytes) of blocks that are placed already.
    limit : int, optional
        Leave a block `UNPLACED` that would end above it (bytes).
    tracker : BudgetTracker, optional
        Once it is late, the blocks that are left stay `UNPLACED`.

    Returns
    -------
    list of int
        For each block its offset in bytes.
    """
    gaps = Gaps(block_list)
    tracker = tracker or BudgetTracker(Budget())
    for block, offset in {**block_list.pinned, **(fixed or {})}.items():
        gaps.offsets[block] = offset
    if not block_list.is_listed:
        start = gaps.offsets.tolist()
        found = scanned(block_list, list(order), rule, start, limit, tracker, MOST_WORK)
        if found is not None:
            return found
    for at, block in enumerate(order):
        if at % CHUNK == 0 and tracker.expired:
            break
        if gaps.offsets[block] != UNPLACED:
            continue
        if costs and block_list.is_listed and block in block_list.soft:
            offset = gaps.cheapest(block)
        else:
            offset = gaps.lowest(block) if rule == "first" else gaps.tightest(block)
        if limit is None or offset + block_list.sizes[block] <= limit:
            gaps.offsets[block] = offset
    return [int(offset) for offset in gaps.offsets]


@dataclass
class Gaps:
    """The gaps between blocks that are placed, seen from a block that is not."""

    block_list: BlockList
    offsets: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = np.full(len(self.block_list), UNPLACED, dtype=np.int64)
        self._sizes = np.array(self.block_list.sizes, dtype=np.int64)
        self._reserved = np.array(self.block_list.problem.memory.reserved, dtype=np.int64)

    def lowest(self, block: int) -> int:
        """Return the lowest offset at which `block` fits."""
        begins, ends = self._of(block)
        return int(begins[(ends - begins >= self._sizes[block]).argmax()])

    def tightest(self, block: int) -> int:
        """Return the offset of the smallest gap in which `block` fits."""
        begins, ends = self._of(block)
        room = ends - begins
        room[room < self._sizes[block]] = NO_END
        return int(begins[room.argmin()])

    def _of(self, block: int) -> tuple[Ints, Ints]:
        """Return where the gaps begin (aligned for `block`) and end; the last has no end."""
        row = self.block_list.met_by(block)
        row = row[self.offsets[row] != UNPLACED]
        low = self.offsets[row]
        high = low + self._sizes[row]
        if len(self._reserved):
            low = np.concatenate((low, self._reserved[:, 0]))
            high = np.concatenate((high, self._reserved[:, 1]))
        by_offset = low.argsort(kind="stable")
        begins = np.zeros(len(low) + 1, dtype=np.int64)
        np.maximum.accumulate(high[by_offset], out=begins[1:])
        alignment = self.block_list.alignments[block]
        if alignment > 1:
            begins += -begins % alignment
        ends = np.empty_like(begins)
        ends[:-1] = low[by_offset]
        ends[-1] = NO_END
        return begins, ends

    def cheapest(self, block: int) -> int:
        """Return the offset that adds the least cost within the capacity, then the lowest."""
        block_list, size = self.block_list, self.block_list.sizes[block]
        capacity = block_list.problem.capacity
        obstacles = self._obstacles(block)
        soft = [
            (int(self.offsets[other]), int(self.offsets[other]) + block_list.sizes[other], penalty)
            for other, penalty in block_list.soft[block]
            if self.offsets[other] != UNPLACED
        ]
        tops = [0, *(end for _, end in obstacles), *(end for _, end, _ in soft)]
        best: tuple[bool, int, int] | None = None
        for top in sorted(set(tops)):
            offset = settle(top, size, block_list.alignments[block], obstacles)
            shared = {p for low, high, p in soft if low < offset + size and offset < high}
            cost = sum(block_list.problem.penalties[p].cost for p in shared)
            rank = (capacity is not None and offset + size > capacity, cost, offset)
            best = rank if best is None else min(best, rank)
        assert best is not None, "offset 0 is always a candidate"
        return best[2]

    def _obstacles(self, block: int) -> list[tuple[int, int]]:
        """Return the bytes that `block` may not take, sorted."""
        return sorted((*self.block_list.problem.memory.reserved, *self._taken(block)))

    def _taken(self, block: int) -> Iterator[tuple[int, int]]:
        for other in self.block_list.interference[block].tolist():
            offset = int(self.offsets[other])
            if offset != UNPLACED:
                yield offset, offset + self.block_list.sizes[other]
