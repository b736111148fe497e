"""In-place pairs merged into one buffer, as a register allocator coalesces moves.

A merged problem has no in-place pairs but those whose offsets are both pinned. Its plans are plans
of the original problem, but not every plan of the original is one of its: the others keep the two
buffers of a pair apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from passes.planning.plan import Plan
from passes.planning.problem import Buffer, LiveRange, Penalty, PipelineUse, Problem, rotate_alike


@dataclass(frozen=True)
class Coalesced:
    """A problem whose in-place pairs are decided.

    Parameters
    ----------
    problem : Problem
        Without in-place pairs; a merged buffer has the name of its first member.
    leader : dict of str to str
        For each buffer of the original problem, the buffer that stands for it.
    """

    problem: Problem
    leader: dict[str, str]

    def restore(self, plan: Plan, original: Problem) -> dict[str, tuple[int, ...]]:
        """Return the offsets of every buffer of `original` under a plan of `problem`."""
        return {buffer.name: plan.offsets[self.leader[buffer.name]] for buffer in original.buffers}


def apart(problem: Problem) -> Coalesced:
    """Return `problem` with every in-place pair kept apart."""
    leader = {buffer.name: buffer.name for buffer in problem.buffers}
    return Coalesced(replace(problem, in_place=_pinned_pairs(problem)), leader)


def coalesce(problem: Problem) -> Coalesced:
    """Return `problem` with in-place pairs merged, those that save most bytes first.

    Two groups are merged when each two of their members that are live together are an in-place
    pair, and none are separated, penalized or pinned. All members get the offsets of the one with
    the most slots: so those with fewer must be able to have more.
    """
    groups = {buffer.name: [buffer] for buffer in problem.buffers}
    leader = {buffer.name: buffer.name for buffer in problem.buffers}
    mergeable = _Mergeable(problem)
    by_saving = sorted(problem.in_place, key=lambda pair: -_saving(problem, pair))
    for source, destination in by_saving:
        one, two = leader[source], leader[destination]
        if one != two and mergeable.groups(groups[one], groups[two]):
            groups[one] += groups.pop(two)
            for member in groups[one]:
                leader[member.name] = one
    merged = tuple(_merge(name, members) for name, members in groups.items())
    return Coalesced(_rename(problem, merged, leader), leader)


def _pinned_pairs(problem: Problem) -> tuple[tuple[str, str], ...]:
    """Return the in-place pairs that are decided already, right or wrong."""
    return tuple(
        pair
        for pair in problem.in_place
        if all(problem.buffers[problem.index[name]].pinned is not None for name in pair)
    )


def _saving(problem: Problem, pair: tuple[str, str]) -> int:
    return min(problem.buffers[problem.index[name]].size for name in pair)


class _Mergeable:
    """Whether two buffers may have the same offset."""

    def __init__(self, problem: Problem) -> None:
        self._in_place = {frozenset(pair) for pair in problem.in_place}
        self._kept_apart = {frozenset(pair) for pair in problem.kept_apart}
        self._kept_apart |= {frozenset((p.first, p.second)) for p in problem.penalties}

    def __call__(self, first: Buffer, second: Buffer) -> bool:
        pair = frozenset((first.name, second.name))
        if pair in self._kept_apart:
            return False
        if first.slots != second.slots and not min(first, second, key=_slots).may_widen:
            return False
        if first.pinned is not None or second.pinned is not None:
            return False
        return pair in self._in_place or not _live_together(first.live, second.live)

    def groups(self, one: Sequence[Buffer], two: Sequence[Buffer]) -> bool:
        """Whether two groups may have the same offsets."""
        members = [*one, *two]
        if max(member.slots for member in members) > 1 and not _all_rotate_alike(members):
            return False
        return all(self(a, b) for a in one for b in two)


def _all_rotate_alike(members: Sequence[Buffer]) -> bool:
    return all(rotate_alike(a, b) for a, b in combinations(members, 2))


def _slots(buffer: Buffer) -> int:
    return buffer.slots


def _live_together(first: Sequence[LiveRange], second: Sequence[LiveRange]) -> bool:
    return any(max(a, c) < min(b, d) for a, b in first for c, d in second)


def _merge(name: str, members: Sequence[Buffer]) -> Buffer:
    """Return one buffer that is live whenever one of `members` is."""
    if len(members) == 1:
        return members[0]
    live: list[LiveRange] = []
    for begin, end in sorted(piece for member in members for piece in member.live):
        if live and begin <= live[-1][1]:
            live[-1] = (live[-1][0], max(end, live[-1][1]))
        else:
            live.append((begin, end))
    return Buffer(
        name,
        max(member.size for member in members),
        tuple(live),
        math.lcm(*(member.alignment for member in members)),
        max(member.slots for member in members),
        use=_loop_of(members),
    )


def _loop_of(members: Sequence[Buffer]) -> PipelineUse | None:
    """Return a use that lets the merged buffer have more offsets if all members may."""
    if all(member.may_widen for member in members) and _all_rotate_alike(members):
        return PipelineUse(loop=members[0].use.loop if members[0].use else None)
    return None


def _rename(problem: Problem, merged: tuple[Buffer, ...], leader: dict[str, str]) -> Problem:
    """Return the problem of the merged buffers, with separations and penalties between them."""
    separations = sorted({_ordered(leader[a], leader[b]) for a, b in problem.kept_apart})
    costs: dict[tuple[str, str], tuple[int, int]] = {}
    for penalty in problem.penalties:
        pair = _ordered(leader[penalty.first], leader[penalty.second])
        cost, in_step = costs.get(pair, (0, 0))
        costs[pair] = cost + penalty.cost, in_step + penalty.cost_in_step
    return replace(
        problem,
        buffers=merged,
        in_place=_pinned_pairs(problem),
        separations=tuple(separations),
        penalties=tuple(Penalty(*pair, *charge) for pair, charge in sorted(costs.items())),
    )


def _ordered(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)
