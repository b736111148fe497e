# SPDX-License-Identifier: Apache-2.0
"""A problem as planners work on it: numbered blocks and their interference graph.

A block is one slot of one buffer. In-place pairs are treated as any other two buffers that are
live together: `passes.planning.engine.coalesce` merges them first, where that is wanted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from passes.planning.bound import lower_bound
from passes.planning.buffer import LiveRange, live_together
from passes.planning.columns import Ints as Ints
from passes.planning.plan import OffsetColumn, Plan, Status
from passes.planning.problem import Problem
from target_hw.memory import ByteRange, settle

Row = npt.NDArray[np.int32]

BUCKET = 16  # Live ranges under a leaf of the index of time in first fit

UNPLACED = -1
"""The offset of a block that has none."""

LISTED_PAIRS = 8_000_000
"""Pairs of blocks live together up to which planners list them: 8 bytes a pair."""


class BlockList:
    """The blocks of a problem.

    For each block, `buffer_of` has the index of its buffer, `sizes` and `alignments` have bytes,
    the memory's alignment included; `pinned` has the offsets, in bytes, that are given. `first` has
    the first block of each buffer, whose other slots follow, and the number of blocks at its end.
    These are made of arrays where they are asked for.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        slots = problem.columns.slots
        self.edges = np.append(0, np.cumsum(slots))
        self.owner_array = np.repeat(np.arange(len(slots)), slots)
        spread = slice(None) if len(slots) == len(self.owner_array) else self.owner_array
        self.size_array = problem.columns.sizes[spread]
        self.alignment_array = problem.alignments[spread]
        self.pinned = {
            block: offset
            for index, pinned in problem.pins.items()
            for block, offset in enumerate(pinned, self.first[index])
        }

    def __len__(self) -> int:
        return len(self.size_array)

    first = cached_property(lambda self: _listed(self.edges))
    buffer_of = cached_property(lambda self: _listed(self.owner_array))
    sizes = cached_property(lambda self: _listed(self.size_array))
    alignments = cached_property(lambda self: _listed(self.alignment_array))

    @cached_property
    def live(self) -> list[tuple[LiveRange, ...]]:
        """The live ranges of each block."""
        return [self.problem.buffers[index].live for index in self.buffer_of]

    @cached_property
    def pieces(self) -> tuple[Ints, Ints, Ints]:
        """Begin, end and owning block of each live range, block by block."""
        columns = self.problem.columns
        lives, owners = columns.lives_of(columns.slots)
        return columns.begins[lives], columns.ends[lives], owners

    @cached_property
    def spans(self) -> tuple[Ints, Ints]:
        """The begin of the first live range of each block, and the end of its last one."""
        begins, ends, owners = self.pieces
        edges = np.searchsorted(owners, np.arange(len(self) + 1))
        return begins[edges[:-1]], ends[edges[1:] - 1]

    @cached_property
    def live_pairs(self) -> int:
        """The number of pairs of live ranges that overlap; of blocks, if each has one range."""
        begins, ends, owners = self.pieces
        sized = self.size_array[owners] > 0
        begins, ends = begins[sized], ends[sized]
        begun = int(np.searchsorted(np.sort(begins), np.sort(ends), side="left").sum())
        return begun - len(begins) * (len(begins) + 1) // 2

    @cached_property
    def is_listed(self) -> bool:
        """Whether the pairs of blocks that conflict are few enough to be listed."""
        return self.live_pairs <= LISTED_PAIRS

    @cached_property
    def sweep(self) -> dict[str, Any]:
        """The columns of `FirstFitState` that are the same for every order."""
        begins, ends, owners = self.pieces
        by_begin = np.argsort(begins, kind="stable")
        rank = np.empty_like(by_begin)
        rank[by_begin] = np.arange(len(by_begin))
        apart = np.zeros(len(self) + 1, dtype=np.int64)
        for block, others in self.separated.items():
            apart[block + 1] = len(others)
        buckets = -(-len(begins) // BUCKET)
        reserved = self.problem.memory.reserved
        most_pieces = int(np.bincount(owners, minlength=1).max())
        return {
            "size": self.size_array,
            "alignment": self.alignment_array,
            "begin": begins[by_begin],
            "end": ends[by_begin],
            "until": np.searchsorted(begins[by_begin], ends[by_begin]),
            "owner": owners[by_begin],
            "piece_begins": np.searchsorted(owners, np.arange(len(self) + 1)),
            "piece": rank,
            "apart_begins": np.cumsum(apart),
            "apart": [other for b in sorted(self.separated) for other in self.separated[b]],
            "reserved_begin": [begin for begin, _ in reserved],
            "reserved_end": [end for _, end in reserved],
            "leaves": 1 << max(0, buckets - 1).bit_length(),
            "reserved": len(reserved),
            "most_met": len(begins) * most_pieces + len(self) + len(reserved),
        }

    @property
    def taken(self) -> list[ByteRange]:
        """The bytes that are reserved or pinned, by begin."""
        pins = ((offset, offset + self.sizes[block]) for block, offset in self.pinned.items())
        return sorted((*self.problem.memory.reserved, *pins))

    def obstacles(self, block: int) -> list[ByteRange]:
        """Return the bytes that a block cannot have from the start, by begin.

        These are reserved, or those of pinned blocks that it conflicts with.
        """
        taken = list(self.problem.memory.reserved)
        apart = self.separated.get(block, []) if self.pinned else []
        for other, offset in self.pinned.items():
            end = offset + self.sizes[other]
            if offset < end and (
                other in apart or live_together(self.live[block], self.live[other])
            ):
                taken.append((offset, end))
        return sorted(taken)

    @cached_property
    def bound(self) -> int:
        """The problem's lower bound on the peak, in bytes."""
        return lower_bound(self.problem)

    @cached_property
    def interference(self) -> list[Row]:
        """The interference graph: for each block those that it conflicts with, ascending.

        Two blocks conflict if they are live together or separated; a block of zero bytes conflicts
        with nothing. The graph takes 8 bytes a pair: see `is_listed`.
        """
        return self.interference_among(range(len(self)))

    def interference_among(self, blocks: Sequence[int]) -> list[Row]:
        """Return for each of some blocks those that it conflicts with, as places in `blocks`."""
        count = len(blocks)
        place = np.full(len(self), -1)
        place[blocks] = np.arange(count)
        begins, ends, owners = self.pieces
        there = np.flatnonzero((place[owners] >= 0) & (self.size_array[owners] > 0))
        there = there[begins[there].argsort(kind="stable")]
        begins, ends, owners = begins[there], ends[there], place[owners[there]]
        # Of two live ranges that meet, one begins before the other ends, and not after it begins.
        at = np.arange(len(there))
        met = np.searchsorted(begins, ends, side="left") - at - 1
        one = np.repeat(at, met)
        two = np.arange(len(one)) - np.repeat(np.cumsum(met) - met, met) + one + 1
        one, two = owners[one], owners[two]
        apart = [(b, other) for b, others in self.separated.items() for other in others]
        rows = place[np.array(apart, dtype=np.int64).reshape(-1, 2)]
        rows = rows[(rows >= 0).all(axis=1)]
        # Sorted, and each once: two blocks may meet in several of their live ranges.
        pairs = np.concatenate((one * count + two, two * count + one, rows @ [count, 1]))
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        bounds = np.searchsorted(pairs, np.arange(count + 1) * count).tolist()
        others = (pairs % max(1, count)).astype(np.int32)
        return [others[begin:end] for begin, end in pairwise(bounds)]

    @cached_property
    def separated(self) -> dict[int, list[int]]:
        """For each separated block, those that it is separated from; none of zero bytes."""
        rows: dict[int, list[int]] = {}
        for first, second in self.problem.separations:
            for one, two in self._both_ways(first, second):
                rows.setdefault(one, []).append(two)
        return rows

    @cached_property
    def soft(self) -> dict[int, list[tuple[int, int]]]:
        """For each block with penalties: (other block, index of the penalty)."""
        rows: dict[int, list[tuple[int, int]]] = {}
        for index, penalty in enumerate(self.problem.penalties):
            for one, two in self._both_ways(penalty.first, penalty.second):
                rows.setdefault(one, []).append((two, index))
        return rows

    def _both_ways(self, first: str, second: str) -> Iterator[tuple[int, int]]:
        """Yield each two blocks of two buffers in both orders, but for those of zero bytes."""
        for one, two in product(self.blocks_of(first), self.blocks_of(second)):
            if self.sizes[one] and self.sizes[two]:
                yield one, two
                yield two, one

    def blocks_of(self, name: str) -> range:
        """Return the blocks of the buffer called `name`, one a slot."""
        index = self.problem.index[name]
        return range(self.first[index], self.first[index + 1])

    def in_place_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (source, destination) for each two blocks that may have one offset in place.

        Those are the equal slots of an in-place pair of equally many slots.
        """
        for pair in self.problem.sharing.pairs:
            if pair.has_equal_slots:
                yield from zip(*(self.blocks_of(name) for name in pair.names), strict=True)

    @cached_property
    def partners(self) -> list[list[int]]:
        """For each block those that it conflicts with but may share an offset with, in place."""
        partners: list[list[int]] = [[] for _ in range(len(self))]
        for one, two in self.in_place_pairs():
            if two in self.interference[one]:
                partners[one].append(two)
                partners[two].append(one)
        return partners

    def flat(self, plan: Plan) -> list[int]:
        """Return the offset of each block under a plan of the problem."""
        return [offset for buffer in self.problem.buffers for offset in plan.offsets[buffer.name]]

    def due(self, offsets: Sequence[int] | Ints) -> dict[int, bool]:
        """Return the penalties whose buffers share bytes, by index, and whether slots match."""
        found: dict[int, bool] = {}
        for block, others in self.soft.items():
            for other, index in others:
                if (
                    offsets[block] < offsets[other] + self.sizes[other]
                    and offsets[other] < offsets[block] + self.sizes[block]
                ):
                    found[index] = found.get(index, True) and self.slots_match(block, other)
        return found

    def penalty(self, offsets: Sequence[int] | Ints) -> int:
        """Return the sum of the costs of the penalties whose buffers share bytes."""
        penalties = self.problem.penalties
        return sum(
            penalties[index].cost_if_slots_match if slots_match else penalties[index].cost
            for index, slots_match in self.due(offsets).items()
        )

    def slots_match(self, one: int, two: int) -> bool:
        """Return whether two blocks are the same slot of buffers with equally many."""
        first, second = self.buffer_of[one], self.buffer_of[two]
        slots = (self.problem.buffers[index].slots for index in (first, second))
        return len(set(slots)) == 1 and one - self.first[first] == two - self.first[second]

    def peak(self, offsets: Sequence[int] | Ints) -> int:
        """Return the highest end, in bytes."""
        return int((np.array(offsets, dtype=np.int64) + self.size_array).max(initial=0))

    def plan(self, offsets: Sequence[int] | Ints, planner: str, nodes: int = 0) -> Plan:
        """Return the plan that places each block at its offset, with what the bound says of it."""
        peak, penalty = self.peak(offsets), self.penalty(offsets)
        status = self._status(peak, penalty)
        columns = self.problem.columns
        if self.problem.is_table:
            column = OffsetColumn(columns.names, np.array(offsets, dtype=np.int64))
            return Plan(column, peak, penalty, planner, status, nodes)
        flat = list(map(int, offsets))
        rows = (tuple(flat[begin:end]) for begin, end in pairwise(self.first))
        return Plan(
            dict(zip(columns.names, rows, strict=True)), peak, penalty, planner, status, nodes
        )

    def plan_of(self, offsets: Mapping[str, tuple[int, ...]], planner: str, nodes: int = 0) -> Plan:
        """Return the plan with these offsets by name; there may be more of them than slots."""
        wide = widened(self.problem, {name: len(offsets[name]) for name in offsets})
        block_list = self if wide is self.problem else BlockList(wide)
        flat = [offset for buffer in self.problem.buffers for offset in offsets[buffer.name]]
        plan = block_list.plan(flat, planner, nodes)
        return replace(plan, status=self._status(plan.peak, plan.penalty))

    def _status(self, peak: int, penalty: int) -> Status:
        """Return what the bound says of a plan."""
        capacity = self.problem.capacity
        if capacity is not None and peak > capacity:
            return Status.INFEASIBLE if self.bound > capacity else Status.NOT_FOUND
        proven = penalty == 0 and peak == self.bound
        return Status.OPTIMAL if proven else Status.FEASIBLE


def _listed(column: Ints) -> list[int]:
    values: list[int] = column.tolist()
    return values


def widened(problem: Problem, counts: Mapping[str, int]) -> Problem:
    """Return `problem` with as many slots for each buffer as `counts` says, by name.

    A plan of it is a plan of `problem`. Buffers that are not named keep what they have.
    """
    if all(problem.buffers[problem.index[name]].slots == counts[name] for name in counts):
        return problem
    buffers = tuple(
        b if counts.get(b.name, b.slots) == b.slots else replace(b, slots=counts[b.name])
        for b in problem.buffers
    )
    return replace(problem, buffers=buffers)


class NewMemory:
    """Memory that nothing has had so far."""

    def __init__(self, base: int, alignment: int, taken: Sequence[ByteRange] = ()) -> None:
        self.end = base
        self._alignment = alignment
        self._taken = deque(taken)

    def open(self, size: int, alignment: int = 1) -> int:
        """Take the next `size` bytes, at a multiple of `alignment` bytes too."""
        while self._taken and self._taken[0][1] <= self.end:
            self._taken.popleft()
        offset = settle(self.end, size, math.lcm(alignment, self._alignment), self._taken)
        self.end = -(-(offset + size) // self._alignment) * self._alignment
        return offset
