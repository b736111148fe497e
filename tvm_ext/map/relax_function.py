# SPDX-License-Identifier: Apache-2.0
"""The memory map of a Relax function: its activations, beside its bindings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tvm import DataType, relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm_ffi import structural_walk

from passes.gmem import FunctionPlan, GMEMOptions, plan_gmem, plan_slots
from passes.ir import printed
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_PLANNED_TENSOR
from passes.planning import Budget, solve
from passes.relax import RETURNED, LeftToRuntime, Sizes, TensorGroup, bindings_of, product
from tvm_ext.comparison.memory_comparison import READER, SLOTS, groups_by_unit, is_same_unit
from tvm_ext.lowering import Reordered, capture_relax
from tvm_ext.map.map_options import MapOptions
from tvm_ext.map.model import BufferNote, Listing, PlannedProblem, ScopeMap, Shown
from tvm_ext.map.stock import StockAllocation, stock_plan
from tvm_ext.named_planners import STOCK
from tvm_ext.tensor_names import operator_of


def relax_maps(mod: IRModule, target: Target, options: MapOptions) -> Iterator[Shown]:
    """Plan the activations of each Relax function with every planner.

    The module is lowered by the stock pipeline up to the planning of its memory. Yielded are, in
    alphabetical order of the functions, a memory for the tensors of constant size, one for each
    product of symbolic dimensions that others are multiples of, with the bytes for each of it; and
    a line for each tensor that is left to the runtime. Raises ValueError when the module cannot be
    lowered or read, or nothing fits the target's memory. In another order than the written one, the
    notes say what moved.
    """
    gmem = GMEMOptions(target=target, budget=options.budget)
    ordered = Reordered(gmem)
    lowered = capture_relax(mod, target, between=ordered if options.order else None)
    moved = {one.name: one.moved for one in ordered.orders}
    for found in plan_gmem(lowered, READER, gmem):
        name = found.memory.name
        yield from (f"{name}: {_left(one)}" for one in found.memory.left)
        units = groups_by_unit(found.memory)
        if not found.memory.storages and not units:
            continue
        listing, notes = _read(found, moved.get(name, ()))
        for unit, groups in (("", [found.memory.main]), *units.items()):
            for group in groups:
                if group.problem.buffers:
                    placements = tuple(_placements(found, group, unit, options))
                    form = f"{found.form}; a call copies {found.copied:,} bytes"
                    yield ScopeMap(name, placements, listing, notes, form=form, unit=unit)


def _left(one: LeftToRuntime) -> str:
    if one.reason == RETURNED:
        return f"{one.name}: the function returns it, so its caller owns the memory"
    return f"{one.name}: {one.reason}"


def _placements(
    found: FunctionPlan, group: TensorGroup, unit: str, options: MapOptions
) -> Iterator[PlannedProblem]:
    """Yield the plan of each planner for tensors of one unit, in the form that the device takes."""
    problem, budget = group.problem, options.budget
    if unit:
        memory = replace(problem.memory, capacity=None, reserved=(), alignment=1)
        problem = replace(problem, memory=memory, name=f"{memory.name}, for each {unit}")
    planners = options.names(problem, graph=True)
    if not found.form.offsets:  # A plan with offsets is none for such a device.
        planners = [SLOTS, *([STOCK] if STOCK in planners else [])]
    for planner in planners:
        if planner == STOCK:
            pieces = static_plan_pieces(found, group)
            plan = stock_plan(problem, pieces, "StaticPlanBlockMemory", found.memory.name)
        elif planner in (SLOTS, READER) and not unit:
            plan = found.plan  # What the pass writes
        elif planner == SLOTS:
            plan = plan_slots(problem, budget or Budget()).plan
        else:
            plan = solve(problem, planner, budget)
        yield PlannedProblem(planner, problem, plan)


def static_plan_pieces(
    found: FunctionPlan, group: TensorGroup | None = None
) -> list[StockAllocation]:
    """Read off the storages that `StaticPlanBlockMemory` makes for a function, in program order.

    They have the names of the buffers of `group`, by default those of constant size; bytes are for
    each of its unit. A tensor that the pass leaves alone is a piece of its own. Raises ValueError
    when the tensors of one buffer come to lie in different storages.
    """
    memory, group = found.memory, group or found.memory.main
    sizes = {buffer.name: buffer.size for buffer in group.problem.buffers}
    planned = relax.transform.StaticPlanBlockMemory()(memory.mod)[memory.name]
    pieces: dict[object, StockAllocation] = {}
    placed: dict[str, object] = {}
    read = Sizes(planned, {})
    for binding in bindings_of(planned.body):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if operator_name(call.op) == ALLOC_PLANNED_STORAGE:
            size = read.of(call.args[0].values, DataType("uint8"))
            unit = product(size.factors) if size.factors else None
            count = size.count if is_same_unit(unit, group.unit) else 0
            pieces[binding.var.__chandle__()] = StockAllocation(count, {})
        name = memory.buffer_of.get(binding.var.__chandle__())
        if name not in sizes:
            continue
        key: object = name
        if operator_name(call.op) == ALLOC_PLANNED_TENSOR:
            key = call.args[0].__chandle__()
        if placed.setdefault(name, key) != key:
            raise ValueError(
                f"function {memory.name!r}: TVM's StaticPlanBlockMemory puts the branches of "
                f"{name!r} in several storages; leave out the planner {STOCK!r}"
            )
        pieces.setdefault(key, StockAllocation(sizes[name], {})).offsets[name] = 0
    return list(pieces.values())


def _read(found: FunctionPlan, moved: Sequence[str]) -> tuple[Listing, dict[str, BufferNote]]:
    bindings = list(bindings_of(found.memory.func.body))
    lines, at = printed(found.memory.func, bindings)
    line, line_of = 0, []
    for binding in bindings:
        line = max(line, *at.get(binding.__chandle__(), (line,)))
        line_of.append(line)
    listing = Listing(lines, tuple(line_of), found.memory.name)
    return listing, _notes(found, bindings, line_of, moved)


def _notes(
    found: FunctionPlan, bindings: Sequence[Any], line_of: Sequence[int], moved: Sequence[str]
) -> dict[str, BufferNote]:
    """Find for each buffer the operator that makes it, and the lines that name it."""
    buffer_of = dict(found.memory.buffer_of)
    moved_names = frozenset(moved)
    tensors = {name: of for group in found.memory.groups for name, of in group.tensors.items()}
    allocated: dict[str, int] = {}
    made_by: dict[str, str] = {}
    reads: defaultdict[str, list[int]] = defaultdict(list)
    writes: defaultdict[str, list[int]] = defaultdict(list)
    for line, binding in zip(line_of, bindings, strict=True):
        own = buffer_of.get(binding.var.__chandle__())
        if own is not None:
            allocated.setdefault(own, line)
            continue
        named = _named(binding.value, buffer_of)
        if isinstance(binding.value, relax.Call):
            for name in named:
                if name not in made_by:
                    made_by[name] = operator_of(binding.value)
                    writes[name].append(line)
                else:
                    reads[name].append(line)
        elif named and not isinstance(binding.value, relax.If):
            buffer_of[binding.var.__chandle__()] = named[0]  # Another name of the same tensor.
    notes = {}
    for name in (b.name for group in found.memory.groups for b in group.problem.buffers):
        made = f"made by {made_by[name]}" if name in made_by else ""
        here = "" if moved_names.isdisjoint(tensors.get(name, ())) else ", moved"
        read, written = (tuple(dict.fromkeys(lines[name])) for lines in (reads, writes))
        notes[name] = BufferNote("", made + here, allocated.get(name), read, written)
    return notes


def _named(value: Any, buffer_of: dict[int, str]) -> list[str]:
    """Return the buffers that an expression names, each once."""
    variables: list[Any] = []
    named = value.cond if isinstance(value, relax.If) else value
    structural_walk(named, ((relax.Var, variables.append),))
    names = (buffer_of.get(variable.__chandle__()) for variable in variables)
    return list(dict.fromkeys(name for name in names if name is not None))
