# SPDX-License-Identifier: Apache-2.0
"""What a kernel for an Ascend core gives up so that it fits: the plans of the fewest cycles.

Levels of reuse and slots are weighed against each other by the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from passes.ascend.analysis.problems import CoreKernel
from passes.ascend.planning.choice import Asked, Choice, Judge, Placed, Planner, Verdict
from passes.ascend.planning.fewer_slots import choose
from passes.ascend.planning.levels import reuse_of
from passes.driver import Solver, target_of
from passes.planning import Budget, Plan, Problem, solve
from passes.prim_func.function_problems import AttachedProblem
from passes.simulation import Cause, Simulation, simulate
from target_hw.machine import Machine


@dataclass(frozen=True)
class MemoryChoices:
    """What can be chosen in one memory of a kernel."""

    asked: Asked  # As the kernel asks for it
    # Plans that fit, the chosen one first; none where no plan that was found does.
    choices: tuple[Choice, ...]

    @property
    def problem(self) -> Problem:
        """The memory with all slots."""
        return self.asked.problem


def choices_of(
    kernel: CoreKernel,
    planner: Planner,
    scopes: Collection[str],
    budget: Budget | None = None,
    *,
    smaller: bool = False,
    judge: Judge | None = None,
) -> tuple[MemoryChoices, ...]:
    """Find what can be chosen in each memory of a kernel.

    Parameters
    ----------
    kernel : CoreKernel
        Read from a function whose target describes its pipelines, unless there is a judge.
    planner : callable
        What seeks the plan of the least penalty.
    scopes : collection of str
        The memories in which slots may be given up. The others are taken to have no end.
    budget : Budget, optional
        For all plans together.
    smaller : bool
        As in `choose`.
    judge : callable, optional
        What plans cost; by default the simulator says it.

    Raises
    ------
    ValueError
        When there is no judge, and the function's target does not describe its pipelines.
    """
    memories = asked_of(kernel, scopes)
    others = [(p, solve(p, "bump")) for p in kernel.problems if p.memory.name not in scopes]
    judge = judge or judge_of(kernel)
    found = choose(memories, others, planner, judge, budget, smaller=smaller)
    return tuple(map(MemoryChoices, memories, found))


def asked_of(kernel: CoreKernel, scopes: Collection[str]) -> tuple[Asked, ...]:
    """Return some memories of a kernel, as it asks for them."""
    return tuple(
        Asked(problem, partial(kernel.with_slots, number))
        for number, problem in enumerate(kernel.problems)
        if problem.memory.name in scopes
    )


def judge_of(kernel: CoreKernel) -> Judge:
    """Return what says how long a kernel takes under plans for all its memories: a simulator.

    Raises
    ------
    ValueError
        As `choices_of` does.
    """
    machine = _machine(kernel)

    def judge(placed: Sequence[Placed]) -> Verdict:
        return _verdict(simulate(kernel.program, placed, machine, timeline=0))

    return judge


def _verdict(found: Simulation) -> Verdict:
    """Return the makespan, and which buffers wait for the bytes of which others, and how long."""
    waits: dict[tuple[str, str], int] = {}
    for stall in found.stalls:
        if stall.cause is Cause.REUSE and stall.buffer != stall.other_buffer:
            pair = min(stall.buffer, stall.other_buffer), max(stall.buffer, stall.other_buffer)
            waits[pair] = waits.get(pair, 0) + stall.cycles
    longest_first = sorted(waits, key=lambda pair: (-waits[pair], pair))
    return Verdict(found.makespan, tuple(longest_first))


def with_least_cycles(
    kernel: CoreKernel,
    planner: Planner,
    scopes: Collection[str],
    budget: Budget | None = None,
    *,
    cross_loop: bool = True,
) -> tuple[CoreKernel, Solver]:
    """Return a kernel without the slots that are best given up, and what plans its memories.

    Parameters
    ----------
    kernel, planner, scopes, budget
        As in `choices_of`.
    cross_loop : bool
        As in `AscendPlanMemory`, for the levels that plans say.

    Returns
    -------
    kernel : CoreKernel
        A memory in which nothing fits stays as it is.
    solver : callable
        Gives each of its problems the chosen plan. A problem that has no such plan, or in which
        enclosing scopes have taken bytes, is given to `planner`.

    Raises
    ------
    ValueError
        As `choices_of` does.
    """
    best = {
        _key(memory.problem): memory.choices[0]
        for memory in choices_of(kernel, planner, scopes, budget)
        if memory.choices
    }

    def changed(attached: AttachedProblem) -> AttachedProblem:
        choice = best.get(_key(attached.problem))
        return attached if choice is None else replace(attached, problem=choice.problem)

    problems = tuple(map(changed, kernel.found.problems))

    def chosen(problem: Problem) -> Plan:
        choice = best.get(_key(problem))
        if choice is None or choice.problem.memory != problem.memory:
            return planner(problem, budget or Budget())
        reuse = reuse_of(problem, choice.plan.offsets, cross_loop)
        return replace(choice.plan, reuse=reuse)

    return replace(kernel, found=replace(kernel.found, problems=problems)), chosen


def _key(problem: Problem) -> tuple[str, ...]:
    """Return what tells the problems of one kernel apart, whatever their slots."""
    return (problem.memory.name, *(buffer.name for buffer in problem.buffers))


def _machine(kernel: CoreKernel) -> Machine:
    target = target_of(kernel.func)
    if target is None or target.features.machine is None:
        raise ValueError(
            "what to give up is decided in cycles, and the function's target does not describe its "
            "pipelines (feature.machine)"
        )
    return Machine.from_target(target)
