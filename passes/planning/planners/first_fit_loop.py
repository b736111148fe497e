# SPDX-License-Identifier: Apache-2.0
"""First fit over an index of time: each block in the lowest gap between those placed before.

The live ranges, sorted by begin, are the leaves of a tree that knows the last end of those placed
under each node. So the placed blocks that one meets are found without a look at the others; sorted
by offset, they show the gaps. That takes n log n steps in practice, and the pairs that meet.

The functions here are of the subset that `passes.ir.loop_to_tir` translates.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

from passes.planning.engine.blocks import BUCKET

Ints = MutableSequence[int]

RUN = 8  # Rows that are sorted by insertion before they are merged
NEVER = -(1 << 62)
NEXT, WORK, FOUND, NOW_SIZE = range(4)
"""Entries of `FirstFitState.now`: blocks looked at so far, steps taken, blocks that one meets."""


class FirstFitState(NamedTuple):
    """A placement that can be stopped and taken up again."""

    # A block: bytes, alignment, its offset or -1.
    size: Ints
    alignment: Ints
    offset: Ints
    # A live range, sorted by begin: its begin, its end, how many begin before it ends, its block;
    # and its end once it is placed.
    begin: Ints
    end: Ints
    until: Ints
    owner: Ints
    placed_end: Ints
    latest: Ints  # For each node of the tree, the last end of those placed under it
    # The live ranges of block `b` are `piece[piece_begins[b]:piece_begins[b + 1]]`; those that it
    # is separated from are likewise in `apart`.
    piece_begins: Ints
    piece: Ints
    apart_begins: Ints
    apart: Ints
    reserved_begin: Ints
    reserved_end: Ints
    order: Ints  # Blocks as they are placed: those that have an offset keep it
    # Room for nodes to visit and their widths, for the bytes that are taken, and to sort those.
    node: Ints
    width: Ints
    low: Ints
    high: Ints
    other_low: Ints
    other_high: Ints
    now: Ints
    entries: int  # Of `order`
    leaves: int  # A power of two
    reserved: int
    limit: int


def advance(state: FirstFitState, stop: int) -> None:
    """Place blocks until all have been looked at, or `stop` steps were taken."""
    now = state.now
    while now[NEXT] < state.entries and now[WORK] < stop:
        block = state.order[now[NEXT]]
        now[NEXT] += 1
        now[WORK] += 1
        if state.size[block] == 0:
            state.offset[block] = 0
        else:
            if state.offset[block] < 0:
                _find(state, block)
            if state.offset[block] >= 0:
                _insert(state, block)


def _insert(state: FirstFitState, block: int) -> None:
    """Let the tree know that a block is placed."""
    for at in range(state.piece_begins[block], state.piece_begins[block + 1]):
        rank = state.piece[at]
        end = state.end[rank]
        state.placed_end[rank] = end
        node = state.leaves + rank // BUCKET
        while node > 0:
            if state.latest[node] >= end:
                node = 0
            else:
                state.latest[node] = end
                node = node // 2


def _find(state: FirstFitState, block: int) -> None:
    """Give a block the lowest gap, if it ends within the limit there."""
    now, offsets = state.now, state.offset
    now[FOUND] = 0
    for at in range(state.piece_begins[block], state.piece_begins[block + 1]):
        _gather(state, state.piece[at])
    for at in range(state.apart_begins[block], state.apart_begins[block + 1]):
        other = state.apart[at]
        if offsets[other] >= 0:
            _add(state, offsets[other], offsets[other] + state.size[other])
    for at in range(state.reserved):
        _add(state, state.reserved_begin[at], state.reserved_end[at])
    now[WORK] += now[FOUND]
    _sort(state)
    size, alignment = state.size[block], state.alignment[block]
    offset = 0
    for at in range(now[FOUND]):
        if state.low[at] - offset >= size:
            break
        if state.high[at] > offset:
            offset = state.high[at]
            offset += -offset % alignment
    if offset + size <= state.limit:
        offsets[block] = offset


def _add(state: FirstFitState, low: int, high: int) -> None:
    """Add bytes that are taken."""
    found = state.now[FOUND]
    state.low[found] = low
    state.high[found] = high
    state.now[FOUND] += 1


def _gather(state: FirstFitState, rank: int) -> None:
    """Add the bytes of all placed blocks that are live in a live range."""
    begin, until = state.begin[rank], state.until[rank]
    nodes, widths = state.node, state.width
    nodes[0] = 1
    widths[0] = state.leaves
    open_nodes = 1
    while open_nodes > 0:
        open_nodes -= 1
        node, width = nodes[open_nodes], widths[open_nodes]
        first = (node * width - state.leaves) * BUCKET
        if state.latest[node] > begin and first < until:
            if width == 1:
                for at in range(first, min(first + BUCKET, until)):
                    if state.placed_end[at] > begin:
                        other = state.owner[at]
                        low = state.offset[other]
                        _add(state, low, low + state.size[other])
            else:
                nodes[open_nodes] = 2 * node
                widths[open_nodes] = width // 2
                nodes[open_nodes + 1] = 2 * node + 1
                widths[open_nodes + 1] = width // 2
                open_nodes += 2


def _sort(state: FirstFitState) -> None:
    """Sort the bytes that are taken by begin: short runs by insertion, then merged in pairs."""
    low, high, count = state.low, state.high, state.now[FOUND]
    for begin in range(0, (count + RUN - 1) // RUN):
        for at in range(begin * RUN + 1, min(begin * RUN + RUN, count)):
            one, two = low[at], high[at]
            back = at
            while back > begin * RUN and low[back - 1] > one:
                low[back] = low[back - 1]
                high[back] = high[back - 1]
                back -= 1
            low[back] = one
            high[back] = two
    length = RUN
    while length < count:
        begin = 0
        while begin < count:
            _merge(state, begin, min(begin + length, count), min(begin + 2 * length, count))
            begin += 2 * length
        for at in range(count):
            low[at] = state.other_low[at]
            high[at] = state.other_high[at]
        length = 2 * length


def _merge(state: FirstFitState, begin: int, middle: int, end: int) -> None:
    """Merge two sorted runs into the other rows."""
    low, high = state.low, state.high
    left, right = begin, middle
    for at in range(begin, end):
        if right >= end or (left < middle and low[left] <= low[right]):
            state.other_low[at] = low[left]
            state.other_high[at] = high[left]
            left += 1
        else:
            state.other_low[at] = low[right]
            state.other_high[at] = high[right]
            right += 1
