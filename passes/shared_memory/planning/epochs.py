# SPDX-License-Identifier: Apache-2.0
"""Epochs of a kernel, and the problem whose positions they are.

An *epoch* is what may happen from one barrier to the next: all that a thread can reach from a
barrier, or from the kernel's beginning, without passing another. Nothing orders what two threads do
in one epoch, so two buffers may share bytes only if no epoch needs both. An epoch needs a buffer

- that is read or written in it,
- in which a value waits at some point of it: something was written before, and may be read later,
- into which a copy is still on its way.

A loop needs no rule of its own: what is reached behind a loop's last barrier goes on to its first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from passes.planning import Buffer, Problem
from passes.planning.live_ranges import join_ranges
from passes.shared_memory.planning.kernel import Event, Kernel, Loop, Step, What
from target_hw.memory import MemoryScope

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

    def add(self, event: Event, before: Iterable[int]) -> int:
        at = len(self.events)
        self.events.append(event)
        known = [self.index[name] for name in event.buffers if name in self.index]
        self.masks.append(_union(1 << index for index in known))
        self.following.append([])
        for other in before:
            self.following[other].append(at)
        return at

    def add_all(self, steps: Sequence[Step], ends: list[int]) -> list[int]:
        """Add steps behind points, and return the points behind which what comes next stands."""
        for step in steps:
            if isinstance(step, Event):
                if step.what is not What.PLACE or step.number in self.chosen:
                    ends = [self.add(step, ends)]
            elif isinstance(step, Loop):
                # The first round has a point of its own: nothing waits there from a round before.
                first = self.add(_NOTHING, ends)
                last = self.add_all(step.body, [first])
                begins = list(self.following[first])
                again = self.add(_NOTHING, last)
                self.following[again] += begins
                ends = [first, again] if step.may_skip else [again]
            else:
                ends = [end for arm in step.arms for end in self.add_all(arm, ends)]
        return list(dict.fromkeys(ends))

    def ends_epoch(self, at: int) -> bool:
        event = self.events[at]
        return event.what is What.BARRIER or event.what is What.PLACE


_NOTHING = Event(What.BEGIN)  # At the beginning of the kernel, and of a loop's rounds


@dataclass(frozen=True)
class Epoch:
    """What may happen from one barrier to the next."""

    begin: Event | None  # The barrier that it begins with; None for the first
    events: tuple[Event, ...]  # In the order of the kernel's text
    following: tuple[int, ...]  # Which epochs may come next, sorted


def find_epochs(kernel: Kernel) -> tuple[Epoch, ...]:
    """Return the epochs, in the order of the kernel's text: the positions of its problem."""
    flow = _flow_of(kernel, ())
    stretches = list(_stretches(flow))
    numbers = {start: number for number, (start, _, _) in enumerate(stretches)}
    return tuple(
        Epoch(
            flow.events[start] if start else None,
            tuple(flow.events[at] for at in sorted(points - {start})),
            tuple(sorted(numbers[at] for at in ends)),
        )
        for start, points, ends in stretches
    )


def shared_memory_problem(
    kernel: Kernel, memory: MemoryScope, added: Collection[int] = ()
) -> Problem:
    """Return the problem of placing a kernel's buffers, in epochs.

    `added` are the numbers of places at which barriers are taken to be. What is never used is live
    in the first epoch, so that each buffer has a place.
    """
    flow = _flow_of(kernel, added)
    here = _needed_at(flow)
    needed = [_union(here[at] for at in points) for _, points, _ in _stretches(flow)]
    buffers = []
    for buffer in kernel.buffers:
        bit = 1 << flow.index[buffer.name]
        live = [(at, at + 1) for at, mask in enumerate(needed) if mask & bit]
        ranges = [(0, len(needed))] if buffer.is_kept else live or [(0, 1)]
        buffers.append(
            Buffer(buffer.name, buffer.size, join_ranges(ranges), alignment=buffer.alignment)
        )
    return Problem(tuple(buffers), memory, name=kernel.name)


def _flow_of(kernel: Kernel, added: Collection[int]) -> _Flow:
    index = {buffer.name: at for at, buffer in enumerate(kernel.buffers)}
    flow = _Flow(index, added)
    flow.add_all(kernel.steps, [flow.add(_NOTHING, ())])
    return flow


def _stretches(flow: _Flow) -> Iterator[tuple[int, set[int], set[int]]]:
    """Yield for each epoch where it begins, all of its points, and the barriers that end it."""
    for start in range(len(flow.events)):
        if start and not flow.ends_epoch(start):
            continue
        points, rest, ends = {start}, [start], set()
        while rest:
            for at in flow.following[rest.pop()]:
                if flow.ends_epoch(at):
                    ends.add(at)
                elif at not in points:
                    points.add(at)
                    rest.append(at)
        yield start, points, ends


def _needed_at(flow: _Flow) -> list[int]:
    """Return for each point what is used there, or waits or is on its way behind it."""
    points = range(len(flow.events))
    preceding: list[list[int]] = [[] for _ in points]
    for at in points:
        for other in flow.following[at]:
            preceding[other].append(at)
    kinds = [event.what for event in flow.events]
    begun, writing, reading = (
        [mask if kind in chosen else 0 for kind, mask in zip(kinds, flow.masks, strict=True)]
        for chosen in ((What.BEGIN,), (What.WRITE, What.COPY), (What.READ,))
    )
    written = _fixpoint(points, preceding, lambda at, mask: mask & ~begun[at] | writing[at])
    # What is wanted in front of a point; behind it, that is what those that follow want.
    wanted = _fixpoint(
        points[::-1], flow.following, lambda at, mask: mask & ~begun[at] | reading[at]
    )
    copies = _on_the_way(flow, preceding)
    return [
        writing[at]
        | reading[at]
        | written[at] & _union(wanted[other] for other in flow.following[at])
        | _union(1 << buffer for buffer in copies[at])
        for at in points
    ]


def _fixpoint(
    points: Sequence[int], sources: Sequence[Sequence[int]], step: Callable[[int, int], int]
) -> list[int]:
    """Return the least sets of buffers of which each is what `step` makes of its sources' union."""
    masks = [0] * len(points)
    changed = True
    while changed:
        changed = False
        for at in points:
            new = step(at, _union(masks[other] for other in sources[at]))
            changed |= new != masks[at]
            masks[at] = new
    return masks


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _on_the_way(flow: _Flow, preceding: Sequence[Sequence[int]]) -> list[_Ages]:
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
