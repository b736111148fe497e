# SPDX-License-Identifier: Apache-2.0
"""Is a plan of several memories right? Shares no code with what plans them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from passes.planning.buffer import Buffer
from passes.planning.memories.memories_plan import Copy, MemoriesPlan, Stay
from passes.planning.memories.traffic import MemoriesProblem, Traffic
from passes.planning.plan import Plan, Status
from passes.planning.problem import Problem
from passes.planning.verify import Violation, violations


def memories_violations(problem: MemoriesProblem, plan: MemoriesPlan) -> Iterator[Violation]:
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
    yield from _misstated(plan, moved, known)


def _still(problem: MemoriesProblem, buffer: Buffer, at: int) -> int:
    """Return the bytes that a buffer moves where it lies in one memory all its life."""
    traffic = problem.traffic_of(buffer)
    by_default = (traffic.uses or 0) * buffer.slots * buffer.size if at else 0
    return traffic.costs.get(problem.memories[at].name, by_default)


def _of_one_memory(problem: MemoriesProblem, plan: MemoriesPlan, name: str) -> Iterator[Violation]:
    """Yield what is wrong within one memory: overlaps, ends, alignments, the peak."""
    buffers: list[Buffer] = []
    offsets: dict[str, tuple[int, ...]] = {}
    owner: dict[str, str] = {}

    def add(buffer: Buffer, at: tuple[int, ...]) -> None:
        owner[buffer.name] = label
        buffers.append(buffer)
        offsets[buffer.name] = at

    for number, buffer in enumerate(problem.buffers):
        label = buffer.name
        if plan.memory[buffer.name] == name:
            renamed = (str(number), buffer.size, buffer.live, buffer.alignment, buffer.slots)
            add(Buffer(*renamed, buffer.pinned), plan.offsets.get(buffer.name, ()))
        for turn, stay in enumerate(plan.stays.get(buffer.name, ())):
            if stay.memory == name:
                piece = (f"{number}/{turn}", buffer.size, (stay.live,), buffer.alignment)
                add(Buffer(*piece), stay.offsets)
    scope = problem.memories[problem.memory_index[name]]
    one = Problem(tuple(buffers), scope, name=f"{problem.name}, {name}")
    found = Plan(offsets, plan.peaks.get(name, 0), 0, plan.planner, Status.FEASIBLE)
    for wrong in violations(one, found):
        message = wrong.message
        for renamed_as in wrong.buffers:
            message = message.replace(repr(renamed_as), repr(owner[renamed_as]))
        concerned = tuple(owner[renamed_as] for renamed_as in wrong.buffers)
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


def _misstated(plan: MemoriesPlan, moved: dict[str, int], known: list[str]) -> Iterator[Violation]:
    if dict(plan.moved) != moved:
        yield Violation("moved", (), f"it moves {moved}, and says {dict(plan.moved)}")
    value = tuple(moved[name] for name in reversed(known))
    if plan.bound > value:
        yield Violation("bound", (), f"it moves {value}, below its bound {plan.bound}")
    if plan.status is Status.OPTIMAL and plan.bound != value:
        yield Violation("bound", (), f"it moves {value}, above its bound {plan.bound}")
