# SPDX-License-Identifier: Apache-2.0
"""The memory map of GPU kernels: epochs as rows, with the statements that may run in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvm.ir import IRModule
from tvm.ir.transform import Sequential
from tvm.tirx import PrimFunc

from passes.ir import printed
from passes.planning import Overflow, Plan, Problem, solve
from passes.shared_memory import (
    Event,
    KernelMemory,
    ThreadBlock,
    What,
    find_epochs,
    place_shared_memory,
    read_shared_memory,
    shared_memory_problem,
)
from target_hw.memory import MemoryScope
from tvm_ext.lowering import check_lowered, up_to_shared_memory
from tvm_ext.map.functions import type_and_shape
from tvm_ext.map.memory_map import BufferNote, Listing, ScopeMap, Shown
from tvm_ext.planned.placements import MapOptions, PlannedProblem, planned
from tvm_ext.transform import StorageRewrite


def shared_memory_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Plan the shared memory of a function's kernels with every planner, as `PlanSharedMemory`.

    The function stands in front of `StorageRewrite`. Yielded are a memory for each kernel and
    storage scope, and a line for each allocation that is not planned.
    """
    check_lowered(name, func)
    passes = [StorageRewrite(shared_apart=True), up_to_shared_memory()]
    func = Sequential(passes)(IRModule({name: func}))[name]
    func, found = read_shared_memory(func, solve, "existing")
    for number, memory in enumerate(found):
        yield from (f"{name}: {note}" for note in memory.left_alone)
        kernels = list(memory.kernels.values())
        if not kernels:
            continue
        planners = options.names(shared_memory_problem(kernels[0], MemoryScope(kernels[0].name)))
        plans = {}
        for planner in planners:

            def placed(problem: Problem, *, overflow: Overflow, planner: str = planner) -> Plan:
                return planned(problem, planner, options.budget).plan  # Whether or not it fits

            plans[planner] = list(place_shared_memory(func, memory, placed, None))
        called = name if len(found) == 1 else f"{name}, kernel {number}"
        for at, first in enumerate(plans[planners[0]]):
            listing, begins, notes = _read(func, memory, first.kernel, called)
            placements = tuple(
                PlannedProblem(planner, _in_lines(of[at].problem, begins), of[at].plan)
                for planner, of in plans.items()
            )
            yield ScopeMap(called, placements, listing, notes)


def _in_lines(problem: Problem, begins: Sequence[int]) -> Problem:
    """Return a problem in epochs as one in lines, by the line with which each epoch begins."""
    buffers = (
        replace(buffer, live=tuple((begins[begin], begins[end]) for begin, end in buffer.live))
        for buffer in problem.buffers
    )
    return replace(problem, buffers=tuple(buffers))


def _read(
    func: PrimFunc, memory: KernelMemory, kernel: ThreadBlock, name: str
) -> tuple[Listing, list[int], dict[str, BufferNote]]:
    """Write a kernel's epochs as lines: how each begins, and what may run in it.

    Each line is a position. Returned besides are the lines with which epochs begin, and the end.
    """
    text, lines_of = printed(func.without_attr("target"), memory.statements)

    def line(event: Event) -> str:
        at = lines_of.get(memory.statements[event.number].__chandle__())
        return text[at[0]].strip() if at else event.what.value

    buffers = {b.name: memory.allocations[b.name].statement.buffer for b in kernel.buffers}
    lines: list[str] = []
    begins: list[int] = []
    touched: defaultdict[tuple[What, str], dict[int, None]] = defaultdict(dict)
    barriers: list[int] = []
    for number, epoch in enumerate(find_epochs(kernel)):
        behind = "at the beginning" if epoch.begin is None else f"behind {line(epoch.begin)}"
        barriers += [] if epoch.begin is None else [len(lines)]
        begins.append(len(lines))
        is_plain = epoch.following in ((), (number + 1,))
        then = "" if is_plain else f" (then {' or '.join(map(str, epoch.following))})"
        lines.append(f"epoch {number}{then}, {behind}")
        statement = ""
        for event in epoch.events:
            if buffers.keys().isdisjoint(event.buffers):
                continue
            if line(event) != statement:
                statement = line(event)
                lines.append(f"    {statement}")
            for buffer in event.buffers:
                touched[event.what, buffer][len(lines) - 1] = None
    notes = {
        buffer: BufferNote(
            what=type_and_shape(variable),
            allocated=next(iter(touched[What.BEGIN, buffer]), None),
            reads=tuple(touched[What.READ, buffer]),
            writes=tuple({**touched[What.WRITE, buffer], **touched[What.COPY, buffer]}),
        )
        for buffer, variable in buffers.items()
    }
    listing = Listing(tuple(lines), tuple(range(len(lines))), name, tuple(barriers))
    return listing, [*begins, len(lines)], notes
