# SPDX-License-Identifier: Apache-2.0
"""The skyline greedy on many blocks, again and again: memory linear in them, and n log n steps.

Placed blocks form a skyline over the positions. A stretch of it between two higher ones is a
valley, and no block that is not wholly within a valley can go as low as that. So the block of the
lowest rank within a valley comes next, and where there is none the valley is filled up to its lower
neighbour. (This is the best fit of E. Burke, G. Kendall, G. Whitwell, "A New Placement Heuristic
for the Orthogonal Stock-Cutting Problem", Operations Research 52, 2004, turned from width to time.)
Valleys do not meet, so they are taken in any order. A block that stands far above the neighbours of
its valley leaves narrow valleys beside it, and soon no block is left for those. So a valley of a
few bytes takes only blocks that do not stand out of it, and is filled up where there are none.

The block of the lowest rank within a valley is found in a tree over the blocks that are left,
sorted along a Z curve of (begin, end), whose nodes know the bounds and the lowest rank in them. A
block with several live ranges takes its bytes from the first to the last.

One skyline follows another, by squeaky wheel optimization (D. E. Joslin, D. P. Clements, "Squeaky
Wheel Optimization", Journal of Artificial Intelligence Research 10, 1999): blocks whose lives weigh
most go first. A position weighs more the more bytes are live there, at first, and then the higher
the skylines so far have ended there. Which valleys are shallow is tried out meanwhile, and what did
well so far is used most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.bound import highest_at, live_at
from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList, Ints
from passes.planning.engine.coalesce import better, cost_free, on_each_coalescing
from passes.planning.engine.compiled import Room
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners import skyline_loop as loop
from passes.planning.problem import Problem

Logs = npt.NDArray[np.float64]

PLACED_A_NODE = 8  # Blocks that are placed in a skyline in about the time of one node of the search
NODES_EACH = 100  # Nodes of the search in the time that a skyline takes apart from that
LEAST_WEIGHT = 1e-4  # What is added to the weight of each position, of which the greatest is 1
ONE = 1 << 16  # The greatest weight in the sums by which blocks are ordered
SHALLOWS = (0.01, 0.02, 0.005, 0.04, 0.0)
"""How deep a shallow valley is: bytes for each byte of the block that a byte is in on average. What
is best most often is tried first."""
STEEPNESS = 20.0
"""How fast weights fall at first: to 1 / e where a `STEEPNESS`-th less of the bound is live."""
GAIN = 30.0  # The same for what a skyline ended above the bound
TURNS = 100  # Skylines with weights of their own, at most

CHUNK = 50_000  # Steps between two looks at the clock
UNCOMPILED_BLOCKS = 100  # Blocks up to which nobody waits for a compiler
NONE = (-1, loop.NO_RANK, loop.NO_RANK, loop.CEILING)  # A node of no blocks


@register("skyline")
def skyline(problem: Problem, budget: Budget) -> Plan:
    """Make one skyline after the other, and keep the lowest.

    Sharing that costs something is avoided altogether, then, if that is worse, ignored.
    """
    tracker = BudgetTracker(budget)

    def run(block_list: BlockList) -> Plan:
        lists = [BlockList(cost_free(block_list.problem))] if block_list.soft else []
        plans = (
            block_list.plan(lowest_skyline(each, tracker), "skyline")
            for each in (*lists, block_list)
        )
        return better(problem, plans, tracker)

    return on_each_coalescing(problem, run)


def lowest_skyline(block_list: BlockList, tracker: BudgetTracker) -> list[int]:
    """Return the offsets, in bytes, of the lowest of several skylines.

    Ends at the lower bound, after `TURNS`, or when the tracker is used up; the first skyline is
    finished all the same. Penalties play no part.
    """
    begins, ends, positions = block_list.span_places
    bound, sizes = max(1, block_list.bound), block_list.size_array.astype(np.float64)
    mean = float((sizes * sizes).sum() / max(1.0, sizes.sum()))
    load = live_at(begins, ends, block_list.size_array, max(0, positions - 1))
    # For each depth of shallow valleys: the logarithm of the weight of each position, how many
    # skylines were made, and the lowest peak of these.
    learned = dict.fromkeys(SHALLOWS, STEEPNESS * (load / bound - 1))
    turns, lowest = dict.fromkeys(SHALLOWS, 0), dict.fromkeys(SHALLOWS, 0)
    start: Ints = np.full(len(block_list), UNPLACED)
    start[block_list.size_array == 0] = 0
    for block, offset in block_list.pinned.items():
        start[block] = offset
    best, best_peak, taken = start, -1, 0.0
    for turn in range(TURNS):
        before = tracker.rest().seconds
        is_late = tracker.left == 0 or (before is not None and before < taken)
        if turn and (is_late or best_peak <= bound):
            break
        # Those not tried yet come first; one tried often has to be better to be tried again.
        shallow = min(SHALLOWS, key=lambda s: (lowest[s] - bound) * math.sqrt(1 + turns[s]))
        order = _heaviest_first(begins, ends, learned[shallow])
        order = order[start[order] == UNPLACED]
        offsets = place_by_skyline(block_list, order, tracker, start, 0, int(shallow * mean))
        tracker.spend(NODES_EACH + len(order) // PLACED_A_NODE)
        peak = block_list.peak(offsets)
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        lowest[shallow] = min(lowest[shallow], peak) if turns[shallow] else peak
        turns[shallow] += 1
        learned[shallow] = learned[shallow] + GAIN / bound * (_tops(block_list, offsets) - bound)
        after = tracker.rest().seconds
        taken = before - after if before is not None and after is not None else 0.0
    found: list[int] = best.tolist()
    return found


def _heaviest_first(begins: Ints, ends: Ints, logs: Logs) -> Ints:
    """Return the blocks, those whose positions weigh most in all first; `logs` are logarithms."""
    weights = np.exp(logs - logs.max(initial=0)) + LEAST_WEIGHT
    weights = np.minimum(np.round(weights * ONE), ONE).astype(np.int64)
    sums = np.append(0, np.cumsum(weights))
    return np.lexsort((begins, sums[begins] - sums[ends]))


# One skyline


def place_by_skyline(
    block_list: BlockList,
    order: Sequence[int] | Ints,
    tracker: BudgetTracker,
    offsets: Sequence[int] | Ints,
    floor: int = 0,
    shallow: int = 0,
) -> Ints:
    """Place the blocks of `order` that have no place yet, each as low as a skyline lets it.

    Of equally low blocks, the first in `order` goes first; `offsets` are bytes, or `UNPLACED`.
    Nothing is placed below `floor` bytes. Valleys of at most `shallow` bytes take only blocks that
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
        len(left) > UNCOMPILED_BLOCKS and compiled.loop(loop.advance) is not None
    )
    running = compiled.start(loop.advance, state, is_fast)
    while running.state.left[0] and (is_fast or not tracker.expired):
        running.advance(CHUNK)
    placed[left] = running.state.offset
    if running.state.left[0]:
        top = max((end for _, end in block_list.problem.memory.reserved), default=0)
        ends = (placed + block_list.size_array)[placed != UNPLACED]
        top = max(top, int(ends.max(initial=0)))
        for block in np.flatnonzero(placed == UNPLACED).tolist():
            placed[block] = top + -top % block_list.alignments[block]
            top = int(placed[block]) + block_list.sizes[block]
    return placed


def make_state(
    block_list: BlockList, chosen: Ints, placed: Ints, floor: int = 0, shallow: int = 0
) -> loop.SkylineState:
    """Return some blocks of a list, ranked as given, and `placed` offsets of the others."""
    begins, ends, positions = block_list.span_places
    begin, end, size = begins[chosen], ends[chosen], block_list.size_array[chosen]
    slot, nodes, slots = _tree(begin, end, size)
    rank = {block: at for at, block in enumerate(chosen.tolist())} if block_list.separated else {}
    apart = [[rank[o] for o in block_list.separated.get(b, ()) if o in rank] for b in rank]
    # One stretch at first: where it ends, the one before, its height.
    stretches = np.zeros((3, positions + 1), dtype=np.int64)
    stretches[:, 0] = positions - 1, -1, floor
    # What is taken: from byte to byte, from position to position.
    taken = [(low, high, 0, positions) for low, high in block_list.problem.memory.reserved]
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
    make: Any = loop.SkylineState  # Sequences of every kind become what the loop runs on.
    state: loop.SkylineState = make(
        begin,
        end,
        size,
        np.array(block_list.alignments, dtype=np.int64)[chosen],
        slot,
        np.full(len(chosen), UNPLACED),
        nodes.reshape(-1),
        slots,
        *stretches,
        list(accumulate(map(len, apart), initial=0)) if rank else [0] * (len(chosen) + 1),
        [other for row in apart for other in row],
        *np.array(taken, dtype=np.int64).reshape(-1, 4).T,
        Room(loop.STACK),
        left=[len(chosen)],
        here=[0],
        positions=positions - 1,
        leaves=len(nodes) // 2,
        taken=len(taken),
        shallow=shallow,
    )
    return state


def _tops(block_list: BlockList, offsets: Ints) -> Ints:
    """Return for each place among the bounds of spans, but the last, the end of what is highest."""
    begins, ends, positions = block_list.span_places
    there = np.flatnonzero((offsets != UNPLACED) & (ends > begins))
    high = offsets[there] + block_list.size_array[there]
    return highest_at(begins[there], ends[there], high, max(0, positions - 1))


def _tree(begin: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the slots of blocks, the nodes, the root being the second, and the ranks by slot."""
    along = np.argsort(_spread(begin) | _spread(end) << np.uint64(1), kind="stable")
    leaves = 1
    while leaves * loop.LEAF < len(begin):
        leaves *= 2
    slots = np.full(leaves * loop.LEAF, loop.NO_RANK)
    slots[: len(begin)] = along
    slot = np.empty_like(along)
    slot[along] = np.arange(len(begin))
    nodes = np.zeros((2 * leaves, loop.NODE), dtype=np.int64)
    level = np.full((leaves * loop.LEAF, loop.NODE), NONE, dtype=np.int64)
    level[: len(begin)] = np.stack([begin[along], end[along], along, size[along]], axis=1)
    first, width = leaves, loop.LEAF
    while first:
        below = level.reshape(first, width, loop.NODE)
        level = below.min(axis=1)
        level[:, loop.MAX_BEGIN] = below[:, :, loop.MAX_BEGIN].max(axis=1)
        nodes[first : 2 * first] = level
        first, width = first // 2, 2
    return slot, nodes, slots


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
