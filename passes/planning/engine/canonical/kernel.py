"""Depth-first search over canonical placements: the compiled version.

The steps of `passes.planning.engine.canonical.steps`, by the same names, in TVMScript.
Numbers that the Python version keeps in objects are columns of integer arrays here.
"""

# TVMScript is Python in syntax only, and types and names that it has are not Python's.
# mypy: ignore-errors

from __future__ import annotations

from tvm.script import tirx as T

from passes.planning.engine.canonical.compiled_search import (
    ALIGNMENT,
    BEGIN,
    BY_LOAD,
    CAPACITY,
    CROSSING,
    DESCEND,
    END,
    EXHAUSTED,
    F_TRAIL,
    F_WAITING,
    FIRST,
    FOUND,
    FRAMES,
    G_BEGIN,
    G_END,
    G_FIRST,
    G_LAST,
    G_LOAD,
    G_OFFSET,
    G_PARENT,
    G_RANK,
    LAST,
    LOAD,
    LOCAL_SIZE,
    NEXT,
    NODES,
    OFFSET,
    OUTCOME,
    PAUSED,
    RANK,
    REACH,
    REMAINING,
    SETTLED,
    SIZE,
    STATE_SIZE,
    STOP,
    T_BLOCK,
    T_OLD,
    TRAIL,
    WAITING,
    WEIGHT,
    WHOLE_CAPACITY,
)
from passes.planning.engine.canonical.steps import LOAD_LIMIT, UNPLACED

# Variables that change, by the function whose they are: a variable of TVMScript's own would be
# allocated by a call each time that it is met.
(
    SETTLE_AT,
    COUNT_LIVE,
    COUNT_IN_LIFE,
    COUNT_TIED,
    NEXT_BLOCK_MOST,
    NEXT_BLOCK_SECTION,
    NEXT_BLOCK_BEST,
    NEXT_BLOCK_BEST_OFFSET,
    NEXT_BLOCK_BEST_LOAD,
    NEXT_BLOCK_BEST_RANK,
    NEXT_BLOCK_LOWEST_TOP,
    NEXT_BLOCK_AT,
    MAY_FIT_LOW,
    MAY_FIT_MEMBER,
    RAISE_CONFLICTS_HIGHEST,
    RAISE_CONFLICTS_FIRST,
    RAISE_CONFLICTS_LAST,
    RAISE_CONFLICTS_AT,
    RENEW_LOADS_AT,
    RENEW_LOADS_LOAD,
    RENEW_LOADS_LIVE,
    RENEW_LOADS_SECTION,
    ADD_GROUPS_BEGIN,
    ADD_GROUPS_FIRST,
    ADD_GROUPS_LAST,
    ADD_GROUPS_END,
    ADD_GROUPS_AT,
) = range(27)


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
    local_handle: T.handle,
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
    local = T.match_buffer(local_handle, (LOCAL_SIZE,), "int64")
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
        local[SETTLE_AT] = obstacle_rows[block]
        while local[SETTLE_AT] < obstacle_rows[block + 1]:
            if obstacles[local[SETTLE_AT], BEGIN] >= state[SETTLED] + blocks[block, SIZE]:
                break
            if obstacles[local[SETTLE_AT], END] > state[SETTLED]:
                state[SETTLED] = obstacles[local[SETTLE_AT], END]
                if state[SETTLED] % blocks[block, ALIGNMENT] != 0:
                    state[SETTLED] = (
                        state[SETTLED]
                        + blocks[block, ALIGNMENT]
                        - state[SETTLED] % blocks[block, ALIGNMENT]
                    )
            local[SETTLE_AT] += 1

    @T.inline
    def count(block, sign):
        local[COUNT_LIVE] = live_rows[block]
        while local[COUNT_LIVE] < live_rows[block + 1]:
            local[COUNT_IN_LIFE] = lives[local[COUNT_LIVE], BEGIN]
            while local[COUNT_IN_LIFE] < lives[local[COUNT_LIVE], END]:
                sections[local[COUNT_IN_LIFE], REMAINING] = (
                    sections[local[COUNT_IN_LIFE], REMAINING] + sign * blocks[block, WEIGHT]
                )
                local[COUNT_IN_LIFE] += 1
            local[COUNT_LIVE] += 1
        local[COUNT_TIED] = blocks[block, FIRST] + 1
        while local[COUNT_TIED] < blocks[block, LAST]:
            sections[local[COUNT_TIED], CROSSING] = sections[local[COUNT_TIED], CROSSING] + sign
            local[COUNT_TIED] += 1

    @T.inline
    def undo(length):
        while state[TRAIL] > length:
            state[TRAIL] -= 1
            undone: T.let[T.int64] = trail[state[TRAIL], T_BLOCK]
            if undone >= n0:
                blocks[undone - n0, LOAD] = trail[state[TRAIL], T_OLD]
            elif undone >= 0:
                blocks[undone, REACH] = trail[state[TRAIL], T_OLD]
            else:
                unplaced: T.let[T.int64] = -1 - undone
                blocks[unplaced, OFFSET] = UNPLACED
                count(unplaced, 1)

    @T.inline
    def next_block(frame):
        local[NEXT_BLOCK_MOST] = 0
        local[NEXT_BLOCK_SECTION] = frames[frame, G_FIRST]
        while local[NEXT_BLOCK_SECTION] < frames[frame, G_LAST]:
            local[NEXT_BLOCK_MOST] = T.max(
                local[NEXT_BLOCK_MOST], sections[local[NEXT_BLOCK_SECTION], REMAINING]
            )
            local[NEXT_BLOCK_SECTION] += 1
        local[NEXT_BLOCK_BEST] = -1
        local[NEXT_BLOCK_BEST_OFFSET] = state[WHOLE_CAPACITY] - local[NEXT_BLOCK_MOST]
        local[NEXT_BLOCK_BEST_LOAD] = 0
        local[NEXT_BLOCK_BEST_RANK] = n0
        local[NEXT_BLOCK_LOWEST_TOP] = state[CAPACITY] + 1
        after_offset: T.let[T.int64] = frames[frame, G_OFFSET]
        after_load: T.let[T.int64] = frames[frame, G_LOAD]
        after_rank: T.let[T.int64] = frames[frame, G_RANK]
        local[NEXT_BLOCK_AT] = frames[frame, G_BEGIN]
        while local[NEXT_BLOCK_AT] < frames[frame, G_END]:
            block: T.let[T.int64] = order[local[NEXT_BLOCK_AT]]
            reach: T.let[T.int64] = blocks[block, REACH]
            local[NEXT_BLOCK_LOWEST_TOP] = T.min(
                local[NEXT_BLOCK_LOWEST_TOP], reach + blocks[block, SIZE]
            )
            if reach <= local[NEXT_BLOCK_BEST_OFFSET]:
                load: T.let[T.int64] = blocks[block, LOAD]
                rank: T.let[T.int64] = blocks[block, RANK]
                if (
                    reach > after_offset
                    or (reach == after_offset and load < after_load)
                    or (reach == after_offset and load == after_load and rank > after_rank)
                ) and (
                    reach < local[NEXT_BLOCK_BEST_OFFSET]
                    or (
                        reach == local[NEXT_BLOCK_BEST_OFFSET]
                        and load > local[NEXT_BLOCK_BEST_LOAD]
                    )
                    or (
                        reach == local[NEXT_BLOCK_BEST_OFFSET]
                        and load == local[NEXT_BLOCK_BEST_LOAD]
                        and rank < local[NEXT_BLOCK_BEST_RANK]
                    )
                ):
                    local[NEXT_BLOCK_BEST] = local[NEXT_BLOCK_AT]
                    local[NEXT_BLOCK_BEST_OFFSET] = reach
                    local[NEXT_BLOCK_BEST_LOAD] = load
                    local[NEXT_BLOCK_BEST_RANK] = rank
            local[NEXT_BLOCK_AT] += 1
        state[NEXT] = -1
        if local[NEXT_BLOCK_BEST_OFFSET] < local[NEXT_BLOCK_LOWEST_TOP]:
            state[NEXT] = local[NEXT_BLOCK_BEST]

    @T.inline
    def may_fit(section, highest):
        room: T.let[T.int64] = state[WHOLE_CAPACITY] - sections[section, REMAINING]
        if highest > room:
            local[MAY_FIT_LOW] = 0
            local[MAY_FIT_MEMBER] = member_rows[section]
            while local[MAY_FIT_MEMBER] < member_rows[section + 1]:
                other: T.let[T.int64] = members[local[MAY_FIT_MEMBER]]
                if blocks[other, OFFSET] == UNPLACED and blocks[other, REACH] <= room:
                    local[MAY_FIT_LOW] = 1
                    break
                local[MAY_FIT_MEMBER] += 1
            if local[MAY_FIT_LOW] == 0:
                state[DESCEND] = 0

    @T.inline
    def raise_conflicts(block, top):
        local[RAISE_CONFLICTS_HIGHEST] = 0
        local[RAISE_CONFLICTS_FIRST] = n1
        local[RAISE_CONFLICTS_LAST] = 0
        local[RAISE_CONFLICTS_AT] = conflict_rows[block]
        while local[RAISE_CONFLICTS_AT] < conflict_rows[block + 1]:
            other: T.let[T.int64] = conflicts[local[RAISE_CONFLICTS_AT]]
            local[RAISE_CONFLICTS_AT] += 1
            if blocks[other, REACH] < top and blocks[other, OFFSET] == UNPLACED:
                settle(top, other)
                if state[SETTLED] + blocks[other, SIZE] > state[CAPACITY]:
                    state[DESCEND] = 0
                    break
                trail[state[TRAIL], T_BLOCK] = other
                trail[state[TRAIL], T_OLD] = blocks[other, REACH]
                state[TRAIL] += 1
                blocks[other, REACH] = state[SETTLED]
                local[RAISE_CONFLICTS_HIGHEST] = T.max(
                    local[RAISE_CONFLICTS_HIGHEST], state[SETTLED]
                )
                local[RAISE_CONFLICTS_FIRST] = T.min(
                    local[RAISE_CONFLICTS_FIRST], blocks[other, FIRST]
                )
                local[RAISE_CONFLICTS_LAST] = T.max(
                    local[RAISE_CONFLICTS_LAST], blocks[other, LAST]
                )
        while local[RAISE_CONFLICTS_FIRST] < local[RAISE_CONFLICTS_LAST] and state[DESCEND] == 1:
            may_fit(local[RAISE_CONFLICTS_FIRST], local[RAISE_CONFLICTS_HIGHEST])
            local[RAISE_CONFLICTS_FIRST] += 1

    @T.inline
    def renew_loads(group):
        local[RENEW_LOADS_AT] = waiting[group, G_BEGIN]
        while local[RENEW_LOADS_AT] < waiting[group, G_END]:
            block: T.let[T.int64] = order[local[RENEW_LOADS_AT]]
            local[RENEW_LOADS_LOAD] = 0
            local[RENEW_LOADS_LIVE] = live_rows[block]
            while local[RENEW_LOADS_LIVE] < live_rows[block + 1]:
                local[RENEW_LOADS_SECTION] = lives[local[RENEW_LOADS_LIVE], BEGIN]
                while local[RENEW_LOADS_SECTION] < lives[local[RENEW_LOADS_LIVE], END]:
                    local[RENEW_LOADS_LOAD] = T.max(
                        local[RENEW_LOADS_LOAD], sections[local[RENEW_LOADS_SECTION], REMAINING]
                    )
                    local[RENEW_LOADS_SECTION] += 1
                local[RENEW_LOADS_LIVE] += 1
            if local[RENEW_LOADS_LOAD] != blocks[block, LOAD]:
                trail[state[TRAIL], T_BLOCK] = block + n0
                trail[state[TRAIL], T_OLD] = blocks[block, LOAD]
                state[TRAIL] += 1
                blocks[block, LOAD] = local[RENEW_LOADS_LOAD]
            local[RENEW_LOADS_AT] += 1
        waiting[group, G_LOAD] = LOAD_LIMIT
        waiting[group, G_RANK] = -1

    @T.inline
    def add_groups(frame):
        local[ADD_GROUPS_BEGIN] = frames[frame, G_BEGIN] + 1
        while local[ADD_GROUPS_BEGIN] < frames[frame, G_END]:
            local[ADD_GROUPS_FIRST] = blocks[order[local[ADD_GROUPS_BEGIN]], FIRST]
            local[ADD_GROUPS_LAST] = local[ADD_GROUPS_FIRST] + 1
            while local[ADD_GROUPS_FIRST] > frames[frame, G_FIRST]:
                if sections[local[ADD_GROUPS_FIRST], CROSSING] == 0:
                    break
                local[ADD_GROUPS_FIRST] -= 1
            while local[ADD_GROUPS_LAST] < frames[frame, G_LAST]:
                if sections[local[ADD_GROUPS_LAST], CROSSING] == 0:
                    break
                local[ADD_GROUPS_LAST] += 1
            local[ADD_GROUPS_END] = local[ADD_GROUPS_BEGIN]
            local[ADD_GROUPS_AT] = local[ADD_GROUPS_BEGIN]
            while local[ADD_GROUPS_AT] < frames[frame, G_END]:
                other: T.let[T.int64] = order[local[ADD_GROUPS_AT]]
                if (
                    local[ADD_GROUPS_FIRST] <= blocks[other, FIRST]
                    and blocks[other, FIRST] < local[ADD_GROUPS_LAST]
                ):
                    order[local[ADD_GROUPS_AT]] = order[local[ADD_GROUPS_END]]
                    order[local[ADD_GROUPS_END]] = other
                    local[ADD_GROUPS_END] += 1
                local[ADD_GROUPS_AT] += 1
            for column in T.serial(8):
                waiting[state[WAITING], column] = frames[frame, column]
            waiting[state[WAITING], G_BEGIN] = local[ADD_GROUPS_BEGIN]
            waiting[state[WAITING], G_END] = local[ADD_GROUPS_END]
            waiting[state[WAITING], G_FIRST] = local[ADD_GROUPS_FIRST]
            waiting[state[WAITING], G_LAST] = local[ADD_GROUPS_LAST]
            waiting[state[WAITING], G_PARENT] = frame
            if state[BY_LOAD] == 1 and (
                local[ADD_GROUPS_FIRST] != frames[frame, G_FIRST]
                or local[ADD_GROUPS_LAST] != frames[frame, G_LAST]
            ):
                renew_loads(state[WAITING])
            state[WAITING] += 1
            local[ADD_GROUPS_BEGIN] = local[ADD_GROUPS_END]

    @T.inline
    def place(frame):
        block: T.let[T.int64] = order[state[NEXT]]
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
            parent: T.let[T.int64] = frames[state[FRAMES] - 1, G_PARENT]
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
