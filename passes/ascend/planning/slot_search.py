# SPDX-License-Identifier: Apache-2.0
"""Which slots of one memory's buffers are best given up: a search over sets of them.

A kernel takes at least what it takes with nothing shared, and that grows with each slot that is
given up. So sets are looked at in the order of this bound, as A* does (Hart, Nilsson and Raphael,
1968), and none behind the best plan that is known. The largest buffers are given up first of all,
one after the other until a plan fits, so that no result is worse than that one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from passes.ascend.planning.order_search import plans_in_order
from passes.ascend.planning.plan_search import first_plans, may_fit, plans_apart
from passes.ascend.planning.slot_choice import (
    Cost,
    MemoryRequest,
    Placed,
    Planner,
    SlotChoice,
)
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, solve
from passes.planning.problem import Problem

MOST_PLANNED = 64
"""Sets that are planned in one memory: all of them where six buffers have two slots each."""

MOST_LOOKED_AT = 1024
"""Sets that are looked at: most may be proven not to fit, without a plan."""

SET_NODES = 2_000
"""For the plan of one set."""


@dataclass(frozen=True)
class Effort:
    """How hard a search tries."""

    first_nodes: int  # For a plan that gives up the largest buffers
    improved: int  # Sets, those of the fewest cycles, in which more plans are looked for


WHOLE = Effort(Budget().nodes, 3)
QUICK = Effort(SET_NODES, 1)

Counts = tuple[int, ...]
"""Slots that buffers have, in `MemoryRequest.order`."""

_rank = attrgetter("rank")


class SlotSearch:
    """The plans for one memory, by the slots that its buffers have.

    `meter` pays for all plans. Problems, and plans for them, are kept from one search to the next.
    """

    def __init__(
        self,
        memory: MemoryRequest,
        planner: Planner,
        meter: BudgetTracker,
        effort: Effort = WHOLE,
        capacity: int | None = None,
    ) -> None:
        self._memory, self._planner, self._meter, self._effort = memory, planner, meter, effort
        self._capacity = memory.problem.capacity if capacity is None else capacity
        slots = {buffer.name: buffer.slots for buffer in memory.problem.buffers}
        self._requested: Counts = tuple(slots[name] for name in memory.order)
        self._problems: dict[Counts, Problem] = {}
        self._plans: dict[Counts, list[Plan]] = {}

    def search(self, cost: Callable[[Placed], Cost]) -> list[SlotChoice]:
        """Return the plans that were found to fit, the best first.

        `cost` prices this memory's plan beside those of the others.
        """
        self._cost = cost
        self._bounds: dict[Counts, int] = {}
        self._found: dict[Counts, list[SlotChoice]] = {}
        self._best: SlotChoice | None = None
        for count in range(len(self._requested) + 1):
            largest_single = (1,) * count + self._requested[count:]
            if self._try(largest_single, self._effort.first_nodes):
                break
        if not self._by_bound():
            self._around_best()
        by_cycles = sorted(filter(None, self._found.values()), key=lambda f: min(map(_rank, f)))
        for choices in by_cycles[: self._effort.improved]:
            self._improve(choices)
        return sorted((one for found in self._found.values() for one in found), key=_rank)

    # Sets of slots

    def _changed(self, counts: Counts, by: int) -> Iterator[Counts]:
        """Yield the sets in which one buffer has `by` slots more."""
        for at, (count, most) in enumerate(zip(counts, self._requested, strict=True)):
            if 1 <= count + by <= most:
                yield (*counts[:at], count + by, *counts[at + 1 :])

    def _lost(self, counts: Counts) -> int:
        return sum(self._requested) - sum(counts)

    def _may_be_better(self, counts: Counts) -> bool:
        best = self._best
        return best is None or (self._bound(counts), self._lost(counts)) < (best.cycles, best.lost)

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
                self._try(counts)
            for fewer in self._changed(counts, -1):
                if fewer not in seen and len(seen) < MOST_LOOKED_AT:
                    seen.add(fewer)
                    heapq.heappush(queue, (self._bound(fewer), self._lost(fewer), fewer))
        return not queue and len(seen) < MOST_LOOKED_AT

    def _around_best(self) -> None:
        """Try sets that are near to the best one, until none of them is better."""
        planned, centre = 0, None
        while self._best is not None and self._best is not centre:
            centre = self._best
            for counts in self._near(self._counts(centre)):
                if planned == MOST_PLANNED or not self._meter.left:
                    return
                if (
                    counts not in self._found
                    and may_fit(self._problem(counts))
                    and self._may_be_better(counts)
                ):
                    planned += 1
                    self._try(counts)

    def _near(self, counts: Counts) -> Iterator[Counts]:
        """Yield the sets that give one slot back, take one more, or take another one for it."""
        yield from self._changed(counts, 1)
        yield from self._changed(counts, -1)
        for given_back in self._changed(counts, 1):
            yield from self._changed(given_back, -1)

    def _counts(self, choice: SlotChoice) -> Counts:
        fewer = dict(choice.slots)
        pairs = zip(self._memory.order, self._requested, strict=True)
        return tuple(fewer.get(name, slots) for name, slots in pairs)

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

    def _try(self, counts: Counts, nodes: int = SET_NODES) -> bool:
        """Price the plans of a set, which are made once and kept; return whether one fits."""
        if counts not in self._found:
            self._found[counts] = []
            problem = self._problem(counts)
            plans: list[Plan] | Iterator[Plan] = self._plans.get(counts, [])
            if counts not in self._plans and may_fit(problem):
                plans = first_plans(problem, self._planner, self._meter, nodes)
            for plan in plans:
                if self._add(counts, plan).cycles <= self._bound(counts):
                    break
            self._plans.setdefault(counts, [choice.plan for choice in self._found[counts]])
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

    def _improve(self, choices: list[SlotChoice]) -> None:
        """Look for more plans of a set, of which some are known."""
        counts, problem = self._counts(choices[0]), choices[0].problem
        enough, known = self._bound(counts), [one.cost for one in choices]

        def price(plan: Plan) -> Cost:
            return self._add(counts, plan)

        plans_apart(problem, known, self._planner, price, self._meter, enough)
        best = min(choices, key=_rank)
        plans_in_order(problem, best.plan, best.cost, price, self._meter, enough)
        best = min(choices, key=_rank)
        if best.plan not in self._plans[counts]:
            self._plans[counts].append(best.plan)
