# SPDX-License-Identifier: Apache-2.0
"""Is a plan right, of one memory or of several? Shares no code with any planner.

A plan is checked from its problem alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import NamedTuple

import numpy as np

from passes.planning.buffer import Buffer, Penalty
from passes.planning.memories.memories_problem import (
    Copy,
    MemoriesPlan,
    MemoriesProblem,
    Stay,
    Traffic,
)
from passes.planning.plan import Plan, Status
from passes.planning.problem import Problem
from target_hw.memory import as_plain, is_byte_count

REPORT_LIMIT = 1000
"""Violations that `verify` lists unless told otherwise: a plan can have one a pair of buffers."""
SHELF = 1000  # Slots on a full shelf after it was halved: see `_Disjoint`


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


class PlanError(ValueError):
    """A plan that breaks its problem; `violations` lists how."""

    def __init__(self, problem: str, planner: str, violations: tuple[Violation, ...]) -> None:
        self.violations = violations
        shown = "; ".join(violation.message for violation in violations[:5])
        more = f"; and {len(violations) - 5} more" if len(violations) > 5 else ""
        super().__init__(f"{problem}: plan of {planner!r} is wrong: {shown}{more}")


def verify(
    problem: Problem | MemoriesProblem,
    plan: Plan | MemoriesPlan,
    limit: int | None = REPORT_LIMIT,
) -> tuple[Violation, ...]:
    """Return every way in which `plan` breaks `problem`; none means that it is right.

    Parameters
    ----------
    problem : Problem or MemoriesProblem
        What was asked.
    plan : Plan or MemoriesPlan
        What was decided. Its status is not judged, but a plan above a capacity breaks it.
    limit : int, optional
        Stop after this many violations; None lists all.

    Raises
    ------
    ValueError
        If these are no problem and its plan.
    """
    if isinstance(problem, MemoriesProblem) and isinstance(plan, MemoriesPlan):
        return tuple(islice(_memories_violations(problem, plan), limit))
    if isinstance(problem, Problem) and isinstance(plan, Plan):
        return tuple(islice(violations(problem, plan), limit))
    raise ValueError(
        f"verify needs a problem and its plan, got {type(problem).__name__} and "
        f"{type(plan).__name__}"
    )


def check(problem: Problem | MemoriesProblem, plan: Plan | MemoriesPlan) -> None:
    """Raise `PlanError`, naming the buffers, unless `plan` is right."""
    if wrong := verify(problem, plan):
        raise PlanError(problem.name, plan.planner, wrong)


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
    unplaced = list(_unplaced(problem, plan))
    yield from unplaced
    for buffer in problem.buffers:
        yield from _misplaced(problem, plan, buffer)
    yield from _overlapping(problem, plan)
    for first, second in problem.separations:
        if _shared(problem, plan, first, second):
            message = f"{first!r} and {second!r} are separated but share bytes"
            yield Violation("separated", (first, second), message)
    if not unplaced:
        yield from _misstated(problem, plan)


def _are_offsets(given: object) -> bool:
    return isinstance(given, tuple | list) and all(is_byte_count(as_plain(at)) for at in given)


def _unplaced(problem: Problem, plan: Plan) -> Iterator[Violation]:
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
    """Whether the iterations of a loop can take turns with more offsets than it asks for."""
    return buffer.use is not None and buffer.use.loop is not None


def _loops(problem: Problem, names: tuple[str, str]) -> set[int | None]:
    """Return the loops that are known to move buffers from offset to offset."""
    buffers = [problem.buffers[problem.index[name]] for name in names]
    return {buffer.use.loop for buffer in buffers if buffer.use is not None}


def _offsets(plan: Plan, buffer: Buffer) -> tuple[int, ...]:
    return plan.offsets.get(buffer.name, ())


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


def _overlapping(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Yield each pair of slots that share bytes while both are live, except rightly in place."""
    in_place = {frozenset(pair) for pair in problem.in_place}
    seen = set()
    for first, second in _live_overlaps(problem, plan):
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


def _live_overlaps(problem: Problem, plan: Plan) -> Iterator[tuple[_Placed, _Placed]]:
    """Yield pairs of slots that share bytes at a position where both are live.

    `apart` holds live slots that are pairwise disjoint, so that a new slot meets only its
    neighbours there; `piled` holds the few others (in-place partners, wrong ones).
    """
    slots: list[_Placed] = []
    begins: list[int] = []
    ends: list[int] = []
    for buffer in problem.buffers:
        if buffer.size == 0:
            continue
        for slot, offset in enumerate(_offsets(plan, buffer)):
            placed = _Placed(offset, offset + buffer.size, buffer.name, slot)
            for begin, end in buffer.live:
                slots.append(placed)
                begins.append(begin)
                ends.append(end)
    # At one position, ends come first.
    events = np.argsort(np.array(ends + begins, dtype=np.int64), kind="stable").tolist()

    apart = _Disjoint()
    piled: list[_Placed] = []
    for event in events:
        placed = slots[event % len(slots)]
        if event < len(slots):
            if not apart.remove(placed):
                piled.remove(placed)
            continue
        met = [p for p in piled if max(p.begin, placed.begin) < min(p.end, placed.end)]
        if not met and apart.added(placed):
            continue
        for other in (*apart.sharing_with(placed), *met):
            yield other, placed
        piled.append(placed)


class _Disjoint:
    """Slots of which no two share a byte, sorted by offset.

    They stand on shelves of at most twice `SHELF` slots, one behind the other. One long list would
    do the same, but a slot that comes or goes would move all that follow: where a hundred thousand
    are live at once, that is most of the time.
    """

    def __init__(self) -> None:
        self._shelves: list[list[_Placed]] = [[]]
        self._begins: list[_Placed] = []
        """For each shelf but the first, a slot: all on it stand there or after, others before."""

    def added(self, placed: _Placed) -> bool:
        """Add a slot if it shares no byte with any other; return whether that is so."""
        if next(self.sharing_with(placed), None) is not None:
            return False
        at = bisect_right(self._begins, placed)
        shelf = self._shelves[at]
        insort_left(shelf, placed)
        if len(shelf) > 2 * SHELF:
            self._shelves.insert(at + 1, shelf[SHELF:])
            self._begins.insert(at, shelf[SHELF])
            del shelf[SHELF:]
        return True

    def remove(self, placed: _Placed) -> bool:
        """Take a slot away; return whether it was there."""
        at = bisect_right(self._begins, placed)
        shelf = self._shelves[at]
        place = bisect_left(shelf, placed)
        if place == len(shelf) or shelf[place] != placed:
            return False
        del shelf[place]
        if not shelf and self._begins:
            del self._shelves[at], self._begins[max(0, at - 1)]
        return True

    def sharing_with(self, placed: _Placed) -> Iterator[_Placed]:
        """Yield the slots that share bytes with `placed`."""
        at = bisect_right(self._begins, placed)
        shelf = self._shelves[at]
        place = bisect_left(shelf, placed)
        before = shelf[place - 1 : place] if place else self._shelves[at - 1][-1:] if at else []
        if before and before[0].end > placed.begin:
            yield before[0]
        following = islice(self._shelves, at + 1, None)
        for other in chain(islice(shelf, place, None), chain.from_iterable(following)):
            if other.begin >= placed.end:
                break
            yield other


def _shared(problem: Problem, plan: Plan, first: str, second: str) -> list[tuple[int, int]]:
    """Return the numbers of the slots of two buffers that share a byte."""
    one, two = (problem.buffers[problem.index[name]] for name in (first, second))
    return [
        (slot, other)
        for slot, a in enumerate(_offsets(plan, one))
        for other, b in enumerate(_offsets(plan, two))
        if max(a, b) < min(a + one.size, b + two.size)
    ]


def _misstated(problem: Problem, plan: Plan) -> Iterator[Violation]:
    """Yield what the plan says of itself and is not so."""
    ends = [offset + b.size for b in problem.buffers for offset in _offsets(plan, b)]
    peak = max(ends, default=0)
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


# Several memories


def _memories_violations(problem: MemoriesProblem, plan: MemoriesPlan) -> Iterator[Violation]:
    """Yield every way in which a plan breaks a problem of several memories.

    Beside the kinds of `Violation` there are ``memory``, a memory that a buffer may not lie in;
    ``stay`` and ``copy``, a part of a buffer's life, or a transfer, that cannot be; ``moved`` and
    ``bound``, where the plan says other bytes than it moves, or fewer than its own bound.
    """
    known = [memory.name for memory in problem.memories]
    for buffer in problem.buffers:
        where = plan.memory.get(buffer.name)
        names = problem.traffic_of(buffer).memories or known
        if where not in names or where not in known:
            message = f"{buffer.name!r} lies in {where!r}, and may lie in {', '.join(names)}"
            yield Violation("memory", (buffer.name,), message)
    if not all(plan.memory.get(buffer.name) in known for buffer in problem.buffers):
        return
    for name in known:
        yield from _of_one_memory(problem, plan, name)
    for name in plan.stays:
        if name not in problem.index:
            yield Violation("unknown", (name,), f"{name!r} is not in the problem")
            return
    moved = dict.fromkeys(known, 0)
    for buffer in problem.buffers:
        home = plan.memory[buffer.name]
        if buffer.name in plan.stays:
            yield from _of_one_life(problem, plan, buffer)
            copies = sum(copy.buffer == buffer.name for copy in plan.copies)
            moved[home] += buffer.size * (copies + len(_direct(problem, plan, buffer)))
        else:
            moved[home] += _still(problem, buffer, known.index(home))
    yield from _misstated_moves(plan, moved, known)


def _still(problem: MemoriesProblem, buffer: Buffer, at: int) -> int:
    """Return the bytes that a buffer moves where it lies in one memory all its life."""
    traffic = problem.traffic_of(buffer)
    by_default = (traffic.uses or 0) * buffer.slots * buffer.size if at else 0
    return traffic.costs.get(problem.memories[at].name, by_default)


def _of_one_memory(problem: MemoriesProblem, plan: MemoriesPlan, name: str) -> Iterator[Violation]:
    """Yield what is wrong within one memory: overlaps, ends, alignments, the peak."""
    # Buffers that lie here for good, and stays, with their offsets; each is called by its number.
    pieces: list[tuple[Buffer, tuple[int, ...]]] = []
    for buffer in problem.buffers:
        if plan.memory[buffer.name] == name:
            pieces.append((buffer, plan.offsets.get(buffer.name, ())))
        for stay in plan.stays.get(buffer.name, ()):
            if stay.memory == name:
                part = Buffer(buffer.name, buffer.size, (stay.live,), buffer.alignment)
                pieces.append((part, stay.offsets))
    renamed = (replace(buffer, name=str(n), use=None) for n, (buffer, _) in enumerate(pieces))
    scope = problem.memories[problem.memory_index[name]]
    one = Problem(tuple(renamed), scope, name=f"{problem.name}, {name}")
    offsets = {str(number): at for number, (_, at) in enumerate(pieces)}
    found = Plan(offsets, plan.peaks.get(name, 0), 0, plan.planner, Status.FEASIBLE)
    for wrong in violations(one, found):
        concerned = tuple(pieces[int(number)][0].name for number in wrong.buffers)
        message = wrong.message
        for number, called in zip(wrong.buffers, concerned, strict=True):
            message = message.replace(repr(number), repr(called))
        yield Violation(wrong.kind, concerned, f"in {name}: {message}")


def _within(stay: Stay, touch: int) -> bool:
    return stay.live[0] <= touch < stay.live[1]


def _direct(problem: MemoriesProblem, plan: MemoriesPlan, buffer: Buffer) -> list[int]:
    """Return the touches of a buffer that are outside of its stays."""
    stays = plan.stays[buffer.name]
    touches = problem.traffic_of(buffer).touches
    return [touch for touch in touches if not any(_within(stay, touch) for stay in stays)]


def _of_one_life(
    problem: MemoriesProblem, plan: MemoriesPlan, buffer: Buffer
) -> Iterator[Violation]:
    """Yield where a buffer that moves is read in a memory that does not have its value."""
    name, traffic, stays = buffer.name, problem.traffic_of(buffer), plan.stays[buffer.name]
    home = plan.memory[name]
    copies = [copy for copy in plan.copies if copy.buffer == name]

    def wrong(kind: str, message: str) -> Violation:
        return Violation(kind, (name,), f"{name!r} {message}")

    if not traffic.touches:
        yield wrong("stay", "moves, and its touches are not known")
        return
    if any(second.live[0] < first.live[1] for first, second in pairwise(stays)):
        yield wrong("stay", "has stays that overlap, or are out of order")
    if any(copy.end <= copy.begin or copy.size != buffer.size for copy in copies):
        yield wrong("copy", "has a copy of no time, or of other bytes than its own")
    ready = _value_at_home(traffic, home, stays, copies)
    if ready is None:
        yield wrong("copy", f"never gets to {home}")
        return
    for touch in _direct(problem, plan, buffer):
        if touch < ready and (touch != traffic.touches[0] or traffic.stored_in is not None):
            yield wrong("copy", f"is read from {home} at {touch}, where it is not yet")
    for stay in stays:
        touches = [touch for touch in traffic.touches if _within(stay, touch)]
        begins, ends = stay.live
        inside = any(low <= begins and ends <= high for low, high in buffer.live)
        known = stay.memory in problem.memory_index and stay.memory != home
        if not touches or not inside or not known:
            yield wrong("stay", f"stays in {stay.memory} on [{begins}, {ends}) for nothing")
        elif traffic.stored_in is not None or touches[0] != traffic.touches[0]:
            sources = [c for c in copies if (c.source, c.target) == (home, stay.memory)]
            if not any(
                ready <= copy.begin and begins <= copy.begin and copy.end <= touches[0]
                for copy in sources
            ):
                yield wrong("copy", f"is not in {stay.memory} when it is read at {touches[0]}")


def _value_at_home(
    traffic: Traffic, home: str, stays: tuple[Stay, ...], copies: list[Copy]
) -> int | None:
    """Return the position from which a buffer's home has its value; None if it never has."""
    if traffic.stored_in is not None:
        return -(1 << 62) if traffic.stored_in == home else None
    first = traffic.touches[0]
    made_in = next((stay for stay in stays if _within(stay, first)), None)
    if made_in is None:
        return first + 1
    out = (
        copy.end
        for copy in copies
        if (copy.source, copy.target) == (made_in.memory, home)
        and first < copy.begin
        and copy.end <= made_in.live[1]
    )
    return min(out, default=None)


def _misstated_moves(
    plan: MemoriesPlan, moved: dict[str, int], known: list[str]
) -> Iterator[Violation]:
    if dict(plan.moved) != moved:
        yield Violation("moved", (), f"it moves {moved}, and says {dict(plan.moved)}")
    value = tuple(moved[name] for name in reversed(known))
    if plan.bound > value:
        yield Violation("bound", (), f"it moves {value}, below its bound {plan.bound}")
    if plan.status is Status.OPTIMAL and plan.bound != value:
        yield Violation("bound", (), f"it moves {value}, above its bound {plan.bound}")
