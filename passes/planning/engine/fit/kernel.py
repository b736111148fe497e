"""First fit and best fit on many blocks: the compiled version.

Placed blocks are kept sorted by offset, so that a look over them meets the gaps for a block in
order: those that are not live with it are passed over. No conflicts are listed.
"""

# TVMScript is Python in syntax only, and types and names that it has are not Python's.
# A nested condition reads an array only where the index is right: `and` reads both sides.
# mypy: ignore-errors
# ruff: noqa: SIM102

from __future__ import annotations

from tvm.script import tirx as T

from passes.planning.engine.fit.scan import (
    ALIGNMENT,
    BEGIN,
    BEST_RULE,
    END,
    LIMIT,
    LOCAL_SIZE,
    NEXT,
    OFFSET,
    ORDERED,
    PLACED,
    ROOMLESS,
    SIZE,
    STATE_SIZE,
    STOP,
    UNPLACED,
    WORK,
)

# Variables that change: one of TVMScript's own would be allocated by a call.
AT, TOP, BEST, ROOM, MET, ONE, TWO, LOW, HIGH = range(LOCAL_SIZE)


@T.prim_func
def scan(
    blocks_handle: T.handle,
    piece_rows_handle: T.handle,
    pieces_handle: T.handle,
    separated_rows_handle: T.handle,
    separated_handle: T.handle,
    order_handle: T.handle,
    placed_handle: T.handle,
    marks_handle: T.handle,
    local_handle: T.handle,
    state_handle: T.handle,
):
    """Place blocks in order until the work is done that `state` allows."""
    n0, n1, n2, n3 = T.int64(), T.int64(), T.int64(), T.int64()
    n4, n5, n6, n7 = T.int64(), T.int64(), T.int64(), T.int64()
    blocks = T.match_buffer(blocks_handle, (n0, 5), "int64")
    piece_rows = T.match_buffer(piece_rows_handle, (n1,), "int64")
    pieces = T.match_buffer(pieces_handle, (n2, 2), "int64")
    separated_rows = T.match_buffer(separated_rows_handle, (n3,), "int64")
    separated = T.match_buffer(separated_handle, (n4,), "int64")
    order = T.match_buffer(order_handle, (n5,), "int64")
    placed = T.match_buffer(placed_handle, (n6, 5), "int64")
    marks = T.match_buffer(marks_handle, (n7,), "int64")
    local = T.match_buffer(local_handle, (LOCAL_SIZE,), "int64")
    state = T.match_buffer(state_handle, (STATE_SIZE,), "int64")

    @T.inline
    def meets(block, other):
        local[MET] = 1
        if (
            piece_rows[block + 1] - piece_rows[block] + piece_rows[other + 1] - piece_rows[other]
            > 2
        ):
            local[MET] = 0
            local[ONE] = piece_rows[block]
            while local[ONE] < piece_rows[block + 1] and local[MET] == 0:
                local[TWO] = piece_rows[other]
                while local[TWO] < piece_rows[other + 1] and local[MET] == 0:
                    if (
                        pieces[local[ONE], 0] < pieces[local[TWO], 1]
                        and pieces[local[TWO], 0] < pieces[local[ONE], 1]
                    ):
                        local[MET] = 1
                    local[TWO] += 1
                local[ONE] += 1

    @T.inline
    def align(block):
        if local[TOP] % blocks[block, ALIGNMENT] != 0:
            local[TOP] = (
                local[TOP] + blocks[block, ALIGNMENT] - local[TOP] % blocks[block, ALIGNMENT]
            )

    @T.inline
    def look(block):
        # `TOP` is where the next gap begins, aligned for the block; `BEST` is the gap to be taken.
        local[BEST] = UNPLACED
        local[ROOM] = ROOMLESS
        local[TOP] = 0
        local[AT] = 0
        begin: T.let[T.int64] = blocks[block, BEGIN]
        end: T.let[T.int64] = blocks[block, END]
        size: T.let[T.int64] = blocks[block, SIZE]
        while local[AT] < state[PLACED]:
            # Columns of `placed`: offset, end of bytes, begin and end of life, block.
            local[MET] = 0
            if placed[local[AT], 2] < end and begin < placed[local[AT], 3]:
                meets(block, placed[local[AT], 4])
            if separated_rows[block] < separated_rows[block + 1]:
                if marks[placed[local[AT], 4]] == state[NEXT]:
                    local[MET] = 1
            if local[MET] == 1:
                room: T.let[T.int64] = placed[local[AT], 0] - local[TOP]
                if room >= size and room < local[ROOM]:
                    local[BEST] = local[TOP]
                    local[ROOM] = room
                    if state[BEST_RULE] == 0:
                        break
                if placed[local[AT], 1] > local[TOP]:
                    local[TOP] = placed[local[AT], 1]
                    align(block)
            local[AT] += 1
        state[WORK] += local[AT] + 1
        if local[BEST] == UNPLACED:
            local[BEST] = local[TOP]

    @T.inline
    def insert(block):
        # After all of the same offset.
        local[LOW] = 0
        local[HIGH] = state[PLACED]
        while local[LOW] < local[HIGH]:
            middle: T.let[T.int64] = (local[LOW] + local[HIGH]) // 2
            if placed[middle, 0] <= blocks[block, OFFSET]:
                local[LOW] = middle + 1
            else:
                local[HIGH] = middle
        local[AT] = state[PLACED]
        while local[AT] > local[LOW]:
            for column in T.serial(5):
                placed[local[AT], column] = placed[local[AT] - 1, column]
            local[AT] -= 1
        placed[local[LOW], 0] = blocks[block, OFFSET]
        placed[local[LOW], 1] = blocks[block, OFFSET] + blocks[block, SIZE]
        placed[local[LOW], 2] = blocks[block, BEGIN]
        placed[local[LOW], 3] = blocks[block, END]
        placed[local[LOW], 4] = block
        state[PLACED] += 1

    while state[NEXT] < state[ORDERED] and state[WORK] < state[STOP]:
        block: T.let[T.int64] = order[state[NEXT]]
        if blocks[block, OFFSET] == UNPLACED:
            local[AT] = separated_rows[block]
            while local[AT] < separated_rows[block + 1]:
                marks[separated[local[AT]]] = state[NEXT]
                local[AT] += 1
            if blocks[block, SIZE] == 0:
                local[BEST] = 0
            else:
                look(block)
            if local[BEST] + blocks[block, SIZE] <= state[LIMIT]:
                blocks[block, OFFSET] = local[BEST]
                if blocks[block, SIZE] > 0:
                    insert(block)
        state[NEXT] += 1
