# SPDX-License-Identifier: Apache-2.0
"""In-place pairs merged into one buffer, as a register allocator coalesces moves.

A merged problem has no in-place pairs but those whose offsets are both pinned. Its plans are plans
of the original problem, but not every plan of the original is one of its: the others keep the two
buffers of a pair apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from passes.planning.engine.in_place import SharingRules, all_rotate_alike
from passes.planning.live_ranges import join_ranges
from passes.planning.plan import Plan
from passes.planning.problem import Buffer, Penalty, PipelineUse, Problem


@dataclass(frozen=True)
class Coalesced:
    """A problem whose in-place pairs are decided."""

    problem: Problem  # Without in-place pairs; a merged buffer has the name of its first member
    leader: dict[str, str]  # For each buffer of the original problem, the buffer that stands for it

    def restore(self, plan: Plan, original: Problem) -> dict[str, tuple[int, ...]]:
        """Return the offsets of every buffer of `original` under a plan of `problem`."""
        return {buffer.name: plan.offsets[self.leader[buffer.name]] for buffer in original.buffers}


def apart(problem: Problem) -> Coalesced:
    """Return `problem` with every in-place pair kept apart."""
    leader = {buffer.name: buffer.name for buffer in problem.buffers}
    return Coalesced(replace(problem, in_place=pinned_pairs(problem)), leader)


def coalesce(problem: Problem) -> Coalesced:
    """Return `problem` with in-place pairs merged, those that save most bytes first.

    Two groups are merged when each two of their members that are live together are an in-place
    pair, and none are separated, penalized or pinned. All members get the offsets of the one with
    the most slots: so those with fewer must be able to have more. Two groups that would take as
    many bytes together as on their own stay as they are.
    """
    groups = {buffer.name: [buffer] for buffer in problem.buffers}
    leader = {buffer.name: buffer.name for buffer in problem.buffers}
    rules = SharingRules(problem, at_a_cost=False)
    by_saving = sorted(problem.in_place, key=lambda pair: -_saving(problem, pair))
    for source, destination in by_saving:
        one, two = leader[source], leader[destination]
        if (
            one != two
            and rules.may_join(groups[one], groups[two])
            and _bytes([*groups[one], *groups[two]]) < _bytes(groups[one]) + _bytes(groups[two])
        ):
            groups[one] += groups.pop(two)
            for member in groups[one]:
                leader[member.name] = one
    merged = tuple(_merge(name, members) for name, members in groups.items())
    return Coalesced(_rename(problem, merged, leader), leader)


def pinned_pairs(problem: Problem) -> tuple[tuple[str, str], ...]:
    """Return the in-place pairs that are decided already, right or wrong."""
    return tuple(
        pair
        for pair in problem.in_place
        if all(problem.buffers[problem.index[name]].pinned is not None for name in pair)
    )


def _bytes(members: Sequence[Buffer]) -> int:
    """Return the bytes of all slots of a group."""
    return max(member.size for member in members) * max(member.slots for member in members)


def _saving(problem: Problem, pair: tuple[str, str]) -> int:
    return min(problem.buffers[problem.index[name]].size for name in pair)


def _merge(name: str, members: Sequence[Buffer]) -> Buffer:
    """Return one buffer that is live whenever one of `members` is."""
    if len(members) == 1:
        return members[0]
    return Buffer(
        name,
        max(member.size for member in members),
        join_ranges(piece for member in members for piece in member.live),
        math.lcm(*(member.alignment for member in members)),
        max(member.slots for member in members),
        use=_loop_of(members),
    )


def _loop_of(members: Sequence[Buffer]) -> PipelineUse | None:
    """Return a use that lets the merged buffer have more offsets if all members may."""
    if all(member.may_widen for member in members) and all_rotate_alike(members):
        return PipelineUse(loop=members[0].use.loop if members[0].use else None)
    return None


def _rename(problem: Problem, merged: tuple[Buffer, ...], leader: dict[str, str]) -> Problem:
    """Return the problem of the merged buffers, with separations and penalties between them."""
    separations = sorted({_ordered(leader[a], leader[b]) for a, b in problem.separations})
    costs: dict[tuple[str, str], tuple[int, int]] = {}
    for penalty in problem.penalties:
        pair = _ordered(leader[penalty.first], leader[penalty.second])
        cost, in_step = costs.get(pair, (0, 0))
        costs[pair] = cost + penalty.cost, in_step + penalty.cost_in_step
    return replace(
        problem,
        buffers=merged,
        in_place=pinned_pairs(problem),
        separations=tuple(separations),
        penalties=tuple(Penalty(*pair, *charge) for pair, charge in sorted(costs.items())),
    )


def _ordered(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first <= second else (second, first)
