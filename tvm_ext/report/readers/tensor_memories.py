# SPDX-License-Identifier: Apache-2.0
"""The tensors of a network's Relax functions, planned in the form that the device takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from passes.gmem import (
    FunctionPlan,
    GMEMOptions,
    Pieces,
    Placement,
    each_storage,
    plan_gmem,
    plan_slots,
    served_memory,
    stock_placement,
)
from passes.ir import IRModule, Target, nodes_in, printed, tir
from passes.order import FunctionOrder
from passes.relax import (
    HOST,
    MAIN_DEVICE,
    RETURNED,
    SCOPE,
    TensorGroup,
    bindings_of,
    on_one_path,
    place_of,
    product,
    rx,
)
from tvm_ext.lowering import Reordered, capture_relax
from tvm_ext.named_planners import EVERY, STOCK
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import (
    BUILT,
    Axis,
    BufferNote,
    LeftAlone,
    MemoryView,
    PlannedProblem,
    Text,
    planned,
    stock_plan,
)
from tvm_ext.report.readers.statement_memories import type_and_shape
from tvm_ext.report.report import Finding
from tvm_ext.tensor_names import label_of, operator_of
from tvm_ext.text import Table, formula

SLOTS = "whole slots"
"""The name of the plan in whole slots, in the place of a planner's name."""

FUSED = "tensors, fused"
"""The contents of the memory of a network whose operators are fused."""

READER = "best"
"""The planner that is asked first: where its plan does not fit the memory, that is an error."""


@dataclass(frozen=True, eq=False)
class ReadNetwork:
    """The Relax functions of a module, as `GMEMAllocate` plans them."""

    functions: tuple[FunctionPlan, ...]  # In alphabetical order
    options: GMEMOptions  # By which they were read
    orders: Mapping[str, FunctionOrder]  # The orders of operators, where others were looked for


def read_network(
    mod: IRModule, target: Target, ask: Ask, *, fuse: bool = True, order: bool = False
) -> ReadNetwork:
    """Lower a module up to the planning of its memory, and plan it as `GMEMAllocate` does.

    Another `order` is one for the first planner that is asked.

    Raises ValueError when the module cannot be read, or does not fit.
    """
    options = GMEMOptions(target=target, upper_bounds=ask.upper_bounds)
    asked = (name for name in ask.planners if name not in (STOCK, EVERY))
    ordered = Reordered(options, next(asked, READER))
    lowered = capture_relax(mod, target, fuse=fuse, between=ordered if order else None)
    orders = {found.name: found for found in ordered.orders}
    return ReadNetwork(plan_gmem(lowered, READER, options), options, orders)


def network(mod: IRModule, target: Target, ask: Ask, *, order: bool = False) -> Iterator[Finding]:
    """Yield the memories of each Relax function, and each tensor that is left to the runtime.

    There is a memory for tensors of constant size, and one for each product of symbolic dimensions,
    on each device and in each scope.
    With `ask.everything`, operators are fused and then not. With `order`, they are put in the order
    in which the least memory is live, and what that saves is said.
    """
    orders: list[tuple[str, ...]] = [
        ("function", "operators", "moved", "as written", "found", "bound", "proven")
    ]
    for fuse in (True, False) if ask.everything else (True,):
        found = read_network(mod, target, ask, fuse=fuse, order=order)
        fused, holds = ("fused", FUSED) if fuse else ("not fused", "tensors, not fused")
        for function in found.functions:
            name = function.memory.name
            stock = stock_placement(function.memory, ask.upper_bounds) if ask.stock else None
            if ask.stock and stock is None:
                yield f"{name}, {fused}: TVM's StaticPlanBlockMemory fails, so it has no plan here"
            views = list(_views(found, function, holds, ask, stock))
            yield from views
            if views and (note := _with_results(function, views[0], fused)):
                yield note
        for one in found.orders.values() if ask.everything else ():
            name = f"{one.name}, {fused}"
            orders.append(_order_row(name, one))
            yield from _saved_by_order(name, one)
        if fuse:
            yield from _left(found)
            served = served_memory(found.functions, found.options)
            if ask.everything and len(served.functions) > 1:
                yield str(served)
    if orders[1:]:
        yield Table("bytes of activations that are live at once", orders, left=(0, 6))


def _order_row(name: str, one: FunctionOrder) -> tuple[str, ...]:
    numbers = (f"{n:,}" if one.given else "" for n in (one.given, one.found, one.bound))
    proven = "lowest of any order" if one.optimal else "no"
    return name, f"{one.operators:,}", f"{len(one.moved):,}", *numbers, proven


def _saved_by_order(name: str, one: FunctionOrder) -> Iterator[str]:
    if one.moved:
        less = one.given - one.found
        yield f"{name}: {less:,} bytes less ({less / one.given:.1%})"
    if reason := one.reason or one.needs:
        yield f"{name}: {reason}"


def _left(found: ReadNetwork) -> Iterator[LeftAlone]:
    returned = "the function returns it, so its caller owns the memory"
    for function in found.functions:
        memory = function.memory
        for left in memory.left:
            reason = returned if left.reason == RETURNED else left.reason
            yield LeftAlone(memory.name, left.name, reason, what="tensor")


def _views(
    found: ReadNetwork, function: FunctionPlan, holds: str, ask: Ask, stock: Placement | None
) -> Iterator[MemoryView]:
    memory, units = function.memory, dict[str, list[TensorGroup]]()
    for group in memory.groups:
        if group.problem.buffers:
            units.setdefault(unit_text(group.unit), []).append(group)
    groups = [(unit, group) for unit, of in units.items() for group in of]
    if not groups:
        return
    text = cache(partial(_read_bindings, function, found.orders.get(memory.name)))
    copies = f"; a call copies {function.copied:,} bytes" if function.copied else ""
    for unit, group in groups:
        form = found.options.form(memory.mod, group)
        pieces = None if stock is None else stock[memory.groups.index(group)]
        plans = tuple(_placements(function, group, unit, form.offsets, ask, pieces))
        named = unit_in(memory.func, unit, group.unit) if unit else ""
        own = f"{holds}, for each {named}" if unit else holds
        own += _elsewhere(memory.mod, group)
        yield MemoryView(memory.name, plans, text, own, "", f"{form}{copies}", unit, named)


def _elsewhere(mod: IRModule, group: TensorGroup) -> str:
    """Say which memory holds a group, where it is not that of the main device."""
    scope = f", in {group.scope}" if group.scope != SCOPE else ""
    if group.device == MAIN_DEVICE:
        return scope
    devices = mod.global_infos.get("vdevice", ())
    known = 0 <= group.device < len(devices)
    kind = f" ({devices[group.device].target.kind.name})" if known else ""
    return f"{scope}, on {'the host' if group.device == HOST else f'device {group.device}'}{kind}"


def _placements(
    found: FunctionPlan,
    group: TensorGroup,
    unit: str,
    offsets: bool,
    ask: Ask,
    stock: Pieces | None,
) -> Iterator[PlannedProblem]:
    problem = group.problem
    if unit:
        memory = replace(problem.memory, capacity=None, reserved=(), alignment=1)
        problem = replace(problem, memory=memory, name=f"{memory.name}, for each {unit}")
    planners, bound, seconds = ask.names(problem, graph=True), None, 0.0
    built = found.plan if group.is_main else found.plan_of(group, problem)
    if not offsets:  # The device takes no plan with offsets.
        begin = time.perf_counter()
        slots, bound = plan_slots(problem, ask.limits)
        bound = min(bound, slots.peak, built.peak)  # A plan does not pad its last slot.
        seconds = time.perf_counter() - begin
        planners = [SLOTS] if planners else []
    if stock is not None:
        begins = [
            (size, {buffer.name: 0 for buffer in inside})
            for size, inside in each_storage(group.every, stock)
        ]
        begins.sort(key=lambda piece: min(group.uses[name].made_at for name in piece[1]))
        plan = stock_plan(problem, begins, "StaticPlanBlockMemory", found.memory.name)
        yield PlannedProblem(STOCK, problem, plan, bound_of_form=bound)
    for planner in planners:
        if planner == SLOTS:
            yield PlannedProblem(SLOTS, problem, built, seconds, bound)
            continue
        own = planned(problem, planner, ask.limits)
        yield own
        is_other = own.plan.peak != built.peak and not _hosting_results(found, group)
        if planner == READER and is_other:
            yield PlannedProblem(BUILT, problem, built)


def _hosting_results(function: FunctionPlan, group: TensorGroup) -> bool:
    """Return whether a build lays tensors of a group into the memory of a result."""
    results = {buffer.name for buffer in group.returned}
    pieces = function.placement[function.memory.groups.index(group)]
    return any(len(piece.offsets) > 1 and results & {*piece.offsets} for piece in pieces)


def _with_results(function: FunctionPlan, view: MemoryView, fused: str) -> str:
    """Say what a build takes that lays tensors into results, which tables leave out on all sides.

    Empty where the build does not, or TVM's own plan is not shown.
    """
    stock = next((one.plan.peak for one in view.plans if one.planner == STOCK), None)
    if stock is None or not _hosting_results(function, function.memory.main):
        return ""
    pieces = function.placement[0]
    placed = {name for piece in pieces for name in piece.offsets}
    results = function.memory.main.returned
    apart = sum(buffer.size for buffer in results if buffer.name not in placed)
    ours = sum(piece.size for piece in pieces) + apart
    others = stock + sum(buffer.size for buffer in results)
    return (
        f"{function.memory.name}, {fused}: a build lays tensors into the memory of results, too: "
        f"with all results it takes {ours:,} bytes, TVM's plan {others:,}"
    )


def unit_in(func: rx.Function, text: str, unit: Any) -> str:
    """Write a unit with the inputs and axes that give its dimensions: ``batch (axis 0 of x)``."""
    names = dict.fromkeys(str(variable.name) for variable in nodes_in(unit, tir.Var))
    places = [place_of(func, name) for name in names]
    return places[0] if [text] == [*names] else f"{text}, of {' and '.join(places)}"


def unit_text(unit: Any) -> str:
    """Write a product of symbolic dimensions, factors in alphabetical order; empty for None."""

    def factors(part: Any) -> list[Any]:
        return factors(part.a) + factors(part.b) if isinstance(part, tir.Mul) else [part]

    return "" if unit is None else formula(product(sorted(factors(unit), key=str)))


def _read_bindings(found: FunctionPlan, order: FunctionOrder | None) -> Text:
    """Print a function, and find what makes each buffer, and the lines that touch it."""
    memory = found.memory
    bindings = list(bindings_of(memory.func.body))
    lines, printed_at = printed(memory.func, bindings)
    line_of = [0]
    labels = [""] * len(lines)
    for binding in bindings:
        line_of.append(max(line_of[-1], *printed_at.get(binding.__chandle__(), ())))
        labels[line_of[-1]] = label_of(binding)
    del line_of[0]
    allocated: dict[str, int] = {}
    types: dict[str, str] = {}
    for binding, line in zip(bindings, line_of, strict=True):
        handle = binding.var.__chandle__()
        if handle in memory.buffer_of:
            allocated.setdefault(memory.buffer_of[handle], line)
            types.setdefault(memory.buffer_of[handle], type_and_shape(binding.var))
    sides = memory.branches.values()
    moved = frozenset(order.moved if order is not None else ())
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
            notes[name] = BufferNote("", types[name], what, *places)
    return Axis(lines, tuple(line_of), memory.name, labels=tuple(labels)), notes
