# SPDX-License-Identifier: Apache-2.0
"""Buffers that one iteration of a loop fills for the next.

Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect: a marked buffer lives from the
beginning of the innermost loop around it to its end.
"""

from __future__ import annotations

from passes.planning.problem import LiveRange
from passes.prim_func.function_problems import Allocation, AttachedProblem, FunctionProblems

_PRELOAD = "preload_local_buffer"


def is_preloaded(allocation: Allocation) -> bool:
    """Whether an allocation is annotated to be filled an iteration before it is used."""
    value = allocation.statement.annotations.get(_PRELOAD, False)
    return bool(getattr(value, "value", value))


def preloaded_lives(found: FunctionProblems, attached: AttachedProblem) -> dict[str, LiveRange]:
    """Return the life of each preloaded buffer by name: it lasts throughout the loop around it.

    Raises ValueError when a preloaded buffer is in no loop.
    """
    lives = {}
    for buffer in attached.problem.buffers:
        if is_preloaded(attached.allocations[buffer.name]):
            begin, end = _loop_range(found, attached, buffer.name)
            # What something keeps may live longer than the loop.
            lives[buffer.name] = min(begin, buffer.live[0][0]), max(end, buffer.live[-1][1])
    return lives


def _loop_range(found: FunctionProblems, attached: AttachedProblem, name: str) -> LiveRange:
    """Return the positions from the beginning of the loop around a buffer to its end."""
    loop = attached.allocations[name].loop
    if loop is None:
        raise ValueError(
            f"buffer {name!r} in {attached.problem.memory.name}: "
            "preload local buffer must be inside a loop-like op"
        )
    for position, entry in enumerate(found.access.sequence):
        if entry.key == loop.__chandle__() and entry.scope_pair_offset > 0:
            return position, position + entry.scope_pair_offset + 1
    raise AssertionError("a loop has its place in the sequence of statements")
