# SPDX-License-Identifier: Apache-2.0
"""The shared memory of GPU kernels: epochs as lines, with the statements that may run in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from passes.ir import (
    STOCK_MERGE,
    STOCK_REWRITE,
    IRModule,
    PrimFunc,
    Sequential,
    printed,
    with_options,
)
from passes.planning import Overflow, Plan, Problem, solve
from passes.shared_memory import (
    SCOPES,
    Effect,
    Event,
    KernelMemory,
    ThreadBlock,
    allocated_bytes,
    find_epochs,
    place_shared_memory,
    read_shared_memory,
    shared_memory_problem,
)
from target_hw.memory import MemoryScope
from tvm_ext.lowering import check_lowered, up_to_shared_memory
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import (
    Axis,
    BufferNote,
    Fault,
    LeftAlone,
    MemoryView,
    PlannedProblem,
    planned,
    written,
)
from tvm_ext.report.readers.statement_memories import type_and_shape
from tvm_ext.report.report import Finding
from tvm_ext.text import Table, counted
from tvm_ext.transform import PlanSharedMemory, StorageRewrite


def shared_memory(functions: Mapping[str, PrimFunc], ask: Ask) -> Iterator[Finding]:
    """Plan the shared memory of kernels with every planner, as `PlanSharedMemory` does.

    Functions stand before `StorageRewrite`. Yielded are a memory for each kernel and storage
    scope, and what is not planned. With `ask.everything`, a table has the bytes of each function
    by TVM's passes and by ours, and it is a fault where ours takes more than TVM's default.
    """
    ask.without_stock("TVM shares before barriers are there, which")
    rows, above = [("function", *_WAYS)], 0
    for name, func in functions.items():
        check_lowered(name, func)
        yield from kernel_memories(name, func, ask)
        taken = {way: _taken(func, way) for way in _WAYS} if ask.everything else {}
        if any(taken.values()):
            rows.append((name, *("fails" if n is None else f"{n:,}" for n in taken.values())))
            default, ours = taken["default"], taken["ours"]
            above += default is not None and ours is not None and ours > default
    if rows[1:]:
        note = f"{counted(len(rows) - 1, 'function')}; ours takes more than TVM's in {above}"
        yield Table("bytes of shared memory", rows)
        yield Fault(note) if above else note


def kernel_memories(name: str, func: PrimFunc, ask: Ask) -> Iterator[Finding]:
    """Yield the shared memory of a function's kernels, as `PlanSharedMemory` plans it."""
    passes = [StorageRewrite(shared_apart=True), up_to_shared_memory()]
    func = Sequential(passes)(IRModule({name: func}))[name]
    func, found = read_shared_memory(func, solve, "existing")
    for number, memory in enumerate(found):
        yield from (LeftAlone(name, n.name, n.text, n.scope) for n in memory.left_alone)
        kernels = list(memory.kernels.values())
        if not kernels:
            continue
        planners = ask.names(shared_memory_problem(kernels[0], MemoryScope(kernels[0].name)))
        plans = {}
        for planner in planners:

            def placed(problem: Problem, *, overflow: Overflow, planner: str = planner) -> Plan:
                return planned(problem, planner, ask.limits).plan  # Whether or not it fits

            plans[planner] = list(place_shared_memory(func, memory, placed, None))
        called = name if len(found) == 1 else f"{name}, kernel {number}"
        for at, first in enumerate(plans[planners[0]]):
            axis, begins, notes = _read(func, memory, first.kernel, called)
            of_planners = tuple(
                PlannedProblem(planner, _in_lines(of[at].problem, begins), of[at].plan)
                for planner, of in plans.items()
            )
            yield MemoryView(called, of_planners, written(axis, notes))


def _in_lines(problem: Problem, begins: Sequence[int]) -> Problem:
    """Return a problem in epochs as one in lines, by the line with which each epoch begins."""
    buffers = (
        replace(buffer, live=tuple((begins[begin], begins[end]) for begin, end in buffer.live))
        for buffer in problem.buffers
    )
    return replace(problem, buffers=tuple(buffers))


def _read(
    func: PrimFunc, memory: KernelMemory, kernel: ThreadBlock, name: str
) -> tuple[Axis, list[int], dict[str, BufferNote]]:
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
    touched: defaultdict[tuple[Effect, str], dict[int, None]] = defaultdict(dict)
    barriers: list[int] = []
    for number, epoch in enumerate(find_epochs(kernel)):
        behind = "at the beginning" if epoch.begin is None else f"after {line(epoch.begin)}"
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
            type=type_and_shape(variable),
            allocated=next(iter(touched[Effect.BEGIN, buffer]), None),
            reads=tuple(touched[Effect.READ, buffer]),
            writes=tuple({**touched[Effect.WRITE, buffer], **touched[Effect.COPY, buffer]}),
        )
        for buffer, variable in buffers.items()
    }
    axis = Axis(tuple(lines), tuple(range(len(lines))), name, tuple(barriers))
    return axis, [*begins, len(lines)], notes


# ---------------------------------------------------------------------- by TVM's passes and by ours

_APART = partial(StorageRewrite, shared_apart=True)
_WAYS = {
    "default": (STOCK_REWRITE, STOCK_MERGE, {}),
    "merged": (STOCK_REWRITE, STOCK_MERGE, {"tirx.merge_static_smem": True}),
    "ours": (_APART, partial(PlanSharedMemory, barriers="existing"), {}),
    "insert": (_APART, partial(PlanSharedMemory, barriers="insert"), {}),
}
"""The passes in the places of `StorageRewrite` and of the merge, and the pass configuration."""


def _taken(func: PrimFunc, way: str) -> int | None:
    """Return the bytes of the kernel that takes most; None where a pass fails."""
    rewrite, merge, config = _WAYS[way]
    with with_options(config):
        passes = Sequential([rewrite(), up_to_shared_memory(), merge()])
        try:
            planned_func = passes(IRModule({"main": func}))["main"]
        except RuntimeError:  # An internal error of TVM.
            return None
    by_scope = (allocated_bytes(planned_func, scope) for scope in SCOPES)
    return max(map(sum, zip(*by_scope, strict=True)), default=0)
