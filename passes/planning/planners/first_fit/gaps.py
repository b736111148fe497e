# SPDX-License-Identifier: Apache-2.0
"""Place blocks in a fixed order, each in a gap between those that are placed before it.

Where sharing has no cost, `passes.planning.planners.first_fit.loop` does it: in plain Python as
long as that takes no time to speak of, then compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList, settle
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.first_fit.loop import NEXT, ROW, WORK, FitState, advance
from passes.planning.planners.first_fit.loop import UNPLACED as UNPLACED

FIRST_WORK = 200_000  # Placed blocks looked at in plain Python before the compiled form takes over
CHUNK, PLAIN_CHUNK = 20_000_000, 1_000_000
"""Placed blocks looked at between two looks at the clock, compiled and in plain Python."""
MOST_WORK, MOST_PLAIN_WORK = 20_000_000_000, 50_000_000
"""Placed blocks looked at, at most, for all blocks: some ten seconds."""
EVER = 1 << 62


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
