# SPDX-License-Identifier: Apache-2.0
"""Is a plan right, of one memory or of several? Shares no code with any planner.

A plan is checked from its problem alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

from passes.planning.buffer import Buffer
from passes.planning.memories.memories_problem import (
    Copy,
    MemoriesPlan,
    MemoriesProblem,
    Stay,
    Traffic,
)
from passes.planning.plan import Plan, Status
from passes.planning.problem import Problem
from passes.planning.violations import Violation, violations

REPORT_LIMIT = 1000
"""Violations that `verify` lists by default: a plan can have one a pair of buffers."""


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
    """Raise `PlanError`, naming the buffers, unless `plan` is right; ValueError as `verify`."""
    if wrong := verify(problem, plan):
        raise PlanError(problem.name, plan.planner, wrong)


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
