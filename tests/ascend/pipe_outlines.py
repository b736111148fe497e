# SPDX-License-Identifier: Apache-2.0
"""What is found of a function's pipelines: uses of buffers, an outline."""

from __future__ import annotations

from ascend_modules import module
from tvm import tirx

from passes.ascend.analysis.pipes import Pipelines
from passes.planning import PipelineUse
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import Alternative, Loop, Step
from target_hw.ascend import CHIPS

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
