# SPDX-License-Identifier: Apache-2.0
"""Branch-and-bound check that a problem has a plan below a capacity.

Branch and bound finds out: `canonical_loop` explains it. The time that it takes depends so much on
the order of equals that several orders take turns, each going on where it stopped, with more
placements every round: the round robin of MiniMalloc. On large problems the search places the
critical core only, the blocks that live where most bytes are live, and first fit puts the rest
around it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, product
from typing import Any

import numpy as np

from passes.planning.bound import live_at
from passes.planning.buffer import LiveRange
from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.engine.compiled import Room
from passes.planning.planner import BudgetTracker
from passes.planning.planners import canonical_loop as loop
from passes.planning.planners.first_fit import fit_blocks, ordered
from target_hw.memory import settle

WHOLE_BLOCKS = 3000  # Blocks up to which the search is asked for all of a problem
CORE_SHARES = (0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
"""The share of the capacity, or of the most bytes live at once, that puts a block into the core:
the first for which the core is small enough."""
MANY_BLOCKS = 300  # Blocks from which the first turns, too, are taken by the compiled search
STEP_WORK = 4_000_000  # Blocks looked at between two looks at the clock
FITTED_PAIRS = 40  # Pairs live together that first fit looks at in the time of a placement
COMPILED_BLOCKS = 40  # Blocks from which the compiled search is worth its start
NO_GROUP = (-1, 0, -1)  # The last placement of a group of which none was tried: offset, load, rank


class Outcome(IntEnum):
    """The result of a search, or of a part of it."""

    PAUSED = loop.PAUSED  # The limit of placements is reached; the search can go on.
    FOUND = loop.FOUND  # Every block is placed.
    EXHAUSTED = loop.EXHAUSTED  # It is proven that there is no placement below the capacity.


Answer = tuple[Outcome, list[int]]
"""The outcome of a question, and an offset for each block if all have one."""


class FeasibilityCheck:
    """Finds out whether one block list can be placed below a capacity.

    Penalties play no part, nor does the capacity of the block list's own problem.
    """

    def __init__(self, block_list: BlockList) -> None:
        self._block_list = block_list
        self._free = [
            block
            for block, size in enumerate(block_list.sizes)
            if size and block not in block_list.pinned
        ]
        self._packed: Packing | None = None

    def run(self, capacity: int, tracker: BudgetTracker) -> Answer:
        """Ask whether all blocks can end at `capacity` bytes or below.

        The outcome is `PAUSED` if the tracker stopped the search, or first fit left blocks over:
        these then lie above, and offsets are returned all the same.
        """
        if self._block_list.bound > capacity:
            return Outcome.EXHAUSTED, []
        core = self._free if len(self._free) <= WHOLE_BLOCKS else self._critical(capacity)
        if not 0 < len(core) <= WHOLE_BLOCKS or not tracker.left:
            return Outcome.PAUSED, []
        if self._packed is None or self._packed.blocks != core:
            self._packed = pack(self._block_list, core)
        outcome, found = _search(self._packed, capacity, tracker)
        if outcome is not Outcome.FOUND:
            return outcome, []
        fixed = dict(zip(core, found, strict=True))
        order = ordered(self._block_list, "size")
        offsets = fit_blocks(self._block_list, order, fixed=fixed, limit=capacity, tracker=tracker)
        # First fit takes as long as the search does for so many placements.
        tracker.spend(max(len(offsets) - len(fixed), self._block_list.live_pairs // FITTED_PAIRS))
        if UNPLACED not in offsets:
            return Outcome.FOUND, offsets
        fixed = {block: offset for block, offset in enumerate(offsets) if offset != UNPLACED}
        offsets = fit_blocks(self._block_list, order, fixed=fixed, tracker=tracker)
        return Outcome.PAUSED, [] if UNPLACED in offsets else offsets

    def _critical(self, capacity: int) -> list[int]:
        """Return the blocks that live where most of the capacity is needed, or most bytes live.

        They are fewer than `WHOLE_BLOCKS`, or none.
        """
        first, last, owners = self._block_list.pieces
        positions, places = np.unique(np.concatenate((first, last)), return_inverse=True)
        begins, ends = places[: len(first)], places[len(first) :]
        live = live_at(begins, ends, self._block_list.size_array[owners], len(positions))
        is_free = np.zeros(len(self._block_list), dtype=bool)
        is_free[self._free] = True
        for share in CORE_SHARES:
            is_high = live > share * min(capacity, int(live.max()))
            high = np.append(0, np.cumsum(is_high))
            critical = np.unique(owners[high[ends] > high[begins]])
            core: list[int] = critical[is_free[critical]].tolist()
            if len(core) <= WHOLE_BLOCKS:
                return core
        return []


# Orders that take turns


@dataclass(frozen=True)
class Attempt:
    """An order of blocks of equal reach: greatest first by each measure in turn."""

    by_load: bool  # Whether the bytes left where a block is live come before the measures
    measures: str  # ``L`` life, ``A`` area, ``S`` size, ``C`` number of conflicts
    seed: int = 0  # Other than 0, each measure is varied at random by up to 30 %

    def ranks(self, packing: Packing) -> list[int]:
        """Return the rank of each block."""
        rng = random.Random(self.seed)
        columns = [
            [-value * (rng.uniform(0.7, 1.3) if self.seed else 1) for value in packing.measures[m]]
            for m in self.measures
        ]
        order = sorted(range(len(packing)), key=lambda b: [*(column[b] for column in columns), b])
        ranks: list[int] = np.argsort(order).tolist()
        return ranks


ATTEMPTS = (
    Attempt(True, "LA"),
    Attempt(True, "CL"),
    Attempt(False, "LA"),
    Attempt(True, "AL"),
    Attempt(True, "LA", 2),
    Attempt(False, "LA", 1),
    Attempt(True, "SL", 2),
    Attempt(True, "AL", 3),
    Attempt(False, "CL", 4),
    Attempt(False, "LA", 4),
)


def _search(packing: Packing, capacity: int, tracker: BudgetTracker) -> Answer:
    """Let all attempts take turns until one has an answer, each with twice the placements.

    The first turns are short: most questions end there, and small ones need no compiled search.
    """
    running: dict[Attempt, BranchAndBound] = {}
    step = max(1, STEP_WORK // max(1, len(packing)))
    for turn, attempt in product(range(62), ATTEMPTS):
        if tracker.left and attempt not in running:
            running[attempt] = BranchAndBound(packing, attempt, capacity)
        is_first = turn == 0 and len(packing) < MANY_BLOCKS
        is_there = compiled.is_loaded if is_first else compiled.is_ready
        limit = 2 * len(packing) << turn
        for done in range(0, limit, step):
            if not tracker.left:
                return Outcome.PAUSED, []
            search = running[attempt]
            if len(packing) >= COMPILED_BLOCKS and is_there(loop.advance):
                search.compile()
            before = search.nodes
            outcome = search.advance(min(limit - done, step, tracker.left))
            tracker.spend(search.nodes - before)
            if outcome is not Outcome.PAUSED:
                return outcome, search.offsets
    return Outcome.PAUSED, []


# One search


class BranchAndBound:
    """A search for a placement in which no block ends above `capacity` bytes.

    It can be stopped and taken up again. Among blocks of one reach the attempt decides; by load,
    those that are live where most is left to place go first, which is looked at again each time
    that a group is cut off.
    """

    def __init__(self, packing: Packing, attempt: Attempt, capacity: int) -> None:
        # Weights are whole units, so the capacity that they are held against is, too.
        whole = -(-capacity // packing.unit) * packing.unit
        state = _make_state(packing, attempt, capacity, whole)
        self._fits = max(packing.loads, default=0) <= whole and all(
            reach + size <= capacity for reach, size in zip(state.reach, state.size, strict=True)
        )
        self._running = compiled.start(loop.advance, state, False)
        self._is_compiled = False

    def compile(self) -> None:
        """Go on as what TVM compiles; only where that is there."""
        if not self._is_compiled:
            self._running = compiled.start(loop.advance, self._running.state, True)
            self._is_compiled = True

    @property
    def nodes(self) -> int:
        """Placements tried so far."""
        return int(self._running.state.now[loop.NODES])

    @property
    def offsets(self) -> list[int]:
        """For each block its offset in bytes, or `UNPLACED`."""
        return [int(offset) for offset in self._running.state.offset]

    def advance(self, limit: int) -> Outcome:
        """Try at most `limit` more placements."""
        if not self._fits:
            return Outcome.EXHAUSTED
        self._running.advance(self.nodes + limit)
        return Outcome(int(self._running.state.now[loop.OUTCOME]))


def _make_state(
    packing: Packing, attempt: Attempt, capacity: int, whole_capacity: int
) -> loop.SearchState:
    """Return a search that has not begun: all blocks wait, in groups that never meet."""
    count, columns = len(packing), packing.columns
    order = sorted(range(count), key=lambda b: (columns["first"][b], b))
    groups: list[list[int]] = []
    for at, block in enumerate(order):
        first, last = columns["first"][block], columns["last"][block]
        if groups and first < groups[-1][loop.LAST]:
            groups[-1][loop.END] = at + 1
            groups[-1][loop.LAST] = max(groups[-1][loop.LAST], last)
        else:
            groups.append([at, at + 1, first, last, -1, *NO_GROUP])
    now = [0] * loop.NOW_SIZE
    now[loop.WAITING] = len(groups)
    waiting = [value for group in groups for value in group]
    # Each placement raises a conflict once and may renew the load of every block left. Most of
    # this is never touched, so it takes address space, not memory.
    trail = Room(count + len(columns["conflict"]) + (count + 1) * (count + 2) // 2)
    make: Any = loop.SearchState  # Sequences of every kind become what the loop runs on.
    state: loop.SearchState = make(
        **columns,
        rank=attempt.ranks(packing),
        offset=[UNPLACED] * count,
        load=packing.peak_loads if attempt.by_load else [0] * count,
        remaining=packing.loads,
        order=order,
        waiting=waiting + [0] * ((count + 1) * loop.GROUP - len(waiting)),
        frames=Room((count + 1) * loop.FRAME),
        trail_block=trail,
        trail_old=trail,
        now=now,
        blocks=count,
        sections=len(packing.loads),
        capacity=capacity,
        whole_capacity=whole_capacity,
        by_load=int(attempt.by_load),
    )
    return state


@dataclass(frozen=True)
class Packing:
    """Some blocks of a block list, renumbered from 0, with what the search needs of them.

    Time is cut into sections: positions between which no block begins or ends. A section
    is kept only if its set of live blocks is in no neighbour's.
    """

    blocks: list[int]  # For each block its number in the block list
    unit: int  # Bytes that every offset is a multiple of
    measures: dict[str, Sequence[float]]  # The keys of an `Attempt`'s orders, for each block
    loads: list[int]  # For each section, the bytes of its blocks, each in whole units
    peak_loads: list[int]  # For each block, the greatest load of its sections
    columns: dict[str, Any]  # Those of `SearchState` that are the same for every search

    def __len__(self) -> int:
        return len(self.blocks)


def pack(block_list: BlockList, blocks: Sequence[int]) -> Packing:
    """Return the packing of some blocks of `block_list`, none of them pinned or empty."""
    conflicts = block_list.interference_among(blocks)
    counts = list(map(len, conflicts))
    place = {block: at for at, block in enumerate(blocks)}
    lives = [block_list.live[block] for block in blocks]
    sizes = [block_list.sizes[block] for block in blocks]
    alignments = [block_list.alignments[block] for block in blocks]
    obstacles = [block_list.obstacles(block) for block in blocks]
    unit = math.gcd(*alignments)
    weights = [-(-size // unit) * unit for size in sizes]
    ranges, members = _sections(lives)
    # The sections that tie a block to those that it conflicts with: what is live together overlaps
    # as it is, and a separated block that begins later must be met.
    first = [row[0][0] for row in ranges]
    last = [row[-1][1] for row in ranges]
    for block, others in block_list.separated.items():
        if block in place:
            met = [first[place[other]] + 1 for other in others if other in place]
            last[place[block]] = max([last[place[block]], *met])
    crossing = [0] * (len(members) + 1)  # Blocks tied to a section and the one before, as changes
    for begin, end in zip(first, last, strict=True):
        if end > begin + 1:
            crossing[begin + 1] += 1
            crossing[end] -= 1
    loads = [sum(weights[block] for block in row) for row in members]
    life = [sum(end - begin for begin, end in live) for live in lives]
    return Packing(
        blocks=list(blocks),
        unit=unit,
        measures={
            "L": life,
            "A": [size * length for size, length in zip(sizes, life, strict=True)],
            "S": sizes,
            "C": counts,
        },
        loads=loads,
        peak_loads=[max((max(loads[a:b]) for a, b in row), default=0) for row in ranges],
        columns={
            "size": sizes,
            "alignment": alignments,
            "weight": weights,
            "first": first,
            "last": last,
            "reach": [settle(0, *each) for each in zip(sizes, alignments, obstacles, strict=True)],
            "crossing": list(accumulate(crossing[:-1])),
            "conflict_begins": list(accumulate(counts, initial=0)),
            "conflict": np.concatenate([np.zeros(0, np.int32), *conflicts]),
            **_rows("member", members),
            **_ranges("obstacle", obstacles),
            **_ranges("live", ranges),
        },
    )


def _rows(name: str, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return a column of values, row after row, and one of where each row begins."""
    begins = list(accumulate(map(len, rows), initial=0))
    return {f"{name}_begins": begins, name: [value for row in rows for value in row]}


def _ranges(name: str, rows: Sequence[Sequence[LiveRange]]) -> dict[str, list[int]]:
    """Return two columns of begins and ends, row after row, and one of where each row begins."""
    columns = _rows(name, rows)
    ranges = columns.pop(name)
    return {
        **columns,
        f"{name}_begin": [a for a, _ in ranges],
        f"{name}_end": [b for _, b in ranges],
    }


def _sections(
    lives: Sequence[Sequence[LiveRange]],
) -> tuple[list[list[LiveRange]], list[list[int]]]:
    """Return each block's ranges of sections, and each section's blocks.

    A section ends at the first end of a live range after a begin: the blocks live just before
    that are in no other section together.
    """
    events = sorted(
        (position, starts, block, piece)
        for block, live in enumerate(lives)
        for piece, (begin, end) in enumerate(live)
        for position, starts in ((begin, True), (end, False))
    )
    ranges = [[(0, 0)] * len(live) for live in lives]
    members: list[list[int]] = []
    alive: dict[int, int] = {}  # block to the section that its live range began in
    grown = False
    for _, starts, block, piece in events:
        if starts:
            alive[block] = len(members)
            grown = True
            continue
        if grown:
            members.append(list(alive))
            grown = False
        ranges[block][piece] = (alive.pop(block), len(members))
    return ranges, members
