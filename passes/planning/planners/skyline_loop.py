# SPDX-License-Identifier: Apache-2.0
"""The loop of the skyline greedy on many blocks, as plain Python and as what TVM compiles.

`planners.skyline` says what it does and makes the state. The functions here are
of the subset that `passes.ir.loop_to_tir` translates.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]

LEAF = 8  # Blocks in a leaf of the tree
NO_RANK = 1 << 40  # The rank of no block
CEILING = 1 << 62  # A height above all offsets
STACK = 128  # Nodes that may wait in a walk through the tree

MAX_BEGIN, MIN_END, RANK, MIN_SIZE, NODE = range(5)
"""What a node knows of the blocks below it, side by side, and how much that is."""


class SkylineState(NamedTuple):
    """Blocks that are being placed; they are numbered by rank."""

    # A block: its positions, bytes, alignment, slot in the leaves of the tree, and offset.
    begin: Ints
    end: Ints
    size: Ints
    alignment: Ints
    slot: Ints
    offset: Ints
    # The tree: `NODE` integers a node, the root being the second; ranks in the leaves.
    nodes: Ints
    slots: Ints
    # The skyline, at the position where a stretch of equal height begins.
    stretch_end: Ints
    stretch_before: Ints
    height: Ints
    # The ranks that a block must not share bytes with: where its row begins, and the rows.
    rows: Ints
    separated: Ints
    # Taken memory: from byte to byte, from position to position.
    taken_begin: Ints
    taken_end: Ints
    taken_first: Ints
    taken_last: Ints
    # Nodes that wait in a walk; how many blocks are left, and the stretch that is looked at.
    stack: Ints
    left: Ints
    here: Ints
    positions: int
    leaves: int
    taken: int
    shallow: int  # The depth in bytes up to which a valley takes no block that stands out of it


def advance(state: SkylineState, steps: int) -> None:
    """Place a block, fill a valley, or go to a lower stretch of the skyline, so many times."""
    height, stretch_end = state.height, state.stretch_end
    for _ in range(steps):
        if state.left[0] == 0:
            return
        here = state.here[0]
        end = stretch_end[here]
        before = state.stretch_before[here]
        low = height[here]
        left = height[before] if before >= 0 else CEILING
        right = height[end] if end < state.positions else CEILING
        if left < low:
            state.here[0] = before
        elif right < low:
            state.here[0] = end
        else:
            wall = min(left, right)
            depth = wall - low
            most_size = depth if depth <= state.shallow else CEILING
            rank = _lowest_rank(state, here, end, most_size)
            if rank == NO_RANK:
                _fill(state, here, wall)
            else:
                _place(state, rank, here)


def _lowest_rank(state: SkylineState, first: int, last: int, most_size: int) -> int:
    """Return the lowest rank of a block left whose life is within some positions."""
    nodes, stack, slots = state.nodes, state.stack, state.slots
    begin, end, size = state.begin, state.end, state.size
    best = NO_RANK
    stack[0] = 1
    waiting = 1
    while waiting > 0:
        waiting -= 1
        node = stack[waiting]
        row = node * NODE
        if nodes[row + RANK] >= best or nodes[row + MAX_BEGIN] < first:
            continue
        if nodes[row + MIN_END] > last or nodes[row + MIN_SIZE] > most_size:
            continue
        if node >= state.leaves:
            at = (node - state.leaves) * LEAF
            for place in range(at, at + LEAF):
                rank = slots[place]
                if (
                    rank < best
                    and begin[rank] >= first
                    and end[rank] <= last
                    and size[rank] <= most_size
                ):
                    best = rank
        else:
            one = 2 * node
            lower = nodes[one * NODE + RANK] <= nodes[(one + 1) * NODE + RANK]
            stack[waiting] = one + 1 if lower else one
            stack[waiting + 1] = one if lower else one + 1
            waiting += 2
    return best


def _remove(state: SkylineState, rank: int) -> None:
    """Take a block out of the tree."""
    nodes, slots = state.nodes, state.slots
    slots[state.slot[rank]] = NO_RANK
    leaf = state.slot[rank] // LEAF
    node = leaf + state.leaves
    row = node * NODE
    nodes[row + MAX_BEGIN] = -1
    nodes[row + MIN_END] = nodes[row + RANK] = NO_RANK
    nodes[row + MIN_SIZE] = CEILING
    for place in range(leaf * LEAF, leaf * LEAF + LEAF):
        other = slots[place]
        if other != NO_RANK:
            nodes[row + MAX_BEGIN] = max(nodes[row + MAX_BEGIN], state.begin[other])
            nodes[row + MIN_END] = min(nodes[row + MIN_END], state.end[other])
            nodes[row + RANK] = min(nodes[row + RANK], other)
            nodes[row + MIN_SIZE] = min(nodes[row + MIN_SIZE], state.size[other])
    while node > 1:
        node = node // 2
        row = node * NODE
        one = 2 * row
        two = one + NODE
        nodes[row + MAX_BEGIN] = max(nodes[one + MAX_BEGIN], nodes[two + MAX_BEGIN])
        nodes[row + MIN_END] = min(nodes[one + MIN_END], nodes[two + MIN_END])
        nodes[row + RANK] = min(nodes[one + RANK], nodes[two + RANK])
        nodes[row + MIN_SIZE] = min(nodes[one + MIN_SIZE], nodes[two + MIN_SIZE])


def _settled(state: SkylineState, rank: int, low: int) -> int:
    """Return the lowest offset from `low` up that a block can take."""
    size, alignment = state.size[rank], state.alignment[rank]
    begin, end = state.begin[rank], state.end[rank]
    low += -low % alignment
    moved = True
    while moved:
        moved = False
        for at in range(state.taken):
            if (
                state.taken_begin[at] < low + size
                and low < state.taken_end[at]
                and state.taken_first[at] < end
                and begin < state.taken_last[at]
            ):
                low = state.taken_end[at]
                low += -low % alignment
                moved = True
        for at in range(state.rows[rank], state.rows[rank + 1]):
            other = state.separated[at]
            offset = state.offset[other]
            if offset >= 0 and offset < low + size and low < offset + state.size[other]:
                low = offset + state.size[other]
                low += -low % alignment
                moved = True
    return low


def _place(state: SkylineState, rank: int, here: int) -> None:
    """Place a block on the stretch that begins at `here`, which it cuts in up to three."""
    stretch_end, stretch_before, heights = state.stretch_end, state.stretch_before, state.height
    end, height, last = stretch_end[here], heights[here], state.positions
    offset = _settled(state, rank, height)
    state.offset[rank] = offset
    state.left[0] -= 1
    _remove(state, rank)
    begin, stop, top = state.begin[rank], state.end[rank], offset + state.size[rank]
    if stop < end:
        stretch_end[stop] = end
        stretch_before[stop] = begin
        heights[stop] = height
        if end < last:
            stretch_before[end] = stop
    elif end < last:
        stretch_before[end] = begin
    if begin > here:
        stretch_end[here] = begin
        stretch_before[begin] = here
    stretch_end[begin] = stop
    heights[begin] = top
    if stop < last and heights[stop] == top:
        _join(state, begin)
    before = stretch_before[begin]
    if before >= 0 and heights[before] == top:
        _join(state, before)
        if begin == here:
            state.here[0] = before


def _fill(state: SkylineState, here: int, height: int) -> None:
    """Raise a stretch to its lower neighbours, and join it with those of its height."""
    state.height[here] = height
    end, before = state.stretch_end[here], state.stretch_before[here]
    if end < state.positions and state.height[end] == height:
        _join(state, here)
    if before >= 0 and state.height[before] == height:
        _join(state, before)
        state.here[0] = before


def _join(state: SkylineState, here: int) -> None:
    """Join a stretch with the next one."""
    beyond = state.stretch_end[state.stretch_end[here]]
    state.stretch_end[here] = beyond
    if beyond < state.positions:
        state.stretch_before[beyond] = here
