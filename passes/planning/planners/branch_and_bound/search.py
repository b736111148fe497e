# SPDX-License-Identifier: Apache-2.0
"""A search for one placement below a capacity, that can be stopped and taken up again.

What it works on are integers alone, in sequences, so that it can run in Python or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Any

from passes.planning.engine import compiled
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.engine.compiled import Room
from passes.planning.planners.branch_and_bound import loop
from target_hw.memory import settle

NO_GROUP = (-1, 0, -1)  # The last placement of a group of which none was tried: offset, load, rank


class Outcome(IntEnum):
    """How far a search has come."""

    PAUSED = loop.PAUSED
    """The node limit is reached; it can go on."""
    FOUND = loop.FOUND
    """Every block is placed."""
    EXHAUSTED = loop.EXHAUSTED
    """There is no placement below the capacity: this is proven."""


class BranchAndBound:
    """A search that `passes.planning.planners.branch_and_bound.loop` explains.

    Among blocks of one reach the lowest rank goes first, or with `by_load` those that are live
    where most is left to place, which is looked at again each time that a group is cut off. No
    block ends above `capacity` bytes. `is_compiled` only where TVM can compile the loop.
    """

    def __init__(
        self,
        packing: Packing,
        ranks: Sequence[int],
        by_load: bool,
        capacity: int,
        is_compiled: bool = False,
    ) -> None:
        # Weights are whole units, so the capacity that they are held against is, too.
        whole_capacity = -(-capacity // packing.unit) * packing.unit
        state = _make_state(packing, ranks, by_load, capacity, whole_capacity)
        tops = (reach + size for reach, size in zip(state.reach, packing.sizes, strict=True))
        self._fits = all(top <= capacity for top in tops) and all(
            load <= whole_capacity for load in packing.loads
        )
        self._running = (compiled.on_arrays if is_compiled else compiled.on_lists)(
            loop.advance, state
        )

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
    packing: Packing, ranks: Sequence[int], by_load: bool, capacity: int, whole_capacity: int
) -> loop.SearchState:
    """Return a search that has not begun: all blocks wait, in groups that never meet."""
    count, columns = len(packing), packing.columns
    order = sorted(range(count), key=lambda b: (columns["first"][b], b))
    groups = _root_groups(packing, order)
    now = [0] * loop.NOW_SIZE
    now[loop.WAITING] = len(groups)
    waiting = [value for group in groups for value in group]
    # Each placement raises a conflict once and may renew the load of every block left. Most of
    # this is never touched, so it takes address space, not memory.
    trail = Room(count + sum(packing.degrees) + (count + 1) * (count + 2) // 2)
    make: Any = loop.SearchState  # Sequences of every kind become what the loop runs on.
    state: loop.SearchState = make(
        **columns,
        rank=list(ranks),
        offset=[UNPLACED] * count,
        load=packing.peak_loads if by_load else [0] * count,
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
        by_load=int(by_load),
    )
    return state


def _root_groups(packing: Packing, order: Sequence[int]) -> list[list[int]]:
    """Return the groups into which all blocks fall, `order` being sorted by first section."""
    groups: list[list[int]] = []
    for at, block in enumerate(order):
        first, last = packing.columns["first"][block], packing.columns["last"][block]
        if groups and first < groups[-1][loop.LAST]:
            groups[-1][loop.END] = at + 1
            groups[-1][loop.LAST] = max(groups[-1][loop.LAST], last)
        else:
            groups.append([at, at + 1, first, last, -1, *NO_GROUP])
    return groups


@dataclass(frozen=True)
class Packing:
    """Some blocks of a block list, renumbered from 0, with what the search needs of them.

    Time is cut into sections: positions between which no block begins or ends, of which only those
    are kept whose set of live blocks is in no neighbour's.
    """

    blocks: list[int]  # For each block its number in the block list
    sizes: list[int]  # Bytes
    unit: int  # Bytes that every offset is a multiple of
    life: list[int]  # Positions at which a block is live
    degrees: list[int]  # For each block, how many it may not share bytes with
    loads: list[int]  # For each section, the bytes of its blocks, each in whole units
    peak_loads: list[int]  # For each block, the greatest load of its sections
    columns: dict[str, list[int]]  # Those of `SearchState` that are the same for every search

    def __len__(self) -> int:
        return len(self.blocks)


def pack(block_list: BlockList, blocks: Sequence[int]) -> Packing:
    """Return the packing of some blocks of `block_list`, none of them pinned or empty."""
    conflicts = [row.tolist() for row in block_list.interference_among(blocks)]
    lives = [block_list.live[block] for block in blocks]
    sizes = [block_list.sizes[block] for block in blocks]
    alignments = [block_list.alignments[block] for block in blocks]
    obstacles = [block_list.obstacles(block) for block in blocks]
    unit = math.gcd(*alignments)
    weights = [-(-size // unit) * unit for size in sizes]
    ranges, members = _sections(lives)
    first, last = _ties(ranges, conflicts)
    loads = [sum(weights[block] for block in row) for row in members]
    columns = {
        "size": sizes,
        "alignment": alignments,
        "weight": weights,
        "first": first,
        "last": last,
        "reach": [settle(0, *each) for each in zip(sizes, alignments, obstacles, strict=True)],
        "crossing": _crossings(first, last, len(members)),
        **_rows("conflict", conflicts),
        **_rows("member", members),
        **_ranges("obstacle", obstacles),
        **_ranges("live", ranges),
    }
    return Packing(
        blocks=list(blocks),
        sizes=sizes,
        unit=unit,
        life=[sum(end - begin for begin, end in live) for live in lives],
        degrees=list(map(len, conflicts)),
        loads=loads,
        peak_loads=[max((max(loads[a:b]) for a, b in row), default=0) for row in ranges],
        columns=columns,
    )


def _rows(name: str, rows: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """Return a column of values, row behind row, and one of where each row begins."""
    begins = list(accumulate(map(len, rows), initial=0))
    return {f"{name}_begins": begins, name: [value for row in rows for value in row]}


def _ranges(name: str, rows: Sequence[Sequence[tuple[int, int]]]) -> dict[str, list[int]]:
    """Return two columns of begins and ends, row behind row, and one of where each row begins."""
    return {
        f"{name}_begins": list(accumulate(map(len, rows), initial=0)),
        f"{name}_begin": [begin for row in rows for begin, _ in row],
        f"{name}_end": [end for row in rows for _, end in row],
    }


def _crossings(first: Iterable[int], last: Iterable[int], sections: int) -> list[int]:
    """Return for each section how many blocks are tied to both it and the section before."""
    change = [0] * (sections + 1)
    for begin, end in zip(first, last, strict=True):
        if end > begin + 1:
            change[begin + 1] += 1
            change[end] -= 1
    return list(accumulate(change[:-1]))


def _sections(
    lives: Sequence[Sequence[tuple[int, int]]],
) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
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


def _ties(
    ranges: Sequence[Sequence[tuple[int, int]]], conflicts: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return for each block the range of sections that ties it to the blocks it conflicts with."""
    first = [row[0][0] for row in ranges]
    last = [row[-1][1] for row in ranges]
    tied = list(last)
    for block, others in enumerate(conflicts):
        # Blocks live together overlap as they are; a separated one that begins later must be met.
        tied[block] = max([last[block], *(first[other] + 1 for other in others)])
    return first, tied
