# SPDX-License-Identifier: Apache-2.0
"""Reuse levels: the sharing that makes pipelines wait, its cost, and the cost of a plan.

The levels are those of AscendNPU-IR's PlanMemory, by its public document: at level 2 no bytes are
shared across pipelines, at level 1 a buffer may take all slots of a multi-buffered one, at level 0
any two may share that are not live together. Here a level is a set of penalties, so that every
planner can weigh them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product

from passes.planning import (
    Buffer,
    Penalty,
    PipelineUse,
    Problem,
    Reuse,
    live_together,
    slots_that_meet,
)

DEPENDENCE = 1  # Cost of one wait of a pipeline for another, because of bytes that both use
STALL = 2  # Cost on top of it of one iteration in which a multi-buffered buffer waits for a slot


def pipes_conflict(one: PipelineUse | None, two: PipelineUse | None) -> bool:
    """Return whether sharing bytes makes one pipeline wait for another; not where a use is unknown.

    The original's rule: buffers that the scalar unit uses go together, and so do those that only
    vector and cube units use; one that a transfer uses goes with no other. Pipes are not compared.
    """
    if one is None or two is None:
        return False
    if one.scalar or two.scalar:
        return one.scalar != two.scalar
    return one.dma or two.dma


def with_level_penalties(problem: Problem) -> Problem:
    """Return `problem` with a penalty for each pair that two pipelines would wait at.

    Sharing costs `DEPENDENCE` for each time that it makes a pipeline wait: in one loop, as often
    as the statements of both buffers run; across loops, once. In one loop it costs `STALL` as often
    on top where one of the two is multi-buffered, unless they share in step: then the wait is for
    an iteration long past. Buffers whose use is not known cost nothing, nor do those that go
    in place with one another, directly or over others. A pair that has a penalty keeps it; so an
    in-place pair that would stall is no reason for the pairs around it to be free.
    """
    decided = {frozenset((p.first, p.second)) for p in problem.penalties}
    decided.update(frozenset(pair) for pair in problem.separations)
    groups = _in_place_groups(problem)
    used = [(buffer, buffer.use) for buffer in problem.buffers if buffer.use]
    added = [
        _penalty(first, second, use, other)
        for (first, use), (second, other) in combinations(used, 2)
        if pipes_conflict(use, other)
        and groups[first.name] != groups[second.name]
        and frozenset((first.name, second.name)) not in decided
        and not live_together(first.live, second.live)
    ]
    return replace(problem, penalties=(*problem.penalties, *added))


def _penalty(first: Buffer, second: Buffer, use: PipelineUse, other: PipelineUse) -> Penalty:
    names = first.name, second.name
    if use.loop != other.loop:
        return Penalty(*names, DEPENDENCE)
    runs = min(use.runs, other.runs)
    if max(first.slots, second.slots) == 1:
        return Penalty(*names, DEPENDENCE * runs)
    return Penalty(*names, (DEPENDENCE + STALL) * runs, DEPENDENCE * runs)


def _in_place_groups(problem: Problem) -> dict[str, int]:
    """Return for each buffer a number that those in place with it have, too."""
    group = {buffer.name: i for i, buffer in enumerate(problem.buffers)}
    for pair in problem.sharing.pairs:
        if not pair.cost:
            new, old = (group[name] for name in pair.names)
            group = {name: new if number == old else number for name, number in group.items()}
    return group


def reuse_of(
    problem: Problem, offsets: Mapping[str, tuple[int, ...]], without: str = ""
) -> dict[str, Reuse]:
    """Return the level of each buffer under a plan: that of the worst sharing that it began.

    Of two buffers that share, it is the one that becomes live later. Buffers of different loops may
    share across pipelines at level 2. Reasons also say what is known of plans `without` that.
    """
    groups = _in_place_groups(problem)
    penalized = {frozenset((p.first, p.second)) for p in problem.penalties}
    known = f"; {without}" if without else ""
    worst = {buffer.name: Reuse(2) for buffer in problem.buffers}
    for first, second in _sharing(problem, offsets):
        if groups[first.name] == groups[second.name]:
            continue
        paid = frozenset((first.name, second.name)) in penalized
        level, why = _level(first, second, offsets, paid)
        before = worst[second.name]
        if why and (level < before.level or not before.reason):
            reason = f"takes bytes of {first.name!r}, {why}{known if level < 2 else ''}"
            worst[second.name] = Reuse(level, reason)
    return worst


def _level(
    first: Buffer, second: Buffer, offsets: Mapping[str, tuple[int, ...]], paid: bool
) -> tuple[int, str]:
    """Return the level at which `second` takes bytes of `first`, and why; no reason if none."""
    if live_together(first.live, second.live):
        return 0, "in place although both are multi-buffered"
    if not pipes_conflict(first.use, second.use):
        return (0, "at a cost") if paid else (2, "")
    if not first.rotates_with(second):
        return 2, "which another loop uses"
    if _in_step(first, second, offsets):
        return 1, "slot by slot, in the same loop on another pipeline"
    return 0, "in the same loop on another pipeline"


def _in_step(one: Buffer, two: Buffer, offsets: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether two buffers rotate through several offsets and meet in equal slots only."""
    count = len(offsets[one.name])
    slots = product(enumerate(offsets[one.name]), enumerate(offsets[two.name]))
    crossed = any(
        a != b and max(low, high) < min(low + one.size, high + two.size)
        for (a, low), (b, high) in slots
    )
    return 1 < count == len(offsets[two.name]) and not crossed


def _sharing(
    problem: Problem, offsets: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield pairs of buffers that share a byte, each with the one first that becomes live first."""
    met = slots_that_meet(problem, offsets)
    pairs = {(min(i, j), max(i, j)) for (_, i, _), (_, j, _) in met}
    for pair in sorted(pairs):
        one, two = (problem.buffers[i] for i in pair)
        yield (one, two) if one.live[0][0] <= two.live[0][0] else (two, one)
