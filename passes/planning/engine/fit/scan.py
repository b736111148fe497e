"""First fit and best fit on many blocks, by a look over all that is placed.

The gaps for a block are found in the placed blocks, sorted by offset, of which those that are not
live with it are passed over. That takes memory linear in the blocks, where
`passes.planning.engine.fit.gaps` lists the pairs that conflict, and gives the same offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planner import Meter

LOOP = "scan"
CHUNK = 20_000_000
"""Placed blocks looked at between two looks at the clock."""
ROOMLESS = (1 << 63) - 1
"""More room than any gap has."""
UNPLACED = -1
EVER = 1 << 62

# Columns of `blocks`, whose last ones are the reserved ranges.
BEGIN, END, SIZE, ALIGNMENT, OFFSET = range(5)
# Entries of `state`.
NEXT, ORDERED, PLACED, WORK, STOP, LIMIT, BEST_RULE = range(7)
STATE_SIZE = 7
LOCAL_SIZE = 9


def scanned(
    block_list: BlockList,
    order: Sequence[int],
    rule: str,
    offsets: Sequence[int],
    limit: int | None,
    meter: Meter,
    most_work: int,
) -> list[int] | None:
    """Place blocks one by one; None where the loop cannot be compiled.

    Parameters
    ----------
    block_list : BlockList
        What to place; penalties play no part.
    order : sequence of int
        Blocks; those that have an offset are passed over.
    rule : str
        "first" or "best".
    offsets : sequence of int
        For each block its offset in bytes, or `UNPLACED`.
    limit : int, optional
        A block that would end above it (bytes) gets no place.
    meter : Meter
        Once it is late, the blocks that are left get no place.
    most_work : int
        Placed blocks looked at after which the blocks that are left get no place.
    """
    run = compiled.loop(LOOP)
    if run is None:
        return None
    count, reserved = len(block_list), block_list.problem.memory.reserved
    blocks = compiled.empty((count + len(reserved), 5))
    blocks[:count, BEGIN], blocks[:count, END] = block_list.hulls
    blocks[:count, SIZE] = block_list.size_array
    blocks[:count, ALIGNMENT] = block_list.alignment_array
    blocks[:count, OFFSET] = offsets
    for at, (begin, end) in enumerate(reserved, count):
        blocks[at] = -EVER, EVER, end - begin, 1, begin
    lives = [*block_list.live, *(((-EVER, EVER),) for _ in reserved)]
    rows: list[list[int]] = [[] for _ in lives]
    for one, two in block_list.separated_pairs():
        rows[one].append(two)
        rows[two].append(one)
    there = np.flatnonzero((blocks[:, OFFSET] != UNPLACED) & (blocks[:, SIZE] > 0))
    there = there[np.argsort(blocks[there, OFFSET], kind="stable")]
    placed = compiled.empty((len(blocks) + 1, 5))
    low, size = blocks[there, OFFSET], blocks[there, SIZE]
    placed[: len(there)] = np.stack(
        (low, low + size, blocks[there, BEGIN], blocks[there, END], there), axis=1
    )
    state = compiled.aligned([0] * STATE_SIZE)
    state[[ORDERED, PLACED, LIMIT, BEST_RULE]] = (
        len(order),
        len(there),
        EVER if limit is None else limit,
        rule == "best",
    )
    tensors = compiled.tensors(
        (
            blocks,
            compiled.aligned(list(accumulate(map(len, lives), initial=0))),
            compiled.aligned([piece for live in lives for piece in live]),
            compiled.aligned(list(accumulate(map(len, rows), initial=0))),
            compiled.aligned([other for row in rows for other in row]),
            compiled.aligned(order),
            placed,
            compiled.aligned(np.full(len(blocks), -1)),
            compiled.empty((LOCAL_SIZE,)),
            state,
        )
    )
    while state[NEXT] < len(order) and state[WORK] < most_work and not meter.late:
        state[STOP] = min(int(state[WORK]) + CHUNK, most_work)
        run(*tensors)
    found: list[int] = blocks[:count, OFFSET].tolist()
    return found
