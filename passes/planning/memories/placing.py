# SPDX-License-Identifier: Apache-2.0
"""Offsets for what was chosen for one memory, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
FIRST_NODES = 20_000  # Nodes for the first question
TURNS = 4  # Sets of orders that are asked, one after the other
CORE_NODES = 2_000  # Nodes for each question whether fewer buffers are without a place, too
CORE_QUESTIONS = 60


@dataclass(frozen=True)
class Placed:
    """What is known of offsets in one memory.

    `plan` is of the buffers by their number among the parts, as text; None where none was found.
    `core` has the numbers of parts that are proven to have no place together, if any are.
    """

    plan: Plan | None
    core: tuple[int, ...] = ()


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
        if answer.outcome is Outcome.EXHAUSTED:
            return Placed(None, _core(problem, memory.capacity, tracker))
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


def _core(problem: Problem, capacity: int, tracker: BudgetTracker) -> tuple[int, ...]:
    """Return few buffers of a problem without a plan that have no place together either."""

    def has_no_plan(buffers: Sequence[Buffer]) -> bool:
        check = FeasibilityCheck(BlockList(replace(problem, buffers=tuple(buffers))))
        answer = check.run(capacity, tracker.share(1, at_most=CORE_NODES))
        return answer.outcome is Outcome.EXHAUSTED

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
    return tuple(sorted(int(buffer.name) for buffer in core))
