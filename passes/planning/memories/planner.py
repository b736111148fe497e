# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: choose by a 0/1 program, place, and take back what has no place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from passes.planning.memories.choice import Formulation, Part
from passes.planning.memories.copies import with_copies
from passes.planning.memories.filling import filled
from passes.planning.memories.memories_plan import MemoriesPlan, Stay
from passes.planning.memories.placing import Placed, place
from passes.planning.memories.program import Choice, Program, Row, has_highs, solve_by_highs
from passes.planning.memories.steps import solve_by_steps
from passes.planning.memories.traffic import MemoriesProblem
from passes.planning.plan import Status
from passes.planning.planner import Budget, BudgetTracker

SECONDS = 10.0  # Time for a plan, unless a budget says otherwise
PLACE_PART = 4  # The part of what is left for one attempt to place a choice
SOLVERS = ("highs", "steps")


def solve_memories(
    problem: MemoriesProblem,
    budget: Budget | None = None,
    *,
    moves: bool = False,
    solver: str | None = None,
) -> MemoriesPlan:
    """Plan several memories with the fewest bytes moved.

    Parameters
    ----------
    problem : MemoriesProblem
        What is asked.
    budget : Budget, optional
        Its time is kept, `SECONDS` by default, and its nodes are those of placing.
    moves : bool
        Whether a buffer whose touches are known may leave a fast memory and come back.
    solver : str, optional
        ``highs``, or ``steps``, which needs nothing but numpy; by default HiGHS if it is there.

    Returns
    -------
    MemoriesPlan
        Complete, also where not everything fits: the last memory is then taken to be without end,
        and the status says whether that is proven.
    """
    if solver is not None and solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}; there are: {', '.join(SOLVERS)}")
    if solver == "highs" and not has_highs():
        raise ValueError("the solver 'highs' needs the package highspy, the extra [solver]")
    budget = budget or Budget(1 << 60)
    seconds = SECONDS if budget.seconds is None else budget.seconds
    tracker = BudgetTracker(replace(budget, seconds=seconds))
    run = _Run(problem, tracker, solver or ("highs" if has_highs() else "steps"))
    found = run.plan(moves=False)
    if moves and found.fits and any(problem.objective(found.moved)):
        moved = run.plan(moves=True)
        if moved.fits and problem.objective(moved.moved) < problem.objective(found.moved):
            return moved
        is_least = problem.objective(found.moved) == moved.bound
        status = Status.OPTIMAL if is_least else Status.FEASIBLE
        return replace(found, bound=moved.bound, status=status)
    return found


class _Run:
    """One problem, what is left of its budget, and the solver of its programs."""

    def __init__(self, problem: MemoriesProblem, tracker: BudgetTracker, solver: str) -> None:
        self._problem, self._tracker, self._solver = problem, tracker, solver

    def plan(self, moves: bool) -> MemoriesPlan:
        """Choose and place until both agree, or the time is over."""
        made = Formulation(self._problem, moves)
        buses = len(self._problem.memories)
        program, bound, is_proof = made.program, (0,) * buses, True
        seconds = self._tracker.rest().seconds or 0.0
        while True:
            choice = self._choose(program, seconds / 2)
            if is_proof:
                bound = max(bound, choice.bound[:buses])
            if choice.chosen is None:
                infeasible = choice.done and is_proof
                return self._filled([], bound, infeasible)
            parts = made.parts(choice.chosen)
            placed = self._placed(parts)
            failed = [(there, found) for there, found in placed if found.plan is None]
            cuts = [cut for there, found in failed for cut in _cuts(there, found)]
            if not cuts:
                value = made.program.value(choice.chosen)[:buses]
                status = Status.OPTIMAL if value == bound else Status.FEASIBLE
                found = self._written(placed, value, bound, status)
                return found if choice.done else self._better(found, bound)
            is_proof = is_proof and all(found.cores for _, found in failed)
            if not self._tracker.left:
                return self._filled(parts, bound, False)
            program = program.with_rows(cuts)

    def _better(self, found: MemoriesPlan, bound: tuple[int, ...]) -> MemoriesPlan:
        """Return a plan, or that without a program where it moves fewer bytes."""
        other, objective = self._filled([], bound, False), self._problem.objective
        is_better = other.fits and objective(other.moved) < objective(found.moved)
        return other if is_better else found

    def _choose(self, program: Program, seconds: float) -> Choice:
        if program.broken(()) and not all(row.terms for row in program.rows):
            return Choice(None, (0,) * len(program.levels), True)  # A buffer has no memory
        if not program.size:
            return Choice((), (0,) * len(program.levels), True)
        solve = solve_by_highs if self._solver == "highs" else solve_by_steps
        left = self._tracker.rest().seconds
        return solve(program, seconds if left is None else min(seconds, left))

    def _placed(self, parts: Sequence[Part]) -> list[tuple[list[Part], Placed]]:
        """Return for each memory its parts, and what placing them found."""
        found = []
        for memory, scope in enumerate(self._problem.memories):
            there = [part for part in parts if part.memory == memory]
            share = self._tracker.share(PLACE_PART)
            found.append((there, place(self._problem.buffers, there, scope, share)))
        return found

    def _filled(
        self, parts: Sequence[Part], bound: tuple[int, ...], infeasible: bool
    ) -> MemoriesPlan:
        """Return a plan without a program; it starts from a choice, without its stays."""
        wanted = {part.buffer: part.memory for part in parts if not part.is_stay}
        found = filled(self._problem, wanted)
        value = tuple(reversed(found.moved))
        status = Status.OPTIMAL if value == bound else Status.FEASIBLE
        if not found.fits:
            status = Status.INFEASIBLE if infeasible else Status.NOT_FOUND
        placed = [(there, Placed(plan)) for there, plan in found.memories]
        return self._written(placed, value, bound, status)

    def _written(
        self,
        placed: Sequence[tuple[Sequence[Part], Placed]],
        value: tuple[int, ...],
        bound: tuple[int, ...],
        status: Status,
    ) -> MemoriesPlan:
        """Return the plan that parts with their offsets are."""
        problem = self._problem
        memory: dict[int, str] = {}
        offsets: dict[int, tuple[int, ...]] = {}
        stays: dict[str, list[Stay]] = {}
        peaks = {}
        for scope, (there, found) in zip(problem.memories, placed, strict=True):
            assert found.plan is not None
            peaks[scope.name] = found.plan.peak
            for number, part in enumerate(there):
                at = found.plan.offsets[str(number)]
                if part.is_stay:
                    name = problem.buffers[part.buffer].name
                    stays.setdefault(name, []).append(Stay(scope.name, at, part.live[0]))
                else:
                    memory[part.buffer], offsets[part.buffer] = scope.name, at
        names = [buffer.name for buffer in problem.buffers]
        moved = dict(zip((m.name for m in reversed(problem.memories)), value, strict=True))
        plan = MemoriesPlan(
            {name: memory[index] for index, name in enumerate(names)},
            {name: offsets[index] for index, name in enumerate(names)},
            {m.name: moved[m.name] for m in problem.memories},
            bound,
            peaks,
            status,
            self._solver,
            {n: tuple(sorted(stays[n], key=lambda s: s.live)) for n in names if n in stays},
        )
        return with_copies(problem, plan)


def _cuts(there: Sequence[Part], found: Placed) -> Iterator[Row]:
    """Yield that parts without a place together do not all lie in their memory."""
    for numbers in found.cores or (range(len(there)),):
        variables = sorted({v for number in numbers for v in there[number].variables})
        yield Row(tuple((v, 1) for v in variables), None, len(variables) - 1)
