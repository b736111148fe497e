# SPDX-License-Identifier: Apache-2.0
"""First fit and best fit on many blocks, by a look over all that is placed.

The gaps for a block are found in the placed blocks, sorted by offset, of which those that are not
live with it are passed over. That takes memory linear in the blocks, where
`passes.planning.planners.first_fit.gaps` lists the pairs that conflict, and gives the same offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit.loop import NEXT, ROW, UNPLACED, WORK, FitState, advance

CHUNK = 20_000_000
"""Placed blocks looked at between two looks at the clock."""
EVER = 1 << 62


def scanned(
    block_list: BlockList,
    order: Sequence[int],
    rule: str,
    offsets: Sequence[int],
    limit: int | None,
    tracker: BudgetTracker,
    most_work: int,
) -> list[int] | None:
    """Place blocks one by one; None where the loop cannot be compiled.

    Parameters
    ----------
    block_list : BlockList
        What to place; penalties play no part.
    order : sequence of int
        Blocks; those that have an offset are passed over.
    rule : str
        "first" or "best".
    offsets : sequence of int
        For each block its offset in bytes, or `UNPLACED`.
    limit : int, optional
        A block that would end above it (bytes) gets no place.
    tracker : BudgetTracker
        Once it is late, the blocks that are left get no place.
    most_work : int
        Placed blocks looked at after which the blocks that are left get no place.
    """
    if compiled.loop(advance) is None:
        return None
    state = _make_state(block_list, order, rule, offsets, EVER if limit is None else limit)
    running = compiled.on_arrays(advance, state)
    now = running.state.now
    while now[NEXT] < len(order) and now[WORK] < most_work and not tracker.expired:
        running.advance(min(now[WORK] + CHUNK, most_work))
    return [int(offset) for offset in running.state.offset[: len(block_list)]]


def _make_state(
    block_list: BlockList, order: Sequence[int], rule: str, offsets: Sequence[int], limit: int
) -> FitState:
    """Return blocks that are placed one by one, and behind them the reserved ranges."""
    reserved = block_list.problem.memory.reserved
    lives = [*block_list.live, *(((-EVER, EVER),) for _ in reserved)]
    rows: list[list[int]] = [[] for _ in lives]
    for one, two in block_list.separated_pairs():
        rows[one].append(two)
        rows[two].append(one)
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
