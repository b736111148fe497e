# SPDX-License-Identifier: Apache-2.0
"""Entries that the original's search packs: their order, and the pairs kept apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import eq
from typing import Any, Literal, NamedTuple

from passes.ascend.planning.levels import pipes_conflict
from passes.planning import Buffer, Problem, Sharing, live_together
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

    @property
    def pinned(self) -> tuple[int, ...] | None:
        """The offsets that are given; what is pinned is in place of nothing."""
        return self.members[0].pinned

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


class EntrySlot(NamedTuple):
    """One slot of an entry, to be placed: the number of the entry in the list, and the slot."""

    entry: int
    slot: int


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
    """Return the bytes to which the original's rules align every offset and size."""
    return math.lcm(1, *(problem.alignment_of(buffer) for buffer in problem.buffers))


class EntryFacts:
    """Fixed relations between the entries of a problem, as bit sets over the entries."""

    def __init__(self, problem: Problem, entries: Sequence[Entry]) -> None:
        self.problem, self.entries = problem, entries
        self.unit = granule(problem)
        self.sizes = [round_up(entry.size, self.unit) for entry in entries]
        count = len(entries)
        # Those that it may not share bytes with: live together or kept apart, and itself.
        self.hard = [1 << number for number in range(count)]
        # Those of them that it may have an offset in common with: of the two entries, nothing is
        # live together but a stall pair.
        self.stalls = [0] * count
        uses = [frozenset(member.use for member in entry.members) for entry in entries]
        self.pipes = _rows(uses, _conflict)  # Those that pipelines would wait for
        self.loops = _rows([e.loop for e in entries], eq)  # Of the same loop, or of none, too
        begins = [min(member.live[0][0] for member in entry.members) for entry in entries]
        ends = [max(member.live[-1][1] for member in entry.members) for entry in entries]
        number_of = {m.name: number for number, entry in enumerate(entries) for m in entry.members}
        separated = {frozenset(map(number_of.get, pair)) for pair in problem.separations}
        for number, one in enumerate(entries):
            for other in range(number):
                is_met = begins[number] < ends[other] and begins[other] < ends[number]
                if is_met or (separated and frozenset((number, other)) in separated):
                    is_hard, stalls = _tie(problem.sharing, one, entries[other])
                    for a, b in ((number, other), (other, number)):
                        self.hard[a] |= is_hard << b
                        self.stalls[a] |= stalls << b


def _rows(keys: Sequence[Any], related: Callable[[Any, Any], bool]) -> list[int]:
    """Return, for each key, the positions whose keys are related to it, one bit each."""
    having: dict[Any, int] = {}
    for number, key in enumerate(keys):
        having[key] = having.get(key, 0) | 1 << number
    rows = {
        one: sum(bits for other, bits in having.items() if related(one, other)) for one in having
    }
    return [rows[key] for key in keys]


def _conflict(some: Collection[Any], others: Collection[Any]) -> bool:
    """Return whether pipelines would wait for one another if buffers of some uses shared bytes."""
    return any(pipes_conflict(one, other) for one in some for other in others)


def _tie(sharing: Sharing, one: Entry, two: Entry) -> tuple[bool, bool]:
    """Return whether two entries may not share bytes, and whether they may touch all the same."""
    pairs = [(a, b) for a in one.members for b in two.members]
    if any(sharing.are_separated(a, b) for a, b in pairs):
        return True, False
    met = [(a, b) for a, b in pairs if live_together(a.live, b.live)]
    if len(met) != 1:
        return bool(met), False
    ((a, b),) = met
    pair = sharing.pair(a, b)
    stalls = pair is not None and pair.cost > 0 and one.slots == two.slots
    return True, stalls and (one.slots == 1 or a.rotates_with(b))
