# SPDX-License-Identifier: Apache-2.0
"""A search for the slots to give up where double buffers do not fit, by cost in cycles.

Sets of slots are planned, and a cost model, such as a simulator, says what a plan costs: penalties
guide the planners, cycles decide between their plans.

With nothing shared a kernel takes at least as long as with all slots, and longer with each slot
that is given up. Sets are planned in the order of this bound, as A* does (Hart, Nilsson and
Raphael, 1968), up to the best plan that is known. The first sets are the largest buffers, one after
the other until a plan fits, so that no result is worse than that one. In the best sets, the pairs
of buffers that wait longest for each other are kept apart, and the memory is planned again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from passes.planning import Budget, BudgetTracker, Plan, Problem, may_fit, solve, verify
from passes.planning.engine import BlockList

MOST_PLANNED = 64
"""Sets that are planned in one memory: all of them where six buffers have two slots each."""

MOST_BOUNDED = 1024  # Sets of which the bound is found: most may be proven not to fit
IMPROVED = 3  # Sets, those of the fewest cycles, in which pairs are kept apart
MOST_APART = 16  # Plans with pairs kept apart that are made of one set
WAITS = 3  # Pairs that wait longest in a plan, each of which is kept apart in a next plan
FIRST_PART = 4  # The part of the remaining budget that the first plan of a set may take
SET_NODES, APART_NODES = 2_000, 1_000  # For the first plan of a set, and for one with pairs apart

Placed = tuple[Problem, Plan]
Counts = tuple[int, ...]  # Slots that buffers have, in `MemoryRequest.order`
Pairs = frozenset[frozenset[str]]
Planner = Callable[[Problem, Budget], Plan]
"""From a problem to a complete plan of little penalty, also when that does not fit."""


@dataclass(frozen=True)
class SlotCost:
    """The cost of plans for the memories of a kernel."""

    cycles: int  # What the kernel takes
    # Pairs of buffers of which one waits for bytes that the other still uses, the longest wait
    # first.
    waits: tuple[tuple[str, str], ...] = ()


CostModel = Callable[[Sequence[Placed]], SlotCost]
"""From plans for some memories of a kernel to their cost, as if the other memories had no end.

A plan that shares fewer bytes never costs more.
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

    # Buffers that have fewer slots than they ask for, and how many, in `MemoryRequest.order`
    slots: tuple[tuple[str, int], ...]
    lost: int  # Slots that they lost in all
    problem: Problem  # With these slots
    plan: Plan  # Verified, and within the capacity
    cost: SlotCost  # Of this plan beside those that are chosen for the other memories

    @property
    def cycles(self) -> int:
        """The cycles that the kernel takes."""
        return self.cost.cycles

    @property
    def rank(self) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
        """The key that is minimised: cycles, then slots lost, then bytes."""
        return self.cycles, self.lost, self.plan.peak, self.slots


def choose(
    memories: Sequence[MemoryRequest],
    planner: Planner,
    cost_model: CostModel,
    budget: Budget | None = None,
) -> tuple[SlotChoice | None, ...]:
    """Return for each memory the plan of the fewest cycles that fits; None where none was found.

    Each memory is chosen as if the others had no end. `planner` seeks the plan of the least
    penalty, and `budget` pays for all plans.
    """
    meter = BudgetTracker(budget or Budget())
    found = [_SlotSearch(memory, planner, meter, cost_model).best() for memory in memories]
    placed = [(choice.problem, choice.plan) for choice in found if choice is not None]
    return tuple(choice and replace(choice, cost=cost_model(placed)) for choice in found)


class _SlotSearch:
    """The plans for one memory, by the slots that its buffers have."""

    def __init__(
        self, memory: MemoryRequest, planner: Planner, meter: BudgetTracker, cost_model: CostModel
    ) -> None:
        self._memory, self._planner, self._meter = memory, planner, meter
        self._cost_model = cost_model
        slots = {buffer.name: buffer.slots for buffer in memory.problem.buffers}
        self._requested: Counts = tuple(slots[name] for name in memory.order)
        self._bounds: dict[Counts, tuple[Problem, int]] = {}
        self._found: dict[Counts, list[SlotChoice]] = {}

    def best(self) -> SlotChoice | None:
        """Return the best of the plans that were found to fit."""
        for count in range(len(self._requested) + 1):
            largest_single = (1,) * count + self._requested[count:]
            if self._try(largest_single, Budget().nodes):
                break
        self._by_bound()
        fitting = ((min(c.rank for c in found), at) for at, found in self._found.items() if found)
        for _, counts in sorted(fitting)[:IMPROVED]:
            self._improve(counts, self._found[counts])
        choices = (choice for found in self._found.values() for choice in found)
        return min(choices, key=lambda choice: choice.rank, default=None)

    def _by_bound(self) -> None:
        """Plan sets in the order of their bounds, up to the best plan."""
        queue = [(self._bounded(self._requested)[1], 0, self._requested)]
        seen, planned = {self._requested}, 0
        while queue and planned < MOST_PLANNED and self._meter.left:
            bound, lost, counts = heapq.heappop(queue)
            known = ((c.cycles, c.lost) for found in self._found.values() for c in found)
            if (bound, lost) >= min(known, default=(bound, lost + 1)):
                return
            if may_fit(self._bounded(counts)[0]):
                planned += 1
                self._try(counts, SET_NODES)
            for at, count in enumerate(counts):
                fewer = (*counts[:at], count - 1, *counts[at + 1 :])
                if count > 1 and fewer not in seen and len(seen) < MOST_BOUNDED:
                    seen.add(fewer)
                    heapq.heappush(queue, (self._bounded(fewer)[1], lost + 1, fewer))

    def _bounded(self, counts: Counts) -> tuple[Problem, int]:
        """Return the problem in which buffers have so many slots, and its fewest cycles."""
        if counts not in self._bounds:
            problem = self._memory.with_slots(dict(zip(self._memory.order, counts, strict=True)))
            self._meter.spend(sum(buffer.slots for buffer in problem.buffers))
            apart = self._cost_model([(problem, solve(problem, "bump"))])
            self._bounds[counts] = problem, apart.cycles
        return self._bounds[counts]

    def _try(self, counts: Counts, nodes: int) -> bool:
        """Price the plan of the least penalty of a set, once; return whether it fits."""
        if counts not in self._found:
            self._found[counts] = []
            problem, _ = self._bounded(counts)
            if may_fit(problem):
                plan = self._planner(problem, self._meter.share(FIRST_PART, at_most=nodes).rest())
                self._meter.spend(plan.nodes)
                self._add(counts, plan)
        return bool(self._found[counts])

    def _add(self, counts: Counts, plan: Plan) -> SlotCost | None:
        """Price a plan, and keep it; None if there is no plan."""
        problem, _ = self._bounded(counts)
        if not plan.fits or verify(problem, plan, limit=1):
            return None
        cost = self._cost_model([(problem, plan)])
        given = zip(self._memory.order, counts, self._requested, strict=True)
        slots = tuple((name, count) for name, count, most in given if count < most)
        lost = sum(self._requested) - sum(counts)
        self._found[counts].append(SlotChoice(slots, lost, problem, plan, cost))
        return cost

    def _improve(self, counts: Counts, choices: list[SlotChoice]) -> None:
        """Price more plans of a set, with pairs that wait kept apart.

        The next one is made from that of the fewest cycles, until one takes as few as the bound.
        """
        problem, bound = self._bounded(counts)
        movable = {buffer.name for buffer in problem.buffers if buffer.pinned is None}
        queue = [(choice.cycles, at, choice.cost, Pairs()) for at, choice in enumerate(choices)]
        heapq.heapify(queue)
        asked: set[Pairs] = set()
        while queue and min(choice.cycles for choice in choices) > bound:
            _, _, cost, apart = heapq.heappop(queue)
            waits = [frozenset(pair) for pair in cost.waits if movable.issuperset(pair)]
            for pairs in (apart | {pair} for pair in waits[:WAITS]):
                if len(asked) == MOST_APART or not self._meter.left:
                    return
                if pairs in asked:
                    continue
                asked.add(pairs)
                priced = self._try_apart(counts, pairs)
                if priced is not None:
                    heapq.heappush(queue, (priced.cycles, len(choices), priced, pairs))

    def _try_apart(self, counts: Counts, pairs: Pairs) -> SlotCost | None:
        """Price a plan of a set in which some pairs of buffers share nothing, if one is found."""
        problem, _ = self._bounded(counts)
        known = {frozenset(pair) for pair in problem.separations}
        added = sorted((min(pair), max(pair)) for pair in pairs - known)
        penalties = [p for p in problem.penalties if frozenset((p.first, p.second)) not in pairs]
        apart = replace(
            problem,
            separations=(*problem.separations, *added),
            in_place=tuple(pair for pair in problem.in_place if frozenset(pair) not in pairs),
            penalties=tuple(penalties),
        )
        if not may_fit(apart):
            return None
        found = self._planner(apart, self._meter.share(1, at_most=APART_NODES).rest())
        self._meter.spend(found.nodes)
        plan = BlockList(problem).plan_of(found.offsets, found.planner, found.nodes)
        return self._add(counts, plan)
