"""What a plan costs a kernel for an Ascend core: from a function to a simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from tvm.tirx import PrimFunc

from passes.analysis.ascend.problems import ascend_problems
from passes.analysis.tir.problems import ProblemOptions, find_problems
from passes.ascend_plan_memory import AscendOptions, Mode, ascend_plan
from passes.placement import memory_of, target_of
from passes.planning.ascend.levels import with_level_penalties
from passes.planning.problem import Problem
from passes.simulation import Simulation, Step, simulate
from target_hw.machine import Machine
from target_hw.memory import MemoryHierarchy


@dataclass(frozen=True, eq=False)
class CoreKernel:
    """A function as data: what a planner and the simulator need of it.

    Attributes
    ----------
    program : tuple of Step
        Its statements on their pipes.
    problems : tuple of Problem
        One for each memory that it uses, on the chip and in the workspace, with the penalties of
        the reuse levels.
    """

    program: tuple[Step, ...]
    problems: tuple[Problem, ...]


def core_kernel(
    func: PrimFunc, memory: MemoryHierarchy | None = None, restrict_inplace_as_isa: bool = False
) -> CoreKernel:
    """Read a function for the simulator and for planners without TVM.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    memory : MemoryHierarchy, optional
        By default that of the function's target.
    restrict_inplace_as_isa : bool
        As in `AscendPlanMemory`.

    Raises
    ------
    ValueError
        When neither describes a memory, or as `AscendPlanMemory` does.
    """
    memory = memory or memory_of(func)
    if memory is None:
        raise ValueError("neither an argument nor the function's target says what memory there is")
    found = find_problems(func, ProblemOptions(memory=memory, addressed=True, unequal_slots=True))
    found, pipelines = ascend_problems(func, found, restrict_inplace_as_isa)
    problems = (with_level_penalties(attached.problem) for attached in found.problems)
    return CoreKernel(pipelines.program, tuple(problems))


def plan_cost(
    func: PrimFunc, options: AscendOptions | None = None, machine: Machine | None = None
) -> Simulation:
    """Simulate a function with the places that `AscendPlanMemory` gives its buffers.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    options : AscendOptions, optional
        How the pass plans. Both of its modes are run, whatever the mode says.
    machine : Machine, optional
        By default that of the function's target.

    Raises
    ------
    ValueError
        As `AscendPlanMemory` does, and when no machine is described.
    """
    options = options or AscendOptions()
    if machine is None:
        target = target_of(func)
        if target is None:
            raise ValueError("the function has no target, and no machine is given")
        machine = Machine.from_target(target)
    kernel = core_kernel(func, options.memory, options.restrict_inplace_as_isa)
    plans = {}
    for mode in get_args(Mode):
        for scope in ascend_plan(func, replace(options, mode=mode)).scopes:
            plans.update(dict.fromkeys(scope.plan.offsets, scope.plan))
    placed = [(problem, plans[problem.buffers[0].name]) for problem in kernel.problems]
    return simulate(kernel.program, placed, machine)
