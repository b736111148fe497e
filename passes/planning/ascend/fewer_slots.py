"""What to give up where double buffers do not fit: slots, weighed in cycles.

Kernel authors choose by hand which double buffers become single ones. Here each choice is planned,
and what a plan costs is asked of a judge, such as a simulator: penalties guide the planners, cycles
decide between their plans.

Memories are chosen one after the other, each with the others as they stand, until none changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from passes.planning.ascend.level_limit import LEVELS, plan_at_level
from passes.planning.bound import lower_bound
from passes.planning.plan import Plan
from passes.planning.planner import Budget, solve
from passes.planning.problem import Problem
from passes.planning.remedies import with_one_slot
from passes.planning.verify import verify

MOST_SUBSETS = 64
"""Sets of buffers that are tried in one memory: all of them where six have several slots."""

LEVEL_BUDGET = Budget(2_000)
"""For the plan of one reuse level."""

Placed = tuple[Problem, Plan]
Solver = Callable[[Problem], Plan]
Judge = Callable[[Sequence[Placed]], int]
"""From plans for all memories to the cycles that the kernel takes."""


@dataclass(frozen=True)
class Choice:
    """One memory with a plan that fits.

    Parameters
    ----------
    given_up : tuple of str
        Buffers that have one slot in the place of several.
    problem : Problem
        With these slots.
    plan : Plan
        Verified, and within the capacity.
    cycles : int
        What the kernel takes, with the plans that were chosen for the other memories.
    """

    given_up: tuple[str, ...]
    problem: Problem
    plan: Plan
    cycles: int = 0

    @property
    def rank(self) -> tuple[int, int, int, tuple[str, ...]]:
        """What is minimised: cycles, then slots given up, then bytes."""
        return (self.cycles, len(self.given_up), self.plan.peak, self.given_up)


def choose(
    problems: Sequence[Problem], others: Sequence[Placed], solver: Solver, judge: Judge
) -> tuple[tuple[Choice, ...], ...]:
    """Return for each problem what could be chosen, the best first.

    Parameters
    ----------
    problems : sequence of Problem
        The memories in which slots may be given up.
    others : sequence of (Problem, Plan)
        The kernel's other memories.
    solver : callable
        The planner that is asked first.
    judge : callable
        What a choice costs.

    Returns
    -------
    tuple of tuple of Choice
        Those of one problem sorted by `Choice.rank`, each with the cycles that it takes beside the
        first of each other problem; empty where no plan that was found fits.
    """
    roomy = [(problem, solve(problem, "bump")) for problem in problems]
    least = judge([*others, *roomy])
    found = [_Memory(problem, solver) for problem in problems]
    chosen: list[Placed] = list(roomy)
    for _ in range(len(problems) + 1):
        before = list(chosen)
        for at, memory in enumerate(found):
            rest = [*others, *chosen[:at], *chosen[at + 1 :]]
            memory.judge(partial(_judged_with, judge, rest), least)
            if memory.choices:
                chosen[at] = (memory.choices[0].problem, memory.choices[0].plan)
        if len(problems) == 1 or chosen == before:
            break
    return tuple(memory.choices for memory in found)


def _judged_with(judge: Judge, rest: Sequence[Placed], placed: Placed) -> int:
    return judge([*rest, placed])


class _Memory:
    """The choices for one memory: plans by the set of buffers that give up slots."""

    def __init__(self, problem: Problem, solver: Solver) -> None:
        self._problem, self._solver = problem, solver
        several = [b for b in problem.buffers if b.slots > 1 and b.pinned is None]
        several.sort(key=lambda b: (-b.size * (b.slots - 1), b.name))
        self._several = tuple(buffer.name for buffer in several)
        self._planned: dict[frozenset[str], tuple[Choice, ...]] = {}
        self.choices: tuple[Choice, ...] = ()

    def judge(self, cycles: Callable[[Placed], int], least: int) -> None:
        """Give each choice its cycles; look for no more once one takes as few as can be."""
        judged: dict[frozenset[str], list[Choice]] = {}

        def best() -> Choice | None:
            together = (choice for choices in judged.values() for choice in choices)
            return min(together, key=lambda choice: choice.rank, default=None)

        for given_up in self._sets(best):
            if given_up not in self._planned:
                names = tuple(name for name in self._several if name in given_up)
                self._planned[given_up] = tuple(candidates(self._problem, names, self._solver))
            judged[given_up] = [
                replace(choice, cycles=cycles((choice.problem, choice.plan)))
                for choice in self._planned[given_up]
            ]
            found = best()
            if found is not None and found.cycles <= least:
                break
        together = [choice for choices in judged.values() for choice in choices]
        self.choices = tuple(sorted(together, key=lambda choice: choice.rank))

    def _sets(self, best: Callable[[], Choice | None]) -> Iterator[frozenset[str]]:
        """Yield sets of buffers to give up: all of them if these are few enough.

        Else the largest buffers, one more each time, and then all sets that differ from the best
        one so far in one buffer, until none of these is better.
        """
        names = self._several
        if 1 << len(names) <= MOST_SUBSETS:
            for count in range(len(names) + 1):
                yield from map(frozenset, combinations(names, count))
            return
        seen = [frozenset(names[:count]) for count in range(len(names) + 1)]
        yield from seen
        around: Choice | None = None
        while (found := best()) is not None and found is not around:
            around = found
            for name in names:
                given_up = frozenset(found.given_up) ^ {name}
                if given_up not in seen and len(seen) < MOST_SUBSETS:
                    seen.append(given_up)
                    yield given_up


def candidates(problem: Problem, given_up: tuple[str, ...], solver: Solver) -> Iterator[Choice]:
    """Yield plans that fit when some buffers give up their slots, with no cycles yet.

    These are the plan of `solver` and those of the reuse levels: the plan of the least penalty
    need not be the one of the fewest cycles.

    Parameters
    ----------
    problem : Problem
        As the kernel asks for it.
    given_up : tuple of str
        Buffers that get one slot.
    solver : callable
        From a problem to a complete plan, also when that does not fit.
    """
    changed = with_one_slot(problem, given_up)
    if changed.capacity is not None and lower_bound(changed) > changed.capacity:
        return
    seen = []
    for plan in (solver(changed), *(plan_at_level(changed, n, LEVEL_BUDGET) for n in LEVELS)):
        if plan.offsets not in seen and plan.fits and not verify(changed, plan, limit=1):
            seen.append(plan.offsets)
            yield Choice(given_up, changed, plan)


def front(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices to which none is better in both bytes and cycles, fewest bytes first."""
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.plan.peak, c.rank)):
        if not kept or choice.cycles < kept[-1].cycles:
            kept.append(choice)
    return tuple(kept)
