# SPDX-License-Identifier: Apache-2.0
"""Global memory of Relax functions: weights first, then each function's activations.

Tensors of other devices, or of a size known at run time only, are planned in groups of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from passes.gmem.analysis.stock_sharing import kept_as_stock, stock_placement
from passes.gmem.chosen_ways import choose_placements
from passes.gmem.options import (
    ATTRIBUTE,
    BEST,
    IN_KERNELS,
    PASS,
    Form,
    GMEMOptions,
    Solvers,
)
from passes.gmem.planning.gmem_layout import GMEMLayout, Region, region_of
from passes.gmem.planning.pool import Placement
from passes.gmem.relax_memory import write_storages
from passes.gmem.several_memories import OverMemories, plan_over_memories
from passes.gmem.storages import pieces_of_group, placement_of, with_own_storages
from passes.ir import IRModule
from passes.pass_errors import error_context
from passes.pass_options import check_bound_names
from passes.planning import Plan, Problem, Status, check, solve
from passes.prim_func import callers_of
from passes.relax import PLANS_RESULTS, RelaxMemory, TensorGroup, functions_in_order, rx
from target_hw.memory import MemoryScope, round_up


@dataclass(frozen=True, eq=False)
class FunctionPlan:
    """One Relax function with its placement."""

    memory: RelaxMemory  # The tensors, also those left to the runtime, with the reason
    placement: Placement  # The allocations at run time, for each group of `memory`
    layout: GMEMLayout  # The main group's as plain data, with the addresses
    form: Form  # Of the main group, and why
    copied: int = 0  # Bytes that the runtime copies in a call, since a tensor is at an offset
    over: OverMemories | None = None  # The plan over several memories, if the target has them

    @property
    def problem(self) -> Problem:
        """The tensors of constant size on the main device."""
        return self.memory.main.problem

    @cached_property
    def plan(self) -> Plan:
        """The placement of those tensors, with offsets from the start of the first storage.

        Of a target with several memories, the plan is what one memory for all of them would hold.
        """
        main = self.memory.main
        return solve(self.problem) if self.over is not None else self.plan_of(main, self.problem)

    def plan_of(self, group: TensorGroup, problem: Problem) -> Plan:
        """Return the placement of one of the groups as a plan of a problem of its tensors.

        Each storage is rounded up to the alignment. A tensor in no storage stands after them.
        """
        pieces, unit = self.placement[self.memory.groups.index(group)], problem.memory.alignment
        tensors = region_of(problem, pieces, 0).tensors
        offsets = {one.name: (one.address,) for one in tensors}
        peak = max((one.address + one.size for one in tensors), default=0)
        for buffer in problem.buffers:
            if buffer.name not in offsets:
                offsets[buffer.name] = (round_up(peak, unit),)
                peak = round_up(peak, unit) + buffer.size
        plan = Plan(offsets, peak, 0, self.layout.planner, Status.FEASIBLE)
        check(problem, plan)
        return plan


def plan_gmem(
    mod: IRModule, planner: str = BEST, options: GMEMOptions | None = None
) -> tuple[FunctionPlan, ...]:
    """Decide where the weights and activations of a module's Relax functions live."""
    options = options or GMEMOptions()
    read = []
    for variable, _ in functions_in_order(mod):
        with error_context(PASS, str(variable.name_hint)):
            read.append(options.read(mod, variable))
    _check_lowered(read)
    with error_context(PASS):
        check_bound_names(options.upper_bounds, [name for m in read for name in m.variables])
    callers = _callers(read)
    memories = options.memories()
    as_stock = planner == BEST and not options.has_addresses() and not memories
    bounds, solvers = options.upper_bounds, Solvers(planner, options)
    stock = {m.name: stock_placement(m, bounds) for m in read} if as_stock else {}
    read = [_planned_of(memory, callers, stock, options) for memory in read]
    with error_context(PASS):
        if memories:
            return _over_memories(read, callers, memories, planner, options, solvers)
        gmem = options.gmem()
        weights = gmem.place_weights(
            {m.name: [(one.name, one.size, one.data) for one in m.weights] for m in read}
        )
        placements: dict[str, Placement] = {}
        if as_stock:
            placements = choose_placements(read, callers, stock, options, solvers)
    planned: dict[str, FunctionPlan] = {}
    for memory in sorted(read, key=lambda memory: (len(callers[memory.name]), memory.name)):
        name = memory.name
        with error_context(PASS, name):
            behind = [p.layout.activations for c, p in planned.items() if c in callers[name]]
            start, scope = gmem.memory_behind(weights[name], behind)
            memory = memory.in_memory(scope)
            placement = placements.get(name) or placement_of(memory, options, solvers)
            main, is_waited_for = placement[0], name in callers[name]
            # Several storages stand where the runtime puts them, and so do those of two calls.
            known = options.has_addresses() or (len(main) <= 1 and not is_waited_for)
            region = region_of(memory.main.problem, main, start)
            layout = GMEMLayout(planner, gmem.alignment, weights[name], region, main, known)
            form, copied = options.form(mod, memory.main), _copied(memory, placement, options)
            planned[name] = FunctionPlan(memory, placement, layout, form, copied)
    return tuple(planned[name] for name in sorted(planned))


def _over_memories(
    read: Sequence[RelaxMemory],
    callers: Mapping[str, frozenset[str]],
    memories: Sequence[MemoryScope],
    planner: str,
    options: GMEMOptions,
    solvers: Solvers,
) -> tuple[FunctionPlan, ...]:
    """Place the tensors of a module whose target has several memories for them."""
    gmem = options.gmem()
    if planner != BEST:
        raise ValueError(
            f"several memories are planned in one way, got the planner {planner!r}: leave it out"
        )
    if options.base is not None:
        raise ValueError(f"several memories have no region of weights, got base={options.base}")
    over = plan_over_memories(read, callers, memories, options)
    nowhere = Region(gmem.weight_start, 0)  # A region of weights would be in one of the memories.
    found = []
    for memory in sorted(read, key=lambda memory: memory.name):
        form = options.form(memory.mod, memory.main)
        if not form.offsets or memory.kernel_arguments is not None:
            raise ValueError(
                f"function {memory.name!r}: tensors in several memories stand at offsets, which "
                f"the device or the option does not let them: {form}"
            )
        rest = (pieces_of_group(memory, group, options, solvers) for group in memory.groups[1:])
        placement = with_own_storages(memory, (over[memory.name].pieces(), *rest), None)
        layout = GMEMLayout(planner, gmem.alignment, nowhere, nowhere, placement[0], False)
        copied = _copied(memory, placement, options)
        found.append(FunctionPlan(memory, placement, layout, form, copied, over[memory.name]))
    return tuple(found)


def _planned_of(
    memory: RelaxMemory,
    callers: Mapping[str, frozenset[str]],
    stock: Mapping[str, Placement | None],
    options: GMEMOptions,
) -> RelaxMemory:
    """Return a function in which what cannot be planned is left to the runtime."""
    if options.keeps_storages and callers[memory.name]:
        # Storages kept for one function are kept for all, so nothing of a caller may be in them.
        reason = "its function is called by others, and storages are kept for all of them together"
        return memory.leaving((), reason)
    if memory.name in callers[memory.name] and not stock:
        return memory.leaving((), "its function may be called again while it runs")
    theirs = stock.get(memory.name) if options.keeps_storages else None
    return memory if theirs is None else kept_as_stock(memory, theirs)


def _copied(memory: RelaxMemory, placement: Placement, options: GMEMOptions) -> int:
    """Return the bytes that the runtime copies in a call, for tensors at offsets."""
    copied = 0
    for group, pieces in zip(memory.groups, placement, strict=True):
        by_device = replace(options, offsets=None).form(memory.mod, group)
        if options.offsets != IN_KERNELS and not by_device.offsets:
            moved = {name for piece in pieces for name, at in piece.offsets.items() if at}
            copied += sum(buffer.size for buffer in group.allocated if buffer.name in moved)
    return copied


def write_function(planned: FunctionPlan) -> rx.Function:
    """Return the function with its plan written into it, and with the attribute ``tvm_ext.gmem``.

    It is the same function where memory was planned before and nothing is left to place.
    """
    func = planned.memory.func
    if not any(planned.placement) and func.attrs and ATTRIBUTE in func.attrs:
        return func
    written = write_storages(planned.memory, planned.placement)
    if planned.memory.plans_results:  # As the stock pass does.
        written = written.without_attr(PLANS_RESULTS)
    over = {} if planned.over is None else planned.over.to_plain()
    return written.with_attr(ATTRIBUTE, {**planned.layout.to_plain(), **over})


def _check_lowered(read: Sequence[RelaxMemory]) -> None:
    """Raise ValueError where operators have yet to be lowered and no memory is allocated."""
    first = next(((m, result) for m in read for result in m.unlowered), None)
    if first is not None and not any(m.allocations or m.allocates for m in read):
        memory, result = first
        with error_context(PASS, memory.name):
            what = f"binding {result.name!r}: {result.reason}"
            raise ValueError(f"{what}: run LegalizeOps and CallTIRRewrite first")


def _callers(read: Sequence[RelaxMemory]) -> dict[str, frozenset[str]]:
    """Return for each function all that may be waiting for it to return.

    A function that is handed on as a value may be called by whatever calls something unknown.
    """
    handed_on = {name for memory in read for name in memory.hands_on}
    known = {memory.name for memory in read}
    calls = {m.name: {*m.calls, *(handed_on if m.calls_unknown else ())} for m in read}
    return callers_of({name: known & called for name, called in calls.items()})
