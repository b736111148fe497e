"""Global memory for a function that holds a whole graph: weights, then what its ops make.

The TIR side of `GMEMAllocate`: statements of the body are ops, allocations in ``global`` are the
tensors between them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tvm.ir import IRModule
from tvm.tirx import PrimFunc

from passes.analysis.sophgo.op_graph import SCOPE, OpGraph, read_op_graph
from passes.analysis.tir.problems import ProblemOptions, find_problems
from passes.ir.lower_blocks import lower_blocks
from passes.placement import FORMS, AddressPlan, Form, place_function, write_address_plan
from passes.planning import Budget, solve
from passes.planning.sophgo.gmem_layout import GMEM, GMEMLayout
from passes.planning.sophgo.regions import Placed, Region
from target_hw.memory import MemoryHierarchy

ATTRIBUTE = "tvm_ext.gmem"
"""The function attribute that holds the placement, as plain data."""

LOGGER = logging.getLogger("tvm_ext.GMEMAllocate")
"""Says at level INFO which tensors are not placed, and why."""

_NUM_INPUT = "num_input"


UpperBounds = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class PrimFuncGraph:
    """A function that holds a graph.

    Attributes
    ----------
    func : tvm.tirx.PrimFunc
        As it was given.
    flat : tvm.tirx.PrimFunc
        Without blocks.
    graph : OpGraph
        Its ops, to step through (`passes.planning.sophgo.rec_tbl.trace`), and what is no part of
        it.
    """

    func: PrimFunc
    flat: PrimFunc
    graph: OpGraph


@dataclass(frozen=True, eq=False)
class PrimFuncPlan:
    """A function with its plan.

    Attributes
    ----------
    read : PrimFuncGraph
        What was planned.
    plan : AddressPlan
        Verified, and within the capacity; offsets count from the start of the activations.
    layout : GMEMLayout
        The addresses.
    options : ProblemOptions
        What `find_problems` was told.
    """

    read: PrimFuncGraph
    plan: AddressPlan
    layout: GMEMLayout
    options: ProblemOptions


def plan_gmem_prim_funcs(
    mod: IRModule,
    gmem: GMEM,
    planner: str = "rec_tbl",
    *,
    form: Form = "arena",
    upper_bounds: UpperBounds = (),
    budget: Budget | None = None,
) -> IRModule:
    """Place the tensors of each function of a TIR module.

    The weights of all functions share one region. The activations of each begin behind it, since
    functions of one module run one after another.

    Parameters
    ----------
    mod : tvm.ir.IRModule
        What is no `PrimFunc` stays as it is.
    gmem, planner, form, upper_bounds, budget
        As `plan_gmem_prim_func` takes them.

    Returns
    -------
    tvm.ir.IRModule
        A new module, each function as `plan_gmem_prim_func` returns it.

    Raises
    ------
    ValueError
        As `plan_gmem_prim_func` does; the message names the function.
    """
    options = _options(form, upper_bounds)
    read: dict[str, PrimFuncGraph] = {}
    for var in sorted(mod.get_global_vars(), key=lambda var: str(var.name_hint)):
        if isinstance(mod[var], PrimFunc):
            with _naming(str(var.name_hint)):
                read[str(var.name_hint)] = read_prim_func(mod[var], options)
    regions = _place_weights(read, gmem)
    result = mod.clone()
    for name, one in read.items():
        with _naming(name):
            planned = _plan(one, gmem, regions[name], planner, options, budget)
            result[mod.get_global_var(name)] = _written(planned)
    return result


def plan_gmem_prim_func(
    func: PrimFunc,
    gmem: GMEM,
    planner: str = "rec_tbl",
    *,
    form: Form = "arena",
    upper_bounds: UpperBounds = (),
    budget: Budget | None = None,
) -> PrimFunc:
    """Place the weights of a function, and what it allocates in ``global`` behind them.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Such as `te.create_prim_func` makes of several ops; it stays as it is. Blocks are lowered
        first. Its attribute ``num_input`` says how many parameters at the beginning are inputs:
        of the others, those that nothing writes are weights. Without it there are none.
    gmem : GMEM
        The memory.
    planner : str
        The name of a planner.
    form : {"address", "arena"}
        As in `PlanAddresses`: addresses on the allocations, or one allocation with offsets.
    upper_bounds : tuple of (str, int)
        The most that variables in sizes can be, beside the attribute ``tir_var_upper_bound``. An
        allocation without a bound keeps memory of its own, and the log says so.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    tvm.tirx.PrimFunc
        Flat, with the addresses in the attribute ``tvm_ext.gmem``; the same function where there
        is nothing to place.

    Raises
    ------
    ValueError
        When weights or activations are above the capacity, or when the function cannot be planned.
    """
    return _written(
        plan_prim_func(func, gmem, planner, form=form, upper_bounds=upper_bounds, budget=budget)
    )


def plan_prim_func(
    func: PrimFunc,
    gmem: GMEM,
    planner: str = "rec_tbl",
    *,
    form: Form = "arena",
    upper_bounds: UpperBounds = (),
    budget: Budget | None = None,
) -> PrimFuncPlan:
    """Decide what `plan_gmem_prim_func` writes; the arguments and errors are the same."""
    options = _options(form, upper_bounds)
    read = read_prim_func(func, options)
    return _plan(read, gmem, _place_weights({"": read}, gmem)[""], planner, options, budget)


def read_prim_func(func: PrimFunc, options: ProblemOptions | None = None) -> PrimFuncGraph:
    """Read the graph that a function holds; `plan_gmem_prim_func` says which functions do."""
    flat = lower_blocks(func)
    found = find_problems(flat, options or _options("arena", ()))
    return PrimFuncGraph(func, flat, read_op_graph(flat, found, _name(func), _num_input(func)))


def _options(form: Form, upper_bounds: UpperBounds) -> ProblemOptions:
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    return ProblemOptions((SCOPE,), upper_bounds=upper_bounds, addressed=form == "address")


def _place_weights(read: Mapping[str, PrimFuncGraph], gmem: GMEM) -> dict[str, Region]:
    """Place the weights of all functions; return for each the whole region with its own in it."""
    owned = [(name, weight) for name in read for weight in read[name].graph.sequence.weights]
    sizes = [(f"{name}.{w.name}" if name else w.name, w.size) for name, w in owned]
    region = gmem.place_weights(sizes)
    own: dict[str, list[Placed]] = {name: [] for name in read}
    for (name, weight), placed in zip(owned, region.tensors, strict=True):
        own[name].append(replace(placed, name=weight.name))
    return {name: replace(region, tensors=tuple(tensors)) for name, tensors in own.items()}


def _plan(
    read: PrimFuncGraph,
    gmem: GMEM,
    weights: Region,
    planner: str,
    options: ProblemOptions,
    budget: Budget | None,
) -> PrimFuncPlan:
    start = gmem.activation_start(weights)
    memory = gmem.memory_from(start, weights.size)
    if options.addressed:
        memory = replace(memory, alignment=gmem.alignment, base=start)
    options = replace(options, memory=MemoryHierarchy((memory,)))
    found = find_problems(read.flat, options)
    plan = place_function(found, lambda problem: solve(problem, planner, budget))
    layout = GMEMLayout(planner, gmem.alignment, weights, _activations(plan, start))
    return PrimFuncPlan(read, plan, layout, options)


def _written(planned: PrimFuncPlan) -> PrimFunc:
    """Return the function with its plan in it."""
    for line in planned.read.graph.left_out:
        LOGGER.info("no op's result: %s", line)
    if not planned.plan.scopes and not planned.layout.weights.tensors:
        return planned.read.func
    for note in (*planned.plan.found.left_alone, *planned.plan.found.remarks):
        LOGGER.info("%s", note)
    form: Form = "address" if planned.options.addressed else "arena"
    result = write_address_plan(planned.read.flat, planned.plan, form)
    return result.with_attr(ATTRIBUTE, planned.layout.to_plain())


@contextmanager
def _naming(function: str) -> Iterator[None]:
    """Let an error name the function."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"function {function!r}: {error}") from error


def _name(func: PrimFunc) -> str:
    return str(func.attrs.get("global_symbol", "main")) if func.attrs else "main"


def _num_input(func: PrimFunc) -> int | None:
    value = func.attrs.get(_NUM_INPUT) if func.attrs else None
    return None if value is None else int(getattr(value, "value", value))


def _activations(plan: AddressPlan, start: int) -> Region:
    """Return where the activations of the whole function are."""
    placed, size = [], 0
    for scope in plan.scopes:
        if scope.attached.owner is None:
            size = max(size, scope.plan.peak)
            for buffer in scope.problem.buffers:
                (offset,) = scope.plan.offsets[buffer.name][:1]
                placed.append(Placed(buffer.name, start + offset, buffer.size))
    return Region(start, size, tuple(placed))
