# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: choose by a 0/1 program, place, and take back what has no place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from passes.planning.memories.choice import Formulation, Part
from passes.planning.memories.copies import with_copies
from passes.planning.memories.filling import filled
from passes.planning.memories.memories_plan import MemoriesPlan, Stay
from passes.planning.memories.placing import Placed, place
from passes.planning.memories.traffic import MemoriesProblem
from passes.planning.memories.zero_one_program import Constraint, solve_program
from passes.planning.plan import Status
from passes.planning.planner import Budget, BudgetTracker

NAME = "steps"
SECONDS = 10.0  # Time for a plan, unless a budget says otherwise
PLACE_PART = 4  # The part of what is left for one attempt to place a choice

InMemory = tuple[Sequence[Part], Placed]  # What lies in a memory, and what placing it found


def solve_memories(
    problem: MemoriesProblem, budget: Budget | None = None, *, moves: bool = False
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

    Returns
    -------
    MemoriesPlan
        Complete, also where not everything fits: the last memory is then taken to be without end,
        and the status says whether that is proven.
    """
    budget = budget or Budget(1 << 60)
    tracker = BudgetTracker(
        budget if budget.seconds is not None else replace(budget, seconds=SECONDS)
    )
    found = _plan(problem, tracker, moves=False)
    if not moves or not found.fits or not any(problem.objective(found.moved)):
        return found
    moved = _plan(problem, tracker, moves=True)
    if moved.fits and problem.objective(moved.moved) < problem.objective(found.moved):
        return moved
    is_least = problem.objective(found.moved) == moved.bound
    status = Status.OPTIMAL if is_least else Status.FEASIBLE
    return replace(found, bound=moved.bound, status=status)


def _plan(problem: MemoriesProblem, tracker: BudgetTracker, moves: bool) -> MemoriesPlan:
    """Choose and place until both agree, or the time is over."""
    made = Formulation(problem, moves)
    buses = len(problem.memories)
    program, bound, is_proof = made.program, (0,) * buses, True
    most = (tracker.rest().seconds or 0.0) / 2
    while True:
        choice = solve_program(program, min(most, tracker.rest().seconds or 0.0))
        if is_proof:
            bound = max(bound, choice.bound[:buses])
        if choice.chosen is None:
            return _without_program(problem, {}, bound, choice.done and is_proof)
        parts = made.parts(choice.chosen)
        placed: list[InMemory] = []
        for memory, scope in enumerate(problem.memories):
            there = [part for part in parts if part.memory == memory]
            share = tracker.share(PLACE_PART)
            placed.append((there, place(problem.buffers, there, scope, share)))
        failed = [(there, found) for there, found in placed if found.plan is None]
        if not failed:
            value = made.program.value(choice.chosen)[:buses]
            status = Status.OPTIMAL if value == bound else Status.FEASIBLE
            plan = _written(problem, placed, value, bound, status)
            other = plan if choice.done else _without_program(problem, {}, bound, False)
            is_better = other.fits and problem.objective(other.moved) < value
            return other if is_better else plan
        is_proof = is_proof and all(found.cores for _, found in failed)
        if not tracker.left:
            wanted = {part.buffer: part.memory for part in parts if not part.is_stay}
            return _without_program(problem, wanted, bound, False)
        program = program.with_rows(cut for there, found in failed for cut in _cuts(there, found))


def _cuts(there: Sequence[Part], found: Placed) -> Iterator[Constraint]:
    """Yield that parts without a place together do not all lie in their memory."""
    for numbers in found.cores or (range(len(there)),):
        variables = sorted({v for number in numbers for v in there[number].variables})
        yield Constraint(tuple((v, 1) for v in variables), None, len(variables) - 1)


def _without_program(
    problem: MemoriesProblem, wanted: Mapping[int, int], bound: tuple[int, ...], infeasible: bool
) -> MemoriesPlan:
    """Return a plan by the worth of buffers; `wanted` has memories that they try first."""
    found, value, fits = filled(problem, wanted)
    status = Status.OPTIMAL if value == bound else Status.FEASIBLE
    if not fits:
        status = Status.INFEASIBLE if infeasible else Status.NOT_FOUND
    return _written(problem, [(there, Placed(plan)) for there, plan in found], value, bound, status)


def _written(
    problem: MemoriesProblem,
    placed: Sequence[InMemory],
    value: tuple[int, ...],
    bound: tuple[int, ...],
    status: Status,
) -> MemoriesPlan:
    """Return the plan that parts with their offsets are."""
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
    plan = MemoriesPlan(
        {name: memory[index] for index, name in enumerate(names)},
        {name: offsets[index] for index, name in enumerate(names)},
        {m.name: nbytes for m, nbytes in zip(problem.memories, reversed(value), strict=True)},
        bound,
        peaks,
        status,
        NAME,
        {n: tuple(sorted(stays[n], key=lambda s: s.live)) for n in names if n in stays},
    )
    return with_copies(problem, plan)
