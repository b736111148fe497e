# SPDX-License-Identifier: Apache-2.0
"""No reuse at all, and blocks in several orders, each in a gap between those placed before.

First fit takes the lowest gap that is large enough, best fit the smallest. Both are what most
compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order and gap rule only).
Where sharing has a cost, the gap of least added cost comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import UNPLACED, BlockList, Ints, NewMemory
from passes.planning.engine.coalesce import better, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.skyline import place_by_skyline
from passes.planning.problem import Problem
from target_hw.memory import round_up, settle

MOST_WORK = 2_000_000_000
"""Pairs of blocks looked at, at most, where they are not listed: some ten seconds."""
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


@register("best_fit")
def best_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the smallest gap that is large enough, under several orders."""
    tracker = BudgetTracker(budget)
    return on_each_coalescing(problem, lambda block_list: fit(block_list, tracker, "best"))


def fit(
    block_list: BlockList,
    tracker: BudgetTracker,
    rule: str = "first",
    orders: Sequence[str] = ORDERS,
) -> Plan:
    """Return the best plan that one gap rule, "first" or "best", gives under several orders.

    Stops at the first plan that the lower bound proves optimal, or once the time is over.
    Where time is too short for one order, the blocks that are left are put in a skyline on top.
    """

    def planned(name: str, costs: bool) -> Plan:
        order = ordered(block_list, name)
        offsets = fit_blocks(block_list, order, rule, costs, tracker=tracker)
        if UNPLACED in offsets:
            there = [o + s for o, s in zip(offsets, block_list.sizes, strict=True) if o != UNPLACED]
            floor = max(there, default=0)
            offsets = place_by_skyline(block_list, order, tracker, offsets, floor).tolist()
        return block_list.plan(offsets, f"{rule}_fit")

    plans = (
        planned(order, costs)
        for order in orders
        for costs in ((True, False) if block_list.soft else (False,))
    )
    return better(block_list.problem, plans, tracker)


def fit_blocks(
    block_list: BlockList,
    order: Sequence[int],
    rule: str = "first",
    costs: bool = False,
    fixed: Mapping[int, int] | None = None,
    limit: int | None = None,
    tracker: BudgetTracker | None = None,
) -> list[int]:
    """Place blocks one by one, by the rule "first" or "best"; return the offsets in bytes.

    Blocks of `order` that are pinned or `fixed` are passed over. A block that would end above
    `limit` bytes is left `UNPLACED`, as are those that are left once the tracker is expired or
    `MOST_WORK` pairs have been looked at. With `costs`, offsets are preferred that share nothing
    that has a cost.
    """
    offsets: Ints = np.full(len(block_list), UNPLACED)
    ends: Ints = np.zeros(len(block_list), dtype=np.int64)

    def put(block: int, offset: int) -> None:
        offsets[block], ends[block] = offset, offset + block_list.sizes[block]

    for block, offset in {**block_list.pinned, **(fixed or {})}.items():
        put(block, offset)
    most = EVER if limit is None else limit
    reserved = np.array(block_list.problem.memory.reserved, dtype=np.int64).reshape(-1, 2).T
    left = None if block_list.is_listed else MOST_WORK // max(1, len(block_list))
    placed = np.flatnonzero(offsets != UNPLACED)  # Without a list of conflicts: sorted by offset
    placed = placed[offsets[placed].argsort()]
    for block in order[:left]:
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
            offset = _gap(size, alignment, low, high, rule) if size else 0
        if offset + size <= most:
            put(block, offset)
            if not block_list.is_listed:
                at = int(offsets[placed].searchsorted(offset))
                placed = np.insert(placed, at, block)
    found: list[int] = offsets.tolist()
    return found


def _gap(size: int, alignment: int, low: Ints, high: Ints, rule: str) -> int:
    """Return the offset of the lowest gap of `size` bytes between what is taken, or the smallest.

    Above all that is taken there is room for everything, more than in any other gap.
    """
    if rule == "first" and len(low) < FEW_CONFLICTS:
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
    if rule == "first":
        return int(begins[(rooms >= size).argmax()])
    return int(begins[np.where(rooms >= size, rooms, 2 * EVER - 1).argmin()])


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
