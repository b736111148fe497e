"""Depth-first search over canonical placements: the compiled version.

The steps of `passes.planning.engine.canonical.CanonicalSearch`, by the same names, in TVMScript.
TVM compiles them the first time that they are needed; no other module of the planners imports TVM.
Numbers that the Python version keeps in objects are columns of integer arrays here.
"""

# TVMScript is Python in syntax only, and types and names that it has are not Python's.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import tvm
from tvm.script import tirx as T

from passes.planning.engine.canonical import (
    LOAD_LIMIT,
    UNPLACED,
    CanonicalSearch,
    Group,
    Outcome,
)
from passes.planning.engine.sections import Packing

# Columns of `blocks`.
SIZE, ALIGNMENT, WEIGHT, RANK, FIRST, LAST, OFFSET, REACH, LOAD = range(9)
# Columns of `sections`.
REMAINING, CROSSING = range(2)
# Columns of `obstacles` and `lives`.
BEGIN, END = range(2)
# Columns of `waiting`, a group each, and of `frames`, which continue a group's; of `trail`.
G_BEGIN, G_END, G_FIRST, G_LAST, G_PARENT, G_OFFSET, G_LOAD, G_RANK = range(8)
F_TRAIL, F_WAITING = range(8, 10)
T_BLOCK, T_OLD = range(2)
# Entries of `state`.
NODES, STOP, OUTCOME, CAPACITY, WHOLE_CAPACITY, FRAMES, WAITING, TRAIL = range(8)
BY_LOAD = 8
DESCEND, NEXT, SETTLED = range(9, 12)  # what `place`, `next_block` and `settle` return
STATE_SIZE = 12
FOUND, EXHAUSTED, PAUSED = (int(o) for o in (Outcome.FOUND, Outcome.EXHAUSTED, Outcome.PAUSED))


class CompiledSearch:
    """A `CanonicalSearch` that runs compiled; the same parameters and attributes."""

    def __init__(
        self, packing: Packing, ranks: Sequence[int], by_load: bool, capacity: int
    ) -> None:
        plain = CanonicalSearch(packing, ranks, by_load, capacity)
        n = len(packing)
        self._fits = plain.fits
        blocks = _columns(
            packing.sizes,
            packing.alignments,
            packing.weights,
            ranks,
            packing.first,
            packing.last,
            plain.offsets,
            plain.reach,
            plain.loads,
        )
        waiting = np.zeros((n + 1, 8), dtype=np.int64)
        for at, group in enumerate(plain.waiting):
            waiting[at] = _row(group)
        self._state = np.zeros(STATE_SIZE, dtype=np.int64)
        self._state[[CAPACITY, WHOLE_CAPACITY, BY_LOAD]] = capacity, plain.whole_capacity, by_load
        self._state[WAITING] = len(plain.waiting)
        arrays = (
            blocks,
            _columns(plain.remaining, plain.crossing),
            _array(packing.conflicts.begins),
            _array(packing.conflicts.values),
            _array(packing.obstacle_begins.begins),
            _columns(packing.obstacle_begins.values, packing.obstacle_ends.values),
            _array(packing.section_begins.begins),
            _columns(packing.section_begins.values, packing.section_ends.values),
            _array(packing.members.begins),
            _array(packing.members.values),
            _array(plain.order),
            waiting,
            np.zeros((n + 1, 10), dtype=np.int64),  # frames
            self._state,
        )
        # Each placement raises a conflict once and may renew the load of every block left. Most of
        # this is never touched, so it takes address space, not memory.
        trail = n + len(packing.conflicts.values) + (n + 1) * (n + 2) // 2
        self._tensors = [tvm.runtime.tensor(array) for array in arrays]
        self._tensors.insert(-1, tvm.runtime.empty((trail, 2), "int64"))

    @property
    def nodes(self) -> int:
        """Placements tried so far."""
        return int(self._state[NODES])

    @property
    def offsets(self) -> list[int]:
        """For each block its offset in bytes, or `UNPLACED`."""
        return self._tensors[0].numpy()[:, OFFSET].tolist()

    def advance(self, limit: int) -> Outcome:
        """Try at most `limit` more placements."""
        if not self._fits:
            return Outcome.EXHAUSTED
        self._state[STOP] = self.nodes + limit
        self._tensors[-1].copyfrom(self._state)
        _compiled()(*self._tensors)
        self._state = self._tensors[-1].numpy()
        return Outcome(int(self._state[OUTCOME]))


def available() -> bool:
    """Whether this TVM can compile the search."""
    return tvm.runtime.enabled("llvm")


@cache
def _compiled() -> Callable[..., None]:
    module = tvm.IRModule({"advance": advance})
    # The first plan may be made in the middle of a build with a configuration of its own.
    with tvm.transform.PassContext():
        return tvm.tirx.build(module, target="llvm")["advance"]


def _array(values: Sequence[int]) -> np.ndarray:
    # An empty array has no address; one that is never read stands for it.
    return np.array(values or [0], dtype=np.int64)


def _columns(*columns: Sequence[int]) -> np.ndarray:
    return np.ascontiguousarray(np.stack([_array(column) for column in columns], axis=1))


def _row(group: Group) -> tuple[int, ...]:
    return (
        group.begin,
        group.end,
        group.first,
        group.last,
        group.parent,
        group.offset,
        group.load,
        group.rank,
    )


@T.prim_func
def advance(
    blocks_handle: T.handle,
    sections_handle: T.handle,
    conflict_rows_handle: T.handle,
    conflicts_handle: T.handle,
    obstacle_rows_handle: T.handle,
    obstacles_handle: T.handle,
    live_rows_handle: T.handle,
    lives_handle: T.handle,
    member_rows_handle: T.handle,
    members_handle: T.handle,
    order_handle: T.handle,
    waiting_handle: T.handle,
    frames_handle: T.handle,
    trail_handle: T.handle,
    state_handle: T.handle,
):
    """`CanonicalSearch.advance`; each inline function is the method of its name."""
    n0, n1, n2, n3, n4 = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
    n5, n6, n7, n8, n9 = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
    n10, n11, n12, n13 = T.int64(), T.int64(), T.int64(), T.int64()
    blocks = T.match_buffer(blocks_handle, (n0, 9), "int64")
    sections = T.match_buffer(sections_handle, (n1, 2), "int64")
    conflict_rows = T.match_buffer(conflict_rows_handle, (n2,), "int64")
    conflicts = T.match_buffer(conflicts_handle, (n3,), "int64")
    obstacle_rows = T.match_buffer(obstacle_rows_handle, (n4,), "int64")
    obstacles = T.match_buffer(obstacles_handle, (n5, 2), "int64")
    live_rows = T.match_buffer(live_rows_handle, (n6,), "int64")
    lives = T.match_buffer(lives_handle, (n7, 2), "int64")
    member_rows = T.match_buffer(member_rows_handle, (n8,), "int64")
    members = T.match_buffer(members_handle, (n9,), "int64")
    order = T.match_buffer(order_handle, (n10,), "int64")
    trail = T.match_buffer(trail_handle, (n11, 2), "int64")
    frames = T.match_buffer(frames_handle, (n12, 10), "int64")
    waiting = T.match_buffer(waiting_handle, (n13, 8), "int64")
    state = T.match_buffer(state_handle, (STATE_SIZE,), "int64")

    @T.inline
    def settle(low, block):
        state[SETTLED] = low
        if state[SETTLED] % blocks[block, ALIGNMENT] != 0:
            state[SETTLED] = (
                state[SETTLED]
                + blocks[block, ALIGNMENT]
                - state[SETTLED] % blocks[block, ALIGNMENT]
            )
        at: T.int64 = obstacle_rows[block]
        while at < obstacle_rows[block + 1]:
            if obstacles[at, BEGIN] >= state[SETTLED] + blocks[block, SIZE]:
                break
            if obstacles[at, END] > state[SETTLED]:
                state[SETTLED] = obstacles[at, END]
                if state[SETTLED] % blocks[block, ALIGNMENT] != 0:
                    state[SETTLED] = (
                        state[SETTLED]
                        + blocks[block, ALIGNMENT]
                        - state[SETTLED] % blocks[block, ALIGNMENT]
                    )
            at += 1

    @T.inline
    def count(block, sign):
        live: T.int64 = live_rows[block]
        while live < live_rows[block + 1]:
            in_life: T.int64 = lives[live, BEGIN]
            while in_life < lives[live, END]:
                sections[in_life, REMAINING] = (
                    sections[in_life, REMAINING] + sign * blocks[block, WEIGHT]
                )
                in_life += 1
            live += 1
        tied: T.int64 = blocks[block, FIRST] + 1
        while tied < blocks[block, LAST]:
            sections[tied, CROSSING] = sections[tied, CROSSING] + sign
            tied += 1

    @T.inline
    def undo(length):
        while state[TRAIL] > length:
            state[TRAIL] -= 1
            undone: T.int64 = trail[state[TRAIL], T_BLOCK]
            if undone >= n0:
                blocks[undone - n0, LOAD] = trail[state[TRAIL], T_OLD]
            elif undone >= 0:
                blocks[undone, REACH] = trail[state[TRAIL], T_OLD]
            else:
                unplaced: T.int64 = -1 - undone
                blocks[unplaced, OFFSET] = UNPLACED
                count(unplaced, 1)

    @T.inline
    def next_block(frame):
        most: T.int64 = 0
        section: T.int64 = frames[frame, G_FIRST]
        while section < frames[frame, G_LAST]:
            most = T.max(most, sections[section, REMAINING])
            section += 1
        best: T.int64 = -1
        best_offset: T.int64 = state[WHOLE_CAPACITY] - most
        best_load: T.int64 = 0
        best_rank: T.int64 = n0
        lowest_top: T.int64 = state[CAPACITY] + 1
        after_offset: T.int64 = frames[frame, G_OFFSET]
        after_load: T.int64 = frames[frame, G_LOAD]
        after_rank: T.int64 = frames[frame, G_RANK]
        at: T.int64 = frames[frame, G_BEGIN]
        while at < frames[frame, G_END]:
            block: T.int64 = order[at]
            reach: T.int64 = blocks[block, REACH]
            lowest_top = T.min(lowest_top, reach + blocks[block, SIZE])
            if reach <= best_offset:
                load: T.int64 = blocks[block, LOAD]
                rank: T.int64 = blocks[block, RANK]
                if (
                    reach > after_offset
                    or (reach == after_offset and load < after_load)
                    or (reach == after_offset and load == after_load and rank > after_rank)
                ) and (
                    reach < best_offset
                    or (reach == best_offset and load > best_load)
                    or (reach == best_offset and load == best_load and rank < best_rank)
                ):
                    best = at
                    best_offset = reach
                    best_load = load
                    best_rank = rank
            at += 1
        state[NEXT] = -1
        if best_offset < lowest_top:
            state[NEXT] = best

    @T.inline
    def may_fit(section, highest):
        room: T.int64 = state[WHOLE_CAPACITY] - sections[section, REMAINING]
        if highest > room:
            low: T.int64 = 0
            member: T.int64 = member_rows[section]
            while member < member_rows[section + 1]:
                other: T.int64 = members[member]
                if blocks[other, OFFSET] == UNPLACED and blocks[other, REACH] <= room:
                    low = 1
                    break
                member += 1
            if low == 0:
                state[DESCEND] = 0

    @T.inline
    def raise_conflicts(block, top):
        highest: T.int64 = 0
        first: T.int64 = n1
        last: T.int64 = 0
        at: T.int64 = conflict_rows[block]
        while at < conflict_rows[block + 1]:
            other: T.int64 = conflicts[at]
            at += 1
            if blocks[other, REACH] < top and blocks[other, OFFSET] == UNPLACED:
                settle(top, other)
                if state[SETTLED] + blocks[other, SIZE] > state[CAPACITY]:
                    state[DESCEND] = 0
                    break
                trail[state[TRAIL], T_BLOCK] = other
                trail[state[TRAIL], T_OLD] = blocks[other, REACH]
                state[TRAIL] += 1
                blocks[other, REACH] = state[SETTLED]
                highest = T.max(highest, state[SETTLED])
                first = T.min(first, blocks[other, FIRST])
                last = T.max(last, blocks[other, LAST])
        while first < last and state[DESCEND] == 1:
            may_fit(first, highest)
            first += 1

    @T.inline
    def renew_loads(group):
        at: T.int64 = waiting[group, G_BEGIN]
        while at < waiting[group, G_END]:
            block: T.int64 = order[at]
            load: T.int64 = 0
            live: T.int64 = live_rows[block]
            while live < live_rows[block + 1]:
                section: T.int64 = lives[live, BEGIN]
                while section < lives[live, END]:
                    load = T.max(load, sections[section, REMAINING])
                    section += 1
                live += 1
            if load != blocks[block, LOAD]:
                trail[state[TRAIL], T_BLOCK] = block + n0
                trail[state[TRAIL], T_OLD] = blocks[block, LOAD]
                state[TRAIL] += 1
                blocks[block, LOAD] = load
            at += 1
        waiting[group, G_LOAD] = LOAD_LIMIT
        waiting[group, G_RANK] = -1

    @T.inline
    def add_groups(frame):
        begin: T.int64 = frames[frame, G_BEGIN] + 1
        while begin < frames[frame, G_END]:
            first: T.int64 = blocks[order[begin], FIRST]
            last: T.int64 = first + 1
            while first > frames[frame, G_FIRST]:
                if sections[first, CROSSING] == 0:
                    break
                first -= 1
            while last < frames[frame, G_LAST]:
                if sections[last, CROSSING] == 0:
                    break
                last += 1
            end: T.int64 = begin
            at: T.int64 = begin
            while at < frames[frame, G_END]:
                other: T.int64 = order[at]
                if first <= blocks[other, FIRST] and blocks[other, FIRST] < last:
                    order[at] = order[end]
                    order[end] = other
                    end += 1
                at += 1
            for column in T.serial(8):
                waiting[state[WAITING], column] = frames[frame, column]
            waiting[state[WAITING], G_BEGIN] = begin
            waiting[state[WAITING], G_END] = end
            waiting[state[WAITING], G_FIRST] = first
            waiting[state[WAITING], G_LAST] = last
            waiting[state[WAITING], G_PARENT] = frame
            if state[BY_LOAD] == 1 and (
                first != frames[frame, G_FIRST] or last != frames[frame, G_LAST]
            ):
                renew_loads(state[WAITING])
            state[WAITING] += 1
            begin = end

    @T.inline
    def place(frame):
        block: T.int64 = order[state[NEXT]]
        frames[frame, G_OFFSET] = blocks[block, REACH]
        frames[frame, G_LOAD] = blocks[block, LOAD]
        frames[frame, G_RANK] = blocks[block, RANK]
        order[state[NEXT]] = order[frames[frame, G_BEGIN]]
        order[frames[frame, G_BEGIN]] = block
        blocks[block, OFFSET] = blocks[block, REACH]
        trail[state[TRAIL], T_BLOCK] = -1 - block
        state[TRAIL] += 1
        count(block, -1)
        state[DESCEND] = 1
        raise_conflicts(block, blocks[block, REACH] + blocks[block, SIZE])
        if state[DESCEND] == 1:
            add_groups(frame)

    state[OUTCOME] = -1
    state[DESCEND] = 0
    if state[FRAMES] == 0:
        state[DESCEND] = 1
    while state[OUTCOME] < 0:
        if state[DESCEND] == 1:
            if state[WAITING] == 0:
                state[OUTCOME] = FOUND
                break
            state[WAITING] -= 1
            for column in T.serial(8):
                frames[state[FRAMES], column] = waiting[state[WAITING], column]
            frames[state[FRAMES], F_TRAIL] = state[TRAIL]
            frames[state[FRAMES], F_WAITING] = state[WAITING]
            state[FRAMES] += 1
        if state[NODES] >= state[STOP]:
            state[OUTCOME] = PAUSED
            break
        next_block(state[FRAMES] - 1)
        if state[NEXT] < 0:
            state[DESCEND] = 0
            parent: T.int64 = frames[state[FRAMES] - 1, G_PARENT]
            if parent < 0:
                state[OUTCOME] = EXHAUSTED
                break
            state[FRAMES] = parent + 1
            undo(frames[parent, F_TRAIL])
            state[WAITING] = frames[parent, F_WAITING]
        else:
            state[NODES] += 1
            place(state[FRAMES] - 1)
            if state[DESCEND] == 0:
                undo(frames[state[FRAMES] - 1, F_TRAIL])
