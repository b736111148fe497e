# SPDX-License-Identifier: Apache-2.0
"""Offsets for what was chosen for one memory, or why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from passes.planning.buffer import Buffer
from passes.planning.engine.blocks import BlockList
from passes.planning.memories.choice import Part
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker
from passes.planning.planners.best import best
from passes.planning.planners.feasibility import FeasibilityCheck, Outcome
from passes.planning.planners.first_fit import first_fit
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope

LOW_NODES = 20_000  # Nodes for a low peak where there is no capacity
FIRST_NODES = 20_000  # Nodes for a whole memory before it is asked which buffers are in the way
TURNS = 4
WINDOWS = (2, 4, 8, 16, 32)  # Positions among whose buffers some without a place are looked for
CORE_NODES = 2_000  # Nodes for each question whether fewer buffers are without a place, too
CORE_QUESTIONS = 60


@dataclass(frozen=True)
class Placed:
    """What is known of offsets in one memory.

    `plan` is of the buffers by their number among the parts, as text; None where none was found.
    Each of `cores` are the numbers of parts that are proven to have no place together.
    """

    plan: Plan | None
    cores: tuple[tuple[int, ...], ...] = ()


def place(
    buffers: Sequence[Buffer], parts: Sequence[Part], memory: MemoryScope, tracker: BudgetTracker
) -> Placed:
    """Find offsets for parts of buffers that share a memory."""
    problem = problem_of(buffers, parts, memory)
    if memory.capacity is None:
        return Placed(best(problem, tracker.share(1, at_most=LOW_NODES).rest()))
    plan = first_fit(problem, Budget(0, tracker.rest().seconds))
    if plan.fits:
        return Placed(plan)
    block_list = BlockList(problem)
    check = FeasibilityCheck(block_list)
    for turn in range(TURNS):
        share = tracker.share(TURNS - turn, FIRST_NODES if turn == 0 else None)
        answer = check.run(memory.capacity, share, turn)
        if answer.offsets is not None:
            return Placed(block_list.plan(answer.offsets, "best"))
        if answer.outcome is Outcome.EXHAUSTED or turn == 0:
            cores = tuple(_cores(problem, tracker))
            if cores:
                return Placed(None, cores)
        if answer.outcome is Outcome.EXHAUSTED:
            return Placed(None, (_shrunk(problem, problem.buffers, tracker),))
    return Placed(None)


def problem_of(buffers: Sequence[Buffer], parts: Sequence[Part], memory: MemoryScope) -> Problem:
    """Return the problem of parts in one memory; each is called by its number."""
    placed = []
    for number, part in enumerate(parts):
        buffer = buffers[part.buffer]
        pinned = None if part.is_stay else buffer.pinned
        placed.append(
            Buffer(str(number), buffer.size, part.live, buffer.alignment, buffer.slots, pinned)
        )
    return Problem(tuple(placed), memory, name=memory.name)


def _cores(problem: Problem, tracker: BudgetTracker) -> Iterator[tuple[int, ...]]:
    """Yield sets of buffers that have no place together, few each, where some are found.

    They are looked for among those that live within few consecutive positions, then more.
    """
    positions = sorted({buffer.live[0][0] for buffer in problem.buffers})
    for width in WINDOWS:
        found: list[tuple[int, ...]] = []
        for first in range(0, len(positions), max(1, width // 2)):
            if not tracker.left:
                break
            low, high = positions[first], positions[min(first + width, len(positions)) - 1]
            window = [
                buffer
                for buffer in problem.buffers
                if any(begin <= high and low < end for begin, end in buffer.live)
            ]
            names = {int(buffer.name) for buffer in window}
            if not any(names.issuperset(core) for core in found) and _has_no_plan(
                problem, window, tracker
            ):
                found.append(_shrunk(problem, window, tracker))
                yield found[-1]
        if found or width >= len(positions):
            return


def _shrunk(problem: Problem, buffers: Sequence[Buffer], tracker: BudgetTracker) -> tuple[int, ...]:
    """Return few of some buffers without a place together that have none either."""
    core = sorted(buffers, key=lambda b: (b.size * (b.live[-1][1] - b.live[0][0]), b.name))
    step, at, questions = max(1, len(core) // 2), 0, 0
    while step and questions < CORE_QUESTIONS and tracker.left:
        rest = core[:at] + core[at + step :]
        questions += 1
        if at < len(core) and _has_no_plan(problem, rest, tracker):
            core = rest
        else:
            at += step
        if at >= len(core):
            at, step = 0, step // 2
    return tuple(sorted(int(buffer.name) for buffer in core))


def _has_no_plan(problem: Problem, buffers: Sequence[Buffer], tracker: BudgetTracker) -> bool:
    if not buffers:
        return False
    smaller = Problem(tuple(buffers), problem.memory, name=problem.name)
    assert problem.capacity is not None
    share = tracker.share(1, at_most=CORE_NODES)
    answer = FeasibilityCheck(BlockList(smaller)).run(problem.capacity, share)
    return answer.outcome is Outcome.EXHAUSTED
