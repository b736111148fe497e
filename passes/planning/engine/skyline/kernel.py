"""The skyline greedy on many blocks: the compiled version.

The steps of `passes.planning.engine.skyline.steps.Steps`, by the same names, in TVMScript.
"""

# TVMScript is Python in syntax only, and types and names that it has are not Python's.
# A nested condition reads an array only where the index is right: `and` reads both sides.
# mypy: ignore-errors
# ruff: noqa: SIM102

from __future__ import annotations

from tvm.script import tirx as T

from passes.planning.engine.skyline.steps import (
    ALIGNMENT,
    BEGIN,
    CEILING,
    EASE,
    END,
    HERE,
    LEAF,
    LEAVES,
    LEFT,
    LOCAL_SIZE,
    MAX_BEGIN,
    MAX_END,
    MAX_SIZE,
    MIN_BEGIN,
    MIN_END,
    MIN_SIZE,
    NO_RANK,
    OFFSET,
    ONE,
    POSITIONS,
    RANK,
    S_END,
    S_HEIGHT,
    S_PREVIOUS,
    SHALLOW,
    SIZE,
    SLOT,
    STACK,
    STATE_SIZE,
    STEPS,
    T_BEGIN,
    T_END,
    T_FIRST,
    T_LAST,
    TAKEN,
)

# Variables that change: one of TVMScript's own would be allocated by a call.
STEP, WAITING, BEST, AT, NODE, LOW, MOVED, LEAF_AT = range(LOCAL_SIZE)


@T.prim_func
def rise(
    blocks_handle: T.handle,
    nodes_handle: T.handle,
    slots_handle: T.handle,
    segments_handle: T.handle,
    rows_handle: T.handle,
    separated_handle: T.handle,
    taken_handle: T.handle,
    weights_handle: T.handle,
    stack_handle: T.handle,
    local_handle: T.handle,
    state_handle: T.handle,
):
    """`Steps.advance`; each inline function is the method of its name."""
    n0, n1, n2, n3 = T.int64(), T.int64(), T.int64(), T.int64()
    n4, n5, n6, n7 = T.int64(), T.int64(), T.int64(), T.int64()
    blocks = T.match_buffer(blocks_handle, (n0, 6), "int64")
    nodes = T.match_buffer(nodes_handle, (n1, 7), "int64")
    slots = T.match_buffer(slots_handle, (n2,), "int64")
    segments = T.match_buffer(segments_handle, (n3, 3), "int64")
    rows = T.match_buffer(rows_handle, (n4,), "int64")
    separated = T.match_buffer(separated_handle, (n5,), "int64")
    taken = T.match_buffer(taken_handle, (n6, 4), "int64")
    weights = T.match_buffer(weights_handle, (n7,), "int64")
    stack = T.match_buffer(stack_handle, (STACK,), "int64")
    local = T.match_buffer(local_handle, (LOCAL_SIZE,), "int64")
    state = T.match_buffer(state_handle, (STATE_SIZE,), "int64")

    @T.inline
    def lowest_rank(first, last, most_size):
        local[BEST] = NO_RANK
        stack[0] = 1
        local[WAITING] = 1
        while local[WAITING] > 0:
            local[WAITING] -= 1
            node: T.let[T.int64] = stack[local[WAITING]]
            if (
                nodes[node, RANK] < local[BEST]
                and nodes[node, MAX_BEGIN] >= first
                and nodes[node, MIN_END] <= last
                and nodes[node, MIN_SIZE] <= most_size
            ):
                if (
                    nodes[node, MIN_BEGIN] >= first
                    and nodes[node, MAX_END] <= last
                    and nodes[node, MAX_SIZE] <= most_size
                ):
                    local[BEST] = nodes[node, RANK]
                elif node >= state[LEAVES]:
                    local[AT] = (node - state[LEAVES]) * LEAF
                    local[LEAF_AT] = local[AT] + LEAF
                    while local[AT] < local[LEAF_AT]:
                        rank: T.let[T.int64] = slots[local[AT]]
                        if rank < local[BEST]:
                            if (
                                blocks[rank, BEGIN] >= first
                                and blocks[rank, END] <= last
                                and blocks[rank, SIZE] <= most_size
                            ):
                                local[BEST] = rank
                        local[AT] += 1
                else:
                    if nodes[2 * node, RANK] <= nodes[2 * node + 1, RANK]:
                        stack[local[WAITING]] = 2 * node + 1
                        stack[local[WAITING] + 1] = 2 * node
                    else:
                        stack[local[WAITING]] = 2 * node
                        stack[local[WAITING] + 1] = 2 * node + 1
                    local[WAITING] += 2

    @T.inline
    def remove(rank):
        slots[blocks[rank, SLOT]] = NO_RANK
        leaf: T.let[T.int64] = blocks[rank, SLOT] // LEAF
        local[NODE] = leaf + state[LEAVES]
        nodes[local[NODE], MAX_BEGIN] = -1
        nodes[local[NODE], MIN_END] = NO_RANK
        nodes[local[NODE], MIN_BEGIN] = NO_RANK
        nodes[local[NODE], MAX_END] = -1
        nodes[local[NODE], RANK] = NO_RANK
        nodes[local[NODE], MIN_SIZE] = CEILING
        nodes[local[NODE], MAX_SIZE] = -1
        local[AT] = leaf * LEAF
        while local[AT] < leaf * LEAF + LEAF:
            other: T.let[T.int64] = slots[local[AT]]
            if other != NO_RANK:
                begin: T.let[T.int64] = blocks[other, BEGIN]
                end: T.let[T.int64] = blocks[other, END]
                size: T.let[T.int64] = blocks[other, SIZE]
                nodes[local[NODE], MAX_BEGIN] = T.max(nodes[local[NODE], MAX_BEGIN], begin)
                nodes[local[NODE], MIN_END] = T.min(nodes[local[NODE], MIN_END], end)
                nodes[local[NODE], MIN_BEGIN] = T.min(nodes[local[NODE], MIN_BEGIN], begin)
                nodes[local[NODE], MAX_END] = T.max(nodes[local[NODE], MAX_END], end)
                nodes[local[NODE], RANK] = T.min(nodes[local[NODE], RANK], other)
                nodes[local[NODE], MIN_SIZE] = T.min(nodes[local[NODE], MIN_SIZE], size)
                nodes[local[NODE], MAX_SIZE] = T.max(nodes[local[NODE], MAX_SIZE], size)
            local[AT] += 1
        while local[NODE] > 1:
            local[NODE] = local[NODE] // 2
            up: T.let[T.int64] = local[NODE]
            nodes[up, MAX_BEGIN] = T.max(nodes[2 * up, MAX_BEGIN], nodes[2 * up + 1, MAX_BEGIN])
            nodes[up, MIN_END] = T.min(nodes[2 * up, MIN_END], nodes[2 * up + 1, MIN_END])
            nodes[up, MIN_BEGIN] = T.min(nodes[2 * up, MIN_BEGIN], nodes[2 * up + 1, MIN_BEGIN])
            nodes[up, MAX_END] = T.max(nodes[2 * up, MAX_END], nodes[2 * up + 1, MAX_END])
            nodes[up, RANK] = T.min(nodes[2 * up, RANK], nodes[2 * up + 1, RANK])
            nodes[up, MIN_SIZE] = T.min(nodes[2 * up, MIN_SIZE], nodes[2 * up + 1, MIN_SIZE])
            nodes[up, MAX_SIZE] = T.max(nodes[2 * up, MAX_SIZE], nodes[2 * up + 1, MAX_SIZE])

    @T.inline
    def align(rank):
        if local[LOW] % blocks[rank, ALIGNMENT] != 0:
            local[LOW] = local[LOW] + blocks[rank, ALIGNMENT] - local[LOW] % blocks[rank, ALIGNMENT]

    @T.inline
    def settle(rank, low):
        local[LOW] = low
        align(rank)
        local[MOVED] = 1
        while local[MOVED] == 1:
            local[MOVED] = 0
            local[AT] = 0
            while local[AT] < state[TAKEN]:
                if (
                    taken[local[AT], T_BEGIN] < local[LOW] + blocks[rank, SIZE]
                    and local[LOW] < taken[local[AT], T_END]
                    and taken[local[AT], T_FIRST] < blocks[rank, END]
                    and blocks[rank, BEGIN] < taken[local[AT], T_LAST]
                ):
                    local[LOW] = taken[local[AT], T_END]
                    align(rank)
                    local[MOVED] = 1
                local[AT] += 1
            local[AT] = rows[rank]
            while local[AT] < rows[rank + 1]:
                other: T.let[T.int64] = separated[local[AT]]
                if (
                    blocks[other, OFFSET] >= 0
                    and blocks[other, OFFSET] < local[LOW] + blocks[rank, SIZE]
                    and local[LOW] < blocks[other, OFFSET] + blocks[other, SIZE]
                ):
                    local[LOW] = blocks[other, OFFSET] + blocks[other, SIZE]
                    align(rank)
                    local[MOVED] = 1
                local[AT] += 1

    @T.inline
    def join(here):
        beyond: T.let[T.int64] = segments[segments[here, S_END], S_END]
        segments[here, S_END] = beyond
        if beyond < state[POSITIONS]:
            segments[beyond, S_PREVIOUS] = here

    @T.inline
    def place(rank, here):
        end: T.let[T.int64] = segments[here, S_END]
        height: T.let[T.int64] = segments[here, S_HEIGHT]
        settle(rank, height)
        blocks[rank, OFFSET] = local[LOW]
        state[LEFT] -= 1
        remove(rank)
        begin: T.let[T.int64] = blocks[rank, BEGIN]
        stop: T.let[T.int64] = blocks[rank, END]
        top: T.let[T.int64] = blocks[rank, OFFSET] + blocks[rank, SIZE]
        if stop < end:
            segments[stop, S_END] = end
            segments[stop, S_PREVIOUS] = begin
            segments[stop, S_HEIGHT] = height
            if end < state[POSITIONS]:
                segments[end, S_PREVIOUS] = stop
        elif end < state[POSITIONS]:
            segments[end, S_PREVIOUS] = begin
        if begin > here:
            segments[here, S_END] = begin
            segments[begin, S_PREVIOUS] = here
        segments[begin, S_END] = stop
        segments[begin, S_HEIGHT] = top
        if stop < state[POSITIONS]:
            if segments[stop, S_HEIGHT] == top:
                join(begin)
        before: T.let[T.int64] = segments[begin, S_PREVIOUS]
        if before >= 0:
            if segments[before, S_HEIGHT] == top:
                join(before)
                if begin == here:
                    state[HERE] = before

    @T.inline
    def fill(here, height):
        segments[here, S_HEIGHT] = height
        end: T.let[T.int64] = segments[here, S_END]
        before: T.let[T.int64] = segments[here, S_PREVIOUS]
        if end < state[POSITIONS]:
            if segments[end, S_HEIGHT] == height:
                join(here)
        if before >= 0:
            if segments[before, S_HEIGHT] == height:
                join(before)
                state[HERE] = before

    local[STEP] = 0
    while local[STEP] < state[STEPS] and state[LEFT] > 0:
        local[STEP] += 1
        here: T.let[T.int64] = state[HERE]
        end: T.let[T.int64] = segments[here, S_END]
        before: T.let[T.int64] = segments[here, S_PREVIOUS]
        height: T.let[T.int64] = segments[here, S_HEIGHT]
        left: T.let[T.int64] = T.if_then_else(
            before >= 0, segments[T.max(before, 0), S_HEIGHT], CEILING
        )
        right: T.let[T.int64] = T.if_then_else(
            end < state[POSITIONS], segments[end, S_HEIGHT], CEILING
        )
        if left < height:
            state[HERE] = before
        elif right < height:
            state[HERE] = end
        else:
            wall: T.let[T.int64] = T.min(left, right)
            allowed: T.let[T.int64] = T.min(
                EASE * state[SHALLOW],
                state[SHALLOW] * ONE * (end - here) // (weights[end] - weights[here]),
            )
            lowest_rank(here, end, T.if_then_else(wall - height <= allowed, wall - height, CEILING))
            if local[BEST] == NO_RANK:
                fill(here, wall)
            else:
                rank: T.let[T.int64] = local[BEST]
                place(rank, here)
