# SPDX-License-Identifier: Apache-2.0
"""Every way in which a plan breaks a problem of one memory. Shares no code with any planner."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

import numpy as np

from passes.planning.buffer import ADDRESS_LIMIT, Buffer, Penalty
from passes.planning.plan import Plan
from passes.planning.problem import Ints, Problem
from target_hw.memory import as_plain, is_byte_count


@dataclass(frozen=True)
class Violation:
    """One way in which a plan breaks its problem.

    Parameters
    ----------
    kind : str
        ``unplaced``, ``unknown``, ``slots``, ``offset``, ``misaligned``, ``capacity``,
        ``reserved``, ``pinned``, ``overlap``, ``in place``, ``separated``, ``peak``
        or ``penalty``.
    buffers : tuple of str
        The names of the buffers concerned.
    message : str
        One line for people.
    """

    kind: str
    buffers: tuple[str, ...]
    message: str


def violations(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Yield every way in which a plan breaks a problem of one memory.

    Buffers that are live together are found by a sweep over the positions that keeps the live
    slots sorted by offset: n log n steps for n slots when nothing is wrong.
    """
    wrong = [(name, at) for name, at in plan.offsets.items() if not _are_offsets(at)]
    for name, given in wrong:
        message = f"{name!r} must have a tuple of offsets in bytes, got {given!r}"
        yield Violation("offset", (name,), message)
    if wrong:
        return
    slots = _slots(problem, plan)
    unplaced = list(_unplaced(problem, plan, slots))
    yield from unplaced
    for buffer in _suspects(problem, slots):
        yield from _misplaced(problem, plan, buffer)
    yield from _overlapping(problem, plan, slots)
    for first, second in problem.separations:
        if _shared(problem, plan, first, second):
            message = f"{first!r} and {second!r} are separated but share bytes"
            yield Violation("separated", (first, second), message)
    if not unplaced:
        yield from _misstated(problem, plan, slots)


@dataclass(frozen=True)
class _Slots:
    """The slots of all buffers, one after the other."""

    counts: Ints  # Of each buffer: how many it has
    owners: list[int]  # Of each slot: the index of its buffer, the first byte, and that after all
    begins: list[int]
    ends: list[int]


def _slots(problem: Problem, plan: Plan) -> _Slots:
    rows = [plan.offsets.get(buffer.name, ()) for buffer in problem.buffers]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    owners = np.repeat(np.arange(len(rows)), counts)
    begins = [at for row in rows for at in row]
    sizes = problem.columns.sizes[owners].tolist()
    return _Slots(counts, owners.tolist(), begins, list(map(add, begins, sizes)))


def _are_offsets(given: object) -> bool:
    if type(given) is tuple and all(type(at) is int for at in given):
        return True
    return isinstance(given, tuple | list) and all(is_byte_count(as_plain(at)) for at in given)


def _unplaced(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    is_plain = (slots.counts == problem.columns.slots).all()
    if is_plain and len(plan.offsets) == len(problem.buffers):
        return
    for buffer in problem.buffers:
        offsets = plan.offsets.get(buffer.name)
        if offsets is None:
            yield Violation("unplaced", (buffer.name,), f"{buffer.name!r} has no offset")
        elif len(offsets) < buffer.slots or (len(offsets) > buffer.slots and not _rotates(buffer)):
            message = f"{buffer.name!r} has {buffer.slots} slots and {len(offsets)} offsets"
            yield Violation("slots", (buffer.name,), message)
    for name in plan.offsets:
        if name not in problem.index:
            yield Violation("unknown", (name,), f"{name!r} is not in the problem")


def _rotates(buffer: Buffer) -> bool:
    """Return whether the iterations of a loop can take turns with more offsets than it asks for."""
    return buffer.use is not None and buffer.use.loop is not None


def _loops(problem: Problem, names: tuple[str, str]) -> set[int | None]:
    """Return the loops that are known to move buffers from offset to offset."""
    buffers = [problem.buffers[problem.index[name]] for name in names]
    return {buffer.use.loop for buffer in buffers if buffer.use is not None}


def _offsets(plan: Plan, buffer: Buffer) -> tuple[int, ...]:
    return plan.offsets.get(buffer.name, ())


def _suspects(problem: Problem, slots: _Slots) -> Iterator[Buffer]:
    """Yield the buffers whose own offsets may be wrong: there can be a million that are right."""
    columns, memory = problem.columns, problem.memory
    if max(slots.ends, default=0) >= ADDRESS_LIMIT or min(slots.begins, default=0) < 0:
        yield from problem.buffers
        return
    given = slots.begins, slots.ends, slots.owners
    offsets, ends, owners = (np.array(each, dtype=np.int64) for each in given)
    wrong = offsets % columns.alignments[owners] != 0
    if memory.capacity is not None:
        wrong |= ends > memory.capacity
    for low, high in memory.reserved:
        wrong |= np.maximum(low, offsets) < np.minimum(high, ends)
    found = np.bincount(owners[wrong], minlength=len(problem.buffers)) > 0
    found[list(problem.pins)] = True
    for index in np.flatnonzero(found).tolist():
        yield problem.buffers[index]


def _misplaced(problem: Problem, plan: Plan, buffer: Buffer) -> Iterator[Violation]:
    """Yield what is wrong with one buffer's offsets, whatever the others do."""
    name, alignment = buffer.name, problem.alignment_of(buffer)
    for offset in _offsets(plan, buffer):
        end = offset + buffer.size
        if offset < 0:
            yield Violation("offset", (name,), f"{name!r} starts at {offset}, below zero")
        if offset % alignment:
            message = f"{name!r} starts at {offset}, not a multiple of {alignment}"
            yield Violation("misaligned", (name,), message)
        if problem.capacity is not None and end > problem.capacity:
            message = f"{name!r} ends at {end}, above the capacity {problem.capacity}"
            yield Violation("capacity", (name,), message)
        for low, high in problem.memory.reserved:
            if max(low, offset) < min(high, end):
                message = f"{name!r} at [{offset}, {end}) takes reserved bytes [{low}, {high})"
                yield Violation("reserved", (name,), message)
    if buffer.pinned is not None and tuple(_offsets(plan, buffer)) != buffer.pinned:
        message = f"{name!r} is pinned at {buffer.pinned} but placed at {_offsets(plan, buffer)}"
        yield Violation("pinned", (name,), message)


class _Placed(NamedTuple):
    """One slot of a buffer at its bytes."""

    begin: int
    end: int
    buffer: str
    slot: int


def _overlapping(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    """Yield each pair of slots that share bytes while both are live, except rightly in place."""
    in_place = {frozenset(pair) for pair in problem.in_place}
    seen = set()
    firsts = np.cumsum(slots.counts) - slots.counts
    for pair_of_slots in _live_overlaps(problem, slots):
        first, second = (
            _Placed(
                slots.begins[at],
                slots.ends[at],
                problem.buffers[slots.owners[at]].name,
                at - int(firsts[slots.owners[at]]),
            )
            for at in pair_of_slots
        )
        pair = frozenset((first, second))
        if pair in seen:
            continue
        seen.add(pair)
        names = (first.buffer, second.buffer)
        where = f"[{first.begin}, {first.end}) and [{second.begin}, {second.end})"
        if frozenset(names) not in in_place:
            message = f"{names[0]!r} and {names[1]!r} are live together and overlap: {where}"
            yield Violation("overlap", names, message)
            continue
        counts = [len(plan.offsets[name]) for name in names]
        if first.begin != second.begin or first.slot != second.slot or counts[0] != counts[1]:
            message = f"{names[0]!r} and {names[1]!r} are in place, but not at one offset: {where}"
            if counts[0] != counts[1]:
                message += f" of {counts[0]} and of {counts[1]}"
            yield Violation("in place", names, message)
        elif counts[0] > 1 and len(_loops(problem, names)) > 1:
            message = f"{names[0]!r} and {names[1]!r} are in place, but in different loops: {where}"
            yield Violation("in place", names, message)


def _live_overlaps(problem: Problem, slots: _Slots) -> Iterator[tuple[int, int]]:
    """Yield pairs of slots that share bytes at a position where both are live.

    `apart` holds live slots that are pairwise disjoint, sorted by offset, so that a new slot meets
    only its neighbours there; `piled` holds the few others (in-place partners, wrong ones).
    """
    columns, begins, ends = problem.columns, slots.begins, slots.ends
    sized = columns.sizes[columns.owners] > 0
    live_begins, live_ends, owners = (
        each[sized] for each in (columns.begins, columns.ends, columns.owners)
    )
    # A life is that of each of the buffer's slots.
    counts = slots.counts[owners]
    lives = np.repeat(np.arange(len(owners)), counts)
    number = np.arange(len(lives)) - np.repeat(np.cumsum(counts) - counts, counts)
    slot_of = ((np.cumsum(slots.counts) - slots.counts)[owners[lives]] + number).tolist()
    # At one position, ends come first.
    positions = np.concatenate((live_ends[lives], live_begins[lives]))
    events = np.argsort(positions, kind="stable").tolist()

    lows: list[int] = []  # The first bytes of `apart`
    apart: list[int] = []
    piled: list[int] = []
    for event in events:
        slot = slot_of[event % len(slot_of)]
        begin, end = begins[slot], ends[slot]
        at = bisect_left(lows, begin)
        if event < len(slot_of):
            if apart[at : at + 1] == [slot]:
                del apart[at], lows[at]
            else:
                piled.remove(slot)
            continue
        met = [other for other in piled if max(begins[other], begin) < min(ends[other], end)]
        if at and ends[apart[at - 1]] > begin:
            met.append(apart[at - 1])
        above = at
        while above < len(apart) and lows[above] < end:
            met.append(apart[above])
            above += 1
        if met:
            piled.append(slot)
        else:
            apart.insert(at, slot)
            lows.insert(at, begin)
        for other in met:
            yield other, slot


def _shared(problem: Problem, plan: Plan, first: str, second: str) -> list[tuple[int, int]]:
    """Return the numbers of the slots of two buffers that share a byte."""
    one, two = (problem.buffers[problem.index[name]] for name in (first, second))
    return [
        (slot, other)
        for slot, a in enumerate(_offsets(plan, one))
        for other, b in enumerate(_offsets(plan, two))
        if max(a, b) < min(a + one.size, b + two.size)
    ]


def _misstated(problem: Problem, plan: Plan, slots: _Slots) -> Iterator[Violation]:
    """Yield what the plan says of itself and is not so."""
    peak = max(slots.ends, default=0)
    if plan.peak != peak:
        yield Violation("peak", (), f"the peak is {peak}, the plan says {plan.peak}")
    penalty = sum(charge(problem, plan, p) for p in problem.penalties)
    if plan.penalty != penalty:
        yield Violation("penalty", (), f"the penalty is {penalty}, the plan says {plan.penalty}")


def charge(problem: Problem, plan: Plan, penalty: Penalty) -> int:
    """Return what one penalty costs under a plan."""
    shared = _shared(problem, plan, penalty.first, penalty.second)
    if not shared:
        return 0
    equally_many = len(plan.offsets[penalty.first]) == len(plan.offsets[penalty.second])
    slots_match = equally_many and all(slot == other for slot, other in shared)
    return penalty.cost_if_slots_match if slots_match else penalty.cost
