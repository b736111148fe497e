"""The skyline greedy on many blocks: memory linear in them, and n log n steps.

Placed blocks form a skyline over the positions. A stretch of it between two higher ones is a
valley, and no block that is not wholly within a valley can go as low as that. So the block of the
lowest rank within a valley comes next, and where there is none the valley is filled up to its lower
neighbour. (This is the best fit of E. Burke, G. Kendall, G. Whitwell, "A New Placement Heuristic
for the Orthogonal Stock-Cutting Problem", Operations Research 52, 2004, turned from width to time.)
Valleys do not meet, so they are taken in any order.

The block of the lowest rank within a valley is found in a tree over the blocks that are left,
sorted along a Z curve of (begin, end), whose nodes know the bounds and the lowest rank in them.

A block with several live ranges takes its bytes from the first to the last. All state is in arrays
of integers, which `passes.planning.engine.skyline.kernel` works on, too: both forms take the same
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.engine.skyline.steps import (
    BEGIN,
    END,
    LEAF,
    LEAVES,
    LEFT,
    LOCAL_SIZE,
    MAX_BEGIN,
    MAX_END,
    NO_RANK,
    OFFSET,
    POSITIONS,
    SLOT,
    STACK,
    STATE_SIZE,
    STEPS,
    TAKEN,
    UNPLACED,
    Rising,
    Steps,
)
from passes.planning.planner import Meter

LOOP = "rise"
CHUNK = 50_000
"""Steps between two looks at the clock."""


def risen(
    block_list: BlockList,
    order: Sequence[int],
    meter: Meter,
    offsets: Sequence[int],
    apart: Sequence[tuple[int, int]] = (),
    floor: int = 0,
) -> list[int]:
    """Place the blocks of `order` that have no place yet, each as low as a skyline lets it.

    Parameters
    ----------
    block_list : BlockList
        What to place; penalties play no part.
    order : sequence of int
        Of equally low blocks, the first goes first.
    meter : Meter
        Once it is late, the plain Python form puts the blocks that are left on top of all others.
        The compiled one goes on: it takes some seconds for a million blocks.
    offsets : sequence of int
        For each block its offset in bytes, or `UNPLACED`.
    apart : sequence of (int, int)
        Pairs of blocks that are not to share bytes either.
    floor : int
        Bytes below which nothing is placed.

    Returns
    -------
    list of int
        For each block its offset in bytes.
    """
    placed = list(offsets)
    rising = prepared(block_list, [b for b in order if placed[b] == UNPLACED], apart, floor)
    if not rising.order:
        return placed
    advance = stepper(rising)
    is_fast = compiled.loop(LOOP) is not None
    while rising.state[LEFT] and (is_fast or not meter.late):
        advance(CHUNK)
    for block, offset in zip(rising.order, rising.blocks[:, OFFSET].tolist(), strict=True):
        placed[block] = offset
    if rising.state[LEFT]:
        _stack(block_list, placed)
    return placed


def _stack(block_list: BlockList, placed: list[int]) -> None:
    """Put all blocks without a place above the others, one on top of the other."""
    sizes, alignments = block_list.sizes, block_list.alignments
    top = max((end for _, end in block_list.problem.memory.reserved), default=0)
    top = max([top, *(o + s for o, s in zip(placed, sizes, strict=True) if o != UNPLACED)])
    for block, offset in enumerate(placed):
        if offset == UNPLACED:
            placed[block] = top + -top % alignments[block]
            top = placed[block] + sizes[block]


def prepared(
    block_list: BlockList, order: Sequence[int], apart: Sequence[tuple[int, int]], floor: int
) -> Rising:
    """Return the arrays for some blocks of a list, none of them pinned or empty."""
    begins, ends, positions = block_list.hull_places
    chosen = np.array(order, dtype=np.int64)
    blocks = compiled.columns(
        begins[chosen],
        ends[chosen],
        block_list.size_array[chosen],
        block_list.alignment_array[chosen],
        np.zeros(len(order), dtype=np.int64),
        np.full(len(order), UNPLACED),
    )
    nodes, slots = _tree(blocks) if order else (compiled.empty((1, 5)), compiled.empty((1,)))
    segments = compiled.empty((positions + 1, 3))
    segments[0] = positions - 1, -1, floor
    rows, separated = _separated(block_list, order, apart)
    taken = [(begin, end, 0, positions) for begin, end in block_list.problem.memory.reserved]
    taken += [
        (offset, offset + block_list.sizes[b], int(begins[b]), int(ends[b]))
        for b, offset in block_list.pinned.items()
    ]
    # What a block may not share with a pinned one is taken for as long as the block lives.
    taken += [
        (offset, offset + block_list.sizes[b], int(begins[other]), int(ends[other]))
        for pair in (*block_list.separated_pairs(), *apart)
        for b, other in (pair, pair[::-1])
        if (offset := block_list.pinned.get(b)) is not None and other not in block_list.pinned
    ]
    state = compiled.aligned([0] * STATE_SIZE)
    state[[LEFT, POSITIONS, LEAVES, TAKEN]] = (
        len(order),
        positions - 1,
        len(nodes) // 2,
        len(taken),
    )
    return Rising(
        list(order),
        blocks,
        nodes,
        slots,
        segments,
        rows,
        separated,
        compiled.aligned(np.array(taken, dtype=np.int64).reshape(-1, 4)),
        state,
    )


def _separated(
    block_list: BlockList, order: Sequence[int], apart: Sequence[tuple[int, int]]
) -> tuple[Ints, Ints]:
    """Return for each rank where its row begins, and in the rows the ranks it is separated from."""
    pairs = [*block_list.separated_pairs(), *apart]
    if not pairs:
        return compiled.aligned(np.zeros(len(order) + 1, dtype=np.int64)), compiled.aligned([])
    rows: list[list[int]] = [[] for _ in order]
    rank = {block: at for at, block in enumerate(order)}
    for one, two in pairs:
        if one in rank and two in rank:
            rows[rank[one]].append(rank[two])
            rows[rank[two]].append(rank[one])
    begins = list(accumulate(map(len, rows), initial=0))
    return compiled.aligned(begins), compiled.aligned([each for row in rows for each in row])


def _tree(blocks: Ints) -> tuple[Ints, Ints]:
    """Return the nodes, the root being the second row, and the ranks in their leaves."""
    curve = _spread(blocks[:, BEGIN]) | _spread(blocks[:, END]) << np.uint64(1)
    along = np.argsort(curve, kind="stable")
    leaves = 1
    while leaves * LEAF < len(blocks):
        leaves *= 2
    slots = compiled.aligned(np.full(leaves * LEAF, NO_RANK))
    slots[: len(blocks)] = along
    blocks[along, SLOT] = np.arange(len(blocks))
    nodes = compiled.empty((2 * leaves, 5))
    nodes[0] = 0
    padded = np.full((leaves * LEAF, 5), (-1, NO_RANK, NO_RANK, -1, NO_RANK), dtype=np.int64)
    padded[: len(blocks)] = np.stack(
        [blocks[along, c] for c in (BEGIN, END, BEGIN, END)] + [along], axis=1
    )
    level = padded.reshape(leaves, LEAF, 5)
    begin = leaves
    while True:
        joined = level.min(axis=1)
        joined[:, [MAX_BEGIN, MAX_END]] = level[:, :, [MAX_BEGIN, MAX_END]].max(axis=1)
        nodes[begin : 2 * begin] = joined
        if begin == 1:
            return nodes, slots
        begin //= 2
        level = joined.reshape(begin, 2, 5)


def _spread(values: Ints) -> np.ndarray:
    """Return numbers below 2**31 with a zero before each of their bits."""
    spread = values.astype(np.uint64)
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF),
        (8, 0x00FF00FF00FF00FF),
        (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333),
        (1, 0x5555555555555555),
    ):
        spread = (spread | spread << np.uint64(shift)) & np.uint64(mask)
    return spread


def stepper(rising: Rising) -> Callable[[int], None]:
    """Return what takes a number of steps: compiled, where that is possible."""
    run = compiled.loop(LOOP)
    if run is None:
        return Steps(rising).advance
    tensors = compiled.tensors(
        (
            rising.blocks,
            rising.nodes,
            rising.slots,
            rising.segments,
            rising.separated_rows,
            rising.separated,
            rising.taken,
            compiled.empty((STACK,)),
            compiled.empty((LOCAL_SIZE,)),
            rising.state,
        )
    )

    def advance(steps: int) -> None:
        rising.state[STEPS] = steps
        run(*tensors)

    return advance
