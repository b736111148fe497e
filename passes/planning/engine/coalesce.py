# SPDX-License-Identifier: Apache-2.0
"""In-place pairs merged into one buffer, as a register allocator coalesces moves.

A merged problem has no in-place pairs but those whose offsets are both pinned. Its plans are plans
of the original problem, but not every plan of the original is one of its: the others keep the two
buffers of a pair apart. Likewise, what costs something when it is shared can be kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from passes.planning.buffer import Buffer, Penalty, PipelineUse, join_ranges, live_together
from passes.planning.engine.blocks import BlockList
from passes.planning.plan import Plan, Status
from passes.planning.planner import BudgetTracker
from passes.planning.problem import InPlacePair, Problem, widest_alignment


def coalesce(problem: Problem) -> tuple[Problem, dict[str, str]]:
    """Return `problem` with in-place pairs merged, those that save most bytes first.

    Also returned is for each buffer the one that stands for it: the first of the members that were
    merged. All members get the offsets of the one with the most slots. Two groups stay as they are
    if they would take as many bytes together as on their own, or if two of their members cost
    something when they share.
    """
    sharing = problem.sharing

    def pays(one: Sequence[Buffer], two: Sequence[Buffer]) -> bool:
        return _bytes([*one, *two]) < _bytes(one) + _bytes(two) and not any(
            sharing.have_a_cost(a, b) for a in one for b in two
        )

    pairs = sorted(sharing.pairs, key=lambda p: -min(p.source.size, p.destination.size))
    groups = merged_groups(problem, problem.buffers, pairs, pays)
    leader = {member.name: name for name, members in groups.items() for member in members}
    merged = tuple(_merge(name, members) for name, members in groups.items())
    return _rename(problem, merged, leader), leader


def merged_groups(
    problem: Problem,
    buffers: Iterable[Buffer],
    pairs: Collection[InPlacePair],
    pays: Callable[[Sequence[Buffer], Sequence[Buffer]], bool] = lambda one, two: True,
) -> dict[str, list[Buffer]]:
    """Return groups of buffers that have the same offsets, by the first source of each.

    Pairs without a cost are merged one after the other: the destination's group goes before the
    members of the source's, which keeps its place. Two groups stay as they are where `pays` says
    no, or where two members may not have the same offsets: those that are live together, only if
    they are one of `pairs`.
    """
    groups = {buffer.name: [buffer] for buffer in buffers}
    leader = {name: name for name in groups}
    widest = widest_alignment(problem)
    pairs = [pair for pair in pairs if not pair.cost]
    free = {frozenset(pair.names) for pair in pairs}

    def may_join(one: Sequence[Buffer], two: Sequence[Buffer]) -> bool:
        members = [*one, *two]
        return (
            math.lcm(*(member.alignment for member in members)) <= widest
            and (max(member.slots for member in members) == 1 or _rotate_alike(members))
            and all(may_merge(a, b) for a in one for b in two)
        )

    def may_merge(one: Buffer, two: Buffer) -> bool:
        if problem.sharing.are_separated(one, two) or (one.pinned, two.pinned) != (None, None):
            return False
        if live_together(one.live, two.live):
            return frozenset((one.name, two.name)) in free
        return one.slots == two.slots or min(one, two, key=lambda b: b.slots).may_widen

    for pair in pairs:
        source, destination = leader[pair.source.name], leader[pair.destination.name]
        one, two = groups[source], groups[destination]
        # No buffer is in a pair with itself, so what is one group already is not joined.
        if may_join(one, two) and pays(one, two):
            groups[source] = groups.pop(destination) + one
            leader.update((member.name, source) for member in two)
    return groups


def _rotate_alike(members: Sequence[Buffer]) -> bool:
    return all(a.rotates_with(b) for a, b in combinations(members, 2))


def _pinned_pairs(problem: Problem) -> tuple[tuple[str, str], ...]:
    """Return the in-place pairs that are decided already, right or wrong."""
    return tuple(
        pair
        for pair in problem.in_place
        if all(problem.buffers[problem.index[name]].pinned is not None for name in pair)
    )


def _bytes(members: Sequence[Buffer]) -> int:
    """Return the bytes of all slots of a group."""
    return max(member.size for member in members) * max(member.slots for member in members)


def _merge(name: str, members: Sequence[Buffer]) -> Buffer:
    """Return one buffer that is live whenever one of `members` is."""
    if len(members) == 1:
        return members[0]
    rotates = all(member.may_widen for member in members) and _rotate_alike(members)
    loop = members[0].use.loop if members[0].use else None
    return Buffer(
        name,
        max(member.size for member in members),
        join_ranges(piece for member in members for piece in member.live),
        math.lcm(*(member.alignment for member in members)),
        max(member.slots for member in members),
        use=PipelineUse(loop=loop) if rotates else None,
    )


def _rename(problem: Problem, merged: tuple[Buffer, ...], leader: dict[str, str]) -> Problem:
    """Return the problem of the merged buffers, with separations and penalties between them."""

    def led(first: str, second: str) -> tuple[str, str]:
        low, high = sorted((leader[first], leader[second]))
        return low, high

    costs: dict[tuple[str, str], tuple[int, int]] = {}
    for penalty in problem.penalties:
        pair = led(penalty.first, penalty.second)
        cost, matched = costs.get(pair, (0, 0))
        costs[pair] = cost + penalty.cost, matched + penalty.cost_if_slots_match
    return replace(
        problem,
        buffers=merged,
        in_place=_pinned_pairs(problem),
        separations=tuple(sorted({led(*pair) for pair in problem.separations})),
        penalties=tuple(Penalty(*pair, *charge) for pair, charge in sorted(costs.items())),
    )


def cost_free(problem: Problem) -> Problem:
    """Return the problem, which has no pairs in place, with all separated that has a cost."""
    separations = (*problem.separations, *avoidable(problem))
    return replace(problem, separations=separations, penalties=())


def avoidable(problem: Problem) -> list[tuple[str, str]]:
    """Return the penalized pairs that may be kept apart, and are not yet.

    Sharing among pinned buffers cannot be changed, so it is left out.
    """
    buffers, index, sharing = problem.buffers, problem.index, problem.sharing
    pairs = [(buffers[index[p.first]], buffers[index[p.second]]) for p in problem.penalties]
    return [
        (one.name, two.name)
        for one, two in pairs
        if None in (one.pinned, two.pinned) and not sharing.are_separated(one, two)
    ]


def rank(problem: Problem, plan: Plan) -> tuple[int, int, int]:
    """Return what to minimise: a plan that fits, its penalty, its peak.

    Among plans that do not fit, the lower peak comes first: it is nearer to fitting.
    """
    if problem.capacity is not None and plan.peak > problem.capacity:
        return (1, plan.peak, plan.penalty)
    return (0, plan.penalty, plan.peak)


def better(problem: Problem, plans: Iterable[Plan], tracker: BudgetTracker | None = None) -> Plan:
    """Return the best of `plans`, the first among equals.

    Looks no further once a plan is proven optimal, or the tracker is late.
    """
    best: Plan | None = None
    for plan in plans:
        if best is None or rank(problem, plan) < rank(problem, best):
            best = plan
        if best.status is Status.OPTIMAL or (tracker is not None and tracker.expired):
            break
    assert best is not None, "there is always a first plan"
    return best


def on_each_coalescing(whole: BlockList, run: Callable[[BlockList], Plan]) -> Plan:
    """Plan with the in-place pairs merged, then, if that is not proven best, kept apart."""
    problem = whole.problem
    if not problem.in_place:
        return run(whole)
    apart = replace(problem, in_place=_pinned_pairs(problem))
    own = {buffer.name: buffer.name for buffer in problem.buffers}

    def planned(reduced: Problem, leader: Mapping[str, str]) -> Plan:
        found = run(BlockList(reduced))
        offsets = {b.name: found.offsets[leader[b.name]] for b in problem.buffers}
        return whole.plan_of(offsets, found.planner, found.nodes)

    return better(problem, (planned(*each) for each in (coalesce(problem), (apart, own))))
