# SPDX-License-Identifier: Apache-2.0
"""A search for the slots to give up where double buffers do not fit, by cost in cycles.

Sets of slots are planned, and a cost model, such as a simulator, says what a plan costs: penalties
guide the planners, cycles decide between their plans.

With nothing shared a kernel takes at least as long as with all slots, and longer with each slot
that is given up. Sets are planned in the order of this bound, as A* does (Hart, Nilsson and
Raphael, 1968), up to the best plan that is known. The first sets are the largest buffers, one after
the other until a plan fits, so that no result is worse than that one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from passes.planning import Budget, BudgetTracker, Plan, Problem, may_fit, solve, verify

MOST_PLANNED = 64
"""Sets that are planned in one memory: all of them where six buffers have two slots each."""

MOST_BOUNDED = 1024  # Sets of which the bound is found: most may be proven not to fit
FIRST_PART = 4  # The part of the remaining budget that the first plan of a set may take
SET_NODES = 2_000  # For the plan of a set

Placed = tuple[Problem, Plan]
Counts = tuple[int, ...]  # Slots that buffers have, in `MemoryRequest.order`
Planner = Callable[[Problem, Budget], Plan]
"""From a problem to a complete plan of little penalty, also when that does not fit."""


CostModel = Callable[[Sequence[Placed]], int]
"""From plans for some memories of a kernel to its cycles, as if the other memories had no end.

A plan that shares fewer bytes never takes more.
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
    cycles: int  # Of the kernel with this plan, beside those chosen for the other memories

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
    return tuple(choice and replace(choice, cycles=cost_model(placed)) for choice in found)


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
        self._found: dict[Counts, SlotChoice | None] = {}

    def best(self) -> SlotChoice | None:
        """Return the best of the plans that were found to fit."""
        for count in range(len(self._requested) + 1):
            largest_single = (1,) * count + self._requested[count:]
            if self._try(largest_single, Budget().nodes):
                break
        self._by_bound()
        return min(self._fitting(), key=lambda choice: choice.rank, default=None)

    def _fitting(self) -> list[SlotChoice]:
        return [choice for choice in self._found.values() if choice is not None]

    def _by_bound(self) -> None:
        """Plan sets in the order of their bounds, up to the best plan."""
        queue = [(self._bounded(self._requested)[1], 0, self._requested)]
        seen, planned = {self._requested}, 0
        while queue and planned < MOST_PLANNED and self._meter.left:
            bound, lost, counts = heapq.heappop(queue)
            known = ((choice.cycles, choice.lost) for choice in self._fitting())
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
            self._bounds[counts] = problem, apart
        return self._bounds[counts]

    def _try(self, counts: Counts, nodes: int) -> bool:
        """Price the plan of the least penalty of a set, once; return whether it fits."""
        if counts not in self._found:
            self._found[counts] = None
            problem, _ = self._bounded(counts)
            if may_fit(problem):
                plan = self._planner(problem, self._meter.share(FIRST_PART, at_most=nodes).rest())
                self._meter.spend(plan.nodes)
                if plan.fits and not verify(problem, plan, limit=1):
                    self._found[counts] = self._choice(counts, problem, plan)
        return self._found[counts] is not None

    def _choice(self, counts: Counts, problem: Problem, plan: Plan) -> SlotChoice:
        given = zip(self._memory.order, counts, self._requested, strict=True)
        slots = tuple((name, count) for name, count, most in given if count < most)
        lost = sum(self._requested) - sum(counts)
        return SlotChoice(slots, lost, problem, plan, self._cost_model([(problem, plan)]))
