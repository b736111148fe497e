# SPDX-License-Identifier: Apache-2.0
"""The data that the branch and bound works on: blocks to place below a capacity.

Only integers, in arrays of one dimension, so that the search can run in Python or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from passes.planning.engine.blocks import BlockList, settle


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
    obstacles = [_obstacles(block_list, block) for block in blocks]
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
