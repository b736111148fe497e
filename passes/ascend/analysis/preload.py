# SPDX-License-Identifier: Apache-2.0
"""Buffers that one iteration of a loop fills for the next.

Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect: a marked buffer lives from the
beginning of the innermost loop around it to its end.
"""

from __future__ import annotations

from dataclasses import replace

from passes.planning.problem import Buffer, LiveRange
from passes.prim_func.function_problems import Allocation, AttachedProblem, FunctionProblems

_PRELOAD = "preload_local_buffer"


def is_preloaded(allocation: Allocation) -> bool:
    """Whether an allocation is annotated to be filled an iteration before it is used."""
    value = allocation.statement.annotations.get(_PRELOAD, False)
    return bool(getattr(value, "value", value))


def with_preloads(found: FunctionProblems, attached: AttachedProblem) -> AttachedProblem:
    """Return a problem in which preloaded buffers live throughout the loop around them.

    Parameters
    ----------
    found : FunctionProblems
        Of the function.
    attached : AttachedProblem
        One of its problems.

    Raises
    ------
    ValueError
        When a preloaded buffer is in no loop.
    """
    preloaded = {name for name, a in attached.allocations.items() if is_preloaded(a)}
    if not preloaded:
        return attached

    def prolonged(buffer: Buffer) -> Buffer:
        if buffer.name not in preloaded:
            return buffer
        begin, end = _loop_range(found, attached, buffer.name)
        # What something keeps may live longer than the loop.
        return replace(
            buffer, live=((min(begin, buffer.live[0][0]), max(end, buffer.live[-1][1])),)
        )

    problem = replace(
        attached.problem,
        buffers=tuple(map(prolonged, attached.problem.buffers)),
        in_place=tuple(p for p in attached.problem.in_place if preloaded.isdisjoint(p)),
    )
    safe_pairs = tuple(pair for pair in attached.safe_pairs if preloaded.isdisjoint(pair))
    return replace(attached, problem=problem, safe_pairs=safe_pairs)


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
