# SPDX-License-Identifier: Apache-2.0
"""Global memory of Relax functions: weights first, then each function's activations.

The tensors of constant size on the main device have addresses, and one plan. Those of other
devices, and those whose size is known at run time only, are planned in groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import relax
from tvm.ir import IRModule

from passes.driver import error_context, place
from passes.gmem.analysis.facts import RelaxMemory
from passes.gmem.analysis.graph import functions_in_order, read_relax_memory
from passes.gmem.names import ATTRIBUTE, PASS
from passes.gmem.options import BEST, GMEMOptions, check_bound_names
from passes.gmem.planning.gmem_layout import GMEM, GMEMLayout, aligned
from passes.gmem.planning.regions import PlacedTensor, Region
from passes.gmem.relax_memory import write_storages
from passes.gmem.storages import FunctionPlan, with_storages
from passes.planning import Plan, Problem
from passes.planning.overflow import Bindings, does_not_fit


def plan_gmem(
    mod: IRModule, planner: str = BEST, options: GMEMOptions | None = None
) -> tuple[FunctionPlan, ...]:
    """Decide where the weights and activations of a module's Relax functions live.

    Parameters
    ----------
    mod : tvm.IRModule
        After `CallTIRRewrite`; it stays as it is.
    planner : str
        The name of a planner.
    options : GMEMOptions, optional
        As `GMEMAllocate` takes them.

    Returns
    -------
    tuple of FunctionPlan
        One for each Relax function, sorted by name; each plan is verified.

    Raises
    ------
    ValueError
        As `GMEMAllocate` says.
    """
    options = options or GMEMOptions()
    gmem = options.gmem()
    read = _read(mod, options)
    _check_lowered(read)
    with error_context(PASS):
        check_bound_names(options.upper_bounds, [name for m in read for name in m.variables])
    callers = _callers(read)
    whole = read
    read = [
        memory.all_left("its function may be called again while it runs")
        if memory.name in callers[memory.name]
        else memory
        for memory in read
    ]
    with error_context(PASS):
        weights = _place_weights(read, gmem)
    planned: dict[str, FunctionPlan] = {}
    for memory in sorted(read, key=lambda memory: (len(callers[memory.name]), memory.name)):
        with error_context(PASS, memory.name):
            behind = [
                planned[name].layout.activations
                for name in sorted(callers[memory.name])
                if name in planned
            ]
            first = gmem.activation_start(weights[memory.name])
            start = max((aligned(region.end, gmem.alignment) for region in behind), default=first)
            scope = gmem.memory_from(start, weights[memory.name].size + start - first)
            problem = memory.main.problem(scope, memory.name)
            overflow = partial(does_not_fit, places=Bindings(memory.bindings))
            plan = place(problem, options.solver(planner), overflow=overflow)
            layout = GMEMLayout(
                planner, gmem.alignment, weights[memory.name], _activations(problem, plan, start)
            )
            planned[memory.name] = FunctionPlan(memory, problem, plan, layout, ())
    return with_storages(
        [(planned[memory.name], memory) for memory in sorted(whole, key=lambda m: m.name)],
        callers,
        planner,
        options,
    )


def write_function(planned: FunctionPlan) -> relax.Function:
    """Return the function with its plan written into it.

    Parameters
    ----------
    planned : FunctionPlan
        Its function stays as it is.

    Returns
    -------
    tvm.relax.Function
        With the storages, and with the attribute ``tvm_ext.gmem``; the same function where memory
        was planned before and nothing is left to place.
    """
    memory = planned.memory
    has_layout = bool(memory.func.attrs) and ATTRIBUTE in memory.func.attrs
    if not planned.storages and has_layout:
        return memory.func
    func = write_storages(memory.mod, memory.name, planned.storages, memory.bounds)
    return func.with_attr(ATTRIBUTE, planned.layout.to_plain())


def _read(mod: IRModule, options: GMEMOptions) -> list[RelaxMemory]:
    read = []
    for variable, _ in functions_in_order(mod):
        with error_context(PASS, str(variable.name_hint)):
            read.append(read_relax_memory(mod, variable, options.upper_bounds))
    return read


def _check_lowered(read: Sequence[RelaxMemory]) -> None:
    """Hold that memory is allocated at all, where operators have yet to be lowered.

    In a module of which a part is lowered, the rest is left to the run time.
    """
    if any(memory.tensors or memory.allocates for memory in read):
        return
    for memory in read:
        for result in memory.unlowered:
            with error_context(PASS, memory.name):
                raise ValueError(
                    f"binding {result.name!r}: {result.reason}: run LegalizeOps and "
                    "CallTIRRewrite first"
                )


def _activations(problem: Problem, plan: Plan, start: int) -> Region:
    return Region(
        start,
        plan.peak,
        tuple(
            PlacedTensor(buffer.name, start + plan.offsets[buffer.name][0], buffer.size)
            for buffer in problem.buffers
        ),
    )


def _callers(read: Sequence[RelaxMemory]) -> dict[str, set[str]]:
    """Return for each function all that may be waiting for it to return.

    A function that is handed on as a value may be called by whatever calls something unknown.
    """
    handed_on = {name for memory in read for name in memory.hands_on}
    callees = {
        memory.name: set(memory.calls) | (handed_on if memory.calls_unknown else set())
        for memory in read
    }
    callers: dict[str, set[str]] = {memory.name: set() for memory in read}
    for name in callees:
        reached: set[str] = set()
        pending = [name]
        while pending:
            new = (callees[pending.pop()] & callees.keys()) - reached
            reached |= new
            pending += sorted(new)
        for callee in reached:
            callers[callee].add(name)
    return callers


def _place_weights(read: Sequence[RelaxMemory], gmem: GMEM) -> dict[str, Region]:
    """Place the weights of all functions; return for each the whole region with its own in it."""
    sizes: list[tuple[str, int]] = []
    index_of: dict[tuple[str, str], int] = {}
    of_data: dict[int, int] = {}
    for memory in read:
        for weight in memory.weights:
            index = len(sizes)
            if weight.data is not None:
                index = of_data.setdefault(weight.data, index)
            index_of[memory.name, weight.name] = index
            if index == len(sizes):
                sizes.append((f"{memory.name}.{weight.name}", weight.size))
    region = gmem.place_weights(sizes)
    return {
        memory.name: Region(
            region.start,
            region.size,
            tuple(
                PlacedTensor(
                    weight.name,
                    region.tensors[index_of[memory.name, weight.name]].address,
                    weight.size,
                )
                for weight in memory.weights
            ),
        )
        for memory in read
    }
