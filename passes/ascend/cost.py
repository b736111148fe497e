# SPDX-License-Identifier: Apache-2.0
"""What a plan costs a kernel for an Ascend core: from a function to a simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from tvm.tirx import PrimFunc

from passes.ascend.analysis.problems import CoreKernel, read_kernel
from passes.ascend.degrade import machine_of
from passes.ascend.kernel import WORKSPACE, AscendOptions, Mode, plan_kernel
from passes.driver import memory_of
from passes.simulation import Simulation, simulate
from target_hw.machine import Machine
from target_hw.memory import MemoryHierarchy


def core_kernel(
    func: PrimFunc, memory: MemoryHierarchy | None = None, restrict_inplace_as_isa: bool = False
) -> CoreKernel:
    """Read a flat function for the simulator and for planners without TVM.

    The memory is by default that of the function's target. Raises `ValueError` when neither
    describes one, and as `AscendPlanMemory` does.
    """
    memory = memory or memory_of(func)
    if memory is None:
        raise ValueError("neither an argument nor the function's target says what memory there is")
    return read_kernel(func, memory, restrict_inplace_as_isa=restrict_inplace_as_isa)


def plan_cost(
    func: PrimFunc, options: AscendOptions | None = None, machine: Machine | None = None
) -> Simulation:
    """Simulate a flat function with the places that `AscendPlanMemory` gives its buffers.

    Both modes are run, whatever the options' own. The machine is by default that of the function's
    target. Raises `ValueError` when no machine is described, and as `AscendPlanMemory` does.
    """
    options, machine = options or AscendOptions(), machine or machine_of(func)
    if machine is None:
        raise ValueError("no machine is given, and the function's target describes no pipelines")
    kernel = options.read(func)
    scopes = {
        (scope.attached.owner, scope.problem.memory.name): scope
        for mode in get_args(Mode)
        for scope in plan_kernel(kernel, replace(options, mode=mode)).scopes
    }
    placed = []
    for attached in kernel.found.problems:
        scope = scopes[attached.owner, attached.problem.memory.name]
        # What is planned on the chip may have lost slots; in the workspace it has lost its loops.
        is_local = scope.problem.memory.name != WORKSPACE
        problem = scope.attached.problem if is_local else attached.problem
        placed.append((problem, scope.plan))
    return simulate(kernel.program, placed, machine)
