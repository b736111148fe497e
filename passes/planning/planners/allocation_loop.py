# SPDX-License-Identifier: Apache-2.0
"""Blocks as they begin, each in the smallest gap, as an allocator at run time would place them.

Gaps are nodes of two skip lists (W. Pugh, 1990), one by size and one by address; the second says
what a freed gap is joined with. That takes n log n steps for n blocks.

The functions here are of the subset that `passes.ir.loop_to_tir` translates.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]

LEVELS = 12  # Of the skip lists: each has a fourth of the nodes of the one below
NEXT, WORK, TOP, TAKEN, NODES, SPARE, SEED, NOW_SIZE = range(8)
"""Entries of `AllocationState.now`: events and steps so far, the first byte above all, ranges
taken below that, nodes ever made, nodes to be used again, and the last random number."""


class AllocationState(NamedTuple):
    """An allocation that can be stopped and taken up again."""

    # A block: bytes, alignment, its offset.
    size: Ints
    alignment: Ints
    offset: Ints
    event: Ints  # A block where it begins, its bitwise complement where its bytes are free again
    taken_begin: Ints
    taken_end: Ints
    # A gap: its bytes, where they begin and end, and on how many levels it is; the next gap on each
    # level by size and by address. Gap 0 stands before all.
    room: Ints
    low: Ints
    high: Ints
    height: Ints
    by_size: Ints
    by_low: Ints
    spare: Ints
    path: Ints  # On each level, the last gap before one that is looked for
    now: Ints
    entries: int  # Events
    taken: int


def advance(state: AllocationState, stop: int) -> None:
    """Place and free blocks until all events are over, or `stop` steps were taken."""
    now = state.now
    if now[NEXT] == 0:
        for level in range(LEVELS):
            state.by_size[level] = 0
            state.by_low[level] = 0
    while now[NEXT] < state.entries and now[WORK] < stop:
        block = state.event[now[NEXT]]
        now[NEXT] += 1
        now[WORK] += LEVELS
        if block >= 0:
            _take(state, block)
        else:
            low = state.offset[-1 - block]
            _free(state, low, low + state.size[-1 - block])


def _take(state: AllocationState, block: int) -> None:
    """Place a block in the smallest gap that is large enough, else above all."""
    now, size, unit = state.now, state.size[block], state.alignment[block]
    find(state.room, state.low, state.by_size, state.path, size, 0)
    gap = state.by_size[state.path[0] * LEVELS]
    offset = 0
    while gap > 0:
        offset = state.low[gap]
        offset += -offset % unit
        if offset + size <= state.high[gap]:
            break
        gap = state.by_size[gap * LEVELS]
        now[WORK] += 1
    if gap > 0:
        low, high = state.low[gap], state.high[gap]
        _drop(state, gap)
        _put(state, low, offset)
        _put(state, offset + size, high)
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
    state.offset[block] = offset


def _free(state: AllocationState, low: int, high: int) -> None:
    """Add free bytes, joined with the gaps on both sides."""
    find(state.low, state.low, state.by_low, state.path, low, low)
    before = state.path[0]
    after = state.by_low[before * LEVELS]
    begin, end = low, high
    if after > 0 and state.low[after] == high:
        end = state.high[after]
        _drop(state, after)
    if before > 0 and state.high[before] == low:
        begin = state.low[before]
        _drop(state, before)
    if end == state.now[TOP]:
        state.now[TOP] = begin
    else:
        _put(state, begin, end)


def _put(state: AllocationState, low: int, high: int) -> None:
    """Make a gap of free bytes between bytes in use."""
    now = state.now
    if low < high:
        if now[SPARE] > 0:
            now[SPARE] -= 1
            gap = state.spare[now[SPARE]]
        else:
            now[NODES] += 1
            gap = now[NODES]
        height = 1
        now[SEED] = (now[SEED] * 1103515245 + 12345) % 2147483648
        left = now[SEED] // 128
        while left % 4 == 0 and height < LEVELS:
            height += 1
            left = left // 4
        state.low[gap] = low
        state.high[gap] = high
        state.room[gap] = high - low
        state.height[gap] = height
        find(state.room, state.low, state.by_size, state.path, high - low, low)
        link(state.by_size, state.path, gap, height)
        find(state.low, state.low, state.by_low, state.path, low, low)
        link(state.by_low, state.path, gap, height)


def _drop(state: AllocationState, gap: int) -> None:
    """Take a gap out of both lists."""
    now, height = state.now, state.height[gap]
    find(state.room, state.low, state.by_size, state.path, state.room[gap], state.low[gap])
    unlink(state.by_size, state.path, gap, height)
    find(state.low, state.low, state.by_low, state.path, state.low[gap], state.low[gap])
    unlink(state.by_low, state.path, gap, height)
    state.spare[now[SPARE]] = gap
    now[SPARE] += 1


def find(keys: Ints, lows: Ints, links: Ints, path: Ints, key: int, low: int) -> None:
    """Find on each level the last gap before a key, or before a place where the key is equal."""
    gap = 0
    for down in range(LEVELS):
        level = LEVELS - 1 - down
        after = links[gap * LEVELS + level]
        while after > 0 and (keys[after] < key or (keys[after] == key and lows[after] < low)):
            gap = after
            after = links[gap * LEVELS + level]
        path[level] = gap


def link(links: Ints, path: Ints, gap: int, height: int) -> None:
    """Put a gap after those of a path."""
    for level in range(height):
        links[gap * LEVELS + level] = links[path[level] * LEVELS + level]
        links[path[level] * LEVELS + level] = gap


def unlink(links: Ints, path: Ints, gap: int, height: int) -> None:
    """Take a gap out after those of a path."""
    for level in range(height):
        links[path[level] * LEVELS + level] = links[gap * LEVELS + level]
