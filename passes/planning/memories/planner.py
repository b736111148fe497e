# SPDX-License-Identifier: Apache-2.0
"""Plans several memories: HiGHS chooses, planners place, and what has no place is taken back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from passes.planning.buffer import Buffer
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.memories.choice import Assignment, Formulation
from passes.planning.memories.filling import better_filling, first_filling
from passes.planning.memories.integer_program import Constraint, solve_program
from passes.planning.memories.memories_problem import (
    Copy,
    MemoriesPlan,
    MemoriesProblem,
    Stay,
    fits_alone,
)
from passes.planning.plan import Status
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.best import fitting, minimise
from passes.planning.planners.first_fit import fit_blocks
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

NAME = "steps"  # The planner of several memories, which works in steps
NODES = 40_000  # Placements for a plan, unless a budget says otherwise: some seconds
LEAST_SECONDS = 0.3  # For a choice, also where the time is over
MIP_PART, PLACE_PART = 5, 4  # The part of what is left for one choice, and to place one
CHOOSE_PART = 1.5  # The part of the time for choices and their places
FILL_PART = 1.25  # The part of the time for a better filling: the rest is for what has no capacity
FILL_NODES = 16_000  # Nodes for that without a limit of time, some seconds
LOW_NODES = 20_000  # Nodes for a low peak where there is no capacity
STEPS = (0.25, 0.5, 0.75)
"""Shares of the way from the part of a memory at which first fit has room for a choice to all of
it, that are tried as long as choices have a place."""
CUT_ROUNDS = 100  # Choices for whole memories, as long as it is proven that each has no place
OUTWEIGHS = 1e12  # Bytes over a bus that weigh as much as one over the next slower bus

Placed = list[tuple[Assignment, tuple[int, ...]]]
"""The contents of the memories, with offsets in bytes, one a slot."""


def solve_memories(
    problem: MemoriesProblem, budget: Budget | None = None, *, moves: bool = False
) -> MemoriesPlan:
    """Plan several memories with the fewest bytes moved, as `passes.planning.solve` says.

    The nodes of the budget are those of placing. Its seconds are kept; without them, HiGHS and the
    search for offsets end after a number of steps, so that the plan does not depend on the machine.
    Where not everything fits, the last memory is taken to be without end, and the status says
    whether that is proven.
    """
    budget = budget or Budget(NODES)
    tracker = BudgetTracker(budget)
    found = _plan(problem, tracker.share(2) if moves else tracker, moves=False)
    if not moves or not found.fits or not any(problem.objective(found.moved)):
        return found
    moved = _plan(problem, tracker, moves=True)
    if moved.fits and problem.objective(moved.moved) < problem.objective(found.moved):
        return moved
    is_least = problem.objective(found.moved) == moved.bound
    status = Status.OPTIMAL if is_least else Status.FEASIBLE
    return replace(found, bound=moved.bound, status=status)


def _plan(problem: MemoriesProblem, tracker: BudgetTracker, moves: bool) -> MemoriesPlan:
    """Choose and place until both agree; else choose for less of each memory, and add to that."""
    made = Formulation(problem, moves)
    rows, bound = list(made.program.rows), (0,) * len(problem.memories)
    fillings: list[Placed] = []
    choosing = tracker.share(CHOOSE_PART)
    part, least, steps = 1.0, 1.0, iter(STEPS)  # The part of each memory that is asked for
    for _ in range(CUT_ROUNDS):
        if fillings and not choosing.left:
            break
        seconds = choosing.share(MIP_PART).rest().seconds
        seconds = None if seconds is None else max(LEAST_SECONDS, seconds)
        choice = solve_program(replace(made.program, rows=rows), seconds, part)
        if part == 1.0:
            bound = max(bound, choice.bound[: len(bound)])
        if choice.values is None:
            if choice.is_infeasible and part == 1.0:
                placed = _filled(problem, [])
                return _finished(problem, placed, bound, tracker, infeasible=True)
            break  # Time ran out: more of it would not bring a choice either
        parts = made.parts(made.chosen(choice.values))
        placed, cuts, most = _placed(problem, parts, choosing)
        if not cuts and (moves or part == 1.0):
            return _finished(problem, placed, bound, tracker)
        rows += cuts
        if cuts:
            placed = [(each, ()) for each in parts if not each.is_stay]
        if not cuts or not fillings:
            fillings.append(_filled(problem, placed))
        if cuts and most == 1.0:
            continue
        step = next(steps, None)
        if step is None or (cuts and part < 1):
            break
        least = 1 / most if part == 1.0 else least
        part = least + (1 - least) * step
    best = min(fillings or [_filled(problem, [])], key=partial(_value, problem))
    if not moves and tracker.left:
        is_timed = tracker.rest().seconds is not None
        fill = tracker.share(FILL_PART, at_most=None if is_timed else FILL_NODES)
        again = _filled(problem, best, fill)
        best = min(best, again, key=partial(_value, problem))
    return _finished(problem, best, bound, tracker)


def _placed(
    problem: MemoriesProblem, parts: Sequence[Assignment], tracker: BudgetTracker
) -> tuple[Placed, list[Constraint], float]:
    """Place each part in its memory.

    Return what was placed; for each memory in which not all has a place, that not all of that lies
    there; and the highest peak in parts of its capacity, or 1 if all these are proven.
    """
    placed: Placed = []
    cuts: list[Constraint] = []
    most = 1.0
    for memory, scope in enumerate(problem.memories):
        there = [part for part in parts if part.memory == memory]
        if scope.capacity is None:
            placed += [(part, ()) for part in there]
            continue
        plan = fitting(BlockList(_problem_of(problem, there, scope)), tracker.share(PLACE_PART))
        if plan.fits:
            placed += [(part, plan.offsets[str(at)]) for at, part in enumerate(there)]
            continue
        if plan.status is not Status.INFEASIBLE:
            most = max(most, plan.peak / max(1, scope.capacity))
        terms = tuple((v, 1) for v in sorted({v for part in there for v in part.variables}))
        cuts.append(Constraint(terms, None, len(terms) - 1))
    return placed, cuts, most


def _problem_of(
    problem: MemoriesProblem, parts: Sequence[Assignment], memory: MemoryScope
) -> Problem:
    """Return the problem of parts in one memory; each is called by its number."""
    placed = []
    for number, part in enumerate(parts):
        buffer = problem.buffers[part.buffer]
        pinned = None if part.is_stay else buffer.pinned
        placed.append(
            Buffer(str(number), buffer.size, part.live, buffer.alignment, buffer.slots, pinned)
        )
    return Problem(tuple(placed), memory, name=memory.name)


# A plan where a choice has no place: memory by memory, the fastest first


def _filled(
    problem: MemoriesProblem, start: Placed, tracker: BudgetTracker | None = None
) -> Placed:
    """Fill each memory with what is worth most there, of what it has at the start first.

    That keeps its offsets if it has any; with a tracker, a search goes on from there until that is
    used up. Every buffer has a memory, also where not everything fits: it then goes above the
    capacity of the last one that it may lie in. Buffers in a memory without end have no offsets.
    """
    lost = _lost(problem)
    left = dict.fromkeys(range(len(problem.buffers)))
    wanted = {part.buffer: (part.memory, offsets) for part, offsets in start}
    placed: Placed = []
    for memory, scope in enumerate(problem.memories):
        worth = {index: lost[index][memory] for index in left if memory in lost[index]}
        wishes = {i: wanted[i][1] for i in worth if i in wanted and wanted[i][0] == memory}
        there = [i for i, value in worth.items() if value >= 0 or i in wishes]
        parts = [Assignment(index, memory, (), problem.buffers[index].live) for index in there]
        taken: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(parts)), ())
        if scope.capacity is not None:
            blocks = BlockList(_problem_of(problem, parts, scope))
            limited = sum(m.capacity is not None for m in problem.memories[memory:])
            rest = tracker.share(limited) if tracker else None
            taken = _taken(
                blocks,
                [worth[index] for index in there],
                [wishes.get(index) for index in there],
                rest,
            )
        for number, offsets in taken.items():
            placed.append((parts[number], offsets))
            del left[there[number]]
    return placed


def _value(problem: MemoriesProblem, placed: Placed) -> tuple[bool, tuple[int, ...]]:
    """Return what to minimise of whole lives in memories: what does not fit, then what moves."""
    moved = [0] * len(problem.memories)
    fits = True
    for part, offsets in placed:
        buffer, capacity = problem.buffers[part.buffer], problem.memories[part.memory].capacity
        moved[part.memory] += problem.cost(buffer, part.memory)
        fits = fits and (capacity is None or max(offsets) + buffer.size <= capacity)
    return not fits, tuple(reversed(moved))


def _finished(
    problem: MemoriesProblem,
    placed: Placed,
    bound: tuple[int, ...],
    tracker: BudgetTracker,
    infeasible: bool = False,
) -> MemoriesPlan:
    """Return the plan, with offsets for what lies in memories without end."""
    known = [(part, offsets) for part, offsets in placed if offsets]
    for memory, scope in enumerate(problem.memories):
        parts = [part for part, offsets in placed if not offsets and part.memory == memory]
        if parts:
            low = BudgetTracker(Budget(LOW_NODES, tracker.rest().seconds))
            plan = minimise(BlockList(_problem_of(problem, parts, scope)), low)
            known += [(part, plan.offsets[str(number)]) for number, part in enumerate(parts)]
    found = _written(problem, known, bound)
    if all(m.capacity is None or found.peaks[m.name] <= m.capacity for m in problem.memories):
        return found
    return replace(found, status=Status.INFEASIBLE if infeasible else Status.NOT_FOUND)


def _lost(problem: MemoriesProblem) -> list[dict[int, float]]:
    """Return for each buffer what it costs to leave it out of each memory that it may lie in.

    Infinity where no slower one takes it. A byte over the bus of a slower memory outweighs all that
    can move over that of a faster one, up to a float's precision.
    """
    lost = []
    for buffer in problem.buffers:
        allowed = problem.allowed(buffer)
        possible = [k for k in allowed if fits_alone(buffer, problem.memories[k])] or [allowed[-1]]
        costs = [problem.cost(buffer, k) * OUTWEIGHS**k for k in possible]
        without = [*(later - now for now, later in pairwise(costs)), math.inf]
        lost.append(dict(zip(possible, without, strict=True)))
    return lost


def _taken(
    blocks: BlockList,
    worth: Sequence[float],
    wanted: Sequence[tuple[int, ...] | None],
    tracker: BudgetTracker | None,
) -> dict[int, tuple[int, ...]]:
    """Return the offsets of the buffers that a memory takes, by number.

    `worth` has a number a buffer, and `wanted` the offsets of what comes first, empty where they
    are to be found. A buffer without another memory is taken at any rate, above the capacity if
    need be.
    """
    of_block = [worth[buffer] for buffer in blocks.buffer_of]
    wishes = [wanted[buffer] is not None for buffer in blocks.buffer_of]
    given = {
        begin + slot: offset
        for begin, wish in zip(blocks.first, wanted, strict=False)
        for slot, offset in enumerate(wish or ())
    }
    if tracker is not None:
        capacity = blocks.problem.capacity
        assert capacity is not None, "a memory without end takes everything"
        inside = {b: at for b, at in given.items() if at + blocks.sizes[b] <= capacity}
        offsets = [inside.get(block, UNPLACED) for block in range(len(blocks))]
        offsets = better_filling(blocks, of_block, offsets, tracker)
    else:
        offsets = first_filling(blocks, of_block, wishes, given)
    late = [b for b, at in enumerate(offsets) if at == UNPLACED and of_block[b] == math.inf]
    if late:
        there = {block: at for block, at in enumerate(offsets) if at != UNPLACED}
        offsets = fit_blocks(blocks, late, fixed=there)
    rows = (tuple(offsets[begin:end]) for begin, end in pairwise(blocks.first))
    return {number: row for number, row in enumerate(rows) if UNPLACED not in row}


# The plan that parts with their offsets are


def _written(problem: MemoriesProblem, placed: Placed, bound: tuple[int, ...]) -> MemoriesPlan:
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
        {},
        bound,
        peaks,
        Status.FEASIBLE,
        NAME,
        {names[i]: tuple(sorted(stays[i], key=lambda s: s.live)) for i in names if i in stays},
    )
    plan = _with_copies(problem, plan) if plan.stays else plan
    moved = _moved(problem, plan)
    is_least = problem.objective(moved) == bound
    return replace(plan, moved=moved, status=Status.OPTIMAL if is_least else Status.FEASIBLE)


def _moved(problem: MemoriesProblem, plan: MemoriesPlan) -> dict[str, int]:
    """Return the bytes that a run moves over the bus of each memory."""
    moved = {scope.name: 0 for scope in problem.memories}
    copies = Counter(copy.buffer for copy in plan.copies)
    for buffer in problem.buffers:
        home = plan.memory[buffer.name]
        if buffer.name not in plan.stays:
            moved[home] += problem.cost(buffer, problem.memory_index[home])
            continue
        stays = [stay.live for stay in plan.stays[buffer.name]]
        touches = problem.traffic_of(buffer).touches
        direct = sum(not any(a <= touch < b for a, b in stays) for touch in touches)
        moved[home] += buffer.size * (copies[buffer.name] + direct)
    return moved


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
