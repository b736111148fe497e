"""What a kernel for an Ascend core gives up so that it fits: the plans of the fewest cycles.

Levels of reuse and slots are weighed against each other by the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from passes.analysis.ascend.problems import CoreKernel
from passes.analysis.tir.function_problems import AttachedProblem
from passes.placement import Solver, target_of
from passes.planning import Plan, Problem, solve
from passes.planning.ascend.fewer_slots import Choice, Placed, choose
from passes.simulation import simulate
from target_hw.machine import Machine


@dataclass(frozen=True)
class MemoryChoices:
    """What can be chosen in one memory of a kernel.

    Parameters
    ----------
    problem : Problem
        As the kernel asks for it.
    choices : tuple of Choice
        Plans that fit, the fewest cycles first; none where no plan that was found does.
    """

    problem: Problem
    choices: tuple[Choice, ...]


def choices_of(
    kernel: CoreKernel, solver: Solver, scopes: Collection[str]
) -> tuple[MemoryChoices, ...]:
    """Find what can be chosen in each memory of a kernel.

    Parameters
    ----------
    kernel : CoreKernel
        Read from a function whose target describes its pipelines.
    solver : callable
        The planner that is asked first.
    scopes : collection of str
        The memories in which slots may be given up. The others are taken to have no end.

    Raises
    ------
    ValueError
        When the function's target does not describe its pipelines.
    """
    machine = _machine(kernel)

    def cycles(placed: Sequence[Placed]) -> int:
        return simulate(kernel.program, placed, machine, timeline=0).makespan

    limited = [p for p in kernel.problems if p.memory.name in scopes]
    others = [(p, solve(p, "bump")) for p in kernel.problems if p.memory.name not in scopes]
    found = choose(limited, others, solver, cycles)
    return tuple(map(MemoryChoices, limited, found))


def with_least_cycles(
    kernel: CoreKernel, solver: Solver, scopes: Collection[str]
) -> tuple[CoreKernel, Solver]:
    """Return a kernel without the slots that are best given up, and what plans its memories.

    Parameters
    ----------
    kernel, solver, scopes
        As in `choices_of`.

    Returns
    -------
    kernel : CoreKernel
        A memory in which nothing fits stays as it is.
    solver : callable
        Gives each of its problems the chosen plan. A problem that has no such plan, or in which
        enclosing scopes have taken bytes, is given to `solver`.

    Raises
    ------
    ValueError
        As `choices_of` does.
    """
    best = {
        _key(memory.problem): memory.choices[0]
        for memory in choices_of(kernel, solver, scopes)
        if memory.choices
    }

    def changed(attached: AttachedProblem) -> AttachedProblem:
        choice = best.get(_key(attached.problem))
        return attached if choice is None else replace(attached, problem=choice.problem)

    problems = tuple(map(changed, kernel.found.problems))

    def chosen(problem: Problem) -> Plan:
        choice = best.get(_key(problem))
        if choice is None or choice.problem.memory != problem.memory:
            return solver(problem)
        return choice.plan

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
