# SPDX-License-Identifier: Apache-2.0
"""Which slots of one memory's buffers are best given up: a search over sets of them.

A kernel takes at least what it takes with nothing shared, and that grows with each slot that is
given up. So sets are looked at in the order of this bound, as A* does (Hart, Nilsson and Raphael,
1968), and none behind the best plan that is known. The largest buffers are given up first of all,
one after the other until a plan fits, so that no result is worse than that one.

Of one set, the plan of the least penalty is priced. In the best sets, pairs of buffers are kept
apart that the cost model says wait for one another, the longest wait first, and the problem is
planned again: penalties guide the planners, cycles decide.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from passes.planning import Budget, BudgetTracker, Plan, Problem, may_fit, solve, verify
from passes.planning.engine import BlockList

MOST_PLANNED = 64
"""Sets that are planned in one memory: all of them where six buffers have two slots each."""

MOST_LOOKED_AT = 1024  # Sets that are looked at: most may be proven not to fit, without a plan
IMPROVED = 3  # Sets, those of the fewest cycles, in which pairs are kept apart
FIRST_PART = 4  # The part of what is left that the plan of the least penalty may take
SET_NODES, APART_NODES = 2_000, 1_000  # For the plan of one set, and with some pairs kept apart
MOST_APART = 16  # Plans with pairs kept apart that are asked for in one set
WAITS = 3  # Pairs that wait longest in a plan, each of which is kept apart in a next one
Counts = tuple[int, ...]  # Slots that buffers have, in `MemoryRequest.order`
Pairs = frozenset[frozenset[str]]

_rank = attrgetter("rank")


Placed = tuple[Problem, Plan]
Slots = tuple[tuple[str, int], ...]
"""Buffers that have fewer slots than they ask for, and how many, in `MemoryRequest.order`."""
Planner = Callable[[Problem, Budget], Plan]
"""From a problem to a complete plan, also when that does not fit."""


@dataclass(frozen=True)
class Cost:
    """What plans for the memories of a kernel cost."""

    cycles: int  # What the kernel takes
    # Pairs of buffers of which one waits for bytes that the other still uses, the longest wait
    # first.
    waits: tuple[tuple[str, str], ...] = ()


CostModel = Callable[[Sequence[Placed]], Cost]
"""From plans for some memories of a kernel to their cost, as if the other memories had no end.

To share fewer bytes never costs more.
"""


@dataclass(frozen=True)
class MemoryRequest:
    """One memory as a kernel requests it."""

    problem: Problem  # With all slots
    # From slots by name to the problem in which these buffers have so many; what may be in place
    # can depend on slots.
    with_slots: Callable[[Mapping[str, int]], Problem]

    @property
    def order(self) -> tuple[str, ...]:
        """The buffers that can lose slots, those first that free the most bytes."""
        several = [b for b in self.problem.buffers if b.slots > 1 and b.pinned is None]
        several.sort(key=lambda b: (-b.size * (b.slots - 1), b.name))
        return tuple(buffer.name for buffer in several)

    def single(self) -> Problem:
        """Return the problem in which each buffer that can has one slot."""
        return self.with_slots(dict.fromkeys(self.order, 1))


@dataclass(frozen=True)
class SlotChoice:
    """Slots for the buffers of one memory, with a plan that fits."""

    slots: Slots  # Buffers that have fewer slots than they ask for, and how many
    lost: int  # Slots that they lost in all
    problem: Problem  # With these slots
    plan: Plan  # Verified, and within the capacity
    cost: Cost  # Of this plan beside those that are chosen for the other memories

    @property
    def given_up(self) -> tuple[str, ...]:
        """The buffers that lost slots."""
        return tuple(name for name, _ in self.slots)

    @property
    def cycles(self) -> int:
        """What the kernel takes."""
        return self.cost.cycles

    @property
    def rank(self) -> tuple[int, int, int, Slots]:
        """What is minimised: cycles, then slots lost, then bytes."""
        return (self.cycles, self.lost, self.plan.peak, self.slots)


def front(choices: Sequence[SlotChoice]) -> tuple[SlotChoice, ...]:
    """Return the choices to which none is better in both bytes and cycles, fewest bytes first."""
    kept: list[SlotChoice] = []
    for choice in sorted(choices, key=lambda c: (c.plan.peak, c.rank)):
        if not kept or choice.cycles < kept[-1].cycles:
            kept.append(choice)
    return tuple(kept)


class SlotSearch:
    """The plans for one memory, by the slots that its buffers have.

    `planner` seeks the least penalty, `meter` pays for all plans, and `cost` prices this memory's
    plan beside those of the others.
    """

    def __init__(
        self,
        memory: MemoryRequest,
        planner: Planner,
        meter: BudgetTracker,
        cost: Callable[[Placed], Cost],
        capacity: int | None = None,
    ) -> None:
        self._memory, self._planner, self._meter, self._cost = memory, planner, meter, cost
        self._capacity = memory.problem.capacity if capacity is None else capacity
        slots = {buffer.name: buffer.slots for buffer in memory.problem.buffers}
        self._requested: Counts = tuple(slots[name] for name in memory.order)
        self._problems: dict[Counts, Problem] = {}
        self._bounds: dict[Counts, int] = {}
        self._found: dict[Counts, list[SlotChoice]] = {}
        self._best: SlotChoice | None = None

    def search(self) -> list[SlotChoice]:
        """Return the plans that were found to fit, the best first."""
        for count in range(len(self._requested) + 1):
            largest_single = (1,) * count + self._requested[count:]
            if self._try(largest_single, Budget().nodes):
                break
        if not self._by_bound():
            self._around_best()
        found = [(counts, choices) for counts, choices in self._found.items() if choices]
        found.sort(key=lambda one: min(map(_rank, one[1])))
        for counts, choices in found[:IMPROVED]:
            self._improve(counts, choices)
        return sorted((one for choices in self._found.values() for one in choices), key=_rank)

    def _by_bound(self) -> bool:
        """Try sets in the order of their bounds; return whether none that is left can be better."""
        queue = [(self._bound(self._requested), 0, self._requested)]
        seen = {self._requested}
        planned = 0
        while queue and planned < MOST_PLANNED and self._meter.left:
            _, _, counts = heapq.heappop(queue)
            if not self._may_be_better(counts):
                return True
            if may_fit(self._problem(counts)):
                planned += 1
                self._try(counts, SET_NODES)
            for fewer in self._changed(counts, -1):
                if fewer not in seen and len(seen) < MOST_LOOKED_AT:
                    seen.add(fewer)
                    heapq.heappush(queue, (self._bound(fewer), self._lost(fewer), fewer))
        return not queue and len(seen) < MOST_LOOKED_AT

    def _around_best(self) -> None:
        """Try sets that differ from the best one in a slot or two, until none of them is better."""
        planned, centre = 0, None
        while self._best is not centre:
            centre = self._best
            assert centre is not None, "the search around it begins with a best one"
            fewer = dict(centre.slots)
            counts = tuple(
                fewer.get(name, most)
                for name, most in zip(self._memory.order, self._requested, strict=True)
            )
            swapped = (s for more in self._changed(counts, 1) for s in self._changed(more, -1))
            for near in (*self._changed(counts, 1), *self._changed(counts, -1), *swapped):
                if planned == MOST_PLANNED or not self._meter.left:
                    return
                is_open = near not in self._found and may_fit(self._problem(near))
                if is_open and self._may_be_better(near):
                    planned += 1
                    self._try(near, SET_NODES)

    def _changed(self, counts: Counts, by: int) -> Iterator[Counts]:
        """Yield the sets in which one buffer has `by` slots more."""
        for at, (count, most) in enumerate(zip(counts, self._requested, strict=True)):
            if 1 <= count + by <= most:
                yield (*counts[:at], count + by, *counts[at + 1 :])

    def _may_be_better(self, counts: Counts) -> bool:
        best = self._best
        return best is None or (self._bound(counts), self._lost(counts)) < (best.cycles, best.lost)

    def _lost(self, counts: Counts) -> int:
        return sum(self._requested) - sum(counts)

    # Plans of one set

    def _problem(self, counts: Counts) -> Problem:
        """Return the problem in which buffers have so many slots."""
        if counts not in self._problems:
            problem = self._memory.with_slots(dict(zip(self._memory.order, counts, strict=True)))
            memory = replace(problem.memory, capacity=self._capacity)
            self._problems[counts] = replace(problem, memory=memory)
        return self._problems[counts]

    def _bound(self, counts: Counts) -> int:
        """Return cycles that no plan of a set is below: those with nothing shared."""
        if counts not in self._bounds:
            problem = self._problem(counts)
            self._meter.spend(sum(buffer.slots for buffer in problem.buffers))
            self._bounds[counts] = self._cost((problem, solve(problem, "bump"))).cycles
        return self._bounds[counts]

    def _try(self, counts: Counts, nodes: int) -> bool:
        """Price the plan of the least penalty of a set, once; return whether it fits."""
        if counts not in self._found:
            self._found[counts] = []
            problem = self._problem(counts)
            if may_fit(problem):
                plan = self._planner(problem, self._meter.share(FIRST_PART, at_most=nodes).rest())
                self._meter.spend(plan.nodes)
                if _is_right(problem, plan):
                    self._add(counts, plan)
        return bool(self._found[counts])

    def _add(self, counts: Counts, plan: Plan) -> Cost:
        """Price a plan, and keep it."""
        problem = self._problem(counts)
        cost = self._cost((problem, plan))
        pairs = zip(self._memory.order, counts, self._requested, strict=True)
        slots = tuple((name, count) for name, count, most in pairs if count < most)
        choice = SlotChoice(slots, self._lost(counts), problem, plan, cost)
        self._found[counts].append(choice)
        if self._best is None or choice.rank < self._best.rank:
            self._best = choice
        return cost

    def _improve(self, counts: Counts, choices: list[SlotChoice]) -> None:
        """Price more plans of a set, with pairs that wait kept apart.

        The next one is made from that of the fewest cycles, until one takes as few as the bound.
        """
        problem = self._problem(counts)
        movable = {buffer.name for buffer in problem.buffers if buffer.pinned is None}
        queue = [(one.cycles, at, one.cost, Pairs()) for at, one in enumerate(choices)]
        heapq.heapify(queue)
        asked: set[Pairs] = set()
        while queue and min(one.cycles for one in choices) > self._bound(counts):
            _, _, cost, apart = heapq.heappop(queue)
            waits = [frozenset(pair) for pair in cost.waits if movable.issuperset(pair)]
            for pairs in (apart | {pair} for pair in waits[:WAITS]):
                if len(asked) == MOST_APART or not self._meter.left:
                    break
                plan = None if pairs in asked else self._plan_apart(problem, pairs)
                asked.add(pairs)
                if plan is not None:
                    found = self._add(counts, plan)
                    heapq.heappush(queue, (found.cycles, len(choices), found, pairs))

    def _plan_apart(self, problem: Problem, pairs: Pairs) -> Plan | None:
        """Return a plan of `problem` in which some pairs share nothing, if one is found."""
        known = {frozenset(pair) for pair in problem.separations}
        added = sorted((min(pair), max(pair)) for pair in pairs - known)
        changed = replace(
            problem,
            separations=(*problem.separations, *added),
            in_place=tuple(pair for pair in problem.in_place if frozenset(pair) not in pairs),
            penalties=tuple(
                penalty
                for penalty in problem.penalties
                if frozenset((penalty.first, penalty.second)) not in pairs
            ),
        )
        if not may_fit(changed):
            return None
        found = self._planner(changed, self._meter.share(1, at_most=APART_NODES).rest())
        self._meter.spend(found.nodes)
        plan = BlockList(problem).plan_of(found.offsets, found.planner, found.nodes)
        return plan if _is_right(problem, plan) else None


def _is_right(problem: Problem, plan: Plan) -> bool:
    """Whether a plan fits, and the verifier finds nothing wrong with it."""
    return plan.fits and not verify(problem, plan, limit=1)
