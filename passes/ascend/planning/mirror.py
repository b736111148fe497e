# SPDX-License-Identifier: Apache-2.0
"""The original's search: first fit with levels, one slot after the other, with rollback.

What is packed are entries, each a buffer or several in place, merged for good before. In the
unified buffer they are ordered by the units that use them. Then come the steps of `MemPlan` in
AscendNPU-IR's PlanMemory: a trial at the highest level, then each slot at the highest level at
which it finds a place, and where there is none, back to an earlier slot, which may then not have
the level or the place that it had. What differs, each time on purpose:

- slots are taken in one natural order, not in twenty that are shuffled, and within a budget;
- a buffer gets all slots of a multi-buffered one only where these are placed and the bytes there
  are free to the end: the original can take addresses beyond the memory, unrecorded;
- a stall pair, which may touch in the statement that reads one buffer and writes the other, must
  then have equal offsets: only so is the value of one read before the other's is written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import eq, or_
from typing import Any, Literal, NamedTuple

from passes.ascend.planning.levels import pipes_conflict
from passes.planning import ADDRESS_LIMIT, BudgetTracker, Buffer, Problem, Sharing, live_together
from target_hw.memory import round_up

Strategy = Literal["default", "largest-first"]
"""In which order the mirrored search places buffers of UB."""

_REORDERED = "local.UB"
"""The scope whose entries are ordered; in all others they stay as they begin."""

TOP = 3  # The original's number for what its document calls level 2
CROSS_LOOP = 2  # Its undocumented level: across pipelines, but between different loops only
WIDEN = 1
ANY = 0


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


class EntrySlot(NamedTuple):
    """One slot of an entry, to be placed: the number of the entry in the list, and the slot."""

    entry: int
    slot: int


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the memory."""

    # Bytes.
    begin: int
    end: int
    entries: int = 0  # One bit for each entry that may be in it: its life is the union of theirs
    last: EntrySlot | None = None  # What was placed there last


@dataclass(frozen=True)
class UndoablePlacement:
    """One placement, and what it takes to undo it."""

    at: int  # The place of the item in the plan order
    item: EntrySlot
    begin: int  # Bytes, as `end`
    end: int
    level: int
    follows: bool  # Whether it was placed together with another item, and is undone with it
    before: list[Segment]  # The outline of the memory before it


def mirror(
    problem: Problem, entries: Sequence[Entry], meter: BudgetTracker, strategy: Strategy = "default"
) -> MirroredPacking:
    """Pack a problem's entries, in the order in which they become live, as the original does.

    Penalties are not looked at, but where they tell stall pairs. A node of the meter is one slot
    tried at one level. Where the levels lead to no end, bytes are shared wherever lives allow, as
    if there were no capacity: to say what is needed, or to be used if that is little enough.
    """
    facts, order = _Facts(problem, entries), plan_order(problem, entries, strategy)
    capacity = ADDRESS_LIMIT if problem.capacity is None else problem.capacity
    capacity = capacity // facts.unit * facts.unit
    trial = MirroredPacking(facts, order).at_level(TOP)
    meter.spend(len(order))
    if trial.peak <= capacity:
        return trial
    for split in (False, True):
        packing = MirroredPacking(facts, order, capacity, split)
        if packing.search(meter):
            return packing
    return MirroredPacking(facts, order, split=True).at_level(ANY)


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


def bytes_apart(problem: Problem, entries: Sequence[Entry], strategy: Strategy = "default") -> int:
    """Return the bytes that first fit needs without any sharing across pipelines."""
    order = plan_order(problem, entries, strategy)
    return MirroredPacking(_Facts(problem, entries), order).at_level(TOP).peak


class _Facts:
    """What is fixed about the entries of a problem: for each the others, one bit an entry."""

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
    """Return for each key those of which the key is related to its own, one bit each."""
    having: dict[Any, int] = {}
    for number, key in enumerate(keys):
        having[key] = having.get(key, 0) | 1 << number
    rows = {
        one: sum(bits for other, bits in having.items() if related(one, other)) for one in having
    }
    return [rows[key] for key in keys]


def _conflict(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether pipelines would wait for one another if buffers of some uses shared bytes."""
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


class MirroredPacking:
    """The outline of the memory and the history of placements, for one capacity.

    Attributes
    ----------
    offsets : dict of EntrySlot to int
        Bytes.
    added : dict of int to list of int
        For each entry, the offsets that it has on top of those of its slots.
    levels : dict of EntrySlot to int
        The original's level, 3 to 0, at which each slot was placed last.
    """

    def __init__(
        self,
        facts: _Facts,
        order: Sequence[EntrySlot],
        capacity: int = ADDRESS_LIMIT,
        split: bool = False,
    ) -> None:
        self._facts, self._order, self._capacity = facts, order, capacity
        self._split = split  # Whether pieces stay apart when one item is placed over several
        self._at = {item: at for at, item in enumerate(order)}
        self._pieces = [Segment(0, capacity)]
        self._history: list[UndoablePlacement] = []  # The latest last
        self.offsets: dict[EntrySlot, int] = {}
        self.added: dict[int, list[int]] = {}
        self.levels: dict[EntrySlot, int] = {}
        self._banned: tuple[int, int] | None = None  # An item's place, and an offset not for it

    @property
    def peak(self) -> int:
        """The highest end, in bytes."""
        return max((record.end for record in self._history), default=0)

    def by_buffer(self) -> dict[str, tuple[int, ...]]:
        """Return the offsets of each buffer by name, those added to its entry behind its slots'."""
        found: dict[str, tuple[int, ...]] = {}
        for number, entry in enumerate(self._facts.entries):
            slots = (self.offsets[EntrySlot(number, slot)] for slot in range(entry.slots))
            offsets = (*slots, *self.added.get(number, ()))
            found |= {member.name: offsets for member in entry.members}
        return found

    def at_level(self, level: int) -> MirroredPacking:
        """Place everything at one level, in memory without end."""
        for at in range(len(self._order)):
            assert self._try_place(at, level), "there is room above all that is placed"
        return self

    def search(self, meter: BudgetTracker) -> bool:
        """Place all items, going back where one finds no place; whether that came to an end."""
        at, cap, reset = 0, TOP, 1
        while at < len(self._order):
            if meter.left == 0:
                return False
            for level in range(cap, ANY - 1, -1):
                meter.spend(1)
                if self._try_place(at, level):
                    cap = TOP if at == reset else cap
                    at += 1
                    break
            else:
                reset = max(reset, at)
                at, cap = self._roll_back(at)
                if cap == 0 or at == 0:
                    return False
                cap -= 1
        return True

    def _try_place(self, at: int, level: int) -> bool:
        """Place an item at the lowest offset that one level allows; whether there is one."""
        item = self._order[at]
        size = self._facts.sizes[item.entry]
        if item in self.offsets:
            return True  # placed together with another
        if size == 0:
            self.offsets[item], self.levels[item] = 0, level
            return True
        banned = None if self._banned is None or self._banned[0] != at else self._banned[1]
        rows = {TOP: self._facts.pipes, CROSS_LOOP: self._facts.loops}.get(level)
        forbidden = rows[item.entry] if rows else 0
        begin = 0
        while begin < len(self._pieces):
            end, begin = self._grow(item, begin, banned)
            if end < 0:
                continue  # `begin` is behind what is in the way
            if end == len(self._pieces):
                return False  # what is left of the memory is too small
            low = self._pieces[begin].begin
            if level == WIDEN:
                if self._place_on_all_slots(at, begin, end):
                    return True
            elif not any(self._placed(forbidden, low, low + size)):
                self._place(at, item, begin, end, level)
                return True
            begin += 1
        return False

    def _grow(self, item: EntrySlot, begin: int, banned: int | None = None) -> tuple[int, int]:
        """Return the last piece of the range from `begin` that an item fits in, and `begin`.

        The last piece is -1 if something is in the way, and the second number is then where to go
        on; it is the number of pieces if there are no more.
        """
        pieces = self._pieces
        size, hard = self._facts.sizes[item.entry], self._facts.hard[item.entry]
        low = pieces[begin].begin
        if low == banned:
            return -1, begin + 1
        for end in range(begin, len(pieces)):
            met = pieces[end].entries & hard
            if met and not self._touches(item, met, low, low + size):
                return -1, end + 1
            if pieces[end].end - low >= size:
                return end, begin
        return len(pieces), begin

    def _touches(self, item: EntrySlot, met: int, low: int, high: int) -> bool:
        """Whether all that an item meets is its stall partner's slot, at the same offset."""
        if met & ~self._facts.stalls[item.entry]:
            return False
        return all(
            (begin, other.slot) == (low, item.slot) and not self.added.get(other.entry)
            for begin, other in self._placed(met, low, high)
        )

    def _placed(self, entries: int, low: int, high: int) -> Iterator[tuple[int, EntrySlot]]:
        """Yield the placed items of some entries between two offsets, each with its offset."""
        for record in self._history:
            if entries >> record.item.entry & 1 and record.begin < high and low < record.end:
                yield record.begin, record.item

    def _place(
        self, at: int, item: EntrySlot, begin: int, end: int, level: int, follows: bool = False
    ) -> None:
        """Put an item at the begin of a range of pieces."""
        before, bit = self._pieces, 1 << item.entry
        low, replaced = before[begin].begin, before[begin : end + 1]
        high = low + self._facts.sizes[item.entry]
        if self._split:
            new = [Segment(p.begin, min(p.end, high), p.entries | bit, item) for p in replaced]
        else:
            together = reduce(or_, (piece.entries for piece in replaced), bit)
            new = [Segment(low, high, together, item)]
        if high < replaced[-1].end:
            new.append(replace(replaced[-1], begin=high))
        self._pieces = [*before[:begin], *new, *before[end + 1 :]]
        self._history.append(UndoablePlacement(at, item, low, high, level, follows, before))
        if item in self.offsets:
            self.added.setdefault(item.entry, []).append(low)
        else:
            self.offsets[item], self.levels[item] = low, level

    def _undo(self) -> UndoablePlacement:
        """Take back the latest placement."""
        record = self._history.pop()
        self._pieces = record.before
        if self.offsets[record.item] == record.begin:
            del self.offsets[record.item]
        else:
            self.added[record.item.entry].pop()
        return record

    def _place_on_all_slots(self, at: int, begin: int, end: int) -> bool:
        """Put an item where a multi-buffered one is, and on all other slots of that, too."""
        item, last = self._order[at], self._pieces[begin].last
        if begin != end or last is None or item.slot > 0 or last.slot > 0:
            return False
        entry, other = self._facts.entries[item.entry], self._facts.entries[last.entry]
        others = [EntrySlot(last.entry, slot) for slot in range(1, other.slots)]
        # The original asks whether an offset is zero instead: it takes offsets of the trial for
        # those of slots that are not placed, and passes over a slot that is at zero.
        if entry.loop is None or entry.loop != other.loop or not self.offsets.keys() >= {*others}:
            return False
        places = [self.offsets[slot] for slot in others] + self.added.get(last.entry, [])
        if not places or len(places) < entry.slots - 1:
            return False
        size, hard = self._facts.sizes[item.entry], self._facts.hard[item.entry]
        first, before = self._pieces[begin].begin, len(self._history)
        if any(any(self._placed(hard, place, place + size)) for place in (first, *places)):
            return False
        self._place(at, item, begin, end, WIDEN)
        for slot, place in enumerate(places, 1):
            one = EntrySlot(item.entry, slot) if slot < entry.slots else item
            if not self._place_exactly(one, place):
                while len(self._history) > before:
                    self._undo()
                return False
        return True

    def _place_exactly(self, item: EntrySlot, low: int) -> bool:
        """Put an item at an offset where a piece begins and all that it needs is free."""
        for begin, piece in enumerate(self._pieces):
            if piece.begin == low:
                end, _ = self._grow(item, begin)
                if 0 <= end < len(self._pieces):
                    self._place(self._at[item], item, begin, end, WIDEN, follows=True)
                    return True
        return False

    def _roll_back(self, failed: int) -> tuple[int, int]:
        """Undo placements up to one that may be tried again; return its place and level, or a 0.

        What is undone may not take the offset that it had again.
        """
        at = level = 0
        size = self._facts.sizes[self._order[failed].entry]
        while self._history:
            record = self._undo()
            # A further slot of an entry is undone with the first one, if that has the same level.
            first = EntrySlot(record.item.entry, 0)
            follows = record.item.slot > 0 and self.levels[first] == record.level
            if record.follows or follows:
                continue
            at, level = record.at, record.level
            if level > 0:
                self._banned = (at, record.begin)
                room = size if at == 0 else record.begin + size
                if room <= self._capacity:
                    break
        return at, level
