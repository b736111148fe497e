# SPDX-License-Identifier: Apache-2.0
"""Epochs of a kernel, the problem whose positions they are, and where more barriers help.

A kernel is plain data: the sequence of steps that each thread of a block takes. A step is an event,
a loop or a branch. Who takes which branch and how often a loop runs is not said.

An *epoch* is what may happen from one barrier to the next: all that a thread can reach from a
barrier, or from the kernel's beginning, without passing another. Nothing orders what two threads do
in one epoch, so two buffers may share bytes only if no epoch needs both. An epoch needs a buffer

- that is read or written in it,
- in which a value waits at some point of it: something was written before, and may be read later,
- into which a copy is still on its way.

A loop needs no rule of its own: what is reached after a loop's last barrier goes on to its first.

Two buffers that an epoch needs may yet have the same place, *in place* of one another, if each
thread keeps to elements of its own: it is done with an element of the one, for good, before it
writes the other's there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, reduce
from itertools import combinations
from operator import or_
from typing import TypeVar

from passes.planning import Buffer, LiveRange, Plan, Problem, join_ranges, lower_bound
from target_hw.memory import MemoryScope

LEAST_GAIN = 8
"""A barrier is added where it takes at least one part in so many off what a kernel needs."""

MOST_WORK = 20_000
"""Events of kernels that are gone through, at most; places in the fewest loops are tried first."""


class Effect(Enum):
    """The kind of an event."""

    BEGIN = "begin"  # The buffers hold no value any more: they are allocated anew
    READ = "read"
    WRITE = "write"
    # An asynchronous copy writes the buffers from here on, until it is waited for.
    COPY = "copy"
    COMMIT = "commit"  # The thread's copies since the last commit become a group
    # The thread waits until at most `pending` of its groups of copies are not done.
    WAIT = "wait"
    BARRIER = "barrier"  # All threads of the block meet, and each sees what the others wrote
    PLACE = "place"  # All threads of the block come by: a barrier might stand here


@dataclass(frozen=True)
class Event:
    """One thing that a thread does."""

    what: Effect
    buffers: tuple[str, ...] = ()
    # Groups of copies that a `WAIT` may leave undone; -1 where it waits for copies of no group too.
    pending: int = 0
    # Of which statement it is, or which `PLACE`, in the kernel's own numbers; -1 if not known.
    number: int = -1
    loops: int = 0  # Number of loops around a `PLACE`


@dataclass(frozen=True)
class EventLoop:
    """Steps that a thread repeats."""

    body: tuple[Step, ...]
    may_skip: bool = True  # Whether it may run not even once


@dataclass(frozen=True)
class EventBranch:
    """Alternative steps: a thread takes one arm."""

    arms: tuple[tuple[Step, ...], ...]


Step = Event | EventLoop | EventBranch


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer that the threads of a block share."""

    name: str
    size: int  # Bytes
    alignment: int = 1  # Bytes
    # Whether not all that happens to it is known, so that nothing else may have its bytes.
    is_kept: bool = False


KeepsToOwn = Callable[[str, str, frozenset[int]], bool]
"""``(source, destination, statements) -> bool``: whether, in some statements that no barrier parts,
each access to an element of the source comes before any thread writes the destination's there. The
statements are numbers of events: all that use either buffer."""


@dataclass(frozen=True)
class ThreadBlock:
    """The steps of one block of threads on one memory."""

    name: str
    buffers: tuple[SharedBuffer, ...]
    steps: tuple[Step, ...]  # They may name other buffers too, of other memories
    # Asked of two buffers, neither of them kept, that may begin at one place; None if none may.
    keeps_to_own: KeepsToOwn | None = field(default=None, compare=False)


Solver = Callable[[Problem], Plan]  # From a problem to a complete plan

_State = TypeVar("_State")
_Ages = dict[int, int]
"""Copies that may be on their way: by buffer, groups committed since, at least."""


@dataclass
class _Flow:
    """The points of a kernel, and which may follow which. Sets of buffers are bits of integers."""

    index: dict[str, int]  # Of each buffer
    chosen: Collection[int]  # The places at which a barrier is taken to be
    events: list[Event] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)  # The buffers of each event
    preceding: list[list[int]] = field(default_factory=list)
    following: list[list[int]] = field(default_factory=list)
    again: dict[int, bool] = field(default_factory=dict)
    """The points at which another round of a loop begins, and whether each round has a barrier."""

    def add(self, event: Event, before: Iterable[int]) -> int:
        at = len(self.events)
        self.events.append(event)
        known = [self.index[name] for name in event.buffers if name in self.index]
        self.masks.append(_union(1 << index for index in known))
        self.preceding.append([])
        self.following.append([])
        for other in dict.fromkeys(before):
            self.link(other, at)
        return at

    def link(self, at: int, following: int) -> None:
        self.following[at].append(following)
        self.preceding[following].append(at)

    def add_all(self, steps: Sequence[Step], ends: list[int]) -> list[int]:
        """Add steps after points, and return the points after which the next steps follow."""
        for step in steps:
            if isinstance(step, Event):
                if step.what is not Effect.PLACE or step.number in self.chosen:
                    ends = [self.add(step, ends)]
            elif isinstance(step, EventLoop):
                # The first round has a point of its own: nothing waits there from a round before.
                first = self.add(_NOTHING, ends)
                last = self.add_all(step.body, [first])
                begins = list(self.following[first])
                again = self.add(_NOTHING, last)
                for begin in begins:
                    self.link(again, begin)
                self.again[again] = any(e.what is Effect.BARRIER for e in events_in(step.body))
                ends = [first, again] if step.may_skip else [again]
            else:
                fork = self.add(_NOTHING, ends)
                ends = [end for arm in step.arms for end in self.add_all(arm, [fork])]
        return list(dict.fromkeys(ends))

    def epochs(self) -> dict[int, tuple[set[int], set[int]]]:
        """Return, by the point with which an epoch begins, its points and those that end it.

        It begins with a barrier, or with the kernel, and its points are what a thread can reach
        from there without passing another barrier.
        """
        barriers = {
            at for at, e in enumerate(self.events) if e.what in (Effect.BARRIER, Effect.PLACE)
        }
        found = {}
        for start in (0, *sorted(barriers)):
            points, ends, rest = {start}, set[int](), [start]
            while rest:
                reached = {*self.following[rest.pop()]}
                ends |= reached & barriers
                rest += sorted(reached - barriers - points)
                points |= reached - barriers
            found[start] = points, ends
        return found


_NOTHING = Event(Effect.BEGIN)  # At the beginning of the kernel, of a loop's rounds, of a branch


@dataclass(frozen=True)
class Epoch:
    """The events that may happen from one barrier to the next."""

    begin: Event | None  # The barrier that it begins with; None for the first
    events: tuple[Event, ...]  # In the order of the kernel's text
    following: tuple[int, ...]  # Epochs that may come next, sorted


def find_epochs(kernel: ThreadBlock) -> tuple[Epoch, ...]:
    """Return the epochs, in the order of the kernel's text: the positions of its problem."""
    flow = _flow_of(kernel, ())
    found = flow.epochs()
    number_of = {start: number for number, start in enumerate(found)}
    return tuple(
        Epoch(
            flow.events[start] if start else None,
            tuple(flow.events[at] for at in sorted(points - {start})),
            tuple(sorted(number_of[end] for end in ends)),
        )
        for start, (points, ends) in found.items()
    )


def shared_memory_problem(
    kernel: ThreadBlock, memory: MemoryScope, added: Collection[int] = ()
) -> Problem:
    """Return the problem of placing a kernel's buffers, in epochs.

    `added` are the numbers of places at which barriers are taken to be. A buffer that is never used
    is live in the first epoch, so that each buffer has a place.
    """
    flow = _flow_of(kernel, added)
    at_points, epochs = _needed(flow), flow.epochs()
    needed = [_union(at_points[at] for at in points) for points, _ in epochs.values()]
    lives: list[list[LiveRange]] = [[] for _ in kernel.buffers]
    for at, mask in enumerate(needed):
        for index in _bits(mask):
            lives[index].append((at, at + 1))
    buffers = []
    for buffer, live in zip(kernel.buffers, lives, strict=True):
        ranges = [(0, len(needed))] if buffer.is_kept else live or [(0, 1)]
        buffers.append(Buffer(buffer.name, buffer.size, join_ranges(ranges), buffer.alignment))
    in_place = tuple(_in_place(kernel, flow, at_points, needed))
    return Problem(tuple(buffers), memory, in_place, name=kernel.name)


def _in_place(
    kernel: ThreadBlock, flow: _Flow, at_points: Sequence[int], needed: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that may be in place in each epoch that needs both."""
    if kernel.keeps_to_own is None:
        return
    shared: dict[tuple[int, int], list[tuple[int, tuple[set[int], set[int]]]]] = {}
    for epoch, mask in zip(flow.epochs().items(), needed, strict=True):
        for both in combinations([n for n in _bits(mask) if not kernel.buffers[n].is_kept], 2):
            shared.setdefault(both, []).append(epoch)
    for both in sorted(shared):
        one, two = (kernel.buffers[number].name for number in both)
        if all(
            any(
                _takes_place(kernel.keeps_to_own, flow, at_points, start, points, ends, *pair)
                for pair in ((one, two), (two, one))
            )
            for start, (points, ends) in shared[both]
        ):
            yield one, two


def _takes_place(
    keeps_to_own: KeepsToOwn,
    flow: _Flow,
    at_points: Sequence[int],
    start: int,
    points: Collection[int],
    ends: Collection[int],
    source: str,
    destination: str,
) -> bool:
    """Return whether a buffer may take the place of another in one epoch.

    It holds nothing when the epoch begins, and the other nothing when it ends; no copy goes to
    either, all is in one round of the loops that have barriers, and threads keep to their own.
    """
    read, written = (1 << flow.index[name] for name in (source, destination))
    if at_points[start] & written or any(at_points[end] & read for end in ends):
        return False
    used = [
        at
        for at in sorted(points)
        if flow.masks[at] & (read | written) and flow.events[at].what is not Effect.BEGIN
    ]
    if any(flow.events[at].what is Effect.COPY or flow.events[at].number < 0 for at in used):
        return False
    if _may_be_of_two_rounds(flow, used, points):
        return False
    return keeps_to_own(source, destination, frozenset(flow.events[at].number for at in used))


def _may_be_of_two_rounds(flow: _Flow, used: Sequence[int], points: Collection[int]) -> bool:
    """Return whether an epoch's points can be in different rounds of a loop with barriers."""
    rest = [(at, False) for at in used]
    seen = set(rest)
    while rest:
        at, is_later = rest.pop()
        is_later |= flow.again.get(at, False)
        for other in flow.following[at]:
            if other not in points or (other, is_later) in seen:
                continue
            if is_later and other in used:
                return True
            seen.add((other, is_later))
            rest.append((other, is_later))
    return False


def _flow_of(kernel: ThreadBlock, added: Collection[int]) -> _Flow:
    flow = _Flow({buffer.name: at for at, buffer in enumerate(kernel.buffers)}, added)
    flow.add_all(kernel.steps, [flow.add(_NOTHING, ())])
    return flow


def _needed(flow: _Flow) -> list[int]:
    """Return for each point the buffers that are used there, or wait, or are on their way."""
    points = range(len(flow.events))

    def masks(*kinds: Effect) -> list[int]:
        return [flow.masks[at] if flow.events[at].what in kinds else 0 for at in points]

    begun, writing, reading = (
        masks(Effect.BEGIN),
        masks(Effect.WRITE, Effect.COPY),
        masks(Effect.READ),
    )
    # Into which something may have been written up to and at a point; which may be read at it or
    # later; copies that may be on their way after it.
    written, wanted = [0] * len(points), [0] * len(points)
    ages: list[_Ages] = [{} for _ in points]
    _fixpoint(
        written, flow.preceding, points, lambda at, old: _union(old) & ~begun[at] | writing[at]
    )
    _fixpoint(
        wanted, flow.following, points[::-1], lambda at, new: _union(new) & ~begun[at] | reading[at]
    )
    if any(event.what is Effect.COPY for event in flow.events):
        _fixpoint(ages, flow.preceding, points, partial(_on_the_way, flow))
    return [
        writing[at]
        | reading[at]
        | written[at] & _union(wanted[other] for other in flow.following[at])
        | _union(1 << buffer for buffer in ages[at])
        for at in points
    ]


def _fixpoint(
    states: list[_State],
    sources: Sequence[Sequence[int]],
    points: Sequence[int],
    step: Callable[[int, list[_State]], _State],
) -> None:
    """Make the states at points the least that are each what `step` makes of its sources'."""
    changed = True
    while changed:
        changed = False
        for at in points:
            new = step(at, [states[other] for other in sources[at]])
            changed |= new != states[at]
            states[at] = new


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _on_the_way(flow: _Flow, at: int, before: list[_Ages]) -> _Ages:
    """Return the copies that may be on their way after a point, from those before it.

    A thread's groups of copies are done in the order of their commits, so one is done once a wait
    leaves no more than were committed after it.
    """
    event, new = flow.events[at], dict[int, int]()
    for ages in before:
        for buffer, age in ages.items():
            new[buffer] = min(age, new.get(buffer, age))
    if event.what is Effect.COPY:
        new.update((flow.index[name], 0) for name in event.buffers if name in flow.index)
    elif event.what is Effect.COMMIT:
        oldest = 2 + max(event.pending for event in flow.events)  # No wait tells older ones apart.
        new = {buffer: min(age + 1, oldest) for buffer, age in new.items()}
    elif event.what is Effect.WAIT:
        new = {buffer: age for buffer, age in new.items() if age <= event.pending}
    return new


# Where another barrier would let buffers share bytes


def barriers_to_add(
    kernel: ThreadBlock, memory: MemoryScope, enough: int, solver: Solver, *, more: bool
) -> tuple[int, ...]:
    """Return the numbers of the places at which barriers are worth what they cost, sorted.

    Barriers are chosen one by one: each lowers what the plan takes by the most; of several that do,
    the one in the fewest loops, then the first. While the kernel needs more than `enough` bytes,
    any that lowers it is chosen; after that, with `more`, one that takes off one part in
    `LEAST_GAIN`. If none by itself brings it down to `enough`, all are taken that together bring
    it down as far, but those that can be left out again.
    """
    events = list(events_in(kernel.steps))
    places = [event for event in events if event.what is Effect.PLACE]
    places.sort(key=lambda place: (place.loops, place.number))
    budget = MOST_WORK // max(1, len(events))

    def needs(chosen: Iterable[int], known: int | None = None) -> int:
        problem = shared_memory_problem(kernel, memory, tuple(chosen))
        is_more = known is not None and lower_bound(problem) >= known
        return known if is_more and known is not None else solver(problem).peak

    needed, tries = needs(()), budget
    chosen: list[int] = []
    while places and tries > 0 and (more or needed > enough):
        tried, tries = places[:tries], tries - len(places)
        peaks = [needs((*chosen, place.number), needed) for place in tried]
        peak = min(peaks)
        is_worth = peak < needed if needed > enough else (needed - peak) * LEAST_GAIN >= needed
        if not is_worth:
            break
        chosen.append(places.pop(peaks.index(peak)).number)
        needed = peak
    if needed > enough and places:
        every = [*chosen, *(place.number for place in places)]
        target = max(needs(every), enough)
        if target < needed:
            chosen = _without_needless(every, budget, lambda some: needs(some) <= target)
    return tuple(sorted(chosen))


def _without_needless(
    numbers: Sequence[int], tries: int, are_enough: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Leave out numbers, the last first and many at once, as long as the others are enough."""
    left, size = list(numbers), len(numbers)
    while size and tries > 0:
        end = len(left)
        while end > 0 and tries > 0:
            rest = [*left[: max(end - size, 0)], *left[end:]]
            tries -= 1
            if are_enough(rest):
                left = rest
            end -= size
        size //= 2
    return left


def events_in(steps: Sequence[Step]) -> Iterator[Event]:
    """Yield the events in steps, in their order."""
    for step in steps:
        if isinstance(step, Event):
            yield step
        else:
            for arm in (step.body,) if isinstance(step, EventLoop) else step.arms:
                yield from events_in(arm)
