# SPDX-License-Identifier: Apache-2.0
"""Sharing that the mirrored `StorageRewrite` would choose, as offsets.

Its `PlanMemory` knows pieces of memory, not offsets: a buffer takes a whole piece that was freed
before, larger or smaller by at most a factor of 16, or a new one. Here the pieces are laid out one
after another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from passes.ir.storage_entries import (
    AllocEntry,
    ElementType,
    EventEntry,
    StmtEntry,
    StmtKind,
    StorageEntry,
)
from passes.planning import Budget, Plan, Problem, register, widest_alignment
from passes.planning.engine import BlockList, NewMemory
from passes.storage_rewrite.planning.plan_memory import PlanMemory
from target_hw.storage_scope import StorageScope

_BYTE = ElementType("uint8", 8, 1)
# A tag, because `PlanMemory` leaves small untagged allocations to the register allocator.
_SCOPE = StorageScope("global", ".planned")


@register("storage_rewrite")
def storage_rewrite(problem: Problem, budget: Budget) -> Plan:
    """Share whole pieces of memory, as TVM's StorageRewrite does, laid out one after another.

    The peak is the sum of the pieces, each aligned for all that live in it. Buffers are bytes
    here: so the rule that a piece only grows for the same element type always lets it grow. A
    buffer with several live ranges counts as live from the first to the last, and each slot is a
    buffer of its own. Penalties are not looked at; what is pinned or separated from another
    shares with none.
    """
    block_list = BlockList(problem)
    apart = _apart(block_list)
    pieces = [(block_list.sizes[block], [block]) for block in apart if block_list.sizes[block]]
    widest = widest_alignment(problem)
    for entry in _Sharing(block_list, apart).entries():
        if _unit(block_list, entry.allocs) <= widest:
            pieces.append((entry.const_nbits // 8, entry.allocs))
        else:  # no place in the memory is a multiple of all their alignments
            pieces += [(block_list.sizes[block], [block]) for block in entry.allocs]
    offsets = [0] * len(block_list)
    for block, pinned in block_list.pinned.items():
        offsets[block] = pinned
    memory = NewMemory(0, 1, block_list.taken)
    for size, blocks in pieces:
        offset = memory.open(size, _unit(block_list, blocks))
        for block in blocks:
            offsets[block] = offset
    return block_list.plan(offsets, "storage_rewrite")


def _unit(block_list: BlockList, blocks: Sequence[int]) -> int:
    """Return the bytes that an offset of all of some blocks is a multiple of."""
    return math.lcm(*(block_list.alignments[block] for block in blocks))


def _apart(block_list: BlockList) -> list[int]:
    """Return the separated blocks that are not pinned: each is a piece of its own."""
    problem = block_list.problem
    names = {name for pair in problem.separations for name in pair}
    blocks = (block for name in sorted(names) for block in block_list.blocks_of(name))
    return sorted(block for block in blocks if block not in block_list.pinned)


class _Sharing:
    """Drives `PlanMemory` over the blocks of a problem that may share, without those `apart`."""

    def __init__(self, block_list: BlockList, apart: list[int]) -> None:
        self._block_list = block_list
        self._left_out = {*apart, *block_list.pinned}
        self.live = [(live[0][0], live[-1][1]) for live in block_list.live]
        # The blocks that hold one another's place, by block.
        self._together = {block: [block] for block in range(len(block_list))}
        self._sources: defaultdict[int, list[int]] = defaultdict(list)
        for one, two in block_list.in_place_pairs():
            if one not in self._left_out:
                self._sources[two].append(one)

    def entries(self) -> list[StorageEntry]:
        """Return the pieces of memory, in the order in which they were made."""
        allocs = [
            AllocEntry(str(block), _SCOPE, _BYTE, False, size * 8, 1, False)
            for block, size in enumerate(self._block_list.sizes)
        ]
        sequence, events = self._events()
        return PlanMemory(allocs, self._can_be_inplace).run(sequence, events).entries

    def _events(self) -> tuple[list[StmtEntry], dict[int, EventEntry]]:
        """Return two statements a position: lives begin at one, and end at the other.

        `PlanMemory` takes the operands whose place a result may take from the kills of the
        statement where that begins, and frees nothing there.
        """
        gen: defaultdict[int, list[int]] = defaultdict(list)
        kill: defaultdict[int, list[int]] = defaultdict(list)
        for block, (begin, end) in enumerate(self.live):
            if self._block_list.sizes[block] and block not in self._left_out:
                gen[begin].append(block)
                kill[end - 1].append(block)
        sequence: list[StmtEntry] = []
        events: dict[int, EventEntry] = {}
        for position in sorted({*gen, *kill}):
            first = len(sequence)
            sequence.append(StmtEntry(first, StmtKind.NEST, [], 0, 0, 1))
            sequence.append(StmtEntry(first + 1, StmtKind.NEST, [], 0, 0, -1))
            sources = [source for block in gen[position] for source in self._sources[block]]
            events[first] = EventEntry(gen[position], list(dict.fromkeys(sources)))
            events[first + 1] = EventEntry([], kill[position])
        return sequence, events

    def _can_be_inplace(self, _stmt: StmtEntry, destination: int, source: int) -> bool:
        """Return whether a block may join those that hold a source's place.

        A source that is no longer live has given its place back already, and others may have taken
        it. The place is free again when the newest of them ends, so the others may not outlive it;
        and each of them that is live together with it must be its source.
        """
        begin, end = self.live[destination]
        group = self._together[source]
        source_begin, source_end = self.live[source]
        if not source_begin <= begin < source_end:
            return False
        for member in group:
            other_begin, other_end = self.live[member]
            if other_end > end:
                return False
            if begin < other_end and other_begin < end and member not in self._sources[destination]:
                return False
        group.append(destination)
        self._together[destination] = group
        return True
