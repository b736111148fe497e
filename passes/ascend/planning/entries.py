# SPDX-License-Identifier: Apache-2.0
"""What the three-level planner packs: entries, each a buffer or several in place, in an order.

The rules are those of AscendNPU-IR's PlanMemory: in-place pairs are merged first and for good, one
after the other; then the entries of the unified buffer are ordered by the units that use them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from passes.planning import Buffer, InPlacePair, Problem
from passes.planning.engine import merged_groups
from target_hw.memory import round_up

Strategy = Literal["default", "largest-first"]
"""In which order the mirrored search places buffers of UB."""

_REORDERED = "local.UB"
"""The scope whose entries are ordered; in all others they stay as they begin."""


@dataclass(frozen=True)
class Entry:
    """Buffers that have the same offsets."""

    members: tuple[Buffer, ...]  # In the original's order: what was merged last comes first
    size: int  # Bytes of the largest member
    slots: int  # Of the member with most

    @cached_property
    def loop(self) -> int | None:
        """The loop that all members are used in, if there is one."""
        loops = {member.use.loop if member.use else None for member in self.members}
        return loops.pop() if len(loops) == 1 else None

    @property
    def kind(self) -> int:
        """Its place in the order: used by a transfer, by neither, by the scalar unit."""
        uses = (member.use for member in self.members if member.use is not None)
        return next((1 if use.dma else 3 for use in uses if use.dma or use.scalar), 2)


@dataclass(frozen=True, order=True)
class EntrySlot:
    """One slot of an entry, to be placed: the number of the entry in the list, and the slot."""

    entry: int
    slot: int


def entries_of(problem: Problem, pairs: Collection[InPlacePair] | None = None) -> list[Entry]:
    """Return the entries in the order in which they become live.

    In-place pairs, or those given, are merged in the problem's order: a result joins the older
    value, which keeps its place. What may not be merged stays as it is; the original, which takes
    pairs one by one, would merge it.
    """
    begins = sorted(problem.buffers, key=lambda buffer: buffer.live[0][0])
    pairs = problem.sharing.pairs if pairs is None else pairs
    return [
        Entry(tuple(members), max(m.size for m in members), max(m.slots for m in members))
        for members in merged_groups(problem, begins, pairs).values()
    ]


def sequence(entries: Sequence[Entry]) -> list[EntrySlot]:
    """Return all slots in the order in which they are laid out: first slots before all others."""
    slots = [EntrySlot(n, slot) for n, entry in enumerate(entries) for slot in range(entry.slots)]
    return sorted(slots, key=lambda item: item.slot > 0)


def plan_order(problem: Problem, entries: Sequence[Entry], strategy: Strategy) -> list[EntrySlot]:
    """Return all slots in the order in which they look for a place.

    In the unified buffer: entries that are separated from all others, those of transfers, the plain
    ones, the scalar ones, each followed by its other slots; with "largest-first", all but the
    separated ones by falling size. In other scopes as in `sequence`.
    """
    if problem.memory.name != _REORDERED:
        return sequence(entries)
    separated = Counter(name for pair in problem.separations for name in pair)
    others = len(problem.buffers) - 1

    def key(item: EntrySlot) -> tuple[int, int, int]:
        entry = entries[item.entry]
        alone = 0 < others == separated[entry.members[0].name]
        kind = 0 if alone else entry.kind
        by_size = strategy == "largest-first" and kind > 0
        return kind, -entry.size if by_size else 0, item.entry

    return sorted(sequence(entries), key=key)


def granule(problem: Problem) -> int:
    """Return the bytes of which the original's rules make every offset and size a multiple."""
    return math.lcm(1, *(problem.alignment_of(buffer) for buffer in problem.buffers))


def sequential(problem: Problem, entries: Sequence[Entry]) -> dict[EntrySlot, int]:
    """Return offsets, in bytes, with no bytes shared but by members of one entry."""
    offsets, end, unit = {}, 0, granule(problem)
    for item in sequence(entries):
        offsets[item] = end
        end += round_up(entries[item.entry].size, unit)
    return offsets


def by_buffer(
    entries: Sequence[Entry],
    offsets: Mapping[EntrySlot, int],
    added: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Return the offsets of each buffer by name, those in `added` after those of its slots."""
    found = {}
    for number, entry in enumerate(entries):
        slots = tuple(offsets[EntrySlot(number, slot)] for slot in range(entry.slots))
        for member in entry.members:
            found[member.name] = (*slots, *(added or {}).get(number, ()))
    return found
