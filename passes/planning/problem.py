# SPDX-License-Identifier: Apache-2.0
"""The problem that every planner solves: buffers that compete for one memory.

Sizes, offsets, alignments and capacities are in bytes. Positions are indices in a linear access
sequence, and every range is half-open.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from passes.planning.buffer import ADDRESS_LIMIT, Buffer, Penalty, live_together
from passes.planning.columns import Columns, Ints
from passes.planning.html_table import html_table
from target_hw.memory import MemoryScope, is_byte_count, is_list

PlacedSlot = tuple[int, int, int]  # Its offset in bytes, the index of its buffer, its number

SLOT_LIMIT = 1 << 31
"""Slots of all buffers stay below this: planners number them in words of 32 bits."""


@dataclass(frozen=True)
class InPlacePair:
    """A pair that some plan can put in place: at equal offsets, slot by slot."""

    source: Buffer
    destination: Buffer
    cost: int  # Its cost: zero for most pairs

    @property
    def names(self) -> tuple[str, str]:
        """The names of source and destination."""
        return self.source.name, self.destination.name

    @property
    def has_equal_slots(self) -> bool:
        """Whether both have equally many slots; else the one with fewer takes all of the other."""
        return self.source.slots == self.destination.slots

    @property
    def can_be(self) -> bool:
        """Whether both can have equally many offsets, of one number in each iteration.

        Of unequal slots, the buffer with fewer must be one that may have more offsets; of several
        offsets, one loop must move both.
        """
        fewer, more = sorted((self.source, self.destination), key=lambda buffer: buffer.slots)
        may_be_equal = self.has_equal_slots or fewer.may_widen
        return may_be_equal and (more.slots == 1 or self.source.rotates_with(self.destination))


class Sharing:
    """The pairs of a problem's buffers that can be in place, cost something, or are kept apart.

    Planners and bounds read it from `Problem.sharing`; only the verifier decides for itself.
    """

    def __init__(self, problem: Problem) -> None:
        self._costs = {frozenset((p.first, p.second)): p for p in problem.penalties}
        self._separated = {frozenset(pair) for pair in problem.separations}
        self._pairs: dict[frozenset[str], InPlacePair] = {}
        for names in problem.in_place:
            source, destination = (problem.buffers[problem.index[name]] for name in names)
            due = self._costs.get(frozenset(names))
            pair = InPlacePair(source, destination, due.cost_if_slots_match if due else 0)
            if pair.can_be:
                self._pairs[frozenset(names)] = pair

    @property
    def pairs(self) -> tuple[InPlacePair, ...]:
        """The pairs that can be in place, in the order given."""
        return tuple(self._pairs.values())

    def pair(self, one: Buffer, two: Buffer) -> InPlacePair | None:
        """Return the in-place pair of two buffers, if they are one."""
        return self._pairs.get(frozenset((one.name, two.name)))

    def are_separated(self, one: Buffer, two: Buffer) -> bool:
        """Return whether two buffers must share no byte although they need not be live together."""
        return frozenset((one.name, two.name)) in self._separated

    def have_a_cost(self, one: Buffer, two: Buffer) -> bool:
        """Return whether it costs something when two buffers share bytes."""
        return frozenset((one.name, two.name)) in self._costs


@dataclass(frozen=True)
class Problem:
    """Buffers that compete for one memory at one attach point.

    Two buffers that are live at one position must not share bytes, unless they are an in-place
    pair that starts at the same offset.

    Parameters
    ----------
    buffers : tuple of Buffer
        In any order; planners do not depend on names.
    memory : MemoryScope
        Its capacity, alignment and reserved ranges hold for every buffer.
    in_place : tuple of (str, str)
        (source, destination): these may take the *same* offset while both are live, slot by slot;
        any other overlap while both are live is still forbidden. Both then have equally many
        offsets: of two with unequal slots, the one with fewer goes in place by taking all offsets
        of the other, which it can if it may have more offsets than slots. With more than one
        offset each, they must not be known to be of different loops.
    separations : tuple of (str, str)
        Pairs that must not share bytes although they need not be live together.
    penalties : tuple of Penalty
        Pairs whose sharing costs something. An in-place pair that is penalized, too, may be in
        place at that cost.
    name : str
        Where the problem comes from, for messages.

    Raises
    ------
    ValueError
        If a name is unknown or used twice, a pair is given twice or contradicts another, or a
        pinned offset cannot hold; the message names the problem and the buffers.
    """

    buffers: tuple[Buffer, ...]
    memory: MemoryScope = field(default_factory=lambda: MemoryScope("global"))
    in_place: tuple[tuple[str, str], ...] = ()
    separations: tuple[tuple[str, str], ...] = ()
    penalties: tuple[Penalty, ...] = ()
    name: str = "problem"

    def __post_init__(self) -> None:
        if not isinstance(self.memory, MemoryScope):
            raise ValueError(f"{self.name}: memory must be a MemoryScope, got {self.memory!r}")
        for what, kind in (("buffers", Buffer), ("penalties", Penalty)):
            given = self._list(what)
            for entry in given:
                if not isinstance(entry, kind):
                    raise ValueError(
                        f"{self.name}: {what} must be of {kind.__name__}, got {entry!r}"
                    )
            object.__setattr__(self, what, given)
        for what in ("in_place", "separations"):
            pairs = self._list(what)
            for pair in pairs:
                if not (type(pair) is tuple or is_list(pair)) or len(pair) != 2:
                    raise ValueError(f"{self.name}: {what} must be pairs of names, got {pair!r}")
            object.__setattr__(self, what, tuple(map(tuple, pairs)))
        _check_pairs(self)
        _check_pins(self)
        _check_total(self)

    @classmethod
    def of_table(cls, columns: Columns, memory: MemoryScope, name: str) -> Problem:
        """Return the problem of columns that are right, of buffers with a slot and a live range.

        Its `buffers` are made when somebody asks for them: there can be a million.
        """
        problem = object.__new__(cls)
        vars(problem).update(columns=columns, memory=memory, name=name, pins={}, is_table=True)
        vars(problem).update(in_place=(), separations=(), penalties=())
        most = int(columns.sizes.max()) + int(columns.alignments.max()) * memory.alignment
        fixed = max((end for _, end in memory.reserved), default=0)
        if len(columns.names) * most + fixed >= ADDRESS_LIMIT:
            _check_total(problem)
        return problem

    if not TYPE_CHECKING:  # It would let any name be an attribute.

        def __getattr__(self, name: str) -> Any:
            """Make the buffers of a table."""
            if name != "buffers" or not self.is_table:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return vars(self).setdefault("buffers", self.columns.buffers())

    def _list(self, what: str) -> tuple[Any, ...]:
        given = getattr(self, what)
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ValueError(f"{self.name}: {what} must be a tuple, got {given!r}")
        return tuple(given)

    @property
    def capacity(self) -> int | None:
        """Bytes in the memory, or None."""
        return self.memory.capacity

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each buffer in `buffers`, by name."""
        return {buffer.name: i for i, buffer in enumerate(self.buffers)}

    @cached_property
    def is_table(self) -> bool:
        """Whether it is a problem of columns."""
        return False

    @cached_property
    def columns(self) -> Columns:
        """The buffers as arrays."""
        return Columns.of(self.buffers)

    @cached_property
    def alignments(self) -> Ints:
        """Bytes that every offset of each buffer is a multiple of."""
        common = self.memory.alignment
        return self.columns.alignments if common == 1 else np.lcm(self.columns.alignments, common)

    @cached_property
    def pins(self) -> dict[int, tuple[int, ...]]:
        """The offsets of pinned buffers, in bytes, by index."""
        return {i: b.pinned for i, b in enumerate(self.buffers) if b.pinned is not None}

    @cached_property
    def sharing(self) -> Sharing:
        """The in-place pairs that some plan can put in place, with the costs of pairs."""
        return Sharing(self)

    def alignment_of(self, buffer: Buffer) -> int:
        """Bytes that every offset of `buffer` is a multiple of: its own and the memory's."""
        return math.lcm(buffer.alignment, self.memory.alignment)

    def __str__(self) -> str:
        """Say in a line what competes for which memory."""
        capacity = "" if self.capacity is None else f" of {self.capacity:,} bytes"
        return f"{self.name}: {len(self.columns.names):,} buffers in {self.memory.name}{capacity}"

    def _repr_html_(self) -> str:
        """Return a table of the buffers, for a notebook."""
        header = ("buffer", "bytes", "slots", "alignment", "live")
        rows = (
            (
                buffer.name,
                f"{buffer.size:,}",
                f"{buffer.slots:,}",
                f"{self.alignment_of(buffer):,}",
                " ".join(f"[{begin}, {end})" for begin, end in buffer.live),
            )
            for buffer in self.buffers
        )
        pairs = (("in place", self.in_place), ("apart", self.separations))
        notes = [f"{what}: {len(found):,} pairs" for what, found in pairs if found]
        notes += [f"penalties: {len(self.penalties):,}"] if self.penalties else []
        return html_table(str(self), header, rows, notes=notes)


def _check_pairs(problem: Problem) -> None:
    """Refuse names that are not unique, and pairs that are unknown, twice, or contradictions."""
    if len(problem.index) < len(problem.buffers):
        (name, _), *_ = Counter(buffer.name for buffer in problem.buffers).most_common(1)
        raise ValueError(f"{problem.name}: two buffers are called {name!r}")
    costly = [(penalty.first, penalty.second) for penalty in problem.penalties]
    seen: dict[str, set[frozenset[str]]] = {}
    for what, pairs in (
        ("in_place", problem.in_place),
        ("separations", problem.separations),
        ("penalties", costly),
    ):
        of_kind = seen[what] = set()
        for first, second in pairs:
            for name in (first, second):
                if name not in problem.index:
                    raise ValueError(f"{problem.name}: {what} names an unknown buffer {name!r}")
            if first == second:
                raise ValueError(f"{problem.name}: {what} pairs buffer {first!r} with itself")
            pair = frozenset((first, second))
            if pair in of_kind:
                raise ValueError(f"{problem.name}: {what} lists {first!r} and {second!r} twice")
            of_kind.add(pair)
    for penalty in problem.penalties:
        where = f"{problem.name}: the penalty of {penalty.first!r} and {penalty.second!r}"
        cost, matched = penalty.cost, penalty.cost_if_slots_match
        if not is_byte_count(cost) or cost <= 0:
            raise ValueError(f"{where} must be a positive integer, got {cost!r}")
        if not is_byte_count(matched) or not 0 < matched <= cost:
            raise ValueError(
                f"{where} if slots match must be an integer from 1 to {cost}, got {matched!r}"
            )
    for first, second in problem.in_place:
        if frozenset((first, second)) in seen["separations"]:
            raise ValueError(
                f"{problem.name}: {first!r} and {second!r} are both an in-place pair and separated"
            )


def _check_pins(problem: Problem) -> None:
    for index, pinned in problem.pins.items():
        buffer = problem.buffers[index]
        alignment = problem.alignment_of(buffer)
        for offset in pinned:
            where = f"{problem.name}: buffer {buffer.name!r} is pinned at {offset}"
            if offset % alignment:
                raise ValueError(f"{where}, which is not a multiple of its alignment {alignment}")
            for begin, end in problem.memory.reserved:
                if max(begin, offset) < min(end, offset + buffer.size):
                    raise ValueError(f"{where}, inside the reserved range [{begin}, {end})")
    if not problem.pins:
        return
    offsets = {buffer.name: buffer.pinned or () for buffer in problem.buffers}
    for (begin, index, slot), (other_begin, other, other_slot) in slots_that_meet(problem, offsets):
        first, second = problem.buffers[index], problem.buffers[other]
        same_place = (begin, slot) == (other_begin, other_slot)
        if _may_not_share(problem, first, second, same_place):
            raise ValueError(
                f"{problem.name}: buffers {first.name!r} and {second.name!r} may not share bytes, "
                f"but are pinned at {begin} and {other_begin}"
            )


def slots_that_meet(
    problem: Problem, offsets: Mapping[str, Sequence[int]]
) -> Iterator[tuple[PlacedSlot, PlacedSlot]]:
    """Yield each two slots that share bytes, the lower one first; offsets are bytes, by name."""
    slots = sorted(
        (offset, index, slot)
        for index, buffer in enumerate(problem.buffers)
        if buffer.size
        for slot, offset in enumerate(offsets[buffer.name])
    )
    for at, one in enumerate(slots):
        end = one[0] + problem.buffers[one[1]].size
        for later in range(at + 1, len(slots)):
            if slots[later][0] >= end:
                break
            yield one, slots[later]


def _may_not_share(problem: Problem, first: Buffer, second: Buffer, same_place: bool) -> bool:
    """Return whether two pinned slots must be disjoint: all but those in place at one offset."""
    if problem.sharing.are_separated(first, second):
        return True
    if same_place and problem.sharing.pair(first, second) is not None:
        return False
    return live_together(first.live, second.live)


def _check_total(problem: Problem) -> None:
    """Refuse sizes whose sum could not be an offset."""
    total = _most_bytes(problem)
    if total >= ADDRESS_LIMIT:
        raise ValueError(f"{problem.name}: its buffers add up to {total} bytes, above 2**62")
    slots = sum(buffer.slots for buffer in problem.buffers)
    if slots >= SLOT_LIMIT:
        raise ValueError(f"{problem.name}: its buffers have {slots} slots, above 2**31")


def _most_bytes(problem: Problem) -> int:
    """Return an end that buffers laid out one after the other, above all that is fixed, have."""
    fixed = [end for _, end in problem.memory.reserved]
    fixed += [max(pinned) + problem.buffers[i].size for i, pinned in problem.pins.items()]
    common = problem.memory.alignment
    return max(fixed, default=0) + sum(
        buffer.slots * (buffer.size + math.lcm(buffer.alignment, common))
        for buffer in problem.buffers
    )


def widest_alignment(problem: Problem) -> int:
    """Return an alignment that all buffers could have on top of theirs, with sums in 2**62.

    A planner that places buffers at multiples of more than their alignments, such as several in
    place, asks for it first: the least common multiple of large alignments can be above every
    limit.
    """
    slots = sum(buffer.slots for buffer in problem.buffers)
    return (ADDRESS_LIMIT - 1 - _most_bytes(problem)) // max(1, slots)


def compressed(problem: Problem) -> Problem:
    """Return `problem` with its positions renumbered, without those at which nothing changes.

    The positions at which a live range begins or ends become 0, 1, 2 and so on. A plan of one is
    a plan of the other. Where a buffer's life begins in the statement in which another's ends, and
    nothing else changes within it, the two are then live together at exactly one position, however
    many positions the statement has.
    """
    changes = sorted({at for buffer in problem.buffers for live in buffer.live for at in live})

    def renumbered(at: int) -> int:
        return bisect_left(changes, at)

    buffers = (
        replace(buffer, live=tuple((renumbered(a), renumbered(b)) for a, b in buffer.live))
        for buffer in problem.buffers
    )
    return replace(problem, buffers=tuple(buffers))
