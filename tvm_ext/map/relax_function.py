# SPDX-License-Identifier: Apache-2.0
"""The memory map of a Relax function: its activations, beside its bindings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import IRModule, Op
from tvm.target import Target
from tvm_ffi import structural_walk

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.gmem.storages import FunctionPlan
from passes.ir.script_lines import printed
from passes.order.transform import with_orders
from passes.planning import Budget, Plan, Problem, solve
from tvm_ext.lowering import (
    DEFAULT_TARGET,
    behind_ordering,
    capture_relax,
    find_orders,
    first_line,
)
from tvm_ext.map.model import BufferNote, Listing, Placement, ScopeMap
from tvm_ext.map.stock import STOCK, Piece, stock_plan
from tvm_ext.tensor_names import bindings_of, operator_of

_READER = "best"
"""The planner that is asked first: where its plan does not fit the memory, that is an error."""


def relax_maps(
    mod: IRModule,
    target: Target,
    planners_of: Callable[[Problem], Sequence[str]],
    budget: Budget | None = None,
    *,
    order: bool = False,
) -> tuple[tuple[ScopeMap, ...], tuple[str, ...]]:
    """Plan the activations of each Relax function with every planner.

    Parameters
    ----------
    mod : tvm.IRModule
        It is lowered by the stock pipeline up to the planning of its memory.
    target : tvm.target.Target
        What it is lowered for.
    planners_of : callable
        Which planners are asked to solve such a problem.
    budget : Budget, optional
        Limits for planners that search.
    order : bool
        Whether `OrderForMemory` runs; the notes then say what moved.

    Returns
    -------
    scopes : tuple of ScopeMap
        One for each function with tensors to plan, in alphabetical order.
    left : tuple of str
        One line for each tensor that is left to the runtime: which and why; and one for all those
        of a function whose sizes only the running program knows.

    Raises
    ------
    ValueError
        When the module cannot be lowered or read, or nothing fits the target's memory.
    """
    maps, left = [], []
    options = GMEMOptions(target=target, budget=budget)
    lowered, moved = _lowered(mod, options, order)
    for found in plan_gmem(lowered, _READER, options):
        symbolic = sum(len(g.storages) for g in found.memory.groups if g.unit is not None)
        if symbolic:
            left.append(
                f"{found.memory.name}: tensors of a size known at run time only: {symbolic}"
            )
        left += [f"{found.memory.name}: {one.name}: {one.reason}" for one in found.memory.left]
        if not found.memory.storages:
            continue
        listing, notes = _read(found, moved.get(found.memory.name, ()))
        placements = tuple(
            Placement(planner, found.problem, _plan(found, planner, budget))
            for planner in planners_of(found.problem)
        )
        maps.append(ScopeMap(found.memory.name, placements, listing, notes))
    return tuple(maps), tuple(left)


def _lowered(
    mod: IRModule, options: GMEMOptions, order: bool
) -> tuple[IRModule, dict[str, tuple[str, ...]]]:
    """Return a module before its memory is planned, and which bindings of a function moved."""
    target = options.target or Target(DEFAULT_TARGET)
    try:
        if not order:
            return capture_relax(mod, target), {}
        written, orders = find_orders(mod, options)
        moved = {one.name: one.moved for one in orders}
        return behind_ordering(with_orders(written, orders), target), moved
    except ValueError:
        raise
    except Exception as error:  # any pass of the pipeline may raise anything
        raise ValueError(
            f"cannot lower the Relax functions for target kind {target.kind.name!r}: "
            f"{first_line(error)}"
        ) from error


def _plan(found: FunctionPlan, planner: str, budget: Budget | None) -> Plan:
    if planner == STOCK:
        return stock_plan(
            found.problem, static_plan_pieces(found), "StaticPlanBlockMemory", found.memory.name
        )
    return solve(found.problem, planner, budget)


def static_plan_pieces(found: FunctionPlan) -> list[Piece]:
    """Read off the storages that `StaticPlanBlockMemory` makes for a function.

    Parameters
    ----------
    found : FunctionPlan
        Its module is one that the stock pass takes; it stays as it is.

    Returns
    -------
    list of Piece
        In program order, with the names of the problem's buffers. A tensor that the pass leaves
        alone is a piece of its own.

    Raises
    ------
    ValueError
        When the tensors of one buffer come to lie in different storages.
    """
    memory = found.memory
    sizes = {storage.name: storage.size for storage in memory.storages}
    planned = relax.transform.StaticPlanBlockMemory()(memory.mod)[memory.name]
    pieces: dict[object, Piece] = {}
    placed: dict[str, object] = {}
    for binding in bindings_of(planned.body):
        call = binding.value
        if not isinstance(call, relax.Call):
            continue
        if call.op == _ALLOC_STORAGE:
            (size,) = call.args[0].values
            constant = isinstance(size, tirx.IntImm)
            pieces[binding.var.__chandle__()] = Piece(int(size) if constant else 0, {})
        name = memory.storage_of.get(binding.var.__chandle__())
        if name not in sizes:
            continue
        key: object = name
        if call.op == _ALLOC_TENSOR:
            key = call.args[0].__chandle__()
        if placed.setdefault(name, key) != key:
            raise ValueError(
                f"function {memory.name!r}: TVM's StaticPlanBlockMemory puts the branches of "
                f"{name!r} in several storages; leave out the planner {STOCK!r}"
            )
        pieces.setdefault(key, Piece(sizes[name], {})).offsets[name] = 0
    return list(pieces.values())


def _read(found: FunctionPlan, moved: Sequence[str]) -> tuple[Listing, dict[str, BufferNote]]:
    bindings = list(bindings_of(found.memory.func.body))
    lines, at = printed(found.memory.func, bindings)
    line, line_of = 0, []
    for binding in bindings:
        line = max(line, *at.get(binding.__chandle__(), (line,)))
        line_of.append(line)
    return Listing(lines, tuple(line_of), found.memory.name), _notes(
        found, bindings, line_of, moved
    )


def _notes(
    found: FunctionPlan, bindings: Sequence[Any], line_of: Sequence[int], moved: Sequence[str]
) -> dict[str, BufferNote]:
    """Find for each buffer the operator that makes it, and the lines that name it."""
    storage_of = dict(found.memory.storage_of)
    allocated: dict[str, int] = {}
    made_by: dict[str, str] = {}
    reads: defaultdict[str, list[int]] = defaultdict(list)
    writes: defaultdict[str, list[int]] = defaultdict(list)
    for line, binding in zip(line_of, bindings, strict=True):
        own = storage_of.get(binding.var.__chandle__())
        if own is not None:
            allocated.setdefault(own, line)
            continue
        named = _named(binding.value, storage_of)
        if isinstance(binding.value, relax.Call):
            for name in named:
                if name not in made_by:
                    made_by[name] = operator_of(binding.value)
                    writes[name].append(line)
                else:
                    reads[name].append(line)
        elif named and not isinstance(binding.value, relax.If):
            storage_of[binding.var.__chandle__()] = named[0]  # Another name of the same tensor.
    return {
        storage.name: BufferNote(
            "",
            (f"made by {made_by[storage.name]}" if storage.name in made_by else "")
            + (", moved" if set(moved).intersection(storage.tensors) else ""),
            allocated.get(storage.name),
            tuple(dict.fromkeys(reads[storage.name])),
            tuple(dict.fromkeys(writes[storage.name])),
        )
        for storage in found.memory.storages
    }


def _named(value: Any, storage_of: dict[int, str]) -> list[str]:
    """Return the buffers that an expression names, each once."""
    variables: list[Any] = []
    if isinstance(value, relax.If):
        value = value.cond
    structural_walk(value, ((relax.Var, variables.append),))
    names = (storage_of.get(variable.__chandle__()) for variable in variables)
    return list(dict.fromkeys(name for name in names if name is not None))


_ALLOC_STORAGE = Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = Op.get("relax.memory.alloc_tensor")
