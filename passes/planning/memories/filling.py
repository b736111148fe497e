# SPDX-License-Identifier: Apache-2.0
"""Fill one memory with what is worth most, where not all that was chosen for it has a place.

First fit places what was chosen, then whatever else finds a gap. From there `filling_loop` goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from passes.planning.engine import compiled
from passes.planning.engine.blocks import BUCKET, UNPLACED, BlockList, Ints
from passes.planning.engine.compiled import Room
from passes.planning.memories import filling_loop as loop
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit import EVER, ORDERS, fit_blocks, ordered
from passes.planning.planners.relocation_loop import NOISE

NODES = 20  # Nodes between two looks at the clock
NODE_WORK = 4000  # Blocks looked at that count as one node
HEAT_PART = 10
MOST_WORTH = 1 << 40  # The worth of all blocks in the loop's integers


def first_filling(
    block_list: BlockList,
    worth: Sequence[float],
    wanted: Sequence[bool],
    given: Mapping[int, int],
) -> list[int]:
    """Return the offset of each block, in bytes, by first fit; `UNPLACED` where there is no place.

    `worth` says for each block what it costs to leave it out, infinity for one that must not be;
    those that are `wanted` come first, in the best of several orders where pairs are not too many.
    Blocks whose offsets are `given` keep them.
    """
    limit = block_list.problem.capacity
    life = [sum(end - begin for begin, end in live) for live in block_list.live]
    area = [max(1, size * length) for size, length in zip(block_list.sizes, life, strict=True)]
    rest = sorted(range(len(block_list)), key=lambda b: (-worth[b] / area[b], b))
    fillings: list[list[int]] = []
    for order in ORDERS[:3] if block_list.is_listed else ORDERS[1:2]:
        first = [block for block in ordered(block_list, order) if wanted[block]]
        first.sort(key=lambda block: worth[block] < math.inf)
        offsets = fit_blocks(block_list, [*first, *rest], fixed=given, limit=limit)
        for begin, end in pairwise(block_list.first):
            if UNPLACED in offsets[begin:end]:
                offsets[begin:end] = [UNPLACED] * (end - begin)
        fillings.append(offsets)
    return min(fillings, key=lambda offsets: _left_out(offsets, worth))


def _left_out(offsets: Sequence[int], worth: Sequence[float]) -> float:
    return sum(value for at, value in zip(offsets, worth, strict=True) if at == UNPLACED)


def better_filling(
    block_list: BlockList, worth: Sequence[float], filling: Sequence[int], tracker: BudgetTracker
) -> list[int]:
    """Return the best filling found from one, until the tracker is used up.

    A node is `NODE_WORK` blocks that are looked at. Blocks that are pinned, or slots of a buffer
    with several, stay where they are. The loss that a step takes at first, with probability 1/e, is
    a `HEAT_PART`-th of what a block that lies outside is worth.
    """
    state = _state(block_list, worth, filling)
    running = compiled.start(loop.advance, state, False)
    is_compiled = False
    heat = state.now[loop.LOST] / HEAT_PART / max(1, state.now[loop.OUTSIDE])
    budget = tracker.rest()
    while running.state.now[loop.OUTSIDE] and tracker.left:
        if not is_compiled and compiled.is_ready(loop.advance):
            is_compiled = True
            running = compiled.start(loop.advance, running.state, True)
        done = tracker.used / max(1, budget.nodes)
        if budget.seconds:
            done = max(done, 1 - (tracker.rest().seconds or 0.0) / budget.seconds)
        work = int(running.state.now[loop.WORK])
        running.advance(int((1 - done) * heat), work + NODES * NODE_WORK)
        tracker.spend(-(-(int(running.state.now[loop.WORK]) - work) // NODE_WORK))
    return [int(offset) for offset in running.state.best]


def _state(
    block_list: BlockList, worth: Sequence[float], offsets: Sequence[int]
) -> loop.FillingState:
    """Return a filling that has not been changed yet."""
    problem, sweep = block_list.problem, block_list.sweep
    assert problem.capacity is not None, "a memory without end leaves nothing out"
    finite = sum(value for value in worth if value < math.inf)
    scale = MOST_WORTH / max(1.0, finite)
    worths = [MOST_WORTH if value == math.inf else int(value * scale) + 1 for value in worth]
    moves = [
        problem.buffers[buffer].slots == 1 and block not in block_list.pinned
        for block, buffer in enumerate(block_list.buffer_of)
    ]
    outside = [
        block
        for block, size in enumerate(block_list.sizes)
        if moves[block] and offsets[block] == UNPLACED and size <= problem.capacity
    ]
    now = [0] * loop.NOW_SIZE
    now[loop.SEED] = 1
    now[loop.OUTSIDE] = len(outside)
    now[loop.LOST] = now[loop.LEAST] = sum(worths[block] for block in outside)
    room = Room(sweep["most_met"])
    columns = {name: column for name, column in sweep.items() if name in loop.FillingState._fields}
    make: Any = loop.FillingState  # Sequences of every kind become what the loop runs on
    state: loop.FillingState = make(
        **columns,
        worth=worths,
        price=[worths[b] if moving else loop.NEVER for b, moving in enumerate(moves)],
        offset=offsets,
        best=offsets,
        latest=_latest(sweep["end"], sweep["leaves"]),
        noise=NOISE,
        outside=outside + [0] * (len(block_list) - len(outside)),
        node=Room(128),
        width=Room(128),
        met=room,
        out=room,
        low=room,
        low_price=room,
        high=room,
        high_price=room,
        other=room,
        other_price=room,
        now=now,
        blocks=len(block_list),
        capacity=problem.capacity,
    )
    return state


def _latest(ends: Ints, leaves: int) -> list[int]:
    """Return for each node of a tree over live ranges the last end under it."""
    padded = np.full(leaves * BUCKET, -EVER)
    padded[: len(ends)] = ends
    levels = [padded.reshape(-1, BUCKET).max(axis=1)]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0].reshape(-1, 2).max(axis=1))
    latest: list[int] = np.concatenate(([-EVER], *levels)).tolist()
    return latest
