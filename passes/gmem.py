"""`GMEMAllocate`: weights and activations of Relax functions, placed in global memory.

The pass takes the place of `relax.transform.StaticPlanBlockMemory`. Weights come first, one after
the other; the activations of a function share one storage, at byte offsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext, module_pass
from tvm.target import Target

from passes.analysis.relax.graph import (
    SCOPE,
    RelaxMemory,
    functions_in_order,
    read_relax_memory,
)
from passes.gmem_prim_func import ATTRIBUTE, LOGGER, plan_gmem_prim_funcs
from passes.planning import Budget, Plan, Problem, check, live_bytes, lower_bound, solve
from passes.planning.planner import get_planner
from passes.planning.sophgo.gmem_layout import (
    GMEM,
    GMEMLayout,
    aligned,
    check_alignment,
    check_base,
)
from passes.planning.sophgo.regions import Placed, Region
from passes.rewrite.relax_memory import write_storage
from target_hw.memory import MemoryHierarchy, MemoryScope, is_byte_count

RUNTIME_ALIGNMENT = 64
"""Bytes: TVM's ``kAllocAlignment``. The Relax VM hands kernels a pointer to a tensor at an offset
that is a multiple of this; at any other offset it would hand them a copy."""

DEFAULT_ALIGNMENT = RUNTIME_ALIGNMENT
"""Bytes: what placed tensors are aligned to where no chip is described."""


@dataclass(frozen=True, eq=False)
class FunctionPlan:
    """One Relax function with its plan.

    Attributes
    ----------
    memory : RelaxMemory
        What was read: also which tensors are left to the run time, and why.
    problem : Problem
        What was planned: offsets from the start of the function's storage.
    plan : Plan
        Verified, and within the capacity.
    layout : GMEMLayout
        The addresses.
    """

    memory: RelaxMemory
    problem: Problem
    plan: Plan
    layout: GMEMLayout


# -------------------------------------------------------------------------------------- the pass


@dataclass(frozen=True)
class GMEMOptions:
    """What `GMEMAllocate` is told; see there."""

    alignment: int | None = None
    base: int | None = None
    target: Target | None = None
    upper_bounds: Mapping[str, int] = field(default_factory=dict)
    budget: Budget | None = None


def GMEMAllocate(  # noqa: N802
    planner: str = "rec_tbl",
    *,
    alignment: int | None = None,
    base: int | None = None,
    target: Target | str | Mapping[str, Any] | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    budget: Budget | None = None,
) -> Pass:
    """Place weights and activations in global memory, in place of `StaticPlanBlockMemory`.

    It stands after `CallTIRRewrite`, where `StaticPlanBlockMemory` stands in TVM's pipelines, and
    runs once. The weights of the module (the parameters from ``num_input`` on, and constants) get
    addresses in one coefficient region, one after the other, each rounded up to the alignment;
    a constant that several functions use has one address. The activations of a function become
    tensors at offsets in one storage, which its first binding allocates. Regions, names, addresses
    and bytes stand in the function attribute ``tvm_ext.gmem``, as plain data.

    A tensor that may outlive the function, that something unknown may keep, or whose bytes have
    no bound is left to the run time; the logger ``tvm_ext.GMEMAllocate`` says which and why.

    The activations begin where the chip says (`activation_base`), or else right behind the
    weights. Those of a function begin behind those of the functions that call it, because both are
    alive at once; a function that may call itself again has all its tensors left to the run time.

    Parameters
    ----------
    planner : str
        The name of a planner; `passes.planning.planner_names` lists them.
    alignment : int, optional
        Bytes, a power of two. By default that of the target's ``global`` memory (4096 on Sophgo's
        BM chips, 16 on CV18xx), and 64 where no such memory is described. Offsets in the storage
        are multiples of 64 too, unless the target is an ``ext_dev``: TVM's own run time cannot
        pass on a tensor at another offset without a copy.
    base : int, optional
        Address of the first weight. By default the chip's `weight_base`, else the first address of
        its ``global`` memory, else 0.
    target : Target or str or mapping, optional
        Where the memory is described. By default the target that is current when the pass runs.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions, by name, for functions whose attribute
        ``tir_var_upper_bound`` does not name them. They are checked when the function runs.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    tvm.transform.Pass
        A module pass. In a module with Relax functions, PrimFuncs stay as they are. In a module of
        PrimFuncs alone, each that holds a whole graph is planned: see `plan_gmem_prim_func`.

    Raises
    ------
    ValueError
        At once when the planner is not known, or when the alignment or a bound is no positive
        number; when the pass runs, naming function and binding, when the module is not in the form
        described, when something does not fit the memory or when the base is not aligned.
    """
    get_planner(planner)
    for name, bound in (upper_bounds or {}).items():
        if not is_byte_count(bound) or bound < 1:
            raise ValueError(
                f"GMEMAllocate: the upper bound of {name!r} must be an integer of at least 1, "
                f"got {bound!r}"
            )
    try:
        if alignment is not None:
            check_alignment(alignment)
        if base is not None:
            check_base(base)
    except ValueError as error:
        raise ValueError(f"GMEMAllocate: {error}") from error
    options = GMEMOptions(
        alignment, base, None if target is None else Target(target), upper_bounds or {}, budget
    )

    def transform(mod: IRModule, _ctx: PassContext) -> IRModule:
        if not any(isinstance(func, relax.Function) for func in mod.functions.values()):
            return _plan_tir(mod, planner, options)
        result = mod.clone()
        plans = plan_gmem(mod, planner, options)
        bounded = {str(bound.variable.name) for planned in plans for bound in planned.memory.bounds}
        for name in sorted(options.upper_bounds.keys() - bounded):
            LOGGER.info("upper bound of %r is not used: no placed tensor's size rests on it", name)
        for planned in plans:
            for left in planned.memory.left:
                LOGGER.info(
                    "function %r: %r is left to the run time: %s",
                    planned.memory.name,
                    left.name,
                    left.reason,
                )
            result[mod.get_global_var(planned.memory.name)] = write_plan(planned)
        return result

    return module_pass(transform, opt_level=0, name="tvm_ext.GMEMAllocate")


def _plan_tir(mod: IRModule, planner: str, options: GMEMOptions) -> IRModule:
    """Place the tensors of a module whose functions hold whole graphs themselves."""
    gmem = _gmem(options)
    bounds = tuple(sorted(options.upper_bounds.items()))
    try:
        return plan_gmem_prim_funcs(mod, gmem, planner, upper_bounds=bounds, budget=options.budget)
    except ValueError as error:
        raise ValueError(f"GMEMAllocate: {error}") from error


def write_plan(planned: FunctionPlan) -> relax.Function:
    """Return the function with its plan written into it.

    Parameters
    ----------
    planned : FunctionPlan
        Its function stays as it is.

    Returns
    -------
    tvm.relax.Function
        With one storage where anything is placed, and with the attribute ``tvm_ext.gmem``.
    """
    offsets = {
        handle: planned.plan.offsets[storage][0]
        for handle, storage in planned.memory.storage_of.items()
    }
    func = write_storage(planned.memory.func, planned.plan.peak, offsets, planned.memory.bounds)
    return func.with_attr(ATTRIBUTE, planned.layout.to_plain())


def plan_gmem(
    mod: IRModule, planner: str = "rec_tbl", options: GMEMOptions | None = None
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
    gmem = _gmem(options)
    read = []
    for variable, _ in functions_in_order(mod):
        with _naming(str(variable.name_hint)):
            read.append(read_relax_memory(mod, variable, options.upper_bounds))
    callers = _callers(read)
    read = [
        memory.all_left("its function may be called again while it runs")
        if memory.name in callers[memory.name]
        else memory
        for memory in read
    ]
    weights = _place_weights(read, gmem)
    planned: dict[str, FunctionPlan] = {}
    for memory in sorted(read, key=lambda memory: (len(callers[memory.name]), memory.name)):
        with _naming(memory.name):
            behind = [
                planned[name].layout.activations
                for name in sorted(callers[memory.name])
                if name in planned
            ]
            first = gmem.activation_start(weights[memory.name])
            start = max((aligned(region.end, gmem.alignment) for region in behind), default=first)
            problem, plan = _solve(
                memory,
                planner,
                options.budget,
                gmem.memory_from(start, weights[memory.name].size + start - first),
            )
            activations = Region(
                start,
                plan.peak,
                tuple(
                    Placed(s.name, start + plan.offsets[s.name][0], s.size) for s in memory.storages
                ),
            )
            layout = GMEMLayout(planner, gmem.alignment, weights[memory.name], activations)
            planned[memory.name] = FunctionPlan(memory, problem, plan, layout)
    return tuple(planned[name] for name in sorted(planned))


def read_layout(func: relax.Function) -> GMEMLayout | None:
    """Return what `GMEMAllocate` has written of a function; None where it has not run."""
    plain = func.attrs.get(ATTRIBUTE) if func.attrs else None
    return None if plain is None else GMEMLayout.from_plain(plain)


def _gmem(options: GMEMOptions) -> GMEM:
    """Return the global memory that the options and the target describe."""
    target = options.target or Target.current(allow_none=True)
    scope = MemoryScope(SCOPE, alignment=DEFAULT_ALIGNMENT)
    if target is not None and target.features.memory is not None:
        memories = MemoryHierarchy.from_target(target)
        if SCOPE in memories:
            scope = memories[SCOPE]
    alignment = scope.alignment if options.alignment is None else options.alignment
    runs_on_tvm = target is None or target.kind.name != "ext_dev"
    facts = dict(scope.facts)
    base = facts.get("weight_base", scope.base) if options.base is None else options.base
    try:
        return GMEM(
            scope,
            alignment,
            math.lcm(alignment, RUNTIME_ALIGNMENT) if runs_on_tvm else alignment,
            base,
            facts.get("activation_base"),
        )
    except ValueError as error:
        raise ValueError(f"GMEMAllocate: {error}") from error


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
    at: dict[tuple[str, str], int] = {}
    of_data: dict[int, int] = {}
    for memory in read:
        for weight in memory.weights:
            index = (
                len(sizes) if weight.data is None else of_data.setdefault(weight.data, len(sizes))
            )
            at[memory.name, weight.name] = index
            if index == len(sizes):
                sizes.append((f"{memory.name}.{weight.name}", weight.size))
    try:
        region = gmem.place_weights(sizes)
    except ValueError as error:
        raise ValueError(f"GMEMAllocate: {error}") from error
    return {
        memory.name: Region(
            region.start,
            region.size,
            tuple(
                Placed(
                    weight.name, region.tensors[at[memory.name, weight.name]].address, weight.size
                )
                for weight in memory.weights
            ),
        )
        for memory in read
    }


def _solve(
    memory: RelaxMemory, planner: str, budget: Budget | None, scope: MemoryScope
) -> tuple[Problem, Plan]:
    problem = memory.problem(scope)
    for storage in memory.storages:
        if scope.capacity is not None and storage.size > scope.capacity:
            raise ValueError(
                f"binding {storage.tensors[0]!r}: needs {storage.size} bytes, and memory scope "
                f"{scope.name!r} has {scope.capacity} left for activations"
            )
    plan = solve(problem, planner, budget)
    if not plan.fits:
        raise ValueError(
            f"its activations need {plan.peak} bytes as planned by {planner!r}, no plan needs "
            f"less than {lower_bound(problem)}, and memory scope {scope.name!r} has "
            f"{scope.capacity} left for them; {_most_live(memory)}"
        )
    check(problem, plan)
    return problem, plan


def _most_live(memory: RelaxMemory) -> str:
    """Say where the most bytes are live, and what."""
    position, total = max(
        live_bytes(memory.problem(MemoryScope(SCOPE))), key=lambda entry: (entry[1], -entry[0])
    )
    live = [
        f"{storage.name!r} ({storage.size})"
        for storage in sorted(memory.storages, key=lambda storage: (-storage.size, storage.name))
        if any(begin <= position < end for begin, end in storage.live)
    ]
    return (
        f"most is live at binding {memory.bindings[position]!r}, {total} bytes: {', '.join(live)}"
    )


@contextmanager
def _naming(function: str) -> Iterator[None]:
    """Let an error name the pass and the function."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"GMEMAllocate: function {function!r}: {error}") from error
