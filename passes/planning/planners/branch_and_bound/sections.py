# SPDX-License-Identifier: Apache-2.0
"""The data that the branch and bound works on: blocks to place below a capacity.

Only integers, in arrays of one dimension, so that the search can run in Python or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from passes.planning.engine.blocks import BlockList


@dataclass(frozen=True)
class Rows:
    """Lists of integers of different lengths, stored one after the other.

    Row `i` is ``values[begins[i] : begins[i + 1]]``.
    """

    begins: list[int]
    values: list[int]

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Rows:
        """Return the table with these rows."""
        begins = [0, *accumulate(len(row) for row in rows)]
        return Rows(begins, [value for row in rows for value in row])

    def row(self, index: int) -> list[int]:
        """Return one row."""
        return self.values[self.begins[index] : self.begins[index + 1]]


@dataclass(frozen=True)
class Packing:
    """Some blocks of a block list, renumbered from 0, with what the search needs of them.

    Time is cut into sections: positions between which no block begins or ends, of which only those
    are kept whose set of live blocks is in no neighbour's.
    """

    blocks: list[int]  # For each block its number in the block list
    # Bytes.
    sizes: list[int]
    alignments: list[int]
    # Bytes that a block takes of a section at least: its size rounded up to `unit`.
    weights: list[int]
    unit: int  # Bytes that every offset is a multiple of
    conflicts: Rows  # For each block, those it may not share bytes with
    # For each block, bytes that it may not take: reserved ranges and pinned blocks, by begin.
    obstacle_begins: Rows
    obstacle_ends: Rows
    # For each block, the half-open ranges of sections in which it is live.
    section_begins: Rows
    section_ends: Rows
    members: Rows  # For each section, the blocks live in it
    # For each block, the half-open range of sections that ties it to others: its life and, where it
    # is separated from a block, the gap to that block's life.
    first: list[int]
    last: list[int]
    life: list[int]  # Positions at which a block is live

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def loads(self) -> list[int]:
        """For each section, the sum of the weights of its members."""
        count = len(self.members.begins) - 1
        return [sum(self.weights[b] for b in self.members.row(s)) for s in range(count)]

    @cached_property
    def peak_loads(self) -> list[int]:
        """For each block, the greatest load of its sections."""
        peaks = []
        for block in range(len(self)):
            ranges = zip(self.section_begins.row(block), self.section_ends.row(block), strict=True)
            peaks.append(max((max(self.loads[a:b]) for a, b in ranges), default=0))
        return peaks


def pack(block_list: BlockList, blocks: Sequence[int]) -> Packing:
    """Return the packing of some blocks of `block_list`, none of them pinned or empty."""
    conflicts = [row.tolist() for row in block_list.interference_among(blocks)]
    unit = math.gcd(*(block_list.alignments[block] for block in blocks))
    ranges, members = _sections([block_list.live[block] for block in blocks])
    obstacles = [_obstacles(block_list, block) for block in blocks]
    first, last = _ties(ranges, conflicts)
    sizes = [block_list.sizes[block] for block in blocks]
    return Packing(
        blocks=list(blocks),
        sizes=sizes,
        alignments=[block_list.alignments[block] for block in blocks],
        weights=[-(-size // unit) * unit for size in sizes],
        unit=unit,
        conflicts=Rows.of(conflicts),
        obstacle_begins=Rows.of([[begin for begin, _ in row] for row in obstacles]),
        obstacle_ends=Rows.of([[end for _, end in row] for row in obstacles]),
        section_begins=Rows.of([[begin for begin, _ in row] for row in ranges]),
        section_ends=Rows.of([[end for _, end in row] for row in ranges]),
        members=Rows.of(members),
        first=first,
        last=last,
        life=[sum(end - begin for begin, end in block_list.live[block]) for block in blocks],
    )


def _obstacles(block_list: BlockList, block: int) -> list[tuple[int, int]]:
    """Return the bytes that `block` may not take whatever the search does, by begin."""
    taken = list(block_list.problem.memory.reserved)
    if block_list.pinned:
        for other in block_list.met_by(block).tolist():
            if other in block_list.pinned:
                begin = block_list.pinned[other]
                taken.append((begin, begin + block_list.sizes[other]))
    return sorted(taken)


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
