# SPDX-License-Identifier: Apache-2.0
"""The memories of functions beside their lines: scripts of PrimFuncs, bindings in Relax."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tvm.ir import IRModule, TensorLoad, Var
from tvm.ir.expr import Call
from tvm.target import Target
from tvm.tirx import BufferStore, PrimFunc, Stmt, is_buffer_var
from tvm_ffi import structural_walk

from passes.ir import LinearAccess, printed
from passes.prim_func import statement_lines
from passes.relax import RETURNED, bindings_of, on_one_path
from passes.simulation import statements_of
from tvm_ext.map.memory_map import BufferNote, Listing, ScopeMap, Shown
from tvm_ext.planned.placements import MapOptions
from tvm_ext.planned.prim_func import PlannedFunction, plan_function
from tvm_ext.planned.relax_function import PlannedNetwork, plan_network
from tvm_ext.tensor_names import operator_of

Lines = defaultdict[int, set[int]]
"""Lines of a text, by the index of an allocation."""


def prim_func_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Yield a flat function's memories, simulated runs, and a line for what is not planned."""
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
    reads, writes = _lines_of_buffers(function.func, function.found.access, text.begins)
    pipes: defaultdict[str, set[str]] = defaultdict(set)
    for statement in statements_of(function.program):
        for buffer in (*statement.reads, *statement.writes):
            pipes[buffer].add(statement.pipe)
    for attached, placed in zip(function.found.problems, function.placements, strict=True):
        scope = attached.problem.memory.name
        notes = {}
        for buffer, allocation in attached.allocations.items():
            allocated = text.begins.get(allocation.statement.__chandle__(), ())
            notes[buffer] = BufferNote(
                # Without the name of its memory, which says nothing on a map of that memory.
                buffer.removesuffix(f"_{scope}").removesuffix(f".{scope}") or buffer,
                type_and_shape(allocation.statement.buffer),
                min(allocated, default=None),
                tuple(sorted(reads[allocation.index])),
                tuple(sorted(writes[allocation.index])),
                tuple(sorted(pipes[buffer])),
            )
        yield ScopeMap(function.name, placed, listing, notes, rules=function.rules)


def type_and_shape(buffer: Var) -> str:
    """Say what a buffer's elements are, and how many."""
    return f"{buffer.ty.dtype.dtype} × {' × '.join(map(str, buffer.ty.shape))}"


def _lines_of_buffers(
    func: PrimFunc, access: LinearAccess, lines_of: Mapping[int, tuple[int, ...]]
) -> tuple[Lines, Lines]:
    """Find the lines that read and that write each allocation, also by its other names.

    `lines_of` has the lines of each statement.
    """
    reads, writes = Lines(set), Lines(set)
    here: tuple[int, ...] = (0,)

    def touch(variable: Any, *kinds: Lines) -> None:
        if entry := access.buffers.get(variable.__chandle__()):
            for lines in kinds:
                lines[entry.root].update(here)

    def enter(statement: Stmt) -> None:
        nonlocal here
        here = lines_of.get(statement.__chandle__(), here)
        if isinstance(statement, BufferStore):
            touch(statement.buffer, writes)

    def call(expression: Call) -> None:
        for argument in filter(is_buffer_var, expression.args):
            touch(argument, reads, writes)  # What the callee does with it is not known.

    load = (TensorLoad, lambda expression: touch(expression.source, reads))
    structural_walk(func.body, ((Stmt, enter), load, (Call, call)), order="pre")
    return reads, writes


def relax_maps(mod: IRModule, target: Target, options: MapOptions) -> Iterator[Shown]:
    """Yield the memories of each Relax function, and a line for each tensor left to the runtime.

    There is a memory for tensors of constant size, and one for each product of symbolic dimensions.
    """
    for network in plan_network(mod, target, options):
        found = network.found
        for left in found.memory.left:
            returned = "the function returns it, so its caller owns the memory"
            reason = f": {returned if left.reason == RETURNED else left.reason}"
            yield f"{network.name}: {left.name}{reason}"
        if network.has_tensors:
            listing, notes = _read_bindings(network)
            form = f"{found.form}; a call copies {found.copied:,} bytes"
            for unit, group, placements in network.tensors:
                if group.problem.buffers:
                    yield ScopeMap(network.name, placements, listing, notes, form=form, unit=unit)


def _read_bindings(network: PlannedNetwork) -> tuple[Listing, dict[str, BufferNote]]:
    """Print a function, and find what makes each buffer, and the lines that touch it."""
    memory = network.found.memory
    bindings = list(bindings_of(memory.func.body))
    lines, printed_at = printed(memory.func, bindings)
    line_of = [0]
    for binding in bindings:
        line_of.append(max(line_of[-1], *printed_at.get(binding.__chandle__(), ())))
    del line_of[0]
    allocated: dict[str, int] = {}
    for binding, line in zip(bindings, line_of, strict=True):
        handle = binding.var.__chandle__()
        if handle in memory.buffer_of:
            allocated.setdefault(memory.buffer_of[handle], line)
    sides = memory.branches.values()
    moved = frozenset(network.order.moved if network.order is not None else ())
    notes = {}
    for group in memory.groups:
        for name in group.problem.index:
            uses = group.uses[name]
            touches = uses.touched_at
            # The first touch on each path writes the tensor, the others read it.
            first = [
                at
                for n, at in enumerate(touches)
                if not any(on_one_path(sides, before, at) for before in touches[:n])
            ]
            written = dict.fromkeys(line_of[at] for at in first)
            read = dict.fromkeys(line_of[at] for at in touches if line_of[at] not in written)
            what = f"made by {operator_of(bindings[first[0]].value)}" if first else ""
            what += ", moved" if uses.tensor in moved else ""
            places = (allocated[name], tuple(read), tuple(written))
            notes[name] = BufferNote("", what, *places)
    return Listing(lines, tuple(line_of), network.name), notes
