# SPDX-License-Identifier: Apache-2.0
"""The memory map of GPU kernels: epochs as rows, with the statements that may run in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.ir.transform import Sequential
from tvm.tirx import AllocBuffer, PrimFunc

from passes.ir import printed
from passes.planning import Budget, Overflow, Plan, Problem, solve
from passes.shared_memory import (
    Event,
    KernelMemory,
    SharedMemoryPlan,
    ThreadBlock,
    What,
    find_epochs,
    place_shared_memory,
    read_shared_memory,
    shared_memory_problem,
)
from target_hw.memory import MemoryScope
from tvm_ext.lowering import check_lowered, left_to_lower, up_to_shared_memory
from tvm_ext.map.map_options import MapOptions
from tvm_ext.map.model import BufferNote, Listing, PlannedProblem, ScopeMap, Shown
from tvm_ext.map.prim_func import type_and_shape
from tvm_ext.transform import StorageRewrite


def shared_memory_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Plan the shared memory of a function's kernels with every planner, as `PlanSharedMemory`.

    The function stands in front of `StorageRewrite`. Yielded are a memory for each kernel and
    storage scope, and a line for each allocation that is not planned. The barriers are those that
    the pass leaves. Raises ValueError when the function cannot be read.
    """
    check_lowered(name, left_to_lower(func))
    passes = [StorageRewrite(shared_apart=True), up_to_shared_memory()]
    func = Sequential(passes)(IRModule({name: func}))[name]
    func, found = read_shared_memory(func, solve, "existing")
    if found is None:
        return
    for number, memory in enumerate(found.kernels):
        yield from (f"{name}: {note}" for note in memory.left_alone)
        kernels = list(memory.kernels.values())
        if not kernels:
            continue
        planners = options.names(shared_memory_problem(kernels[0], MemoryScope(kernels[0].name)))
        plans = {planner: _plans(func, memory, planner, options.budget) for planner in planners}
        called = name if len(found.kernels) == 1 else f"{name}, kernel {number}"
        for at, kernel in enumerate(kernels):
            rows = _read(func, memory, kernel, found.access.alloc_stmts)
            placements = tuple(
                PlannedProblem(planner, rows.stretched(planned[at].problem), planned[at].plan)
                for planner, planned in plans.items()
            )
            listing = Listing(rows.lines, tuple(range(len(rows.lines))), called, rows.barriers)
            yield ScopeMap(called, placements, listing, rows.notes)


def _plans(
    func: PrimFunc, memory: KernelMemory, planner: str, budget: Budget | None
) -> list[SharedMemoryPlan]:
    """Plan each scope of a kernel, whether or not it fits."""

    def placed(problem: Problem, *, overflow: Overflow) -> Plan:
        return solve(problem, planner, budget)

    return list(place_shared_memory(func, memory, placed, None))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The epochs of a kernel as text. Each line is a position of the problem that is shown."""

    lines: tuple[str, ...]
    begins: tuple[int, ...]  # The line with which each epoch begins
    barriers: tuple[int, ...]  # Those of the lines above which a barrier stands
    notes: dict[str, BufferNote]

    def stretched(self, problem: Problem) -> Problem:
        """Return a problem in epochs as one in lines."""
        ends = (*self.begins, len(self.lines))
        buffers = (
            replace(buffer, live=tuple((ends[begin], ends[end]) for begin, end in buffer.live))
            for buffer in problem.buffers
        )
        return replace(problem, buffers=tuple(buffers))


def _read(
    func: PrimFunc, memory: KernelMemory, kernel: ThreadBlock, allocations: Sequence[AllocBuffer]
) -> _Rows:
    """Write a kernel's epochs as lines: how each begins, and what may run in it."""
    text, lines_of = printed(func.without_attr("target"), memory.statements)

    def line(event: Event) -> str:
        at = lines_of.get(memory.statements[event.number].__chandle__())
        return text[at[0]].strip() if at else event.what.value

    buffers = {one.name: allocations[memory.allocations[one.name]].buffer for one in kernel.buffers}
    lines: list[str] = []
    begins: list[int] = []
    touched: dict[What, defaultdict[str, dict[int, None]]] = {
        what: defaultdict(dict) for what in What
    }
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
            for name in event.buffers:
                touched[event.what][name][len(lines) - 1] = None
    notes = {
        name: BufferNote(
            what=type_and_shape(buffers[name]),
            allocated=next(iter(touched[What.BEGIN][name]), None),
            reads=tuple(touched[What.READ][name]),
            writes=tuple({**touched[What.WRITE][name], **touched[What.COPY][name]}),
        )
        for name in buffers
    }
    return _Rows(tuple(lines), tuple(begins), tuple(barriers), notes)
