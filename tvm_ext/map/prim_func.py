# SPDX-License-Identifier: Apache-2.0
"""The memories of a `PrimFunc` beside the lines of its script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, PrimFunc, Stmt, is_buffer_var
from tvm_ffi import structural_walk

from passes.prim_func import statement_lines
from passes.simulation import statements_of
from tvm_ext.map.model import BufferNote, Listing, ScopeMap, Shown
from tvm_ext.planned.options import MapOptions
from tvm_ext.planned.prim_func import PlannedFunction, plan_function

Lines = defaultdict[int, set[int]]
"""Lines of a text, by the handle of a buffer."""


def prim_func_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Yield the memories of a flat function, and a line for each allocation that is not planned.

    Where the target describes the pipelines, there is a run for each planner.
    """
    function = plan_function(name, func, options)
    if function.found is None:
        yield from (ScopeMap(name, placements) for placements in function.placements)
        return
    yield from (f"{name}: {note}" for note in function.found.left_alone)
    yield from scope_maps(function)
    yield from function.runs


def scope_maps(function: PlannedFunction) -> Iterator[ScopeMap]:
    """Yield the memories of a function beside its lines, by which its positions are read."""
    if function.found is None or not function.placements:
        return
    text = statement_lines(function.func, function.found)
    listing = Listing(text.lines, text.line_of, function.name)
    allocated, reads, writes = _lines_of_buffers(function.func, text.begins)
    pipes: defaultdict[str, set[str]] = defaultdict(set)
    for statement in statements_of(function.program):
        for buffer in (*statement.reads, *statement.writes):
            pipes[buffer].add(statement.pipe)
    for attached, placed in zip(function.found.problems, function.placements, strict=True):
        scope = attached.problem.memory.name
        notes = {}
        for buffer, allocation in attached.allocations.items():
            variable = allocation.statement.buffer
            handle = variable.__chandle__()
            notes[buffer] = BufferNote(
                # Without the name of its memory, which says nothing on a map of that memory.
                buffer.removesuffix(f"_{scope}").removesuffix(f".{scope}") or buffer,
                type_and_shape(variable),
                allocated.get(handle),
                tuple(sorted(reads[handle])),
                tuple(sorted(writes[handle])),
                tuple(sorted(pipes[buffer])),
            )
        yield ScopeMap(function.name, placed, listing, notes, rules=function.rules)


def type_and_shape(buffer: Var) -> str:
    """Say what a buffer's elements are, and how many."""
    return f"{buffer.ty.dtype.dtype} × {' × '.join(map(str, buffer.ty.shape))}"


def _lines_of_buffers(
    func: PrimFunc, lines_of: Mapping[int, tuple[int, ...]]
) -> tuple[dict[int, int], Lines, Lines]:
    """Find the line that allocates each buffer, by its handle, and those that read and write it.

    A view of a buffer counts as the buffer; `lines_of` has the lines of each statement.
    """
    allocated: dict[int, int] = {}
    reads, writes = Lines(set), Lines(set)
    root: dict[int, int] = {}
    here: tuple[int, ...] = (0,)

    def touch(lines: Lines, variable: Any) -> None:
        handle = variable.__chandle__()
        lines[root.get(handle, handle)].update(here)

    def enter(statement: Stmt) -> None:
        nonlocal here
        here = lines_of.get(statement.__chandle__(), here)
        if isinstance(statement, AllocBuffer):
            allocated[statement.buffer.__chandle__()] = here[0]
        elif isinstance(statement, DeclBuffer):
            sources: list[Var] = []
            structural_walk(statement.data, ((Var, sources.append),))
            if sources:
                handle = sources[0].__chandle__()
                root[statement.buffer.__chandle__()] = root.get(handle, handle)
        elif isinstance(statement, BufferStore):
            touch(writes, statement.buffer)

    def call(expression: Call) -> None:
        for argument in filter(is_buffer_var, expression.args):
            touch(reads, argument)  # What the callee does with it is not known.
            touch(writes, argument)

    load = (TensorLoad, lambda expression: touch(reads, expression.source))
    structural_walk(func.body, ((Stmt, enter), load, (Call, call)), order="pre")
    return allocated, reads, writes
