# SPDX-License-Identifier: Apache-2.0
"""The memory map of a Relax function: its activations, beside its bindings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.target import Target
from tvm_ffi import structural_walk

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.gmem.storages import FunctionPlan
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_PLANNED_TENSOR
from passes.ir.script_lines import printed
from passes.planning import Budget, Plan, solve
from passes.relax.bindings import bindings_of
from tvm_ext.comparison.memory_comparison import READER
from tvm_ext.lowering import Reordered, capture_relax
from tvm_ext.map.model import BufferNote, Listing, Placement, ScopeMap, Shown
from tvm_ext.map.options import MapOptions
from tvm_ext.map.stock import StockAllocation, stock_plan
from tvm_ext.named_planners import STOCK
from tvm_ext.tensor_names import operator_of

SLOTS = "slots"
"""What stands for the plan in whole slots in the place of a planner's name."""


def relax_maps(mod: IRModule, target: Target, options: MapOptions) -> Iterator[Shown]:
    """Plan the activations of each Relax function with every planner.

    The module is lowered by the stock pipeline up to the planning of its memory. Yielded are a
    memory for each function with tensors to plan, in alphabetical order; and a line for each tensor
    that is left to the runtime, and one for all those of a function whose sizes only the running
    program knows. Raises ValueError when the module cannot be lowered or read, or nothing fits the
    target's memory. In another order than the written one, the notes say what moved.
    """
    budget = options.budget
    gmem = GMEMOptions(target=target, budget=budget)
    ordered = Reordered(gmem)
    lowered = capture_relax(mod, target, between=ordered if options.order else None)
    moved = {one.name: one.moved for one in ordered.orders}
    for found in plan_gmem(lowered, READER, gmem):
        symbolic = sum(len(g.problem.buffers) for g in found.memory.groups if g.unit is not None)
        if symbolic:
            yield f"{found.memory.name}: tensors of a size known at run time only: {symbolic}"
        yield from (f"{found.memory.name}: {one.name}: {one.reason}" for one in found.memory.left)
        if not found.memory.storages:
            continue
        listing, notes = _read(found, moved.get(found.memory.name, ()))
        planners = options.names(found.problem, graph=True)
        if not found.form.offsets:  # A plan with offsets is none for such a device.
            planners = [SLOTS, *([STOCK] if STOCK in planners else [])]
        placements = tuple(
            Placement(planner, found.problem, _plan(found, planner, budget)) for planner in planners
        )
        form = f"{found.form}; a call copies {found.copied:,} bytes"
        yield ScopeMap(found.memory.name, placements, listing, notes, form=form)


def _plan(found: FunctionPlan, planner: str, budget: Budget | None) -> Plan:
    if planner == STOCK:
        pieces = static_plan_pieces(found)
        return stock_plan(found.problem, pieces, "StaticPlanBlockMemory", found.memory.name)
    return found.plan if planner == SLOTS else solve(found.problem, planner, budget)


def static_plan_pieces(found: FunctionPlan) -> list[StockAllocation]:
    """Read off the storages that `StaticPlanBlockMemory` makes for a function, in program order.

    They have the names of the problem's buffers. A tensor that the pass leaves alone is a piece of
    its own. Raises ValueError when the tensors of one buffer come to lie in different storages.
    """
    memory = found.memory
    sizes = {buffer.name: buffer.size for buffer in memory.storages}
    planned = relax.transform.StaticPlanBlockMemory()(memory.mod)[memory.name]
    pieces: dict[object, StockAllocation] = {}
    placed: dict[str, object] = {}
    for binding in bindings_of(planned.body):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if operator_name(call.op) == ALLOC_PLANNED_STORAGE:
            (size,) = call.args[0].values
            constant = isinstance(size, tirx.IntImm)
            pieces[binding.var.__chandle__()] = StockAllocation(int(size) if constant else 0, {})
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
    moved_names, tensors = frozenset(moved), found.memory.main.tensors
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
    for name in (buffer.name for buffer in found.memory.storages):
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
