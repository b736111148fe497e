# SPDX-License-Identifier: Apache-2.0
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

A block with several live ranges takes its bytes from the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList, Ints
from passes.planning.engine.compiled import Room
from passes.planning.planner import BudgetTracker
from passes.planning.planners.skyline import loop

CHUNK = 50_000  # Steps between two looks at the clock
FEW = 100  # Blocks up to which nobody waits for a compiler
NONE = (-1, loop.NO_RANK, loop.NO_RANK, -1, loop.NO_RANK, loop.CEILING, -1)  # A node of no blocks
GREATEST = [loop.MAX_BEGIN, loop.MAX_END, loop.MAX_SIZE]
"""The columns of a node that have the greatest of its blocks; the others have the least."""


def place_by_skyline(
    block_list: BlockList,
    order: Sequence[int] | Ints,
    tracker: BudgetTracker,
    offsets: Sequence[int] | Ints,
    floor: int | Ints = 0,
    shallow: int = 0,
) -> Ints:
    """Place the blocks of `order` that have no place yet, each as low as a skyline lets it.

    Of equally low blocks, the first in `order` goes first; `offsets` are bytes, or `UNPLACED`.
    Nothing is placed below `floor` bytes: one number, or one for each place among
    `BlockList.span_places` but the last. Valleys of at most `shallow` bytes take only blocks that
    do not stand out of them. Penalties play no part.

    Once the tracker is expired, the plain Python form puts the blocks that are left on top of all
    others. The compiled one goes on: it takes some seconds for a million blocks.
    """
    placed, blocks = np.array(offsets, dtype=np.int64), np.asarray(order, dtype=np.int64)
    left = blocks[placed[blocks] == UNPLACED]
    if not len(left):
        return placed
    state = make_state(block_list, left, placed, floor, shallow)
    is_fast = compiled.is_loaded(loop.advance) or (
        len(left) > FEW and compiled.loop(loop.advance) is not None
    )
    running = (compiled.on_arrays if is_fast else compiled.on_lists)(loop.advance, state)
    while running.state.left[0] and (is_fast or not tracker.expired):
        running.advance(CHUNK)
    placed[left] = running.state.offset
    if running.state.left[0]:
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


def make_state(
    block_list: BlockList,
    chosen: Ints,
    placed: Ints,
    floor: int | Ints = 0,
    shallow: int = 0,
) -> loop.SkylineState:
    """Return some blocks of a list, ranked as given, and `placed` offsets of the others."""
    begins, ends, positions = block_list.span_places
    begin, end, size = begins[chosen], ends[chosen], block_list.size_array[chosen]
    slot, nodes, slots = _tree(begin, end, size)
    taken = _taken(block_list, placed, begins, ends, positions)
    make: Any = loop.SkylineState  # Sequences of every kind become what the loop runs on.
    state: loop.SkylineState = make(
        begin,
        end,
        size,
        block_list.alignment_array[chosen],
        slot,
        np.full(len(chosen), UNPLACED),
        nodes.reshape(-1),
        slots,
        *_stretches(np.broadcast_to(floor, positions - 1), positions),
        *_separated(block_list, chosen),
        *taken.T,
        Room(loop.STACK),
        left=[len(chosen)],
        here=[0],
        positions=positions - 1,
        leaves=len(nodes) // 2,
        taken=len(taken),
        shallow=shallow,
    )
    return state


def _taken(block_list: BlockList, placed: Ints, begins: Ints, ends: Ints, positions: int) -> Ints:
    """Return what is taken: from byte to byte, from position to position, a row each."""
    taken = [(begin, end, 0, positions) for begin, end in block_list.problem.memory.reserved]
    taken += [
        (offset, offset + block_list.sizes[b], int(begins[b]), int(ends[b]))
        for b, offset in block_list.pinned.items()
    ]
    # What a block may not share with a placed one is taken for as long as the block lives.
    taken += [
        (int(placed[b]), int(placed[b]) + block_list.sizes[b], int(begins[other]), int(ends[other]))
        for b, others in block_list.separated.items()
        for other in others
        if placed[b] != UNPLACED and placed[other] == UNPLACED
    ]
    return np.array(taken, dtype=np.int64).reshape(-1, 4)


def _stretches(floor: Ints, positions: int) -> tuple[Ints, Ints, Ints]:
    """Return the stretches of equal height at the places where they begin: end, before, height."""
    found = np.zeros((3, positions + 1), dtype=np.int64)
    begins = np.flatnonzero(np.diff(floor, prepend=-1))
    found[:, begins] = (
        np.append(begins[1:], positions - 1),
        np.append(-1, begins[:-1]),
        floor[begins],
    )
    return found[0], found[1], found[2]


def tops(block_list: BlockList, offsets: Ints) -> Ints:
    """Return for each place among the bounds of spans, but the last, the end of what is highest.

    Blocks that have no offset stand nowhere. A life is the union of two stretches whose lengths are
    a power of two; those are cut in half, the longest first.
    """
    begins, ends, positions = block_list.span_places
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


def _separated(block_list: BlockList, order: Ints) -> tuple[list[int], list[int]]:
    """Return for each rank where its row begins, and in the rows the ranks it is separated from."""
    if not block_list.separated:
        return [0] * (len(order) + 1), []
    rank = {block: at for at, block in enumerate(order.tolist())}
    rows = [[rank[o] for o in block_list.separated.get(b, ()) if o in rank] for b in rank]
    begins = list(accumulate(map(len, rows), initial=0))
    return begins, [each for row in rows for each in row]


def _tree(begin: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the slots of blocks, the nodes, the root being the second, and the ranks by slot."""
    curve = _spread(begin) | _spread(end) << np.uint64(1)
    along = np.argsort(curve, kind="stable")
    leaves = 1
    while leaves * loop.LEAF < len(begin):
        leaves *= 2
    slots = np.full(leaves * loop.LEAF, loop.NO_RANK)
    slots[: len(begin)] = along
    slot = np.empty_like(along)
    slot[along] = np.arange(len(begin))
    nodes = np.zeros((2 * leaves, loop.NODE), dtype=np.int64)
    padded = np.full((leaves * loop.LEAF, loop.NODE), NONE, dtype=np.int64)
    columns = [each[along] for each in (begin, end, begin, end)]
    padded[: len(begin)] = np.stack([*columns, along, size[along], size[along]], axis=1)
    level = padded.reshape(leaves, loop.LEAF, loop.NODE)
    first = leaves
    while True:
        joined = level.min(axis=1)
        joined[:, GREATEST] = level[:, :, GREATEST].max(axis=1)
        nodes[first : 2 * first] = joined
        if first == 1:
            return slot, nodes, slots
        first //= 2
        level = joined.reshape(first, 2, loop.NODE)


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
