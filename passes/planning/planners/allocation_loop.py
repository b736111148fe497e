# SPDX-License-Identifier: Apache-2.0
"""Blocks as they begin, each in the smallest gap, as an allocator at run time would place them.

Gaps are in a skip list by size (W. Pugh, 1990), and blocks and gaps in a circle by address, which
says what a freed gap is joined with. That takes n log n steps for n blocks.

The functions here are of the subset that `passes.ir.loop_to_tir` translates.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]

LEVELS = 12  # Of the skip list: each has a fourth of the gaps of the one below
NEXT, WORK, TOP, TAKEN, MADE, SPARE, SEED, USED, NOW_SIZE = range(9)
"""Entries of `AllocationState.now`: events and steps so far, the first byte above all, ranges
taken below that, gaps ever made, gaps to be used again, the last random number, and levels used."""


class AllocationState(NamedTuple):
    """An allocation that can be stopped and taken up again."""

    # A block: bytes, alignment, its offset.
    size: Ints
    alignment: Ints
    offset: Ints
    event: Ints  # A block where it begins, its bitwise complement where its bytes are free again
    taken_begin: Ints
    taken_end: Ints
    # A gap: where it begins and ends, on how many levels it is, and the next larger one on each.
    low: Ints
    high: Ints
    height: Ints
    larger: Ints
    spare: Ints
    path: Ints  # On each level, the last gap before one that is looked for
    # The neighbours of 0, which stands below and above all; of a gap; and of a block, whose number
    # is that of gaps plus its own.
    below: Ints
    above: Ints
    now: Ints
    entries: int  # Events
    taken: int
    gaps: int  # Gaps that there can be


def advance(state: AllocationState, stop: int) -> None:
    """Place and free blocks until all events are over, or `stop` steps were taken."""
    now = state.now
    if now[NEXT] == 0:
        join(state.below, state.above, 0, 0)
        for level in range(LEVELS):
            state.larger[level] = 0
    while now[NEXT] < state.entries and now[WORK] < stop:
        block = state.event[now[NEXT]]
        now[NEXT] += 1
        now[WORK] += LEVELS
        if block >= 0:
            _take(state, block)
        else:
            _free(state, -1 - block)


def _take(state: AllocationState, block: int) -> None:
    """Place a block in the smallest gap that is large enough, else above all."""
    now, size, unit = state.now, state.size[block], state.alignment[block]
    state.path[0] = 0
    find(state.low, state.high, state.larger, state.path, now[USED], size, 0)
    gap = state.larger[state.path[0] * LEVELS]
    offset = 0
    while gap > 0:
        offset = state.low[gap]
        offset += -offset % unit
        if offset + size <= state.high[gap]:
            break
        gap = state.larger[gap * LEVELS]
        now[WORK] += 1
    node = state.gaps + block
    if gap > 0:
        low, high = state.low[gap], state.high[gap]
        below, above = state.below[gap], state.above[gap]
        _drop(state, gap)
        join(state.below, state.above, below, node)
        join(state.below, state.above, node, above)
        _put(state, low, offset, below)
        _put(state, offset + size, high, node)
    else:
        while now[TAKEN] < state.taken and state.taken_end[now[TAKEN]] <= now[TOP]:
            now[TAKEN] += 1
        offset = now[TOP]
        offset += -offset % unit
        for at in range(now[TAKEN], state.taken):
            if state.taken_begin[at] - offset >= size:
                break
            if state.taken_end[at] > offset:
                offset = state.taken_end[at]
                offset += -offset % unit
        now[TOP] = offset + size
        join(state.below, state.above, state.below[0], node)
        join(state.below, state.above, node, 0)
    state.offset[block] = offset


def _free(state: AllocationState, block: int) -> None:
    """Make a gap of the bytes of a block and the gaps on both sides."""
    low = state.offset[block]
    high = low + state.size[block]
    below, above = state.below[state.gaps + block], state.above[state.gaps + block]
    begin, end, gaps = low, high, state.gaps
    if below > 0 and below < gaps and state.high[below] == low:
        begin = state.low[below]
        _drop(state, below)
        below = state.below[below]
    if above > 0 and above < gaps and state.low[above] == high:
        end = state.high[above]
        _drop(state, above)
        above = state.above[above]
    join(state.below, state.above, below, above)
    if end == state.now[TOP]:
        state.now[TOP] = begin
    else:
        _put(state, begin, end, below)


def _put(state: AllocationState, low: int, high: int, below: int) -> None:
    """Make a gap of free bytes above a neighbour."""
    now, larger, path = state.now, state.larger, state.path
    if low < high:
        if now[SPARE] > 0:
            now[SPARE] -= 1
            gap = state.spare[now[SPARE]]
        else:
            now[MADE] += 1
            gap = now[MADE]
        state.low[gap] = low
        state.high[gap] = high
        join(state.below, state.above, gap, state.above[below])
        join(state.below, state.above, below, gap)
        find(state.low, state.high, larger, path, now[USED], high - low, low)
        now[SEED] = (now[SEED] * 1103515245 + 12345) % 2147483648
        left = now[SEED] // 128
        height = 1
        while left % 4 == 0 and height < LEVELS:
            height += 1
            left = left // 4
        state.height[gap] = height
        for level in range(now[USED], height):
            path[level] = 0
        now[USED] = max(now[USED], height)
        for level in range(height):
            larger[gap * LEVELS + level] = larger[path[level] * LEVELS + level]
            larger[path[level] * LEVELS + level] = gap


def _drop(state: AllocationState, gap: int) -> None:
    """Take a gap out of the list by size."""
    now, larger, path, low = state.now, state.larger, state.path, state.low[gap]
    find(state.low, state.high, larger, path, now[USED], state.high[gap] - low, low)
    for level in range(state.height[gap]):
        larger[path[level] * LEVELS + level] = larger[gap * LEVELS + level]
    state.spare[now[SPARE]] = gap
    now[SPARE] += 1


def find(lows: Ints, highs: Ints, larger: Ints, path: Ints, used: int, size: int, low: int) -> None:
    """Find on each level the last gap that is smaller, or as large and lower."""
    gap = 0
    for down in range(used):
        level = used - 1 - down
        after = larger[gap * LEVELS + level]
        while after > 0:
            room = highs[after] - lows[after]
            if room > size or (room == size and lows[after] >= low):
                break
            gap = after
            after = larger[gap * LEVELS + level]
        path[level] = gap


def join(below: Ints, above: Ints, lower: int, upper: int) -> None:
    """Let two nodes of the circle be neighbours."""
    above[lower] = upper
    below[upper] = lower
