# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: choose by a 0/1 program, place, and take back what has no place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from passes.planning.buffer import Buffer
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.memories.choice import Formulation, Part
from passes.planning.memories.greedy import greedy
from passes.planning.memories.memories_problem import Copy, MemoriesPlan, MemoriesProblem, Stay
from passes.planning.memories.zero_one_program import Constraint, solve_program
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.best import fitting, minimise
from passes.planning.planners.first_fit import fit_blocks
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

NAME = "steps"
SECONDS = 10.0  # Time for a plan, unless a budget says otherwise
PLACE_PART = 4  # The part of what is left for one attempt to place a choice
LOW_NODES = 20_000  # Nodes for a low peak where there is no capacity

Placed = list[tuple[Part, tuple[int, ...]]]
"""What lies in the memories, with its offsets in bytes, one a slot."""


def solve_memories(
    problem: MemoriesProblem, budget: Budget | None = None, *, moves: bool = False
) -> MemoriesPlan:
    """Plan several memories with the fewest bytes moved, as `passes.planning.solve` says.

    The time of the budget is kept, `SECONDS` by default, and its nodes are those of placing. Where
    not everything fits, the last memory is taken to be without end, and the status says whether
    that is proven.
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
        placed: Placed = []
        cuts: list[Constraint] = []
        for memory, scope in enumerate(problem.memories):
            there = [part for part in parts if part.memory == memory]
            plan = _place(_problem_of(problem, there, scope), tracker.share(PLACE_PART))
            if plan.fits:
                placed += [(part, plan.offsets[str(at)]) for at, part in enumerate(there)]
                continue
            # These parts have no place together, so they do not all lie here.
            is_proof = is_proof and plan.status is Status.INFEASIBLE
            terms = tuple((v, 1) for v in sorted({v for part in there for v in part.variables}))
            cuts.append(Constraint(terms, None, len(terms) - 1))
        if not cuts:
            value = made.program.value(choice.chosen)[:buses]
            found = _written(problem, placed, value, bound)
            if found.status is Status.OPTIMAL:
                return found
            other = _without_program(problem, {}, bound, False)
            is_better = other.fits and problem.objective(other.moved) < value
            return other if is_better else found
        if not tracker.left:
            wanted = {part.buffer: part.memory for part in parts if not part.is_stay}
            return _without_program(problem, wanted, bound, False)
        program = replace(program, rows=(*program.rows, *cuts))


def _problem_of(problem: MemoriesProblem, parts: Sequence[Part], memory: MemoryScope) -> Problem:
    """Return the problem of parts in one memory; each is called by its number."""
    placed = []
    for number, part in enumerate(parts):
        buffer = problem.buffers[part.buffer]
        pinned = None if part.is_stay else buffer.pinned
        placed.append(
            Buffer(str(number), buffer.size, part.live, buffer.alignment, buffer.slots, pinned)
        )
    return Problem(tuple(placed), memory, name=memory.name)


def _place(problem: Problem, tracker: BudgetTracker) -> Plan:
    """Return a plan that fits, or that says whether there is none."""
    if problem.capacity is None:
        return minimise(BlockList(problem), tracker.share(1, at_most=LOW_NODES))
    return fitting(BlockList(problem), tracker)


# A plan without a program: the largest buffers first, each into the first memory that takes it


def _without_program(
    problem: MemoriesProblem, wanted: Mapping[int, int], bound: tuple[int, ...], infeasible: bool
) -> MemoriesPlan:
    """Return a plan by first fit, or by ExecuTorch's rule where that moves fewer bytes.

    `wanted` has memories that buffers try first. The plan is complete also where not everything
    fits: a buffer then goes above the capacity of the last memory that it may lie in.
    """
    plans = []
    for placed in (_filled(problem, wanted), *_by_greedy(problem)):
        value = [0] * len(problem.memories)
        for part, _ in placed:
            value[part.memory] += problem.cost(problem.buffers[part.buffer], part.memory)
        found = _written(problem, placed, tuple(reversed(value)), bound)
        if any(
            m.capacity is not None and found.peaks[m.name] > m.capacity for m in problem.memories
        ):
            found = replace(found, status=Status.INFEASIBLE if infeasible else Status.NOT_FOUND)
        plans.append(found)
    return min(plans, key=lambda plan: (not plan.fits, problem.objective(plan.moved)))


def _by_greedy(problem: MemoriesProblem) -> Iterator[Placed]:
    """Yield what lies where by ExecuTorch's rule, if it has a plan."""
    if any(b.slots > 1 or b.pinned is not None for b in problem.buffers):
        return
    if where := greedy(problem):
        memories = [problem.memory_index[where[b.name][0]] for b in problem.buffers]
        yield [
            (Part(index, memory, (), b.live), (where[b.name][1],))
            for index, (b, memory) in enumerate(zip(problem.buffers, memories, strict=True))
        ]


def _filled(problem: MemoriesProblem, wanted: Mapping[int, int]) -> Placed:
    """Return where buffers lie by first fit, the largest first."""
    left = dict.fromkeys(range(len(problem.buffers)))
    allowed = [problem.allowed(buffer) for buffer in problem.buffers]
    placed: Placed = []
    for memory, scope in enumerate(problem.memories):
        asked = [index for index in left if memory in allowed[index]]
        asked.sort(
            key=lambda i: (
                problem.buffers[i].pinned is None,
                allowed[i][-1] != memory,
                wanted.get(i) != memory,
                -problem.buffers[i].size,
                i,
            )
        )
        parts = [Part(index, memory, (), problem.buffers[index].live) for index in asked]
        blocks = BlockList(_problem_of(problem, parts, scope))
        offsets = fit_blocks(blocks, range(len(blocks)), limit=scope.capacity)
        out = {part for part, at in zip(blocks.buffer_of, offsets, strict=True) if at == UNPLACED}
        must = [allowed[part.buffer][-1] == memory for part in parts]
        late = [b for b, part in enumerate(blocks.buffer_of) if part in out and must[part]]
        if late:
            there = enumerate(blocks.buffer_of)
            fixed = {b: offsets[b] for b, part in there if part not in out}
            offsets = fit_blocks(blocks, late, fixed=fixed)
        taken = [number for number in range(len(parts)) if number not in out or must[number]]
        for number in taken:
            begin, end = blocks.first[number : number + 2]
            placed.append((parts[number], tuple(offsets[begin:end])))
            del left[parts[number].buffer]
    return placed


# The plan that parts with their offsets are


def _written(
    problem: MemoriesProblem, placed: Placed, value: tuple[int, ...], bound: tuple[int, ...]
) -> MemoriesPlan:
    """Return the plan, with the copies of its stays; optimal if it moves as much as the bound."""
    scopes = [scope.name for scope in problem.memories]
    peaks = dict.fromkeys(scopes, 0)
    lies: dict[int, tuple[str, tuple[int, ...]]] = {}
    stays: dict[int, list[Stay]] = {}
    for part, offsets in placed:
        scope = scopes[part.memory]
        peaks[scope] = max(peaks[scope], max(offsets) + problem.buffers[part.buffer].size)
        if part.is_stay:
            stays.setdefault(part.buffer, []).append(Stay(scope, offsets, part.live[0]))
        else:
            lies[part.buffer] = scope, offsets
    names = {index: buffer.name for index, buffer in enumerate(problem.buffers)}
    plan = MemoriesPlan(
        {name: lies[index][0] for index, name in names.items()},
        {name: lies[index][1] for index, name in names.items()},
        dict(zip(scopes, reversed(value), strict=True)),
        bound,
        peaks,
        Status.OPTIMAL if value == bound else Status.FEASIBLE,
        NAME,
        {names[i]: tuple(sorted(stays[i], key=lambda s: s.live)) for i in names if i in stays},
    )
    return _with_copies(problem, plan) if plan.stays else plan


Held = tuple[int, int, int]  # Bytes [low, high) that are in use up to a position


def _with_copies(problem: MemoriesProblem, plan: MemoriesPlan) -> MemoriesPlan:
    """Return a plan with the copies of its stays, each copy in as early as its bytes are free.

    A copy in so early holds its bytes from then on, which its stay says.
    """
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
                low, begin = stay.offsets[0], stay.live[0]
                high = low + buffer.size
                ends = [e for a, b, e in held[stay.memory] if a < high and low < b and e <= begin]
                early = max([written, *ends])
                held[stay.memory].append((low, high, begin))
                copies.append(Copy(name, home, stay.memory, buffer.size, early, touches[0]))
                stay = replace(stay, live=(early, stay.live[1]))
            found.append(stay)
        stays[name] = tuple(found)
    copies.sort(key=lambda copy: (copy.begin, copy.end, copy.buffer))
    return replace(plan, stays=stays, copies=tuple(copies))


def _held(problem: MemoriesProblem, plan: MemoriesPlan, memory: str) -> Iterator[Held]:
    """Yield the bytes of a memory that are in use, and until when."""
    for buffer in problem.buffers:
        for stay in plan.stays.get(buffer.name, ()):
            if stay.memory == memory:
                yield stay.offsets[0], stay.offsets[0] + buffer.size, stay.live[1]
        if plan.memory[buffer.name] == memory:
            for offset in plan.offsets[buffer.name]:
                for _, end in buffer.live:
                    yield offset, offset + buffer.size, end
