# SPDX-License-Identifier: Apache-2.0
"""No reuse at all, and blocks in several orders, each in a gap between those placed before.

First fit takes the lowest gap that is large enough; where sharing has a cost, the one of least
added cost. That is what most compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order
and gap rule only). Too many blocks for that are placed as an allocator at run time would.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList, Ints, NewMemory
from passes.planning.engine.coalesce import better, on_each_coalescing
from passes.planning.engine.compiled import Room
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners import first_fit_loop as loop
from passes.planning.problem import Problem
from target_hw.memory import ByteRange, round_up, settle

MOST_PAIRS = 600_000_000
"""Pairs of blocks live together that all orders look at in sum, at most: a minute or less."""
FEW_PAIRS = 300_000  # Pairs up to which Python places blocks as fast as the compiled sweep starts
SWEPT_WORK, PYTHON_WORK = 5_000_000, 30_000
"""Pairs that the sweep looks at between two looks at the clock: compiled, and as Python."""
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
    return on_each_coalescing(BlockList(problem), lambda block_list: fit(block_list, tracker))


def fit(block_list: BlockList, tracker: BudgetTracker, orders: Sequence[str] = ORDERS) -> Plan:
    """Return the best plan that first fit gives under several orders.

    Stops at the first plan that the lower bound proves optimal, or once the time is over: what is
    placed by then is kept, and the rest goes above it. Where more pairs of blocks are live together
    than first fit looks at in a minute, or time ran out, blocks are also placed as they begin.
    """
    pairs = max(1, block_list.live_pairs)
    orders = orders[: MOST_PAIRS // pairs]

    def planned(name: str, costs: bool) -> list[int]:
        order = ordered(block_list, name)
        offsets = fit_blocks(block_list, order, costs, tracker=tracker)
        rest = [block for block in order if offsets[block] == UNPLACED]
        if not rest:
            return offsets
        above = allocated(block_list, rest, block_list.peak(offsets))
        return [at if at != UNPLACED else above[b] for b, at in enumerate(offsets)]

    def plans() -> Iterator[Plan]:
        for order in orders:
            for costs in (True, False) if block_list.soft else (False,):
                yield block_list.plan(planned(order, costs), "first_fit")
        if not orders:
            yield block_list.plan(allocated(block_list), "first_fit")

    best = better(block_list.problem, plans(), tracker)
    if best.status is not Status.OPTIMAL and tracker.expired and orders:
        last = block_list.plan(allocated(block_list), "first_fit")
        return better(block_list.problem, (best, last))
    return best


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
    given = {**block_list.pinned, **(fixed or {})}
    costs = costs and bool(block_list.soft) and block_list.is_listed
    if not costs and block_list.live_pairs > FEW_PAIRS:
        return _swept(block_list, order, given, EVER if limit is None else limit, tracker)
    offsets: Ints = np.full(len(block_list), UNPLACED)
    ends: Ints = np.zeros(len(block_list), dtype=np.int64)

    def put(block: int, offset: int) -> None:
        offsets[block], ends[block] = offset, offset + block_list.sizes[block]

    for block, offset in given.items():
        put(block, offset)
    most = EVER if limit is None else limit
    reserved = np.array(block_list.problem.memory.reserved, dtype=np.int64).reshape(-1, 2).T
    for block in order:
        if offsets[block] != UNPLACED:
            continue
        if tracker is not None and tracker.expired:
            break
        met = block_list.interference[block]
        # A block without a place is taken to end at zero, so that it is in nobody's way.
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
    found: list[int] = offsets.tolist()
    return found


def _swept(
    block_list: BlockList,
    order: Sequence[int],
    given: Mapping[int, int],
    limit: int,
    tracker: BudgetTracker | None,
) -> list[int]:
    """Place blocks as `fit_blocks` does, by the loop that TVM compiles."""
    make: Any = loop.FirstFitState  # Sequences of every kind become what the loop runs on.
    offsets = [UNPLACED] * len(block_list)
    for block, offset in given.items():
        offsets[block] = offset
    columns = block_list.sweep
    room = Room(columns["most_met"])
    state: loop.FirstFitState = make(
        **{name: column for name, column in columns.items() if name != "most_met"},
        offset=offsets,
        placed_end=[loop.NEVER] * len(columns["begin"]),
        latest=[loop.NEVER] * (2 * columns["leaves"]),
        order=[*given, *order],
        node=Room(128),
        width=Room(128),
        met=room,
        low=room,
        high=room,
        other_low=room,
        other_high=room,
        now=[0] * loop.NOW_SIZE,
        entries=len(given) + len(order),
        limit=limit,
    )
    is_compiled = compiled.is_loaded(loop.advance)
    running = compiled.start(loop.advance, state, is_compiled)
    now = running.state.now
    while now[loop.NEXT] < len(given) + len(order):
        if tracker is not None and tracker.expired and now[loop.NEXT] >= len(given):
            break
        if not is_compiled and compiled.is_ready(loop.advance):
            is_compiled = True
            running = compiled.start(loop.advance, running.state, True)
            now = running.state.now
        running.advance(int(now[loop.WORK]) + (SWEPT_WORK if is_compiled else PYTHON_WORK))
    return [int(offset) for offset in running.state.offset]


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


def allocated(
    block_list: BlockList, blocks: Sequence[int] | None = None, base: int = 0
) -> list[int]:
    """Return the offsets, in bytes, that an allocator at run time would find from `base` up.

    Those of some blocks, or of all.

    Blocks are taken as they begin, each into the smallest gap that is large enough. One that has
    several live ranges keeps its bytes from the first to the last; one that is separated from
    others keeps them until those have begun.
    """
    begins, ends, _ = block_list.span_places
    offsets = [block_list.pinned.get(block, 0) for block in range(len(block_list))]
    gaps = _Gaps(base, block_list.taken)
    alive: list[tuple[int, int, int]] = []  # The end of a life, the first byte, the one after all
    chosen = np.arange(len(block_list)) if blocks is None else np.sort(np.array(blocks))
    for block in chosen[begins[chosen].argsort(kind="stable")].tolist():
        size, alignment = block_list.sizes[block], block_list.alignments[block]
        if block in block_list.pinned or not size:
            continue
        while alive and alive[0][0] <= begins[block]:
            _, low, high = heappop(alive)
            gaps.add(low, high)
        low = offsets[block] = gaps.take(size, alignment)
        begun = (int(begins[other]) + 1 for other in block_list.separated.get(block, ()))
        heappush(alive, (max((int(ends[block]), *begun)), low, low + size))
    return offsets


class _Gaps:
    """Free bytes below bytes that are in use, and the memory above all of them."""

    def __init__(self, base: int, taken: Sequence[ByteRange]) -> None:
        self.above = NewMemory(base, 1, taken)
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
