# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: choose by a 0/1 program, place, and take back what has no place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from passes.planning.buffer import Buffer
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.memories.choice import Formulation, Part
from passes.planning.memories.greedy import greedy
from passes.planning.memories.memories_problem import Copy, MemoriesPlan, MemoriesProblem, Stay
from passes.planning.memories.zero_one_program import Constraint, solve_program
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.best import best
from passes.planning.planners.feasibility import FeasibilityCheck, Outcome
from passes.planning.planners.first_fit import first_fit, fit_blocks
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

NAME = "steps"
SECONDS = 10.0  # Time for a plan, unless a budget says otherwise
PLACE_PART = 4  # The part of what is left for one attempt to place a choice
LOW_NODES = 20_000  # Nodes for a low peak where there is no capacity
CORE_NODES = 2_000  # Nodes for each question whether fewer buffers are without a place, too
CORE_QUESTIONS = 60

Parts = Sequence[Part]
Placed = list[tuple[Parts, Plan]]
"""What lies in each memory, and its plan, in which each part is called by its number."""


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
        placed: Placed = []
        cuts: list[Constraint] = []
        for memory, scope in enumerate(problem.memories):
            there = [part for part in parts if part.memory == memory]
            asked = problem_of(problem.buffers, there, scope)
            plan, core = _place(asked, tracker.share(PLACE_PART))
            if plan is not None:
                placed.append((there, plan))
                continue
            # Parts that have no place together do not all lie here.
            is_proof = is_proof and bool(core)
            variables = {v for number in core or range(len(there)) for v in there[number].variables}
            terms = tuple((v, 1) for v in sorted(variables))
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
        program = program.with_rows(cuts)


def problem_of(buffers: Sequence[Buffer], parts: Parts, memory: MemoryScope) -> Problem:
    """Return the problem of parts in one memory; each is called by its number."""
    placed = []
    for number, part in enumerate(parts):
        buffer = buffers[part.buffer]
        pinned = None if part.is_stay else buffer.pinned
        placed.append(
            Buffer(str(number), buffer.size, part.live, buffer.alignment, buffer.slots, pinned)
        )
    return Problem(tuple(placed), memory, name=memory.name)


# Offsets for what was chosen for one memory, or why there are none


def _place(problem: Problem, tracker: BudgetTracker) -> tuple[Plan | None, Sequence[int]]:
    """Return a plan if one is found; else buffers, by index, that provably have none together.

    There are no such buffers where it is open whether the problem has a plan.
    """
    if problem.capacity is None:
        return best(problem, tracker.share(1, at_most=LOW_NODES).rest()), ()
    plan = first_fit(problem, Budget(0, tracker.rest().seconds))
    if plan.fits:
        return plan, ()
    block_list = BlockList(problem)
    outcome, offsets = FeasibilityCheck(block_list).run(problem.capacity, tracker)
    if outcome is Outcome.FOUND:
        return block_list.plan(offsets, "best"), ()
    return None, _core(problem, tracker) if outcome is Outcome.EXHAUSTED else ()


def _core(problem: Problem, tracker: BudgetTracker) -> list[int]:
    """Return few buffers of a problem without a plan that have no place together either."""

    def has_no_plan(buffers: Sequence[Buffer]) -> bool:
        check = FeasibilityCheck(BlockList(replace(problem, buffers=tuple(buffers))))
        return check.run(capacity, tracker.share(1, CORE_NODES))[0] is Outcome.EXHAUSTED

    capacity = problem.capacity or 0
    core = sorted(problem.buffers, key=lambda b: (b.size * (b.live[-1][1] - b.live[0][0]), b.name))
    step, at, questions = max(1, len(core) // 2), 0, 0
    while step and questions < CORE_QUESTIONS and tracker.left:
        rest = core[:at] + core[at + step :]
        questions += 1
        if at < len(core) and rest and has_no_plan(rest):
            core = rest
        else:
            at += step
        if at >= len(core):
            at, step = 0, step // 2
    return sorted(problem.index[buffer.name] for buffer in core)


# A plan without a program: buffers by their worth, each into the first memory that takes it


def _without_program(
    problem: MemoriesProblem, wanted: Mapping[int, int], bound: tuple[int, ...], infeasible: bool
) -> MemoriesPlan:
    """Return the best of some plans; `wanted` has memories that buffers try first.

    It moves no more bytes than ExecuTorch's rule does, where that can be asked.
    """
    filled = [_filled(problem, wanted, worth) for worth in _WORTHS]
    if not any(b.slots > 1 or b.pinned is not None for b in problem.buffers):
        filled += _by_greedy(problem)

    def moved(placed: Placed) -> tuple[int, ...]:
        costs = [
            sum(problem.cost(problem.buffers[part.buffer], memory) for part in there)
            for memory, (there, _) in enumerate(placed)
        ]
        return tuple(reversed(costs))

    placed = min(filled, key=lambda each: (not all(plan.fits for _, plan in each), moved(each)))
    found = _written(problem, placed, moved(placed), bound)
    if all(plan.fits for _, plan in placed):
        return found
    return replace(found, status=Status.INFEASIBLE if infeasible else Status.NOT_FOUND)


def _saved_a_position(problem: MemoriesProblem, index: int) -> float:
    buffer = problem.buffers[index]
    costs = [problem.cost(buffer, memory) for memory in problem.allowed(buffer)]
    return (max(costs) - costs[0]) / sum(end - begin for begin, end in buffer.live)


_WORTHS: tuple[Callable[[MemoriesProblem, int], float], ...] = (
    _saved_a_position,
    lambda problem, index: problem.buffers[index].size,
)


def _filled(
    problem: MemoriesProblem,
    wanted: Mapping[int, int],
    worth: Callable[[MemoriesProblem, int], float],
) -> Placed:
    left = dict.fromkeys(range(len(problem.buffers)))
    allowed = [problem.allowed(buffer) for buffer in problem.buffers]
    found: Placed = []
    for memory, scope in enumerate(problem.memories):
        asked = [index for index in left if memory in allowed[index]]
        asked.sort(
            key=lambda i: (
                problem.buffers[i].pinned is None,
                allowed[i][-1] != memory,
                wanted.get(i) != memory,
                -worth(problem, i),
                i,
            )
        )
        parts = [Part(index, memory, (), problem.buffers[index].live) for index in asked]
        must = [allowed[index][-1] == memory for index in asked]
        found.append(_taken(problem, parts, must, scope))
        for part in found[-1][0]:
            del left[part.buffer]
    return found


def _taken(
    problem: MemoriesProblem, parts: Parts, must: Sequence[bool], scope: MemoryScope
) -> tuple[Parts, Plan]:
    """Return the parts that a memory takes by first fit, and their plan.

    Those that must lie there go above its capacity where nothing else is left.
    """
    blocks = BlockList(problem_of(problem.buffers, parts, scope))
    order = range(len(blocks))
    offsets = fit_blocks(blocks, order, limit=scope.capacity)
    out = {blocks.buffer_of[b] for b in order if offsets[b] == UNPLACED}
    fixed = {b: offsets[b] for b in order if blocks.buffer_of[b] not in out}
    late = [b for b in order if blocks.buffer_of[b] in out and must[blocks.buffer_of[b]]]
    if late:
        offsets = fit_blocks(blocks, late, fixed=fixed)
    kept = [n for n in range(len(parts)) if n not in out or must[n]]
    chosen = set(kept)
    placed = [offsets[b] for b in order if blocks.buffer_of[b] in chosen]
    return _with_offsets(problem, [parts[n] for n in kept], scope, placed)


def _by_greedy(problem: MemoriesProblem) -> list[Placed]:
    """Return the plan of ExecuTorch's rule, if it has one."""
    found = greedy(problem)
    if found is None:
        return []
    placed = []
    for memory, scope in enumerate(problem.memories):
        there = [at for at, b in enumerate(problem.buffers) if found[b.name][0] == scope.name]
        parts = [Part(at, memory, (), problem.buffers[at].live) for at in there]
        offsets = [found[problem.buffers[at].name][1] for at in there]
        placed.append(_with_offsets(problem, parts, scope, offsets))
    return [placed]


def _with_offsets(
    problem: MemoriesProblem, parts: Parts, scope: MemoryScope, offsets: Sequence[int]
) -> tuple[Parts, Plan]:
    blocks = BlockList(problem_of(problem.buffers, parts, scope))
    return parts, blocks.plan(offsets, "first_fit")


# The plan that parts with their offsets are


def _written(
    problem: MemoriesProblem, placed: Placed, value: tuple[int, ...], bound: tuple[int, ...]
) -> MemoriesPlan:
    """Return the plan, with the copies of its stays; optimal if it moves as much as the bound."""
    memory: dict[int, str] = {}
    offsets: dict[int, tuple[int, ...]] = {}
    stays: dict[str, list[Stay]] = {}
    for scope, (there, found) in zip(problem.memories, placed, strict=True):
        for number, part in enumerate(there):
            at = found.offsets[str(number)]
            if part.is_stay:
                name = problem.buffers[part.buffer].name
                stays.setdefault(name, []).append(Stay(scope.name, at, part.live[0]))
            else:
                memory[part.buffer], offsets[part.buffer] = scope.name, at
    names = [buffer.name for buffer in problem.buffers]
    scopes = [scope.name for scope in problem.memories]
    plan = MemoriesPlan(
        {name: memory[index] for index, name in enumerate(names)},
        {name: offsets[index] for index, name in enumerate(names)},
        dict(zip(scopes, reversed(value), strict=True)),
        bound,
        {scope: found.peak for scope, (_, found) in zip(scopes, placed, strict=True)},
        Status.OPTIMAL if value == bound else Status.FEASIBLE,
        NAME,
        {n: tuple(sorted(stays[n], key=lambda s: s.live)) for n in names if n in stays},
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
