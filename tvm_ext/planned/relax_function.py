# SPDX-License-Identifier: Apache-2.0
"""The tensors of a network's Relax functions, planned in the form that the device takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tvm import DataType, relax
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import Mul

from passes.gmem import FunctionPlan, GMEMOptions, plan_gmem, plan_slots, stock_pass
from passes.ir import UPPER_BOUND, declared_bounds
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_PLANNED_TENSOR
from passes.order import FunctionOrder
from passes.planning import Budget
from passes.relax import Size, Sizes, TensorGroup, bindings_of, functions_in_order, product
from tvm_ext.lowering import Reordered, capture_relax, lowered_for
from tvm_ext.named_planners import STOCK
from tvm_ext.planned.placements import (
    MapOptions,
    PlannedProblem,
    StockAllocation,
    planned,
    stock_plan,
)
from tvm_ext.text import formula

SLOTS = "whole slots"
"""What stands for the plan in whole slots in the place of a planner's name."""

READER = "best"
"""The planner that is asked first: where its plan does not fit the memory, that is an error."""


class PlannedUnit(NamedTuple):
    """Tensors of one function that may share memory, as each planner places them."""

    unit: str  # Bytes are for each of this product of symbolic dimensions; empty for constants
    group: TensorGroup
    placements: tuple[PlannedProblem, ...]


@dataclass(frozen=True, eq=False)
class PlannedNetwork:
    """One Relax function of a network."""

    found: FunctionPlan  # The plan of `GMEMAllocate`
    tensors: tuple[PlannedUnit, ...]  # Constant sizes first, also where there are none
    options: GMEMOptions  # By which the function was read
    stock: relax.Function | None  # The result of `StaticPlanBlockMemory`, where it is asked for
    order: FunctionOrder | None  # The order of its operators, where another one was looked for

    @property
    def name(self) -> str:
        """The function's name."""
        return self.found.memory.name

    @property
    def has_tensors(self) -> bool:
        """Whether there is anything to plan."""
        return any(tensors.group.problem.buffers for tensors in self.tensors)


def plan_network(
    mod: IRModule,
    target: Target,
    options: MapOptions,
    *,
    fuse: bool = True,
    upper_bounds: Mapping[str, int] | None = None,
    for_table: bool = False,
) -> tuple[PlannedNetwork, ...]:
    """Plan the tensors of each Relax function with every planner, in alphabetical order.

    `upper_bounds` are of symbolic dimensions by name, for the stock pass too. The default planner's
    plan is the one that `GMEMAllocate` writes; `for_table` it is the planner's own, and the result
    of the stock pass is kept. Raises ValueError when the module cannot be read, or does not fit.
    """
    budget = None if for_table else options.budget  # A table has what the pass does by default.
    gmem = GMEMOptions(target=target, budget=budget, upper_bounds=upper_bounds or {})
    ordered = Reordered(gmem)
    lowered = capture_relax(mod, target, fuse=fuse, between=ordered if options.order else None)
    for variable, func in functions_in_order(lowered) if upper_bounds else ():
        bounds = {**(upper_bounds or {}), **declared_bounds(func)}
        lowered[variable] = func.with_attr(UPPER_BOUND, bounds)
    stock: Any = {}
    if for_table or STOCK in options.planners:
        stock = lowered_for(target, lambda: stock_pass()(lowered))
    orders = {order.name: order for order in ordered.orders}
    networks = []
    for found in plan_gmem(lowered, READER, gmem):
        name = found.memory.name
        by_stock = stock[name] if stock else None
        units = {"": [found.memory.main]}
        for group in found.memory.groups:
            if group.unit is not None and group.problem.buffers:
                units.setdefault(unit_text(group.unit), []).append(group)
        tensors = tuple(
            PlannedUnit(unit, g, tuple(_placements(found, g, unit, options, by_stock, for_table)))
            for unit, groups in units.items()
            for g in groups
        )
        networks.append(PlannedNetwork(found, tensors, gmem, by_stock, orders.get(name)))
    return tuple(networks)


def _placements(
    found: FunctionPlan,
    group: TensorGroup,
    unit: str,
    options: MapOptions,
    stock: relax.Function | None,
    for_table: bool,
) -> Iterator[PlannedProblem]:
    problem, budget = group.problem, options.budget
    if unit:
        memory = replace(problem.memory, capacity=None, reserved=(), alignment=1)
        problem = replace(problem, memory=memory, name=f"{memory.name}, for each {unit}")
    planners, bound = options.names(problem, graph=True), None
    if not found.form.offsets:  # The device takes no plan with offsets.
        begin = time.perf_counter()
        slots, bound = plan_slots(problem, budget or Budget())
        ours = slots if unit else found.plan  # What the pass writes
        bound = min(bound, slots.peak, ours.peak)  # A plan does not pad its last slot.
        seconds = time.perf_counter() - begin
        planners = [*(name for name in planners if name == STOCK), SLOTS]
    for planner in planners:
        if planner == STOCK:
            pieces, name = static_plan_pieces(found, group, stock), found.memory.name
            plan = stock_plan(problem, pieces, "StaticPlanBlockMemory", name)
            yield PlannedProblem(STOCK, problem, plan, bound_of_form=bound)
        elif planner == SLOTS:
            yield PlannedProblem(SLOTS, problem, ours, seconds, bound_of_form=bound)
        elif planner == READER and not (unit or for_table):
            yield PlannedProblem(planner, problem, found.plan)
        else:
            yield planned(problem, planner, budget)


def static_plan_pieces(
    found: FunctionPlan, group: TensorGroup, stock: relax.Function
) -> list[StockAllocation]:
    """Read off the storages that `StaticPlanBlockMemory` has made for a group, in program order.

    A tensor that the pass leaves alone is a piece of its own.
    """
    memory, read = found.memory, Sizes(stock, {})
    sizes = {buffer.name: buffer.size for buffer in group.problem.buffers}
    own_unit = unit_text(group.unit)
    pieces: dict[object, StockAllocation] = {}
    for binding in bindings_of(stock.body):
        call, handle = binding.value, binding.var.__chandle__()
        operator = operator_name(call.op) if isinstance(call, relax.Call) else None
        if operator == ALLOC_PLANNED_STORAGE:
            size = read.of(call.args[0].values, DataType("uint8"))
            pieces[handle] = size.count if unit_of(size) == own_unit else 0, {}
        name = memory.buffer_of.get(handle)
        if name not in sizes or not isinstance(call, relax.Call):
            continue
        key = call.args[0].__chandle__() if operator == ALLOC_PLANNED_TENSOR else name
        pieces.setdefault(key, (sizes[name], {}))[1][name] = 0
    return list(pieces.values())


def unit_of(size: Size) -> str:
    """Write the unit that a size has its bytes for each of; empty for a constant size."""
    return unit_text(product(size.factors) if size.factors else None)


def unit_text(unit: Any) -> str:
    """Write a product of symbolic dimensions, factors in alphabetical order; empty for None."""

    def factors(part: Any) -> list[Any]:
        return factors(part.a) + factors(part.b) if isinstance(part, Mul) else [part]

    return "" if unit is None else formula(product(sorted(factors(unit), key=str)))
