"""Depth-first search over canonical placements: the plain Python version.

A placement in which no block can be moved down alone is found by placing blocks in the order of
their offsets, each at the lowest offset that its placed conflicts leave: so that only the order is
searched. This is the idea of MiniMalloc (M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator
for Hardware-Accelerated Machine Learning", ASPLOS 2023), with these ways to cut a branch:

- *dominance*: a block is not placed where another one would fit wholly below it;
- *section bound*: what is not yet placed of a section does not fit above the lowest reach of its
  blocks;
- *decomposition*: when the blocks left fall into groups that never meet, each group is searched on
  its own, and a group that fails sends the search back to the placement that cut it off, past all
  that the others tried.

`passes.planning.engine.canonical.kernel` holds the same steps as a compiled loop; both try the same
placements in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from passes.planning.engine.blocks import settle
from passes.planning.engine.canonical.sections import Packing

UNPLACED = -1
LOAD_LIMIT = 1 << 62


class Outcome(IntEnum):
    """How far a search has come."""

    PAUSED = 0
    """The node limit is reached; it can go on."""
    FOUND = 1
    """Every block is placed."""
    EXHAUSTED = 2
    """There is no placement below the capacity: this is proven."""


@dataclass
class Group:
    """Unplaced blocks that meet none outside: ``order[begin:end]``, in sections first to last.

    Only placements after ``(offset, -load, rank)`` are canonical: those before it were open to this
    group when the block that cut it off was placed there. `parent` is the frame of that block.
    """

    begin: int
    end: int
    first: int
    last: int
    parent: int
    offset: int = -1
    load: int = 0
    rank: int = -1


@dataclass
class Frame:
    """A group whose next block is being chosen; `group` moves on with each choice."""

    group: Group
    trail: int
    waiting: int


class CanonicalSearch:
    """A search for one placement below `capacity` that can be stopped and taken up again.

    Parameters
    ----------
    packing : Packing
        The blocks.
    ranks : sequence of int
        For each block its rank, distinct: among blocks of one reach the lowest rank goes first.
    by_load : bool
        Whether blocks that are live where most is left to place go before that. What is left is
        looked at again each time that a group is cut off.
    capacity : int
        Bytes that no block may end above.

    Attributes
    ----------
    nodes : int
        Placements tried so far.
    offsets : list of int
        For each block its offset in bytes, or `UNPLACED`.
    """

    def __init__(
        self, packing: Packing, ranks: Sequence[int], by_load: bool, capacity: int
    ) -> None:
        self.nodes = 0
        self._packing = packing
        self._ranks = list(ranks)
        self._capacity = capacity
        # Weights are whole units, so the capacity that they are held against is, too.
        self.whole_capacity = -(-capacity // packing.unit) * packing.unit
        self.offsets = [UNPLACED] * len(packing)
        self._obstacles = [
            list(zip(packing.obstacle_begins.row(b), packing.obstacle_ends.row(b), strict=True))
            for b in range(len(packing))
        ]
        self._conflicts = [packing.conflicts.row(b) for b in range(len(packing))]
        self._sections = [
            [
                section
                for begin, end in zip(
                    packing.section_begins.row(b), packing.section_ends.row(b), strict=True
                )
                for section in range(begin, end)
            ]
            for b in range(len(packing))
        ]
        self._members = [packing.members.row(s) for s in range(len(packing.loads))]
        self.reach = [
            settle(0, packing.sizes[b], packing.alignments[b], self._obstacles[b])
            for b in range(len(packing))
        ]
        self.remaining = list(packing.loads)
        self.crossing = crossings(packing)
        self.order = sorted(range(len(packing)), key=lambda b: (packing.first[b], b))
        self._by_load = by_load
        self.loads = list(packing.peak_loads) if by_load else [0] * len(packing)
        # (block, old reach), (~block, 0) when placed, or (block + number of blocks, old load)
        self._trail: list[tuple[int, int]] = []
        self._frames: list[Frame] = []
        self.waiting: list[Group] = root_groups(packing, self.order)
        self.fits = all(
            reach + size <= capacity for reach, size in zip(self.reach, packing.sizes, strict=True)
        ) and all(load <= self.whole_capacity for load in packing.loads)

    def advance(self, limit: int) -> Outcome:
        """Try at most `limit` more placements."""
        if not self.fits:
            return Outcome.EXHAUSTED
        stop = self.nodes + limit
        descend = not self._frames
        while True:
            if descend:
                if not self.waiting:
                    return Outcome.FOUND
                group = self.waiting.pop()
                self._frames.append(Frame(group, len(self._trail), len(self.waiting)))
            if self.nodes >= stop:
                return Outcome.PAUSED
            at = self._next_block()
            if at < 0:
                if not self._retreat():
                    return Outcome.EXHAUSTED
                descend = False
            else:
                self.nodes += 1
                descend = self._place(at)
                if not descend:
                    self._undo(self._frames[-1].trail)

    def _next_block(self) -> int:
        """Return where in `order` the next block of the open group is; -1 if there is none."""
        group = self._frames[-1].group
        reach, ranks, sizes = self.reach, self._ranks, self._packing.sizes
        # Blocks that are left will start no lower than the one placed next.
        most = max(self.remaining[group.first : group.last])
        after = (group.offset, -group.load, group.rank)
        best, best_key = -1, (self.whole_capacity - most, 0, len(ranks))
        lowest_top = self._capacity + 1
        for at in range(group.begin, group.end):
            block = self.order[at]
            offset = reach[block]
            lowest_top = min(lowest_top, offset + sizes[block])
            if offset <= best_key[0]:
                key = (offset, -self.loads[block], ranks[block])
                if after < key < best_key:
                    best, best_key = at, key
        return best if best_key[0] < lowest_top else -1

    def _place(self, at: int) -> bool:
        """Place the block at `at` of the order; return whether the rest may still fit."""
        packing, group = self._packing, self._frames[-1].group
        block = self.order[at]
        offset = self.reach[block]
        group.offset, group.load, group.rank = offset, self.loads[block], self._ranks[block]
        self.order[at], self.order[group.begin] = self.order[group.begin], block
        self.offsets[block] = offset
        self._trail.append((~block, 0))
        self._count(block, -1)
        if not self._raise_conflicts(block, offset + packing.sizes[block]):
            return False
        self._add_groups(group, len(self._frames) - 1)
        return True

    def _count(self, block: int, sign: int) -> None:
        """Take `block` out of (-1) or back into (1) what its sections still have to hold."""
        packing = self._packing
        weight = sign * packing.weights[block]
        for section in self._sections[block]:
            self.remaining[section] += weight
        for section in range(packing.first[block] + 1, packing.last[block]):
            self.crossing[section] += sign

    def _raise_conflicts(self, block: int, top: int) -> bool:
        """Move the reach of unplaced conflicts up to `top`; return whether all may still fit."""
        packing, reach = self._packing, self.reach
        highest, first, last = 0, len(self._members), 0
        for other in self._conflicts[block]:
            if reach[other] >= top or self.offsets[other] != UNPLACED:
                continue
            raised = settle(
                top, packing.sizes[other], packing.alignments[other], self._obstacles[other]
            )
            if raised + packing.sizes[other] > self._capacity:
                return False
            self._trail.append((other, reach[other]))
            reach[other] = raised
            highest = max(highest, raised)
            first = min(first, packing.first[other])
            last = max(last, packing.last[other])
        return all(self._may_fit(section, highest) for section in range(first, last))

    def _may_fit(self, section: int, highest: int) -> bool:
        """Whether what is left of a section fits above the lowest reach of its blocks."""
        room = self.whole_capacity - self.remaining[section]
        if highest <= room:  # no reach was raised above it
            return True
        return any(
            self.reach[other] <= room
            for other in self._members[section]
            if self.offsets[other] == UNPLACED
        )

    def _add_groups(self, group: Group, parent: int) -> None:
        """Put the groups into which the unplaced rest of `group` falls on the waiting list."""
        packing, order = self._packing, self.order
        begin = group.begin + 1
        while begin < group.end:
            first = packing.first[order[begin]]
            last = first + 1
            while first > group.first and self.crossing[first]:
                first -= 1
            while last < group.last and self.crossing[last]:
                last += 1
            end = begin
            for at in range(begin, group.end):
                other = order[at]
                if first <= packing.first[other] < last:
                    order[at], order[end] = order[end], other
                    end += 1
            rest = replace(group, begin=begin, end=end, first=first, last=last, parent=parent)
            if self._by_load and (first, last) != (group.first, group.last):
                self._renew_loads(rest)
            self.waiting.append(rest)
            begin = end

    def _renew_loads(self, group: Group) -> None:
        """Look again at what is left to place where each block of `group` is live."""
        for block in self.order[group.begin : group.end]:
            load = max(self.remaining[section] for section in self._sections[block])
            if load != self.loads[block]:
                self._trail.append((block + len(self.loads), self.loads[block]))
                self.loads[block] = load
        group.load, group.rank = LOAD_LIMIT, -1  # no order among equal offsets is known yet

    def _retreat(self) -> bool:
        """Go back to the placement that cut off the group that failed; False if there is none."""
        parent = self._frames[-1].group.parent
        if parent < 0:
            return False
        del self._frames[parent + 1 :]
        self._undo(self._frames[parent].trail)
        del self.waiting[self._frames[parent].waiting :]
        return True

    def _undo(self, trail: int) -> None:
        while len(self._trail) > trail:
            block, old = self._trail.pop()
            if block >= len(self.loads):
                self.loads[block - len(self.loads)] = old
            elif block >= 0:
                self.reach[block] = old
            else:
                self.offsets[~block] = UNPLACED
                self._count(~block, 1)


def crossings(packing: Packing) -> list[int]:
    """Return for each section how many blocks are tied to both it and the section before."""
    change = [0] * (len(packing.loads) + 1)
    for first, last in zip(packing.first, packing.last, strict=True):
        if last > first + 1:
            change[first + 1] += 1
            change[last] -= 1
    total, result = 0, []
    for step in change[:-1]:
        total += step
        result.append(total)
    return result


def root_groups(packing: Packing, order: Sequence[int]) -> list[Group]:
    """Return the groups into which all blocks fall, `order` being sorted by first section."""
    groups: list[Group] = []
    for at, block in enumerate(order):
        if groups and packing.first[block] < groups[-1].last:
            groups[-1].end = at + 1
            groups[-1].last = max(groups[-1].last, packing.last[block])
        else:
            first, last = packing.first[block], packing.last[block]
            groups.append(Group(at, at + 1, first, last, parent=-1))
    return groups
