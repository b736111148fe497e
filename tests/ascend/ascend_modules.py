# SPDX-License-Identifier: Apache-2.0
"""Functions made into modules, planned by `AscendPlanMemory`, and what is found of pipelines."""

from __future__ import annotations

from textwrap import indent

import address_runs
import pytest
import tvm
from program_text import program
from tvm import tirx
from tvm.target import Target

from passes.ascend.analysis.pipes import Pipelines
from passes.planning import PipelineUse
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import Alternative, Loop, Step
from target_hw.ascend import CHIPS
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory

TWIN = "ascend/910b-llvm"
SEARCHES = ("search", "mirror")
WORKSPACE = "global-work-space-plan"


def module(func: tirx.PrimFunc, target: str | Target = TWIN) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    return lowering.capture(tvm.IRModule({"main": func}), target)


def addresses(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Return the addresses of all allocations that have some, by name."""
    return {name: found for name, found in address_runs.addresses(mod).items() if found}


def planned(func: tirx.PrimFunc, **options) -> dict[str, tuple[int, ...]]:
    """Return the addresses that the pass gives."""
    return addresses(AscendPlanMemory(**options)(module(func)))


def message(func: tirx.PrimFunc, **options) -> str:
    """Return what the pass says where it refuses a function."""
    with pytest.raises(ValueError, match="AscendPlanMemory: function 'main': ") as caught:
        AscendPlanMemory(**options)(module(func))
    return str(caught.value).removeprefix("AscendPlanMemory: function 'main': ")


def chip(**capacities: int) -> Target:
    """Return a twin of a chip with these bytes of on-chip memory."""
    scopes = [MemoryScope(f"local.{name}", size, 32) for name, size in capacities.items()]
    return with_memory("llvm", MemoryHierarchy(tuple(scopes)))


def uses_scope(scope: str, size=64, annotations=None, reads_first=False, looped=False):
    """Return a function with one buffer that is loaded and stored."""
    moves = ["a[i] = x[i] for i in range(64)", "y[i] = a[i] for i in range(64)"]
    lines = [
        f'a = T.alloc_buffer(({size},), "float32", scope="{scope}", annotations={annotations})',
        *(reversed(moves) if reads_first else moves),
    ]
    if looped:
        lines = ["for _ in range(4):", *(f"    {line}" for line in lines)]
    return program(f"def main(x: 64, y: 64, n: T.int32):\n{indent(chr(10).join(lines), '    ')}")


# Pipelines


MEMORY = CHIPS["ascend/910b"]


def pipelines(func: tirx.PrimFunc):
    """Return what is found in a function, lowered to where storage is planned."""
    found = find_problems(module(func, "llvm")["main"], ProblemOptions(memory=MEMORY))
    return found, Pipelines(found)


def uses(func: tirx.PrimFunc) -> dict[str, PipelineUse]:
    """Return how the planned buffers of a function meet the pipelines."""
    return pipelines(func)[1].uses


def steps_of(func: tirx.PrimFunc) -> tuple[Step, ...]:
    """Return the statements of a function, on their pipes."""
    return pipelines(func)[1].program


def outline(steps: tuple[Step, ...]) -> list:
    """Return the pipes of a program, lists for loops and sets of two tuples for branches."""
    made: list = []
    for step in steps:
        if isinstance(step, Loop):
            made.append([step.extent, *outline(step.body)])
        elif isinstance(step, Alternative):
            made.append((tuple(outline(step.then)), tuple(outline(step.otherwise))))
        else:
            made.append(step.pipe)
    return made
