# SPDX-License-Identifier: Apache-2.0
"""The original's search: first fit with levels, one slot after the other, with rollback.

It packs entries, each a buffer or several in place, merged for good before. In the unified buffer
they are ordered by the units that use them. Then come the steps of `MemPlan` in AscendNPU-IR's
PlanMemory: a trial at the highest level, then each slot at the highest level at which it finds a
place, and where there is none, back to an earlier slot, which may then not have the level or the
place that it had. What differs, each time on purpose:

- slots are taken in one natural order, not in twenty that are shuffled, and within a budget;
- a buffer gets all slots of a multi-buffered one only where these are placed and the bytes there
  are free to the end: the original can take addresses beyond the memory, unrecorded;
- a stall pair, which may touch in the statement that reads one buffer and writes the other, must
  then have equal offsets: only so is the value of one read before the other's is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from passes.ascend.planning.mirror_entries import (
    Entry,
    EntryFacts,
    EntrySlot,
    Strategy,
    plan_order,
)
from passes.planning import ADDRESS_LIMIT, BudgetTracker, Problem

TOP = 3  # The original's number for what its document calls level 2
CROSS_LOOP = 2  # Its undocumented level: across pipelines, but between different loops only
WIDEN = 1
ANY = 0


@dataclass(frozen=True)
class Segment:
    """A contiguous part of the memory."""

    # Bytes.
    begin: int
    end: int
    entries: int = 0  # One bit for each entry that may be in it: its life is the union of theirs
    last: EntrySlot | None = None  # The entry that was placed there last


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
    facts, order = EntryFacts(problem, entries), plan_order(problem, entries, strategy)
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


def bytes_apart(problem: Problem, entries: Sequence[Entry], strategy: Strategy = "default") -> int:
    """Return the bytes that first fit needs without any sharing across pipelines."""
    order = plan_order(problem, entries, strategy)
    return MirroredPacking(EntryFacts(problem, entries), order).at_level(TOP).peak


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
        facts: EntryFacts,
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
        """Return the offsets of each buffer by name, those added to its entry after its slots'."""
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
                continue  # `begin` is after what is in the way
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
        """Return whether all that an item meets is its stall partner's slot, at the same offset."""
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

        An undone entry may not take the offset that it had again.
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
