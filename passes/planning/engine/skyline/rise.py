"""The skyline greedy on many blocks: memory linear in them, and n log n steps.

Placed blocks form a skyline over the positions. A stretch of it between two higher ones is a
valley, and no block that is not wholly within a valley can go as low as that. So the block of the
lowest rank within a valley comes next, and where there is none the valley is filled up to its lower
neighbour. (This is the best fit of E. Burke, G. Kendall, G. Whitwell, "A New Placement Heuristic
for the Orthogonal Stock-Cutting Problem", Operations Research 52, 2004, turned from width to time.)
Valleys do not meet, so they are taken in any order.

A valley may be shallow, and a block that fits in it may stand far above its neighbours: the next
valley is then as narrow as that block, and soon so narrow that no block is left for it. So a valley
of a few bytes takes blocks that do not stand out of it, and is filled up where there are none.

The block of the lowest rank within a valley is found in a tree over the blocks that are left,
sorted along a Z curve of (begin, end), whose nodes know the bounds and the lowest rank in them.

A block with several live ranges takes its bytes from the first to the last. All state is in arrays
of integers, which `passes.planning.engine.skyline.kernel` works on, too: both forms take the same
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    MAX_SIZE,
    NO_RANK,
    NONE,
    OFFSET,
    ONE,
    POSITIONS,
    SHALLOW,
    SIZE,
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
MOST_SHALLOW = 1 << 25
"""Bytes: with more, products of the steps would not be integers of 64 bits."""
GREATEST = [MAX_BEGIN, MAX_END, MAX_SIZE]
"""The columns of a node that have the greatest of its blocks; the others have the least."""


@dataclass(frozen=True)
class Shallow:
    """Which valleys take only blocks that do not stand out of them.

    Parameters
    ----------
    nbytes : int
        The depth up to which a valley is shallow where all positions weigh `ONE`; up to `EASE`
        times that where they weigh less.
    weights : Ints
        For each place among `BlockList.hull_places` but the last, a weight from 1 to `ONE`.
    """

    nbytes: int
    weights: Ints


def risen(
    block_list: BlockList,
    order: Sequence[int] | Ints,
    meter: Meter,
    offsets: Sequence[int] | Ints,
    floor: int | Ints = 0,
    shallow: Shallow | None = None,
) -> Ints:
    """Place the blocks of `order` that have no place yet, each as low as a skyline lets it.

    Parameters
    ----------
    block_list : BlockList
        What to place; penalties play no part.
    order : sequence of int or Ints
        Of equally low blocks, the first goes first.
    meter : Meter
        Once it is late, the plain Python form puts the blocks that are left on top of all others.
        The compiled one goes on: it takes some seconds for a million blocks.
    offsets : sequence of int or Ints
        For each block its offset in bytes, or `UNPLACED`.
    floor : int or Ints
        Bytes below which nothing is placed: everywhere, or for each place among
        `BlockList.hull_places` but the last.
    shallow : Shallow, optional
        By default no valley is.

    Returns
    -------
    Ints
        For each block its offset in bytes.
    """
    placed, blocks = np.array(offsets, dtype=np.int64), np.asarray(order, dtype=np.int64)
    left = blocks[placed[blocks] == UNPLACED]
    if not len(left):
        return placed
    rising = prepared(block_list, left, placed, floor, shallow)
    advance = stepper(rising)
    is_fast = compiled.loop(LOOP) is not None
    while rising.state[LEFT] and (is_fast or not meter.late):
        advance(CHUNK)
    placed[rising.order] = rising.blocks[:, OFFSET]
    if rising.state[LEFT]:
        _stack(block_list, placed)
    return placed


def _stack(block_list: BlockList, placed: Ints) -> None:
    """Put all blocks without a place above the others, one on top of the other."""
    ends = (placed + block_list.size_array)[placed != UNPLACED]
    top = max((end for _, end in block_list.problem.memory.reserved), default=0)
    top = max(top, int(ends.max(initial=0)))
    for block in np.flatnonzero(placed == UNPLACED).tolist():
        offset = top + -top % block_list.alignments[block]
        placed[block] = offset
        top = offset + block_list.sizes[block]


def prepared(
    block_list: BlockList,
    chosen: Ints,
    placed: Ints,
    floor: int | Ints = 0,
    shallow: Shallow | None = None,
) -> Rising:
    """Return the arrays for some blocks of a list, by rank; `placed` has offsets of the others."""
    begins, ends, positions = block_list.hull_places
    blocks = compiled.columns(
        begins[chosen],
        ends[chosen],
        block_list.size_array[chosen],
        block_list.alignment_array[chosen],
        np.zeros(len(chosen), dtype=np.int64),
        np.full(len(chosen), UNPLACED),
    )
    nodes, slots = _tree(blocks)
    weights = np.full(positions, ONE) if shallow is None else np.append(shallow.weights, ONE)
    rows, separated = _separated(block_list, chosen)
    taken = [(begin, end, 0, positions) for begin, end in block_list.problem.memory.reserved]
    taken += [
        (offset, offset + block_list.sizes[b], int(begins[b]), int(ends[b]))
        for b, offset in block_list.pinned.items()
    ]
    # What a block may not share with a placed one is taken for as long as the block lives.
    taken += [
        (int(placed[b]), int(placed[b]) + block_list.sizes[b], int(begins[other]), int(ends[other]))
        for pair in block_list.separated_pairs()
        for b, other in (pair, pair[::-1])
        if placed[b] != UNPLACED and placed[other] == UNPLACED
    ]
    state = compiled.aligned([0] * STATE_SIZE)
    state[[LEFT, POSITIONS, LEAVES, TAKEN, SHALLOW]] = (
        len(chosen),
        positions - 1,
        len(nodes) // 2,
        len(taken),
        0 if shallow is None else min(shallow.nbytes, MOST_SHALLOW),
    )
    return Rising(
        chosen,
        blocks,
        nodes,
        slots,
        _segments(np.broadcast_to(floor, positions - 1), positions),
        rows,
        separated,
        compiled.aligned(np.array(taken, dtype=np.int64).reshape(-1, 4)),
        compiled.aligned(np.cumsum(weights) - weights),
        state,
    )


def _segments(floor: Ints, positions: int) -> Ints:
    """Return the stretches of equal height, each at the place where it begins."""
    segments = compiled.empty((positions + 1, 3))
    begins = np.flatnonzero(np.diff(floor, prepend=-1))
    segments[begins] = np.stack(
        (np.append(begins[1:], positions - 1), np.append(-1, begins[:-1]), floor[begins]), axis=1
    )
    return segments


def tops(block_list: BlockList, offsets: Ints) -> Ints:
    """Return for each place among the bounds of hulls, but the last, the end of what is highest.

    Blocks that have no offset stand nowhere. A life is the union of two stretches whose lengths are
    a power of two; those are cut in half, the longest first.
    """
    begins, ends, positions = block_list.hull_places
    there = np.flatnonzero((offsets != UNPLACED) & (ends > begins))
    begins, ends = begins[there], ends[there]
    high = offsets[there] + block_list.size_array[there]
    levels = np.frexp((ends - begins).astype(np.float64))[1] - 1
    found = np.zeros(max(0, positions - 1), dtype=np.int64)
    for level in range(int(levels.max(initial=0)), -1, -1):
        at = levels == level
        np.maximum.at(found, begins[at], high[at])
        np.maximum.at(found, ends[at] - (1 << level), high[at])
        half = 1 << level >> 1
        if half:
            found[half:] = np.maximum(found[half:], found[:-half])
    return found


def _separated(block_list: BlockList, order: Ints) -> tuple[Ints, Ints]:
    """Return for each rank where its row begins, and in the rows the ranks it is separated from."""
    pairs = list(block_list.separated_pairs())
    if not pairs:
        return compiled.aligned(np.zeros(len(order) + 1, dtype=np.int64)), compiled.aligned([])
    rows: list[list[int]] = [[] for _ in order]
    rank = {block: at for at, block in enumerate(order.tolist())}
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
    nodes = compiled.empty((2 * leaves, 7))
    nodes[0] = 0
    padded = np.full((leaves * LEAF, 7), NONE, dtype=np.int64)
    padded[: len(blocks)] = np.stack(
        [blocks[along, c] for c in (BEGIN, END, BEGIN, END)]
        + [along, blocks[along, SIZE], blocks[along, SIZE]],
        axis=1,
    )
    level = padded.reshape(leaves, LEAF, 7)
    begin = leaves
    while True:
        joined = level.min(axis=1)
        joined[:, GREATEST] = level[:, :, GREATEST].max(axis=1)
        nodes[begin : 2 * begin] = joined
        if begin == 1:
            return nodes, slots
        begin //= 2
        level = joined.reshape(begin, 2, 7)


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
            rising.weights,
            compiled.empty((STACK,)),
            compiled.empty((LOCAL_SIZE,)),
            rising.state,
        )
    )

    def advance(steps: int) -> None:
        rising.state[STEPS] = steps
        run(*tensors)

    return advance
