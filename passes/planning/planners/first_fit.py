# SPDX-License-Identifier: Apache-2.0
"""No reuse at all, and blocks in several orders, each in a gap between those placed before.

First fit takes the lowest gap that is large enough; where sharing has a cost, the one of least
added cost. That is what most compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order
and gap rule only). Too many blocks for that are placed as an allocator at run time would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList, Ints, NewMemory
from passes.planning.engine.coalesce import better, on_each_coalescing
from passes.planning.engine.compiled import Room
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners import allocation_loop as allocation
from passes.planning.planners import first_fit_loop as loop
from passes.planning.problem import Problem
from target_hw.memory import round_up, settle

MOST_PAIRS = 600_000_000
"""Pairs of blocks live together that all orders look at in sum, at most: a minute or less."""
FEW_PAIRS = 300_000  # Pairs up to which Python places blocks as fast as the compiled sweep starts
SWEPT_WORK, PYTHON_WORK = 5_000_000, 30_000
"""Pairs that the sweep looks at between two looks at the clock: compiled, and as Python."""
FEW_ENTRIES = 500  # Blocks up to which a loop is not compiled
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
    begin, size = block_list.spans[0], block_list.size_array
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

    def planned(name: str, costs: bool) -> Ints:
        order = ordered(block_list, name)
        offsets = np.array(fit_blocks(block_list, order, costs, tracker=tracker), dtype=np.int64)
        rest = np.flatnonzero(offsets == UNPLACED)
        if len(rest):
            offsets[rest] = allocated(block_list, rest, block_list.peak(offsets))[rest]
        return offsets

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
    offsets: Ints = np.full(len(block_list), UNPLACED)
    offsets[[*given]] = [*given.values()]
    columns = block_list.sweep
    room = Room(columns["most_met"])
    entries = len(given) + len(order)
    state: loop.FirstFitState = make(
        **{name: column for name, column in columns.items() if name != "most_met"},
        offset=offsets,
        placed_end=np.full(len(columns["begin"]), loop.NEVER),
        latest=np.full(2 * columns["leaves"], loop.NEVER),
        order=np.concatenate((np.array([*given], dtype=np.int64), np.array(order, np.int64))),
        node=Room(128),
        width=Room(128),
        met=room,
        low=room,
        high=room,
        other_low=room,
        other_high=room,
        now=[0] * loop.NOW_SIZE,
        entries=entries,
        limit=limit,
    )

    def is_late(done: int) -> bool:
        return tracker is not None and tracker.expired and done >= len(given)

    found: list[int] = _run(loop.advance, state, entries, is_late).tolist()
    return found


def _run(
    advance: Callable[..., None], state: Any, entries: int, is_late: Callable[[int], bool]
) -> Ints:
    """Return the offsets after all entries, or so many as are not late.

    The loop is the one that TVM compiles as soon as that is there.
    """
    is_there = compiled.is_ready if entries > FEW_ENTRIES else compiled.is_loaded
    is_compiled = is_there(advance)
    running = compiled.start(advance, state, is_compiled)
    while (done := int(running.state.now[loop.NEXT])) < entries and not is_late(done):
        if not is_compiled and is_there(advance):
            is_compiled = True
            running = compiled.start(advance, running.state, True)
        work = SWEPT_WORK if is_compiled else PYTHON_WORK
        running.advance(int(running.state.now[loop.WORK]) + work)
    return np.array(running.state.offset, dtype=np.int64)


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


def allocated(block_list: BlockList, blocks: Ints | None = None, base: int = 0) -> Ints:
    """Return the offsets, in bytes, that an allocator at run time would find from `base` up.

    Those of some blocks, or of all.

    Blocks are taken as they begin, each into the smallest gap that is large enough. One that has
    several live ranges keeps its bytes from the first to the last; one that is separated from
    others keeps them until those have begun.
    """
    begins, ends = block_list.spans
    offsets: Ints = np.zeros(len(block_list), dtype=np.int64)
    offsets[[*block_list.pinned]] = [*block_list.pinned.values()]
    free = np.zeros(len(block_list), dtype=bool)
    free[slice(None) if blocks is None else blocks] = True
    free &= block_list.size_array > 0
    free[[*block_list.pinned]] = False
    until = ends.copy()
    for block, others in block_list.separated.items():
        until[block] = max(ends[block], begins[others].max() + 1)
    chosen = np.flatnonzero(free)
    # At one position, what ends comes first.
    order = np.concatenate((until[chosen], begins[chosen])).argsort(kind="stable")
    events = np.concatenate((~chosen, chosen))[order]
    del order, until
    gaps, taken = len(chosen) + 2, np.array(block_list.taken, dtype=np.int64).reshape(-1, 2).T
    now = [0] * allocation.NOW_SIZE
    now[allocation.TOP] = base
    make: Any = allocation.AllocationState
    state: allocation.AllocationState = make(
        size=block_list.size_array,
        alignment=block_list.alignment_array,
        offset=offsets,
        event=events,
        taken_begin=taken[0],
        taken_end=taken[1],
        low=Room(gaps),
        high=Room(gaps),
        height=Room(gaps),
        larger=Room(allocation.LEVELS * gaps),
        spare=Room(gaps),
        path=[0] * allocation.LEVELS,
        below=Room(gaps + len(block_list)),
        above=Room(gaps + len(block_list)),
        now=now,
        entries=len(events),
        taken=len(taken[0]),
        gaps=gaps,
    )
    return _run(allocation.advance, state, len(events), lambda done: False)
