"""`AscendPlanMemory`: places in the memories of an Ascend core, by its compiler's reuse levels.

Source of modes, options, levels and messages: AscendNPU-IR, pass ``hivm-plan-memory``
(``PlanMemory.cpp`` of the HIVM dialect) and the developer guide "Plan Memory".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.analysis.ascend.problems import (
    ascend_problems,
    check_is_planned,
    in_order_of_life,
)
from passes.analysis.tir.problems import FunctionProblems, ProblemOptions, find_problems
from passes.placement import (
    FORMS,
    AddressPlan,
    Form,
    live_at_the_peak,
    memory_of,
    per_function,
    place_function,
    write_address_plan,
)
from passes.planning import Budget, Plan, Problem, lower_bound
from passes.planning.ascend.entries import entries_of
from passes.planning.ascend.levels import with_level_penalties
from passes.planning.ascend.mirror import mirror
from passes.planning.ascend.planner import plan_levels
from passes.planning.ascend.workspace import plan_workspace
from passes.planning.engine.positions import compressed
from passes.planning.planner import Meter
from target_hw.memory import MemoryHierarchy

Mode = Literal["local-mem-plan", "global-work-space-plan"]
Strategy = Literal["default", "largest-first"]
Search = Literal["search", "mirror"]

WORKSPACE = "global.workspace"
"""The scope of what a kernel's cube and vector parts hand each other."""

WORKSPACE_BYTES = "tvm_ext.workspace_bytes"
"""The attribute of a function that says how much workspace one call of it needs, in bytes."""

LOGGER = logging.getLogger("tvm_ext.AscendPlanMemory")
"""Warns where pipelines wait because buffers share bytes.

Says at level INFO which buffers are not at level 2, and why.
"""

_PRINTED = {
    "local.UB": "ub",
    "local.L1": "cbuf",
    "local.L0A": "ca",
    "local.L0B": "cb",
    "local.L0C": "cc",
    "local.BT": "bt",
    "local.FP": "fbuf",
}
"""Scopes as the original's messages print them."""

_REASON = (
    "possible reason: tiling basic block is too large or block number is more than what user "
    "expect due to multi-buffer feature is enabled and some ops need extra local buffer."
)

_GENERAL = ("global", "local")
"""Scopes that every target has."""


@dataclass(frozen=True)
class AscendOptions:
    """How `AscendPlanMemory` plans; see there."""

    mode: Mode = "local-mem-plan"
    enable_global_workspace_reuse: bool = False
    restrict_inplace_as_isa: bool = False
    strategy: Strategy = "default"
    search: Search = "search"
    cross_loop: bool = True
    form: Form = "address"
    memory: MemoryHierarchy | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("mode", get_args(Mode)),
            ("strategy", get_args(Strategy)),
            ("search", get_args(Search)),
            ("form", FORMS),
        ):
            value = getattr(self, name)
            if value not in known:
                choices = ", ".join(known)
                raise ValueError(
                    f"AscendPlanMemory: {name} must be one of {choices}, got {value!r}"
                )


def AscendPlanMemory(  # noqa: N802
    mode: Mode = "local-mem-plan",
    enable_global_workspace_reuse: bool = False,
    restrict_inplace_as_isa: bool = False,
    strategy: Strategy = "default",
    search: Search = "search",
    cross_loop: bool = True,
    form: Form = "address",
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    budget: Budget | None = None,
) -> Pass:
    """Give the on-chip buffers of each function their places, or the workspace its.

    The pass stands where `StorageRewrite` stands, and in its place; see `PlanAddresses`. In a
    memory in which all buffers fit, no bytes are shared. Else each buffer gets the best reuse
    level that it can: at level 2 it shares with nothing that runs on another pipeline; at level 1
    a buffer that takes the place of a multi-buffered one in the same loop takes all of its slots,
    and the loop's iterations take turns with them; at level 0 it shares wherever live ranges allow.

    Parameters
    ----------
    mode : {"local-mem-plan", "global-work-space-plan"}
        Plan the on-chip scopes that the target describes, or ``global.workspace``. The second
        writes the attribute `WORKSPACE_BYTES` onto each function.
    enable_global_workspace_reuse : bool
        Whether workspace buffers that are not live together may share bytes.
    restrict_inplace_as_isa : bool
        Whether only additions, subtractions, products, maxima, minima, ``and`` and ``or`` may
        write over an operand, rather than every elementwise vector instruction.
    strategy : {"default", "largest-first"}
        In which order the mirrored search places buffers of UB.
    search : {"search", "mirror"}
        Seek the plan of the least cost within the budget, or do what the original does.
    cross_loop : bool
        Whether sharing across pipelines with what another loop uses counts as level 2: it makes
        them wait once a loop, not once an iteration. The original's document does not say so, its
        code does. If not, that is level 0.
    form : {"address", "arena"}
        As in `PlanAddresses`.
    target : Target or str or dict, optional
        The chip. By default each function's own target.
    budget : Budget, optional
        Limits for the search.

    Returns
    -------
    tvm.transform.Pass
        A module pass. It raises `ValueError`, naming the function, buffer and scope, when a plan
        does not fit the capacity, and when a function cannot be planned.

    Raises
    ------
    ValueError
        When an option is wrong.
    """
    memory = None if target is None else MemoryHierarchy.from_target(Target(target))
    options = AscendOptions(
        mode,
        enable_global_workspace_reuse,
        restrict_inplace_as_isa,
        strategy,
        search,
        cross_loop,
        form,
        memory,
        budget,
    )
    return per_function("AscendPlanMemory", partial(ascend_plan_function, options=options))


def ascend_plan_function(func: PrimFunc, options: AscendOptions) -> PrimFunc:
    """Plan one function and write the plan into it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat; it stays as it is.
    options : AscendOptions
        What to plan, and how.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function; the same one where there is nothing to plan.

    Raises
    ------
    ValueError
        As `AscendPlanMemory` does.
    """
    plan = ascend_plan(func, options)
    for scope in plan.scopes:
        for name, reuse in scope.plan.reuse.items():
            if reuse.level < 2:
                LOGGER.info(
                    "buffer %r in %s is at level %d: it %s",
                    name,
                    scope.problem.memory.name,
                    reuse.level,
                    reuse.reason,
                )
    func = write_address_plan(func, plan, options.form)
    if options.mode == "global-work-space-plan":
        func = func.with_attr(WORKSPACE_BYTES, _workspace_bytes(plan))
    return func


def ascend_plan(func: PrimFunc, options: AscendOptions) -> AddressPlan:
    """Decide where each buffer of a function lives.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    options : AscendOptions
        What to plan, and how.

    Returns
    -------
    AddressPlan
        Each plan is verified.

    Raises
    ------
    ValueError
        As `AscendPlanMemory` does.
    """
    memory = options.memory or memory_of(func) or MemoryHierarchy()
    is_local = options.mode == "local-mem-plan"
    scopes = tuple(scope for scope in memory if (scope.name == WORKSPACE) != is_local)
    found = find_problems(
        func,
        ProblemOptions(
            memory=MemoryHierarchy(scopes),
            detect_inplace=is_local,
            addressed=options.form == "address",
            unequal_slots=True,
        ),
    )
    _check_scopes(found, memory)
    check_is_planned(func, found, tuple(scope.name for scope in scopes))
    if is_local:
        return _plan_local(func, found, options)
    return _plan_workspace(found, options)


def _check_scopes(found: FunctionProblems, memory: MemoryHierarchy) -> None:
    """Refuse allocations in a memory that the chip does not have."""
    for alloc in found.access.allocs:
        scope = str(alloc.scope)
        if scope not in memory and scope not in _GENERAL:
            known = ", ".join(described.name for described in memory)
            has = f"which has: {known}" if known else "which describes none"
            raise ValueError(
                f"buffer {alloc.name!r}: scope {scope!r} is not in the memory of the target, {has}"
            )


def _plan_local(func: PrimFunc, found: FunctionProblems, options: AscendOptions) -> AddressPlan:
    found, _ = ascend_problems(func, found, options.restrict_inplace_as_isa)
    problems = (replace(a, problem=with_level_penalties(a.problem)) for a in found.problems)
    found = replace(found, problems=tuple(problems))
    plan = place_function(found, partial(_solve_local, options=options), overflow=_over_capacity)
    for scope in plan.scopes:
        if scope.plan.penalty:
            name = str(func.attrs.get("global_symbol", "main")) if func.attrs else "main"
            _warn_of_reuse(name, scope.problem, options)
    return plan


def _solve_local(problem: Problem, options: AscendOptions) -> Plan:
    return plan_levels(
        compressed(problem),
        options.budget,
        search=options.search,
        strategy=options.strategy,
        cross_loop=options.cross_loop,
    )


def _warn_of_reuse(function: str, problem: Problem, options: AscendOptions) -> None:
    """Warn as the original does, with the bytes that it needs to share none across pipelines."""
    capacity = problem.capacity
    unlimited = replace(problem, memory=replace(problem.memory, capacity=None))
    first_fit = mirror(unlimited, entries_of(unlimited), Meter(Budget()), options.strategy)
    LOGGER.warning(
        "function %r: There reused some dma buffers in %s address space, which may stall pipe. Not "
        "reusing dma buffer needs %d bits while %d bits available!",
        function,
        _PRINTED.get(problem.memory.name, problem.memory.name),
        first_fit.needed * 8,
        (capacity or 0) * 8,
    )


def _plan_workspace(found: FunctionProblems, options: AscendOptions) -> AddressPlan:
    for attached in found.problems:
        if attached.owner is not None:
            names = ", ".join(map(repr, attached.allocations))
            raise ValueError(
                f"buffer {names} in {WORKSPACE}: each iteration of the parallel loop around it "
                "needs its own, so that the workspace has no size"
            )
    found = replace(found, problems=tuple(map(in_order_of_life, found.problems)))
    reuse = options.enable_global_workspace_reuse
    return place_function(
        found,
        partial(plan_workspace, budget=options.budget, reuse=reuse, search=options.search),
    )


def _workspace_bytes(plan: AddressPlan) -> int:
    """Return the bytes up to the end of the last buffer, rounded up to the scope's alignment."""
    peak = max((scope.plan.peak for scope in plan.scopes), default=0)
    alignment = max((scope.problem.memory.alignment for scope in plan.scopes), default=1)
    return -(-peak // alignment) * alignment


def _over_capacity(problem: Problem, plan: Plan, base: int) -> str:
    """Say what does not fit, as the original does, and then what is live at the peak."""
    name, capacity = problem.memory.name, problem.capacity or 0
    lines = [
        f"{_PRINTED.get(name, name)} overflow, requires {plan.peak * 8} bits while {capacity * 8} "
        f"bits available! ({_REASON})"
    ]
    if base:
        lines.append(f"{base} bytes of scope {name!r} are taken by enclosing scopes")
    most, *live = live_at_the_peak(problem)
    lines += [f"scope {name!r}: {most}", *live]
    lines.append(f"no plan needs less than {lower_bound(problem)} bytes")
    return "\n  ".join(lines)
