# SPDX-License-Identifier: Apache-2.0
"""First fit and best fit: blocks in a fixed order, each in a gap between those placed before.

First fit takes the lowest gap that is large enough, best fit the smallest. Both are what most
compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order and gap rule only).
Where sharing has a cost, the gap of least added cost comes first; else
`passes.planning.planners.first_fit.loop` does it: in plain Python as long as that takes no time to
speak of, then compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList, settle
from passes.planning.engine.orders import FAST_ORDERS, ORDERS, Measures, ordered
from passes.planning.engine.ranking import better, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.first_fit.loop import NEXT, ROW, WORK, FitState, advance
from passes.planning.planners.first_fit.loop import UNPLACED as UNPLACED
from passes.planning.planners.skyline.place import place_by_skyline
from passes.planning.problem import Problem

LARGE = 20_000  # Blocks beyond which only `FAST_ORDERS` are tried
FIRST_WORK = 200_000  # Placed blocks looked at in plain Python before the compiled form takes over
CHUNK, PLAIN_CHUNK = 20_000_000, 1_000_000
"""Placed blocks looked at between two looks at the clock, compiled and in plain Python."""
MOST_WORK, MOST_PLAIN_WORK = 20_000_000_000, 50_000_000
"""Placed blocks looked at, at most, for all blocks: some ten seconds."""
EVER = 1 << 62


@register("first_fit")
def first_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the lowest gap that is large enough, under several orders.

    Stops at the first plan that the lower bound proves optimal.
    """
    return on_each_coalescing(
        problem, lambda block_list: fit(block_list, BudgetTracker(budget), "first")
    )


@register("best_fit")
def best_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the smallest gap that is large enough, under several orders.

    Stops at the first plan that the lower bound proves optimal.
    """
    return on_each_coalescing(
        problem, lambda block_list: fit(block_list, BudgetTracker(budget), "best")
    )


def fit(
    block_list: BlockList,
    tracker: BudgetTracker,
    rule: str,
    orders: Sequence[str] | None = None,
    known: Plan | None = None,
) -> Plan:
    """Return the best plan that one gap rule, "first" or "best", gives under several orders.

    By default these are all `ORDERS`, or `FAST_ORDERS` for more than `LARGE` blocks. Where time is
    too short for one order, the plan that is `known` is returned; without it the blocks that are
    left are put on top, which takes some time more.
    """
    if orders is None:
        orders = FAST_ORDERS if len(block_list) > LARGE else tuple(ORDERS)
    measures = Measures(block_list)

    def planned(name: str, costs: bool) -> Plan:
        order = ordered(measures, name)
        offsets = fit_blocks(block_list, order, rule, costs, tracker=tracker)
        if UNPLACED in offsets:
            if known is not None and tracker.expired:
                return known
            # Those that have no offset are put in a skyline on top.
            ends = (o + s for o, s in zip(offsets, block_list.sizes, strict=True) if o != UNPLACED)
            floor = max(ends, default=0)
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
    fixed: dict[int, int] | None = None,
    limit: int | None = None,
    tracker: BudgetTracker | None = None,
) -> list[int]:
    """Place blocks one by one, by the rule "first" or "best"; return the offsets in bytes.

    Blocks of `order` that are pinned or `fixed` are passed over. A block that would end above
    `limit` bytes is left `UNPLACED`, as are those that are left once the tracker is expired or
    `MOST_WORK` placed blocks have been looked at. With `costs`, offsets are preferred that share
    nothing that has a cost, unless the pairs that conflict are too many to be listed.
    """
    tracker = tracker or BudgetTracker(Budget())
    offsets = [UNPLACED] * len(block_list)
    for block, offset in {**block_list.pinned, **(fixed or {})}.items():
        offsets[block] = offset
    most = EVER if limit is None else limit
    if costs and block_list.soft and block_list.is_listed:
        _fit_at_least_cost(block_list, order, rule, offsets, most, tracker)
        return offsets
    running = compiled.on_lists(advance, _make_state(block_list, order, rule, offsets, most))
    chunk, work = PLAIN_CHUNK, MOST_PLAIN_WORK
    if not compiled.is_loaded(advance):
        running.advance(FIRST_WORK)
    if running.state.now[NEXT] < len(order) and compiled.loop(advance) is not None:
        running = compiled.on_arrays(advance, running.state)
        chunk, work = CHUNK, MOST_WORK
    now = running.state.now
    while now[NEXT] < len(order) and now[WORK] < work and not tracker.expired:
        running.advance(min(now[WORK] + chunk, work))
    return [int(offset) for offset in running.state.offset[: len(block_list)]]


def _make_state(
    block_list: BlockList, order: Sequence[int], rule: str, offsets: Sequence[int], limit: int
) -> FitState:
    """Return blocks that are placed one by one, and behind them the reserved ranges."""
    reserved = block_list.problem.memory.reserved
    lives = [*block_list.live, *(((-EVER, EVER),) for _ in reserved)]
    rows = [block_list.separated.get(block, []) for block in range(len(lives))]
    begins, ends = (list(each) for each in block_list.spans)
    begin = np.array([*begins, *(-EVER for _ in reserved)], dtype=np.int64)
    end = np.array([*ends, *(EVER for _ in reserved)], dtype=np.int64)
    size = np.array([*block_list.sizes, *(e - b for b, e in reserved)], dtype=np.int64)
    offset = np.array([*offsets, *(b for b, _ in reserved)], dtype=np.int64)
    there = np.flatnonzero((offset != UNPLACED) & (size > 0))
    there = there[np.argsort(offset[there], kind="stable")]
    placed = np.zeros((len(lives) + 1, ROW), dtype=np.int64)
    low = offset[there]
    placed[: len(there)] = np.stack(
        (low, low + size[there], begin[there], end[there], there), axis=1
    )
    make: Any = FitState  # Sequences of every kind become what the loop runs on.
    state: FitState = make(
        begin=begin,
        end=end,
        size=size,
        alignment=[*block_list.alignments, *(1 for _ in reserved)],
        offset=offset,
        pieces=list(accumulate(map(len, lives), initial=0)),
        piece_begin=[begin for live in lives for begin, _ in live],
        piece_end=[end for live in lives for _, end in live],
        rows=list(accumulate(map(len, rows), initial=0)),
        separated=[other for row in rows for other in row],
        order=order,
        placed=placed.reshape(-1),
        mark=[-1] * len(lives),
        now=[0, len(there), 0],
        ordered=len(order),
        limit=limit,
        is_best=int(rule == "best"),
    )
    return state


def _fit_at_least_cost(
    block_list: BlockList,
    order: Iterable[int],
    rule: str,
    offsets: list[int],
    limit: int,
    tracker: BudgetTracker,
) -> None:
    """Give blocks offsets; those with penalties go where they add the least cost."""
    sizes, alignments = block_list.sizes, block_list.alignments
    for block in order:
        if offsets[block] != UNPLACED:
            continue
        if tracker.expired:
            return
        taken = list(block_list.problem.memory.reserved)
        for other in block_list.interference[block].tolist():
            if offsets[other] != UNPLACED:
                taken.append((offsets[other], offsets[other] + sizes[other]))
        taken.sort()
        if block in block_list.soft:
            offset = _cheapest(block_list, block, offsets, taken)
        elif rule == "first":
            offset = settle(0, sizes[block], alignments[block], taken)
        else:
            offset = _tightest(sizes[block], alignments[block], taken)
        if offset + sizes[block] <= limit:
            offsets[block] = offset


def _tightest(size: int, alignment: int, taken: Sequence[tuple[int, int]]) -> int:
    """Return the offset of the smallest gap in which a block fits, the first among equals."""
    best, best_room, top = UNPLACED, EVER, 0
    for begin, end in taken:
        if size <= begin - top < best_room:
            best, best_room = top, begin - top
        if end > top:
            top = end + -end % alignment
    return top if best == UNPLACED else best


def _cheapest(
    block_list: BlockList, block: int, offsets: Sequence[int], taken: Sequence[tuple[int, int]]
) -> int:
    """Return the offset that adds the least cost within the capacity, then the lowest."""
    size, alignment = block_list.sizes[block], block_list.alignments[block]
    capacity = block_list.problem.capacity
    soft = [
        (offsets[other], offsets[other] + block_list.sizes[other], penalty)
        for other, penalty in block_list.soft[block]
        if offsets[other] != UNPLACED
    ]
    best: tuple[bool, int, int] | None = None
    for top in sorted({0, *(end for _, end in taken), *(end for _, end, _ in soft)}):
        offset = settle(top, size, alignment, taken)
        shared = {p for low, high, p in soft if low < offset + size and offset < high}
        cost = sum(block_list.problem.penalties[p].cost for p in shared)
        rank = (capacity is not None and offset + size > capacity, cost, offset)
        best = rank if best is None else min(best, rank)
    assert best is not None, "offset 0 is always a candidate"
    return best[2]
