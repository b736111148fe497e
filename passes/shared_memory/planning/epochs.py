# SPDX-License-Identifier: Apache-2.0
"""Epochs of a kernel, and the problem whose positions they are.

An *epoch* is what may happen from one barrier to the next: all that a thread can reach from a
barrier, or from the kernel's beginning, without passing another. Where all threads take the same
way, each way is an epoch of its own: none is in a loop's next round while another has left it.
Nothing orders what two threads do in one epoch, so two buffers may share bytes only if no epoch
needs both. An epoch needs a buffer

- that is read or written in it,
- in which a value waits at some point of it: something was written before, and may be read later,
- into which a copy is still on its way.

A loop needs no rule of its own: what is reached behind a loop's last barrier goes on to its first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from passes.planning import Buffer, Problem, join_ranges
from passes.shared_memory.planning.thread_block import Event, EventLoop, Step, ThreadBlock, What
from target_hw.memory import MemoryScope

MOST_WAYS = 16  # Ways from one barrier that are told apart, at most

_Ages = dict[int, int]
"""Copies that may be on their way: by buffer, groups committed since, at least."""


@dataclass
class _Flow:
    """The points of a kernel, and which may follow which. Sets of buffers are bits of integers."""

    index: dict[str, int]  # Of each buffer
    chosen: Collection[int]  # The places at which a barrier is taken to be
    events: list[Event] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)  # The buffers of each event
    following: list[list[int]] = field(default_factory=list)
    forks: set[int] = field(default_factory=set)  # Points behind which all threads go alike

    def add(self, event: Event, before: Iterable[int]) -> int:
        at = len(self.events)
        self.events.append(event)
        known = [self.index[name] for name in event.buffers if name in self.index]
        self.masks.append(_union(1 << index for index in known))
        self.following.append([])
        for other in dict.fromkeys(before):
            self.following[other].append(at)
        return at

    def add_all(self, steps: Sequence[Step], ends: list[int]) -> list[int]:
        """Add steps behind points, and return the points behind which what comes next stands."""
        for step in steps:
            if isinstance(step, Event):
                if step.what is not What.PLACE or step.number in self.chosen:
                    ends = [self.add(step, ends)]
            elif isinstance(step, EventLoop):
                # The first round has a point of its own: nothing waits there from a round before.
                first = self.add(_NOTHING, ends)
                last = self.add_all(step.body, [first])
                begins = list(self.following[first])
                again = self.add(_NOTHING, last)
                self.following[again] += begins
                self.forks.update((first, again) if step.is_uniform else ())
                ends = [first, again] if step.may_skip else [again]
            else:
                fork = self.add(_NOTHING, ends)
                self.forks.update((fork,) if step.is_uniform else ())
                ends = [end for arm in step.arms for end in self.add_all(arm, [fork])]
        return list(dict.fromkeys(ends))

    def ends_epoch(self, at: int) -> bool:
        event = self.events[at]
        return event.what is What.BARRIER or event.what is What.PLACE


_NOTHING = Event(What.BEGIN)  # At the beginning of the kernel, of a loop's rounds, of a branch


@dataclass(frozen=True)
class Epoch:
    """What may happen from one barrier to the next."""

    begin: Event | None  # The barrier that it begins with; None for the first
    events: tuple[Event, ...]  # In the order of the kernel's text
    following: tuple[int, ...]  # Which epochs may come next, sorted


def find_epochs(kernel: ThreadBlock) -> tuple[Epoch, ...]:
    """Return the epochs, in the order of the kernel's text: the positions of its problem."""
    flow = _flow_of(kernel, ())
    ways = [way for way, _ in _needed_ways(flow)]
    return tuple(
        Epoch(
            flow.events[way.start] if way.start else None,
            tuple(flow.events[at] for at in sorted(way.points - {way.start})),
            tuple(at for at, other in enumerate(ways) if other.start in way.ends),
        )
        for way in ways
    )


def shared_memory_problem(
    kernel: ThreadBlock, memory: MemoryScope, added: Collection[int] = ()
) -> Problem:
    """Return the problem of placing a kernel's buffers, in epochs.

    `added` are the numbers of places at which barriers are taken to be. What is never used is live
    in the first epoch, so that each buffer has a place.
    """
    flow = _flow_of(kernel, added)
    needed = [mask for _, mask in _needed_ways(flow)]
    buffers = []
    for buffer in kernel.buffers:
        bit = 1 << flow.index[buffer.name]
        live = [(at, at + 1) for at, mask in enumerate(needed) if mask & bit]
        ranges = [(0, len(needed))] if buffer.is_kept else live or [(0, 1)]
        buffers.append(
            Buffer(buffer.name, buffer.size, join_ranges(ranges), alignment=buffer.alignment)
        )
    return Problem(tuple(buffers), memory, name=kernel.name)


def _flow_of(kernel: ThreadBlock, added: Collection[int]) -> _Flow:
    index = {buffer.name: at for at, buffer in enumerate(kernel.buffers)}
    flow = _Flow(index, added)
    flow.add_all(kernel.steps, [flow.add(_NOTHING, ())])
    # Where threads come by again without a barrier, they may be in several rounds.
    several = (at for at in sorted(flow.forks) if len(flow.following[at]) > 1)
    flow.forks = {at for at in several if not _is_passed_again(flow, at)}
    return flow


def _is_passed_again(flow: _Flow, fork: int) -> bool:
    seen, rest = set[int](), [fork]
    while rest:
        for other in flow.following[rest.pop()]:
            if other not in seen and not flow.ends_epoch(other):
                seen.add(other)
                rest.append(other)
    return fork in seen


@dataclass(frozen=True)
class _Way:
    """What may happen from a barrier on, where all threads go alike one way."""

    start: int  # The barrier, or the kernel's beginning
    points: set[int]  # With the start
    ends: set[int]  # The barriers at which it ends
    chosen: dict[int, tuple[int, ...]]  # Behind each fork, what follows on this way


def _ways(flow: _Flow, start: int) -> Iterator[_Way]:
    """Yield the ways from a barrier; one for several where there are very many."""
    rest: list[dict[int, tuple[int, ...]]] = [{}]
    count = 0
    while rest:
        chosen = rest.pop()
        way, fork = _way(flow, start, chosen)
        if fork is None:
            count += 1
            yield way
            continue
        following = flow.following[fork]
        if count + len(rest) + len(following) > MOST_WAYS:
            rest.append({other: tuple(flow.following[other]) for other in flow.forks} | chosen)
        else:
            rest += [{**chosen, fork: (one,)} for one in reversed(following)]


def _way(flow: _Flow, start: int, chosen: dict[int, tuple[int, ...]]) -> tuple[_Way, int | None]:
    """Return what may happen from a point on, and the first fork behind which nothing is chosen."""
    points, ends, forks, rest = {start}, set[int](), set[int](), [start]
    while rest:
        at = rest.pop()
        if at in flow.forks and at not in chosen:
            forks.add(at)
            continue
        for other in chosen.get(at, flow.following[at]):
            if flow.ends_epoch(other):
                ends.add(other)
            elif other not in points:
                points.add(other)
                rest.append(other)
    return _Way(start, points, ends, chosen), min(forks, default=None)


def _needed_ways(flow: _Flow) -> list[tuple[_Way, int]]:
    """Return the epochs, each with the buffers that it needs, in the order of the kernel's text."""
    facts = _facts(flow)
    found: list[tuple[_Way, int]] = []
    for start in range(len(flow.events)):
        if start and not flow.ends_epoch(start):
            continue
        kept: list[tuple[_Way, int, set[int]]] = []
        for way in _ways(flow, start):
            mask = facts.needed_on(way, flow)
            touched = {at for at in way.points if flow.masks[at]}
            for other, more, also in kept:
                if not mask & ~more and touched <= also:  # It says nothing more.
                    other.ends.update(way.ends)
                    break
            else:
                kept.append((way, mask, touched))
        found += [(way, mask) for way, mask, _ in kept]
    return found


@dataclass(frozen=True)
class _Facts:
    """What is known of each point of a kernel: sets of buffers."""

    begun: list[int]  # Those that hold nothing any more
    writing: list[int]
    reading: list[int]
    written: list[int]  # Those into which something may have been written until behind the point
    wanted: list[int]  # Those that may be read at the point or later
    coming: list[int]  # Those to which copies may be on their way behind the point

    def needed_on(self, way: _Way, flow: _Flow) -> int:
        """Return what is used on a way, or waits or is on its way there."""
        following = {at: way.chosen.get(at, flow.following[at]) for at in way.points}
        inside = sorted(way.points - {way.start}, reverse=True)
        # At the epoch's end use global liveness; inside the epoch, liveness along this way only.
        wanted = list(self.wanted)
        for at in inside:
            wanted[at] = 0
        _fixpoint(wanted, inside, following, self._in_front)
        return _union(
            self.writing[at]
            | self.reading[at]
            | self.written[at] & _union(wanted[other] for other in following[at])
            | self.coming[at]
            for at in way.points
        )

    def _in_front(self, at: int, mask: int) -> int:
        """Return what is wanted in front of a point; behind it, that is what others want."""
        return mask & ~self.begun[at] | self.reading[at]


def _facts(flow: _Flow) -> _Facts:
    points = range(len(flow.events))
    preceding: dict[int, list[int]] = {at: [] for at in points}
    for at in points:
        for other in flow.following[at]:
            preceding[other].append(at)
    kinds = [event.what for event in flow.events]
    begun, writing, reading = (
        [mask if kind in chosen else 0 for kind, mask in zip(kinds, flow.masks, strict=True)]
        for chosen in ((What.BEGIN,), (What.WRITE, What.COPY), (What.READ,))
    )
    copies = (_union(1 << buffer for buffer in ages) for ages in _on_the_way(flow, preceding))
    facts = _Facts(begun, writing, reading, [0] * len(points), [0] * len(points), list(copies))
    _fixpoint(facts.written, points, preceding, lambda at, mask: mask & ~begun[at] | writing[at])
    _fixpoint(facts.wanted, points[::-1], dict(enumerate(flow.following)), facts._in_front)
    return facts


def _fixpoint(
    masks: list[int],
    points: Sequence[int],
    sources: Mapping[int, Sequence[int]],
    step: Callable[[int, int], int],
) -> None:
    """Make the sets at points the least that are each what `step` makes of its sources' union."""
    changed = True
    while changed:
        changed = False
        for at in points:
            new = step(at, _union(masks[other] for other in sources[at]))
            changed |= new != masks[at]
            masks[at] = new


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _on_the_way(flow: _Flow, preceding: Mapping[int, Sequence[int]]) -> list[_Ages]:
    """Return for each point the copies that may be on their way behind it.

    A thread's groups of copies are done in the order of their commits, so one is done once a wait
    leaves no more than were committed behind it.
    """
    ages: list[_Ages] = [{} for _ in flow.events]
    if all(event.what is not What.COPY for event in flow.events):
        return ages
    oldest = 2 + max(event.pending for event in flow.events)
    changed = True
    while changed:
        changed = False
        for at, event in enumerate(flow.events):
            new: _Ages = {}
            for other in preceding[at]:
                for buffer, age in ages[other].items():
                    new[buffer] = min(age, new.get(buffer, age))
            if event.what is What.COPY:
                new.update((flow.index[name], 0) for name in event.buffers if name in flow.index)
            elif event.what is What.COMMIT:
                new = {buffer: min(age + 1, oldest) for buffer, age in new.items()}
            elif event.what is What.WAIT:
                new = {buffer: age for buffer, age in new.items() if age <= event.pending}
            changed |= new != ages[at]
            ages[at] = new
    return ages
