# SPDX-License-Identifier: Apache-2.0
"""What to give up where double buffers do not fit: slots, weighed in cycles.

Kernel authors choose by hand which double buffers become single ones. Here each choice is planned,
and what a plan costs is asked of a judge, such as a simulator: penalties guide the planners, cycles
decide between their plans.

Each memory is chosen with the others as if they had no end. Where all of these together take more
cycles than the worst of them, memories are chosen once more, one after the other beside the others
as they stand, until none changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from passes.ascend.planning.choice import Asked, Choice, Judge, Placed, Planner, front
from passes.ascend.planning.slot_sets import QUICK, Cycles, SlotSearch
from passes.planning.bound import lower_bound
from passes.planning.planner import Budget, BudgetTracker, solve
from passes.planning.problem import Problem

RUNGS = 4
"""Smaller capacities at which a memory is planned for plans of fewer bytes."""


def choose(
    memories: Sequence[Asked],
    others: Sequence[Placed],
    planner: Planner,
    judge: Judge,
    budget: Budget | None = None,
    *,
    smaller: bool = False,
) -> tuple[tuple[Choice, ...], ...]:
    """Return for each memory the plan with which the kernel takes the fewest cycles, and others.

    Parameters
    ----------
    memories : sequence of Asked
        Those in which slots may be given up.
    others : sequence of (Problem, Plan)
        The kernel's other memories.
    planner : callable
        What seeks the plan of the least penalty.
    judge : callable
        What plans for all memories cost.
    budget : Budget, optional
        For all plans together.
    smaller : bool
        Whether to look for plans of fewer bytes than the chosen one has, at more cycles: with as
        much budget again.

    Returns
    -------
    tuple of tuple of Choice
        For each memory the chosen one first; then others to which none that was found is better
        in both bytes and cycles. The cycles are those beside the chosen plans of the other
        memories. Empty where no plan that was found fits.
    """
    search = _Search(memories, others, planner, judge, budget or Budget())
    search.run()
    if smaller:
        search.look_below()
    return tuple(map(search.listed, range(len(memories))))


class _Search:
    """The memories of a kernel, and what is chosen for them."""

    def __init__(
        self,
        memories: Sequence[Asked],
        others: Sequence[Placed],
        planner: Planner,
        judge: Judge,
        budget: Budget,
    ) -> None:
        self._memories, self._others, self._judge = memories, others, judge
        self._planner, self._budget, self._meter = planner, budget, BudgetTracker(budget)
        self._placed: list[Placed] = [(m.problem, solve(m.problem, "bump")) for m in memories]
        self._chosen: list[Choice | None] = [None] * len(memories)
        self._found: list[list[Choice]] = [[] for _ in memories]

    def run(self) -> None:
        """Choose a plan for each memory."""
        searches = [
            SlotSearch(memory, memory.problem.capacity, self._planner, self._meter)
            for memory in self._memories
        ]
        alone = [search.search(self._beside(at)) for at, search in enumerate(searches)]
        for at, found in enumerate(alone):
            self._take(at, found)
        least = max((found[0].cycles for found in alone if found), default=0)
        cycles = self._judge([*self._others, *self._placed]).cycles
        for _ in self._memories if cycles > least else ():
            before = cycles
            for at, search in enumerate(searches):
                found = search.search(self._beside(at))
                if found and found[0].cycles < cycles:
                    self._take(at, found)
                    cycles = found[0].cycles
            if cycles == before:
                break

    def look_below(self) -> None:
        """Look for plans of fewer bytes for each memory, beside what is chosen for the others."""
        meter = BudgetTracker(self._budget)
        for at, (memory, choice) in enumerate(zip(self._memories, self._chosen, strict=True)):
            if choice is not None:
                for capacity in _rungs(memory, choice.plan.peak):
                    if not meter.left:
                        return
                    search = SlotSearch(memory, capacity, self._planner, meter, QUICK)
                    self._found[at] += search.search(self._beside(at))

    def listed(self, at: int) -> tuple[Choice, ...]:
        """Return the chosen plan of a memory, and those of the others that are worth a look."""
        chosen, cycles = self._chosen[at], self._beside(at)
        if chosen is None:
            return ()
        others = [one for one in front(self._found[at]) if one.plan is not chosen.plan]
        memory = self._memories[at].problem.memory
        return tuple(
            replace(
                one,
                problem=replace(one.problem, memory=memory),
                verdict=cycles((one.problem, one.plan)),
            )
            for one in (chosen, *others)
        )

    def _take(self, at: int, found: Sequence[Choice]) -> None:
        self._found[at] = list(found)
        if found:
            self._chosen[at] = found[0]
            self._placed[at] = found[0].problem, found[0].plan

    def _beside(self, at: int) -> Cycles:
        rest = [*self._others, *self._placed[:at], *self._placed[at + 1 :]]
        return lambda placed: self._judge([*rest, placed])


def _rungs(memory: Asked, peak: int) -> Iterator[int]:
    """Yield capacities below the peak of a plan, down to what the buffers need with one slot."""
    least = lower_bound(single(memory))
    step = -(-max(peak - least, 0) // RUNGS)
    yield from range(least, peak, max(step, 1))


def single(memory: Asked) -> Problem:
    """Return the problem of a memory in which each buffer that can has one slot."""
    return memory.with_slots(dict.fromkeys(memory.order, 1))
