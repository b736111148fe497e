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
NEXT, WORK, NOW_SIZE = range(3)
"""Entries of `FirstFitState.now`: blocks looked at so far, and steps taken."""


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
    # Room for nodes to visit and their widths, for the blocks that one meets, for the bytes that
    # are taken, and to sort those.
    node: Ints
    width: Ints
    met: Ints
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
    now, offsets, size = state.now, state.offset, state.size[block]
    found = 0
    for at in range(state.piece_begins[block], state.piece_begins[block + 1]):
        found = gather(
            state.begin,
            state.placed_end,
            state.until,
            state.owner,
            state.latest,
            state.node,
            state.width,
            state.met,
            state.piece[at],
            state.leaves,
            found,
        )
    for at in range(state.apart_begins[block], state.apart_begins[block + 1]):
        if offsets[state.apart[at]] >= 0:
            state.met[found] = state.apart[at]
            found += 1
    for at in range(found):
        other = state.met[at]
        state.low[at] = offsets[other]
        state.high[at] = offsets[other] + state.size[other]
    for at in range(state.reserved):
        state.low[found] = state.reserved_begin[at]
        state.high[found] = state.reserved_end[at]
        found += 1
    now[WORK] += found
    sort_rows(state.low, state.high, state.other_low, state.other_high, found)
    alignment = state.alignment[block]
    offset = 0
    for at in range(found):
        if state.low[at] - offset >= size:
            break
        if state.high[at] > offset:
            offset = state.high[at]
            offset += -offset % alignment
    if offset + size <= state.limit:
        offsets[block] = offset


def gather(
    begins: Ints,
    ends: Ints,
    untils: Ints,
    owners: Ints,
    latest: Ints,
    nodes: Ints,
    widths: Ints,
    met: Ints,
    rank: int,
    leaves: int,
    found: int,
) -> int:
    """Add the blocks that are live in a live range to those found, and return how many they are.

    `latest` has the last of `ends` under each node of a tree over the live ranges.
    """
    begin, until = begins[rank], untils[rank]
    nodes[0] = 1
    widths[0] = leaves
    open_nodes = 1
    while open_nodes > 0:
        open_nodes -= 1
        node, width = nodes[open_nodes], widths[open_nodes]
        first = (node * width - leaves) * BUCKET
        if latest[node] > begin and first < until:
            if width == 1:
                for at in range(first, min(first + BUCKET, until)):
                    if ends[at] > begin:
                        met[found] = owners[at]
                        found += 1
            else:
                nodes[open_nodes] = 2 * node
                widths[open_nodes] = width // 2
                nodes[open_nodes + 1] = 2 * node + 1
                widths[open_nodes + 1] = width // 2
                open_nodes += 2
    return found


def sort_rows(keys: Ints, values: Ints, other_keys: Ints, other_values: Ints, count: int) -> None:
    """Sort rows by key: short runs by insertion, then merged in pairs."""
    for begin in range(0, (count + RUN - 1) // RUN):
        for at in range(begin * RUN + 1, min(begin * RUN + RUN, count)):
            one, two = keys[at], values[at]
            back = at
            while back > begin * RUN and keys[back - 1] > one:
                keys[back] = keys[back - 1]
                values[back] = values[back - 1]
                back -= 1
            keys[back] = one
            values[back] = two
    length = RUN
    while length < count:
        begin = 0
        while begin < count:
            end = min(begin + 2 * length, count)
            _merge(keys, values, other_keys, other_values, begin, min(begin + length, count), end)
            begin += 2 * length
        for at in range(count):
            keys[at] = other_keys[at]
            values[at] = other_values[at]
        length = 2 * length


def _merge(
    keys: Ints,
    values: Ints,
    other_keys: Ints,
    other_values: Ints,
    begin: int,
    middle: int,
    end: int,
) -> None:
    """Merge two sorted runs into the other rows."""
    left = begin
    right = middle
    for at in range(begin, end):
        if right >= end or (left < middle and keys[left] <= keys[right]):
            other_keys[at] = keys[left]
            other_values[at] = values[left]
            left += 1
        else:
            other_keys[at] = keys[right]
            other_values[at] = values[right]
            right += 1
