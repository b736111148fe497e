# SPDX-License-Identifier: Apache-2.0
"""Depth-first search over canonical placements: branch and bound.

A placement in which no block can be moved down alone is found by placing blocks in the order of
their offsets, each at the lowest offset that its placed conflicts leave: so that only the order is
searched. This is the idea of MiniMalloc (M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator
for Hardware-Accelerated Machine Learning", ASPLOS 2023), with these ways to cut a branch:

- *dominance*: a block is not placed where another one would fit wholly below it;
- *section bound*: what is not yet placed of a section does not fit above the lowest reach of its
  blocks;
- *decomposition*: when the blocks left fall into groups that never meet, each group is searched on
  its own, and a group that fails sends the search back to the placement that cut it off, past all
  that the others tried.

The functions here are of the subset that `passes.ir.loop_to_tir` translates: they run
as Python, and as what TVM compiles.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

from passes.planning.engine.blocks import UNPLACED

Ints = MutableSequence[int]

LOAD_LIMIT = 1 << 62
PAUSED, FOUND, EXHAUSTED = range(3)
"""The state of a search: the limit is reached; all is placed; there is no placement, proven."""

# Entries of `SearchState.now`: placements tried so far, how far the search has come, and how many
# frames are open, groups wait, and changes are on the trail.
NODES, OUTCOME, FRAMES, WAITING, TRAIL, NOW_SIZE = range(6)
# A group: unplaced blocks that meet none outside, at `order[begin:end]`, in sections first to last.
# Only placements after `(offset, -load, rank)` are canonical: those before were open to the group
# when the block that cut it off was placed there. `parent` is the frame of that block.
BEGIN, END, FIRST, LAST, PARENT, OFFSET, LOAD, RANK, GROUP = range(9)
# A frame is a group whose next block is being chosen, with the lengths that trail and waiting
# groups had when it was opened.
FRAME_TRAIL, FRAME_WAITING, FRAME = GROUP, GROUP + 1, GROUP + 2


class SearchState(NamedTuple):
    """A search that can be stopped and taken up again."""

    # A block: bytes, alignment, what it weighs in its sections, its rank among blocks of one reach,
    # its first section and the one after its last; its offset, the lowest that its placed conflicts
    # leave it, and what is left to place where it is live.
    size: Ints
    alignment: Ints
    weight: Ints
    rank: Ints
    first: Ints
    last: Ints
    offset: Ints
    reach: Ints
    load: Ints
    # A section: what is left to place there, and how many blocks are tied to it and the one before.
    remaining: Ints
    crossing: Ints
    # Rows of values by block: those of `b` are from `begins[b]` to `begins[b + 1]`.
    conflict_begins: Ints
    conflict: Ints
    obstacle_begins: Ints
    obstacle_begin: Ints
    obstacle_end: Ints
    live_begins: Ints
    live_begin: Ints
    live_end: Ints
    # The blocks of a section, likewise.
    member_begins: Ints
    member: Ints
    order: Ints
    waiting: Ints
    frames: Ints
    # The changes: `block` and its old reach, `~block` when placed, or `block` plus the number
    # of blocks and its old load.
    trail_block: Ints
    trail_old: Ints
    now: Ints
    blocks: int
    sections: int
    capacity: int
    whole_capacity: int
    by_load: int


def advance(state: SearchState, stop: int) -> None:
    """Place blocks until all are placed, there is no placement, or `stop` were tried."""
    now, waiting, frames = state.now, state.waiting, state.frames
    descend = int(now[FRAMES] == 0)
    while True:
        if descend:
            if now[WAITING] == 0:
                now[OUTCOME] = FOUND
                return
            now[WAITING] -= 1
            row = now[FRAMES] * FRAME
            for column in range(GROUP):
                frames[row + column] = waiting[now[WAITING] * GROUP + column]
            frames[row + FRAME_TRAIL] = now[TRAIL]
            frames[row + FRAME_WAITING] = now[WAITING]
            now[FRAMES] += 1
        if now[NODES] >= stop:
            now[OUTCOME] = PAUSED
            return
        top = (now[FRAMES] - 1) * FRAME
        at = _next_block(state, top)
        if at < 0:
            parent = frames[top + PARENT]
            if parent < 0:
                now[OUTCOME] = EXHAUSTED
                return
            now[FRAMES] = parent + 1
            _undo(state, frames[parent * FRAME + FRAME_TRAIL])
            now[WAITING] = frames[parent * FRAME + FRAME_WAITING]
            descend = 0
        else:
            now[NODES] += 1
            descend = _place(state, now[FRAMES] - 1, at)
            if not descend:
                _undo(state, frames[top + FRAME_TRAIL])


def _next_block(state: SearchState, frame: int) -> int:
    """Return where in `order` the next block of the open group is; -1 if there is none."""
    frames, order, remaining = state.frames, state.order, state.remaining
    reaches, loads, ranks, sizes = state.reach, state.load, state.rank, state.size
    # Blocks that are left will start no lower than the one placed next.
    most = 0
    for section in range(frames[frame + FIRST], frames[frame + LAST]):
        most = max(most, remaining[section])
    after_offset = frames[frame + OFFSET]
    after_load = frames[frame + LOAD]
    after_rank = frames[frame + RANK]
    best = -1
    best_offset = state.whole_capacity - most
    best_load = 0
    best_rank = state.blocks
    lowest_top = state.capacity + 1
    for at in range(frames[frame + BEGIN], frames[frame + END]):
        block = order[at]
        reach = reaches[block]
        lowest_top = min(lowest_top, reach + sizes[block])
        if reach > best_offset or reach < after_offset:
            continue
        load, rank = loads[block], ranks[block]
        tie = reach == after_offset and load >= after_load
        if tie and (load > after_load or rank <= after_rank):
            continue
        tie = reach == best_offset and load <= best_load
        if tie and (load < best_load or rank >= best_rank):
            continue
        best = at
        best_offset = reach
        best_load = load
        best_rank = rank
    return best if best_offset < lowest_top else -1


def _place(state: SearchState, frame: int, at: int) -> int:
    """Place the block at `at` of the order; return whether the rest may still fit."""
    order, frames, now, row = state.order, state.frames, state.now, frame * FRAME
    block = order[at]
    offset = state.reach[block]
    frames[row + OFFSET] = offset
    frames[row + LOAD] = state.load[block]
    frames[row + RANK] = state.rank[block]
    order[at] = order[frames[row + BEGIN]]
    order[frames[row + BEGIN]] = block
    state.offset[block] = offset
    state.trail_block[now[TRAIL]] = -1 - block
    now[TRAIL] += 1
    _count(state, block, -1)
    may_fit = _raise_conflicts(state, block, offset + state.size[block])
    if may_fit:
        _add_groups(state, frame)
    return may_fit


def _count(state: SearchState, block: int, sign: int) -> None:
    """Take `block` out of (-1) or back into (1) what its sections still have to hold."""
    weight = sign * state.weight[block]
    for live in range(state.live_begins[block], state.live_begins[block + 1]):
        for section in range(state.live_begin[live], state.live_end[live]):
            state.remaining[section] += weight
    for section in range(state.first[block] + 1, state.last[block]):
        state.crossing[section] += sign


def _settled(state: SearchState, low: int, block: int) -> int:
    """Return the lowest offset from `low` up that a block can take between its obstacles."""
    size, alignment = state.size[block], state.alignment[block]
    low += -low % alignment
    for at in range(state.obstacle_begins[block], state.obstacle_begins[block + 1]):
        if state.obstacle_begin[at] >= low + size:
            return low
        if state.obstacle_end[at] > low:
            low = state.obstacle_end[at]
            low += -low % alignment
    return low


def _raise_conflicts(state: SearchState, block: int, top: int) -> int:
    """Move the reach of unplaced conflicts up to `top`; return whether all may still fit."""
    reach, now = state.reach, state.now
    highest = 0
    first = state.sections
    last = 0
    for at in range(state.conflict_begins[block], state.conflict_begins[block + 1]):
        other = state.conflict[at]
        if reach[other] >= top or state.offset[other] != UNPLACED:
            continue
        raised = _settled(state, top, other)
        if raised + state.size[other] > state.capacity:
            return 0
        state.trail_block[now[TRAIL]] = other
        state.trail_old[now[TRAIL]] = reach[other]
        now[TRAIL] += 1
        reach[other] = raised
        highest = max(highest, raised)
        first = min(first, state.first[other])
        last = max(last, state.last[other])
    for section in range(first, last):
        may_fit = _may_fit(state, section, highest)
        if not may_fit:
            return 0
    return 1


def _may_fit(state: SearchState, section: int, highest: int) -> int:
    """Return 1 if a section's remaining bytes fit above the lowest reach of its blocks, else 0."""
    room = state.whole_capacity - state.remaining[section]
    if highest <= room:  # no reach was raised above it
        return 1
    for at in range(state.member_begins[section], state.member_begins[section + 1]):
        other = state.member[at]
        if state.offset[other] == UNPLACED and state.reach[other] <= room:
            return 1
    return 0


def _add_groups(state: SearchState, frame: int) -> None:
    """Put the groups into which the unplaced rest of a frame's group falls on the waiting list."""
    order, frames, waiting, now = state.order, state.frames, state.waiting, state.now
    row = frame * FRAME
    begin = frames[row + BEGIN] + 1
    while begin < frames[row + END]:
        first = state.first[order[begin]]
        last = first + 1
        while first > frames[row + FIRST] and state.crossing[first]:
            first -= 1
        while last < frames[row + LAST] and state.crossing[last]:
            last += 1
        end = begin
        for at in range(begin, frames[row + END]):
            other = order[at]
            if first <= state.first[other] and state.first[other] < last:
                order[at] = order[end]
                order[end] = other
                end += 1
        group = now[WAITING] * GROUP
        waiting[group + BEGIN] = begin
        waiting[group + END] = end
        waiting[group + FIRST] = first
        waiting[group + LAST] = last
        waiting[group + PARENT] = frame
        for column in range(OFFSET, GROUP):
            waiting[group + column] = frames[row + column]
        if state.by_load and (first != frames[row + FIRST] or last != frames[row + LAST]):
            _renew_loads(state, group)
        now[WAITING] += 1
        begin = end


def _renew_loads(state: SearchState, group: int) -> None:
    """Look again at what is left to place where each block of a waiting group is live."""
    loads, waiting, now = state.load, state.waiting, state.now
    for at in range(waiting[group + BEGIN], waiting[group + END]):
        block = state.order[at]
        load = 0
        for live in range(state.live_begins[block], state.live_begins[block + 1]):
            for section in range(state.live_begin[live], state.live_end[live]):
                load = max(load, state.remaining[section])
        if load != loads[block]:
            state.trail_block[now[TRAIL]] = block + state.blocks
            state.trail_old[now[TRAIL]] = loads[block]
            now[TRAIL] += 1
            loads[block] = load
    # No order among equal offsets is known yet.
    waiting[group + LOAD] = LOAD_LIMIT
    waiting[group + RANK] = -1


def _undo(state: SearchState, length: int) -> None:
    """Take back what was changed since the trail was so long."""
    now = state.now
    while now[TRAIL] > length:
        now[TRAIL] -= 1
        block = state.trail_block[now[TRAIL]]
        if block >= state.blocks:
            state.load[block - state.blocks] = state.trail_old[now[TRAIL]]
        elif block >= 0:
            state.reach[block] = state.trail_old[now[TRAIL]]
        else:
            state.offset[-1 - block] = UNPLACED
            _count(state, -1 - block, 1)
