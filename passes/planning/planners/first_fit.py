# SPDX-License-Identifier: Apache-2.0
"""No reuse at all, and blocks in several orders, each in a gap between those placed before.

First fit takes the lowest gap that is large enough; where sharing has a cost, the one of least
added cost. That is what most compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order
and gap rule only). Too many blocks for that are placed as an allocator at run time would.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import UNPLACED, BlockList, Ints, NewMemory
from passes.planning.engine.coalesce import better, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.problem import Problem
from target_hw.memory import ByteRange, round_up, settle

MOST_UNLISTED = 44_000
"""Blocks up to which all pairs are looked at where they are not listed: some ten seconds."""
FEW_CONFLICTS = 50  # Conflicts of a block below which Python finds a gap faster than numpy
EVER = 1 << 62


ORDERS = ("size", "size by root of life", "size by log of life", "time")
"""Orders in which blocks are placed: the greatest first, of equals the one that begins first.

"size" is that of TensorFlow Lite's arena planner (Pisarchyk and Lee, arXiv:2001.03288), and "time"
is what an allocator at run time would see.
"""


def ordered(block_list: BlockList, order: str) -> list[int]:
    """Return all blocks in one of the `ORDERS`."""
    begins, ends, owners = block_list.pieces
    life = np.bincount(owners, ends - begins, len(block_list))  # Positions at which a block is live
    begin, size = block_list.span_places[0], block_list.size_array
    keys = (-size, -size * np.sqrt(life), -size * np.log2(1.0 + life), begin)
    key = dict(zip(ORDERS, keys, strict=True))[order]
    # The last key is the one that counts most; a sort by keys keeps equals as they were.
    blocks: list[int] = np.lexsort((begin, key)).tolist()
    return blocks


@register("bump")
def bump(problem: Problem, budget: Budget) -> Plan:
    """Give every buffer bytes of its own, in the problem's order.

    Nothing is shared, so nothing waits for anything: no penalty, and the highest peak. Takes time
    and memory linear in the buffers, plus the pinned and reserved ranges once.
    """
    block_list = BlockList(problem)
    memory = NewMemory(0, 1, block_list.taken)
    offsets = [
        block_list.pinned.get(block, 0)
        if block in block_list.pinned or size == 0
        else memory.open(size, block_list.alignments[block])
        for block, size in enumerate(block_list.sizes)
    ]
    return block_list.plan(offsets, "bump")


@register("first_fit")
def first_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the lowest gap that is large enough, under several orders."""
    tracker = BudgetTracker(budget)
    return on_each_coalescing(problem, lambda block_list: fit(block_list, tracker))


def fit(block_list: BlockList, tracker: BudgetTracker, orders: Sequence[str] = ORDERS) -> Plan:
    """Return the best plan that first fit gives under several orders.

    Stops at the first plan that the lower bound proves optimal, or once the time is over. Where the
    pairs of blocks are not listed there is one order, and of many such blocks or too little time
    for one order, the plan of `allocated`.
    """
    if not block_list.is_listed:
        if len(block_list) > MOST_UNLISTED:
            return block_list.plan(allocated(block_list), "first_fit")
        orders = orders[:1]

    def planned(name: str, costs: bool) -> Plan:
        offsets = fit_blocks(block_list, ordered(block_list, name), costs, tracker=tracker)
        if UNPLACED in offsets:
            offsets = allocated(block_list)
        return block_list.plan(offsets, "first_fit")

    plans = (
        planned(order, costs)
        for order in orders
        for costs in ((True, False) if block_list.soft else (False,))
    )
    return better(block_list.problem, plans, tracker)


def fit_blocks(
    block_list: BlockList,
    order: Sequence[int],
    costs: bool = False,
    fixed: Mapping[int, int] | None = None,
    limit: int | None = None,
    tracker: BudgetTracker | None = None,
) -> list[int]:
    """Place blocks one by one, each in the lowest gap; return the offsets in bytes.

    Blocks of `order` that are pinned or `fixed` are passed over. A block that would end above
    `limit` bytes is left `UNPLACED`, as are those that are left once the tracker is expired. With
    `costs`, offsets are preferred that share nothing that has a cost.
    """
    offsets: Ints = np.full(len(block_list), UNPLACED)
    ends: Ints = np.zeros(len(block_list), dtype=np.int64)

    def put(block: int, offset: int) -> None:
        offsets[block], ends[block] = offset, offset + block_list.sizes[block]

    for block, offset in {**block_list.pinned, **(fixed or {})}.items():
        put(block, offset)
    most = EVER if limit is None else limit
    reserved = np.array(block_list.problem.memory.reserved, dtype=np.int64).reshape(-1, 2).T
    placed = np.flatnonzero(offsets != UNPLACED)  # Without a list of conflicts: sorted by offset
    placed = placed[offsets[placed].argsort()]
    for block in order:
        if offsets[block] != UNPLACED:
            continue
        if tracker is not None and tracker.expired:
            break
        if block_list.is_listed:
            met: npt.NDArray[np.signedinteger[Any]] = block_list.interference[block]
        else:
            met = placed[block_list.meets(block)[placed]]
        # What has no place yet is taken to end at zero, so that it is in nobody's way.
        low, high = offsets[met], ends[met]
        if reserved.size:
            low, high = np.append(reserved[0], low), np.append(reserved[1], high)
        size, alignment = block_list.sizes[block], block_list.alignments[block]
        if costs and block in block_list.soft:
            offset = _cheapest(block_list, block, offsets, low, high)
        else:
            offset = _gap(size, alignment, low, high) if size else 0
        if offset + size <= most:
            put(block, offset)
            if not block_list.is_listed:
                at = int(offsets[placed].searchsorted(offset))
                placed = np.insert(placed, at, block)
    found: list[int] = offsets.tolist()
    return found


def _gap(size: int, alignment: int, low: Ints, high: Ints) -> int:
    """Return the offset of the lowest gap of `size` bytes between what is taken."""
    if len(low) < FEW_CONFLICTS:
        offset = 0
        for begin, end in sorted(zip(low.tolist(), high.tolist(), strict=True)):
            if begin - offset >= size:
                break
            offset = max(offset, round_up(end, alignment))
        return offset
    along = low.argsort(kind="stable")  # That is fast where they are sorted already
    begins = np.zeros(len(low) + 1, dtype=np.int64)
    np.maximum.accumulate(high[along], out=begins[1:])
    if alignment > 1:
        begins += -begins % alignment
    rooms = np.append(low[along], 2 * EVER - 1) - begins
    return int(begins[(rooms >= size).argmax()])


def _cheapest(block_list: BlockList, block: int, offsets: Ints, low: Ints, high: Ints) -> int:
    """Return the offset that adds the least cost within the capacity, then the lowest.

    The bytes from `low` to `high` are taken by what the block may not share with.
    """
    size, alignment = block_list.sizes[block], block_list.alignments[block]
    capacity = block_list.problem.capacity
    taken = sorted(zip(low.tolist(), high.tolist(), strict=True))
    soft = [
        (int(offsets[other]), int(offsets[other]) + block_list.sizes[other], penalty)
        for other, penalty in block_list.soft[block]
        if offsets[other] != UNPLACED
    ]
    best: tuple[bool, int, int] | None = None
    for top in sorted({0, *(end for _, end in taken), *(end for _, end, _ in soft)}):
        offset = settle(top, size, alignment, taken)
        shared = {p for begin, end, p in soft if begin < offset + size and offset < end}
        cost = sum(block_list.problem.penalties[p].cost for p in shared)
        rank = (capacity is not None and offset + size > capacity, cost, offset)
        best = rank if best is None else min(best, rank)
    assert best is not None, "offset 0 is always a candidate"
    return best[2]


# Too many blocks to look at each pair


def allocated(block_list: BlockList) -> list[int]:
    """Return the offsets, in bytes, that an allocator at run time would find.

    Blocks are taken as they begin, each into the smallest gap that is large enough. One that has
    several live ranges keeps its bytes from the first to the last; one that is separated from
    others has bytes that nobody else gets.
    """
    begins, ends, _ = block_list.span_places
    offsets = [block_list.pinned.get(block, 0) for block in range(len(block_list))]
    gaps = _Gaps(block_list.taken)
    alive: list[tuple[int, int, int]] = []  # The end of a life, the first byte, the one after all
    for block in begins.argsort(kind="stable").tolist():
        size, alignment = block_list.sizes[block], block_list.alignments[block]
        if block in block_list.pinned or not size:
            continue
        while alive and alive[0][0] <= begins[block]:
            _, low, high = heappop(alive)
            gaps.add(low, high)
        if block in block_list.separated:
            offsets[block] = gaps.above.open(size, alignment)
        else:
            low = offsets[block] = gaps.take(size, alignment)
            heappush(alive, (int(ends[block]), low, low + size))
    return offsets


class _Gaps:
    """Free bytes below bytes that are in use, and the memory above all of them."""

    def __init__(self, taken: Sequence[ByteRange]) -> None:
        self.above = NewMemory(0, 1, taken)
        self._by_size: list[tuple[int, int]] = []  # Bytes and begin of each gap, ascending
        self._begin: dict[int, int] = {}  # By end
        self._end: dict[int, int] = {}  # By begin

    def take(self, size: int, alignment: int) -> int:
        """Take bytes from the smallest gap that has them, else from above all, and return where."""
        for at in range(bisect_left(self._by_size, (size, 0)), len(self._by_size)):
            room, low = self._by_size[at]
            offset = round_up(low, alignment)
            if offset + size <= low + room:
                self._remove(low, low + room)
                self.add(low, offset)
                self.add(offset + size, low + room)
                return offset
        return self.above.open(size, alignment)

    def add(self, low: int, high: int) -> None:
        """Add free bytes, joined with the gaps on both sides."""
        if low == high:
            return
        begin, end = self._begin.get(low, low), self._end.get(high, high)
        if begin < low:
            self._remove(begin, low)
        if high < end:
            self._remove(high, end)
        if end == self.above.end:
            self.above.end = begin
        else:
            self._begin[end], self._end[begin] = begin, end
            insort(self._by_size, (end - begin, begin))

    def _remove(self, low: int, high: int) -> None:
        del self._end[low], self._begin[high]
        del self._by_size[bisect_left(self._by_size, (high - low, low))]
