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

from passes.ascend.planning.choice import Asked, Choice, Placed, Planner, Slots, Verdict
from passes.ascend.planning.judged_orders import plans_in_order
from passes.ascend.planning.judged_plans import first_plans, may_fit, plans_apart
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

Cycles = Callable[[Placed], Verdict]
"""What the memory with a plan costs, beside the plans of the others."""


class SlotSearch:
    """The plans for one memory, by the slots that they give up.

    Parameters
    ----------
    asked : Asked
        The memory.
    capacity : int or None
        Bytes.
    planner : callable
        What seeks the plan of the least penalty.
    meter : BudgetTracker
        Pays for all plans.
    effort : Effort
        How hard to try.
    """

    def __init__(
        self,
        asked: Asked,
        capacity: int | None,
        planner: Planner,
        meter: BudgetTracker,
        effort: Effort = WHOLE,
    ) -> None:
        self._asked, self._capacity = asked, capacity
        self._planner, self._meter, self._effort = planner, meter, effort
        self._problems: dict[Slots, Problem] = {}
        self._plans: dict[Slots, list[Plan]] = {}
        self._cycles: Cycles = lambda _placed: Verdict(0)
        self._bounds: dict[Slots, int] = {}
        self._found: dict[Slots, list[Choice]] = {}

    def search(self, cycles: Cycles) -> tuple[Choice, ...]:
        """Return the plans that were found to fit, the best first.

        Parameters
        ----------
        cycles : callable
            What a plan costs. Those of an earlier call are judged again.
        """
        self._cycles, self._bounds, self._found = cycles, {}, {}
        for slots in self._largest_first():
            if self._judged(slots, self._effort.first_nodes):
                break
        if not self._by_bound():
            self._around_best()
        by_cycles = sorted(filter(None, self._found.values()), key=lambda f: _best(f).rank)
        for found in by_cycles[: self._effort.improved]:
            self._improve(found)
        together = (choice for found in self._found.values() for choice in found)
        return tuple(sorted(together, key=lambda choice: choice.rank))

    # Sets of slots

    def _largest_first(self) -> Iterator[Slots]:
        """Yield sets that leave more and more of the largest buffers single."""
        kept: dict[str, int] = {}
        yield ()
        for name in self._asked.order:
            kept[name] = 1
            yield self._sorted(kept)

    def _one_less(self, slots: Slots) -> Iterator[Slots]:
        """Yield the sets that give up one slot more."""
        kept = dict(slots)
        for name in self._asked.order:
            count = kept.get(name, self._asked.slots_of(name))
            if count > 1:
                yield self._sorted({**kept, name: count - 1})

    def _sorted(self, kept: dict[str, int]) -> Slots:
        return tuple((name, kept[name]) for name in self._asked.order if name in kept)

    def _lost(self, slots: Slots) -> int:
        return sum(self._asked.slots_of(name) - count for name, count in slots)

    def _by_bound(self) -> bool:
        """Judge plans of sets in the order of their bounds; return whether none can be better."""
        queue: list[tuple[int, int, Slots]] = [(self._bound(()), 0, ())]
        seen: set[Slots] = {()}
        planned, best = 0, self._best()
        while queue and planned < MOST_PLANNED and self._meter.left:
            bound, lost, slots = heapq.heappop(queue)
            if best is not None and (bound, lost) >= (best.cycles, best.lost):
                return True
            if may_fit(self._problem(slots)):
                planned += 1
                self._judged(slots, SET_NODES)
                best = self._best()
            for fewer in self._one_less(slots):
                if fewer not in seen and len(seen) < MOST_LOOKED_AT:
                    seen.add(fewer)
                    heapq.heappush(queue, (self._bound(fewer), self._lost(fewer), fewer))
        return not queue and len(seen) < MOST_LOOKED_AT

    def _around_best(self) -> None:
        """Judge plans of sets that are near to the best one, until none of them is better."""
        planned, around, best = 0, None, self._best()
        while best is not None and best is not around:
            around = best
            for slots in self._near(around.slots):
                if planned == MOST_PLANNED or not self._meter.left:
                    return
                if (
                    slots not in self._found
                    and may_fit(self._problem(slots))
                    and (self._bound(slots), self._lost(slots)) < (best.cycles, best.lost)
                ):
                    planned += 1
                    self._judged(slots, SET_NODES)
                    best = self._best() or best

    def _near(self, slots: Slots) -> Iterator[Slots]:
        """Yield the sets that give one slot back, then those that take another one for it."""
        kept = dict(slots)
        more = [
            self._sorted(
                {n: c for n, c in {**kept, name: count + 1}.items() if self._is_less(n, c)}
            )
            for name, count in slots
        ]
        yield from more
        yield from self._one_less(slots)
        for given_back in more:
            yield from self._one_less(given_back)

    def _is_less(self, name: str, count: int) -> bool:
        return count < self._asked.slots_of(name)

    # Plans of one set

    def _problem(self, slots: Slots) -> Problem:
        """Return the problem in which some buffers have fewer slots."""
        if slots not in self._problems:
            problem = self._asked.with_slots(dict(slots))
            memory = replace(problem.memory, capacity=self._capacity)
            self._problems[slots] = replace(problem, memory=memory)
        return self._problems[slots]

    def _bound(self, slots: Slots) -> int:
        """Return cycles that no plan of a set is below: those with nothing shared."""
        if slots not in self._bounds:
            problem = self._problem(slots)
            self._meter.spend(sum(buffer.slots for buffer in problem.buffers))
            self._bounds[slots] = self._cycles((problem, solve(problem, "bump"))).cycles
        return self._bounds[slots]

    def _judged(self, slots: Slots, nodes: int) -> list[Choice]:
        """Return what the plans of a set cost, which are made once and kept."""
        if slots not in self._found:
            self._found[slots] = []
            problem = self._problem(slots)
            known = self._plans.get(slots)
            plans = first_plans(problem, self._planner, self._meter, nodes)
            for plan in (plans if may_fit(problem) else ()) if known is None else known:
                verdict = self._cycles((problem, plan))
                self._add(slots, plan, verdict)
                if verdict.cycles <= self._bound(slots):
                    break
            self._plans[slots] = known or [choice.plan for choice in self._found[slots]]
        return self._found[slots]

    def _add(self, slots: Slots, plan: Plan, verdict: Verdict) -> None:
        choice = Choice(slots, self._lost(slots), self._problem(slots), plan, verdict)
        self._found[slots].append(choice)

    def _best(self) -> Choice | None:
        return min(map(_best, filter(None, self._found.values())), key=_rank, default=None)

    def _improve(self, found: list[Choice]) -> None:
        """Look for more plans of a set, of which some are known."""
        slots, problem = found[0].slots, found[0].problem
        enough, known = self._bound(slots), [(one.plan, one.verdict) for one in found]

        def judge(plan: Plan) -> Verdict:
            return self._cycles((problem, plan))

        for plan, verdict in plans_apart(problem, known, self._planner, judge, self._meter, enough):
            self._add(slots, plan, verdict)
        start = _best(found).plan, _best(found).verdict
        for plan, verdict in plans_in_order(problem, start, judge, self._meter, enough):
            self._add(slots, plan, verdict)
        if _best(found).plan not in self._plans[slots]:
            self._plans[slots].append(_best(found).plan)


def _rank(choice: Choice) -> tuple[int, int, int, Slots]:
    return choice.rank


def _best(found: list[Choice]) -> Choice:
    return min(found, key=_rank)
