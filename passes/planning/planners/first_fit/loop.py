# SPDX-License-Identifier: Apache-2.0
"""First fit and best fit on many blocks, by a look over all that is placed.

Placed blocks are kept sorted by offset, so that a look over them meets the gaps for a block in
order; those that are not live with it are passed over.

The functions here are of the subset that `passes.ir.loop_to_tir` translates: they run
as Python, and as what TVM compiles.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]

UNPLACED = -1
ROOMLESS = (1 << 63) - 1  # More room than any gap has

# Entries of `FitState.now`: how many of the order are done, how many blocks are placed, and how
# many placed ones were looked at.
NEXT, PLACED, WORK, NOW_SIZE = range(4)
# What is known of a placed block, side by side: its bytes, its life, and which it is.
LOW, HIGH, BEGIN, END, BLOCK, ROW = range(6)


class FitState(NamedTuple):
    """Blocks that are placed one by one; the last ones are the reserved ranges."""

    # A block: its life from the first to the last position, bytes, alignment, offset in bytes.
    begin: Ints
    end: Ints
    size: Ints
    alignment: Ints
    offset: Ints
    # Its live ranges are those from `pieces[block]` to `pieces[block + 1]`.
    pieces: Ints
    piece_begin: Ints
    piece_end: Ints
    # The blocks that it must not share bytes with, likewise.
    rows: Ints
    separated: Ints
    order: Ints
    # `ROW` integers for each placed block, by offset.
    placed: Ints
    # For each block the place in the order of the last one that it must not share bytes with.
    mark: Ints
    now: Ints
    ordered: int
    limit: int
    is_best: int


def advance(state: FitState, stop: int) -> None:
    """Place blocks in order, until `stop` placed ones were looked at."""
    now = state.now
    while now[NEXT] < state.ordered and now[WORK] < stop:
        block = state.order[now[NEXT]]
        if state.offset[block] == UNPLACED:
            for at in range(state.rows[block], state.rows[block + 1]):
                state.mark[state.separated[at]] = now[NEXT]
            low = 0
            if state.size[block] > 0:
                low = _gap(state, block)
            if low + state.size[block] <= state.limit:
                state.offset[block] = low
                if state.size[block] > 0:
                    _insert(state, block)
        now[NEXT] += 1


def _gap(state: FitState, block: int) -> int:
    """Return the offset of the first or the tightest gap that a block fits in."""
    placed, now = state.placed, state.now
    begin, end, size = state.begin[block], state.end[block], state.size[block]
    alignment = state.alignment[block]
    is_separated = state.rows[block] < state.rows[block + 1]
    best = UNPLACED
    best_room = ROOMLESS
    top = 0  # Where the next gap begins.
    at = 0
    while at < now[PLACED]:
        row = at * ROW
        meets = 0
        if placed[row + BEGIN] < end and begin < placed[row + END]:
            meets = _meet(state, block, placed[row + BLOCK])
        if is_separated and state.mark[placed[row + BLOCK]] == now[NEXT]:
            meets = 1
        if meets:
            room = placed[row + LOW] - top
            if room >= size and room < best_room:
                best = top
                best_room = room
                if not state.is_best:
                    break
            if placed[row + HIGH] > top:
                top = placed[row + HIGH]
                top += -top % alignment
        at += 1
    now[WORK] += at + 1
    return top if best == UNPLACED else best


def _meet(state: FitState, one: int, two: int) -> int:
    """Whether two blocks whose lives overlap from first to last are live at one position."""
    pieces, begins, ends = state.pieces, state.piece_begin, state.piece_end
    if pieces[one + 1] - pieces[one] + pieces[two + 1] - pieces[two] == 2:
        return 1
    for first in range(pieces[one], pieces[one + 1]):
        for second in range(pieces[two], pieces[two + 1]):
            if begins[first] < ends[second] and begins[second] < ends[first]:
                return 1
    return 0


def _insert(state: FitState, block: int) -> None:
    """Put a block among the placed ones, after all of the same offset."""
    placed, now = state.placed, state.now
    low, high = 0, now[PLACED]
    while low < high:
        middle = (low + high) // 2
        if placed[middle * ROW + LOW] <= state.offset[block]:
            low = middle + 1
        else:
            high = middle
    at = now[PLACED] * ROW
    while at > low * ROW:
        at -= 1
        placed[at + ROW] = placed[at]
    row = low * ROW
    placed[row + LOW] = state.offset[block]
    placed[row + HIGH] = state.offset[block] + state.size[block]
    placed[row + BEGIN] = state.begin[block]
    placed[row + END] = state.end[block]
    placed[row + BLOCK] = block
    now[PLACED] += 1
