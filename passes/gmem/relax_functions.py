# SPDX-License-Identifier: Apache-2.0
"""Global memory of Relax functions: weights first, then each function's activations.

The tensors of constant size on the main device have addresses, and one plan. Those of other
devices, and those whose size is known at run time only, are planned in groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tvm import relax
from tvm.ir import IRModule

from passes.driver import error_context, place
from passes.gmem.options import ATTRIBUTE, BEST, PASS, GMEMOptions, check_bound_names
from passes.gmem.planning.gmem_layout import GMEMLayout, PlacedTensor, Region
from passes.gmem.relax_memory import write_storages
from passes.gmem.storages import FunctionPlan, cut_plans
from passes.planning import Plan, Problem
from passes.planning.overflow import Bindings, does_not_fit
from passes.prim_func.module_calls import callers_of
from passes.relax.bindings import functions_in_order
from passes.relax.facts import RelaxMemory


def plan_gmem(
    mod: IRModule, planner: str = BEST, options: GMEMOptions | None = None
) -> tuple[FunctionPlan, ...]:
    """Decide where the weights and activations of a module's Relax functions live."""
    options = options or GMEMOptions()
    gmem = options.gmem()
    read = []
    for variable, _ in functions_in_order(mod):
        with error_context(PASS, str(variable.name_hint)):
            read.append(options.read(mod, variable))
    _check_lowered(read)
    with error_context(PASS):
        check_bound_names(options.upper_bounds, [name for m in read for name in m.variables])
    callers = _callers(read)
    if options.keeps_storages:
        # What is kept for one function is kept for all, so nothing of a caller may be in it.
        reason = "its function is called by others, and storages are kept for all of them together"
        read = [memory.all_left(reason) if callers[memory.name] else memory for memory in read]
    whole = {memory.name: memory for memory in read}
    read = [
        memory.all_left("its function may be called again while it runs")
        if memory.name in callers[memory.name]
        else memory
        for memory in read
    ]
    with error_context(PASS):
        weights = gmem.place_all_weights(
            {m.name: [(one.name, one.size, one.data) for one in m.weights] for m in read}
        )
    planned: dict[str, FunctionPlan] = {}
    for memory in sorted(read, key=lambda memory: (len(callers[memory.name]), memory.name)):
        name = memory.name
        with error_context(PASS, name):
            behind = [p.layout.activations for c, p in planned.items() if c in callers[name]]
            start, scope = gmem.memory_behind(weights[name], behind)
            problem = replace(memory.main.problem, memory=scope)
            overflow = partial(does_not_fit, places=Bindings(memory.bindings))
            form = options.form(mod, memory.main)
            solver = options.solver(planner) if form.offsets else options.slot_solver(planner)
            plan = place(problem, solver, overflow=overflow)
            activations = _activations(problem, plan, start)
            layout = GMEMLayout(planner, gmem.alignment, weights[name], activations)
            planned[name] = FunctionPlan(memory, problem, plan, layout, whole[name], form)
    return cut_plans([planned[name] for name in sorted(planned)], callers, planner, options)


def write_function(planned: FunctionPlan) -> relax.Function:
    """Return the function with its plan written into it, and with the attribute ``tvm_ext.gmem``.

    It is the same function where memory was planned before and nothing is left to place.
    """
    func = planned.memory.func
    if not any(planned.cut) and func.attrs and ATTRIBUTE in func.attrs:
        return func
    written = write_storages(planned.whole, planned.cut)
    return written.with_attr(ATTRIBUTE, planned.layout.to_plain())


def _check_lowered(read: Sequence[RelaxMemory]) -> None:
    """Hold that memory is allocated at all, where operators have yet to be lowered.

    In a module of which a part is lowered, the rest is left to the run time.
    """
    if any(memory.allocations or memory.allocates for memory in read):
        return
    for memory in read:
        for result in memory.unlowered:
            with error_context(PASS, memory.name):
                raise ValueError(
                    f"binding {result.name!r}: {result.reason}: run LegalizeOps and "
                    "CallTIRRewrite first"
                )


def _activations(problem: Problem, plan: Plan, start: int) -> Region:
    placed = (
        PlacedTensor(b.name, start + plan.offsets[b.name][0], b.size) for b in problem.buffers
    )
    return Region(start, plan.peak, tuple(placed))


def _callers(read: Sequence[RelaxMemory]) -> dict[str, frozenset[str]]:
    """Return for each function all that may be waiting for it to return.

    A function that is handed on as a value may be called by whatever calls something unknown.
    """
    handed_on = {name for memory in read for name in memory.hands_on}
    known = {memory.name for memory in read}
    return callers_of(
        {
            memory.name: known & {*memory.calls, *(handed_on if memory.calls_unknown else ())}
            for memory in read
        }
    )
