# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: choose by a 0/1 program, place, and take back what has no place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from passes.planning.buffer import Buffer
from passes.planning.memories.choice import Formulation, Part
from passes.planning.memories.filling import filled
from passes.planning.memories.memories_plan import Copy, MemoriesPlan, Stay
from passes.planning.memories.placing import Placed, place
from passes.planning.memories.traffic import MemoriesProblem
from passes.planning.memories.zero_one_program import Constraint, solve_program
from passes.planning.plan import Status
from passes.planning.planner import Budget, BudgetTracker

NAME = "steps"
SECONDS = 10.0  # Time for a plan, unless a budget says otherwise
PLACE_PART = 4  # The part of what is left for one attempt to place a choice

Held = tuple[int, int, int, int]  # Bytes [low, high) that are in use at positions [begin, end)
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
        is_proof = is_proof and all(found.core for _, found in failed)
        if not tracker.left:
            wanted = {part.buffer: part.memory for part in parts if not part.is_stay}
            return _without_program(problem, wanted, bound, False)
        program = program.with_rows(_cut(there, found) for there, found in failed)


def _cut(there: Sequence[Part], found: Placed) -> Constraint:
    """Return that parts without a place together do not all lie in their memory."""
    numbers = found.core or range(len(there))
    variables = sorted({v for number in numbers for v in there[number].variables})
    return Constraint(tuple((v, 1) for v in variables), None, len(variables) - 1)


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
    return _with_copies(problem, plan)


def _with_copies(problem: MemoriesProblem, plan: MemoriesPlan) -> MemoriesPlan:
    """Return a plan with the copies of its stays, each copy in as early as its bytes are free.

    A copy in so early holds its bytes from then on, which its stay says.
    """
    if not plan.stays:
        return plan
    held = {memory.name: list(_held(problem, plan, memory.name)) for memory in problem.memories}
    stays: dict[str, tuple[Stay, ...]] = {}
    copies: list[Copy] = []
    for name, given in plan.stays.items():
        buffer = problem.buffers[problem.index[name]]
        traffic = problem.traffic_of(buffer)
        home, written = plan.memory[name], buffer.live[0][0]
        found = []
        for stay in given:
            touches = [t for t in traffic.touches if stay.live[0] <= t < stay.live[1]]
            if traffic.stored_in is None and touches[0] == traffic.touches[0]:
                written = stay.live[1]
                begin = touches[0] + 1
                copies.append(Copy(name, stay.memory, home, buffer.size, begin, written))
            else:
                if traffic.stored_in is None:
                    written = max(written, traffic.touches[0] + 1)
                early = _earliest(held[stay.memory], buffer, stay, written)
                held[stay.memory].append(_bytes(buffer, stay.offsets[0], early, stay.live[0]))
                copies.append(Copy(name, home, stay.memory, buffer.size, early, touches[0]))
                stay = replace(stay, live=(early, stay.live[1]))
            found.append(stay)
        stays[name] = tuple(found)
    copies.sort(key=lambda copy: (copy.begin, copy.end, copy.buffer))
    return replace(plan, stays=stays, copies=tuple(copies))


def _bytes(buffer: Buffer, offset: int, begin: int, end: int) -> Held:
    return offset, offset + buffer.size, begin, end


def _held(problem: MemoriesProblem, plan: MemoriesPlan, memory: str) -> Iterator[Held]:
    """Yield the bytes of a memory that are in use, and when."""
    for buffer in problem.buffers:
        for stay in plan.stays.get(buffer.name, ()):
            if stay.memory == memory:
                yield _bytes(buffer, stay.offsets[0], *stay.live)
        if plan.memory[buffer.name] == memory:
            for offset in plan.offsets[buffer.name]:
                for begin, end in buffer.live:
                    yield _bytes(buffer, offset, begin, end)


def _earliest(held: list[Held], buffer: Buffer, stay: Stay, written: int) -> int:
    """Return the first position from which a stay's bytes are free until it begins."""
    low = stay.offsets[0]
    ends = [
        end
        for other_low, other_high, _, end in held
        if other_low < low + buffer.size and low < other_high and end <= stay.live[0]
    ]
    return max([written, *ends])
