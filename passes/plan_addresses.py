"""`PlanAddresses`: byte offsets for the allocations of each function, in one of two forms."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext, module_pass
from tvm.target import Target
from tvm.tirx import PrimFunc
from tvm.tirx.transform import prim_func_pass

from passes.analysis.tir.problems import (
    Allocation,
    AttachedProblem,
    FunctionProblems,
    ProblemOptions,
    find_problems,
)
from passes.planning import Budget, Plan, Problem, Status, check, live_bytes, lower_bound, solve
from passes.planning.planner import get_planner
from passes.rewrite.address import drop_addresses, write_addresses
from passes.rewrite.arena import Arena, write_arenas
from passes.rewrite.bounds import assert_bounds
from target_hw.memory import ByteRange, MemoryHierarchy

Form = Literal["address", "arena"]
FORMS: tuple[Form, ...] = ("address", "arena")

EXACT_DTYPE_TARGETS = ("vulkan", "webgpu")
"""Targets that cannot see one piece of memory as two types, so that an arena is of no use there."""

LOGGER = logging.getLogger("tvm_ext.PlanAddresses")
"""Says at level INFO which allocations are left alone or get less than they ask for, and why."""


@dataclass(frozen=True, eq=False)
class ScopePlan:
    """One problem with its plan.

    Attributes
    ----------
    attached : AttachedProblem
        What was read off the function.
    problem : Problem
        What was planned: the same, with the bytes below `base` reserved.
    plan : Plan
        Verified, and within the capacity.
    base : int
        Bytes at the start of the memory that enclosing scopes have taken; 0 for the outermost.
    """

    attached: AttachedProblem
    problem: Problem
    plan: Plan
    base: int


@dataclass(frozen=True, eq=False)
class AddressPlan:
    """All plans of a function.

    Attributes
    ----------
    found : FunctionProblems
        What there was to plan; says too what was left alone.
    scopes : tuple of ScopePlan
        One for each problem.
    """

    found: FunctionProblems
    scopes: tuple[ScopePlan, ...]


def PlanAddresses(  # noqa: N802
    planner: str = "best",
    form: Form = "address",
    scopes: Sequence[str] | None = None,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    memory: MemoryHierarchy | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    detect_inplace: bool = True,
    budget: Budget | None = None,
) -> Pass:
    """Give the allocations of each function byte offsets in the memory of their scope.

    The pass stands where `StorageRewrite` stands, and in its place: after `FlattenBuffer`,
    `VectorizeLoop` and `InjectDoubleBuffer`.

    Parameters
    ----------
    planner : str
        The name of a planner; see `passes.planning.planners`.
    form : {"address", "arena"}
        ``address`` writes ``allocated_addr``, in bytes, one for each slot, onto each allocation,
        for a code generator; see `DropAddresses` for building such a module for a CPU.
        ``arena`` makes one allocation for each scope and attach point and puts the offsets in
        the indices: that runs anywhere.
    scopes : sequence of str, optional
        The storage scopes to plan, such as ``local.UB``. By default all that the target
        describes; all of them where none is described. Allocations that become registers are
        left alone unless their scope is named here.
    target : Target or str or dict, optional
        The chip, whose ``feature.memory`` says what memory there is. By default each function's
        own target, if that describes any.
    memory : MemoryHierarchy, optional
        What memory there is, in the place of a target.
    upper_bounds : mapping of str to int, optional
        Plan allocations of symbolic size at these values of their variables, by name; the
        function then asserts at run time that they are not exceeded. The function attribute
        ``tir_var_upper_bound`` does the same.
    detect_inplace : bool
        Whether a result may take the place of an operand that dies in the same statement.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    tvm.transform.Pass
        A module pass. It raises `ValueError`, naming the function, when a plan does not fit the
        capacity (with what was live at the peak), or when a function cannot be planned.

    Raises
    ------
    ValueError
        When an option is wrong.
    """
    get_planner(planner)
    if form not in FORMS:
        raise ValueError(f"PlanAddresses: form must be one of {', '.join(FORMS)}, got {form!r}")
    if target is not None and memory is not None:
        raise ValueError("PlanAddresses: give a target or a memory, not both")
    if isinstance(scopes, str):
        raise ValueError(f"PlanAddresses: scopes must be a sequence of names, got {scopes!r}")
    if target is not None:
        memory = MemoryHierarchy.from_target(Target(target))
    options = ProblemOptions(
        scopes=None if scopes is None else tuple(scopes),
        memory=memory,
        upper_bounds=tuple(sorted((upper_bounds or {}).items())),
        detect_inplace=detect_inplace,
        addressed=form == "address",
    )

    return per_function("PlanAddresses", lambda func: plan_function(func, planner, options, budget))


def per_function(name: str, transform: Callable[[PrimFunc], PrimFunc]) -> Pass:
    """Return a module pass that changes functions one by one, in the order of their names.

    Parameters
    ----------
    name : str
        What users call the pass.
    transform : callable
        From a function to the new one, or to itself. A `ValueError` that it raises is raised
        again with the names of the pass and the function.
    """

    def transform_module(mod: IRModule, _ctx: PassContext) -> IRModule:
        changed = {}
        functions = {var: mod[var] for var in mod.get_global_vars()}
        for var in sorted(functions, key=lambda var: str(var.name_hint)):
            func = functions[var]
            if not isinstance(func, PrimFunc):
                continue
            try:
                changed[var] = transform(func)
            except ValueError as error:
                raise ValueError(f"{name}: function {var.name_hint!r}: {error}") from error
        result = mod.clone()
        for var, func in changed.items():
            if not func.same_as(functions[var]):
                result[var] = func
        return result

    return module_pass(transform_module, opt_level=0, name=f"tvm_ext.{name}")


def DropAddresses() -> Pass:  # noqa: N802
    """Take addresses off allocations whose scope TVM's own lowering for a CPU allows none in.

    `LowerTVMBuiltin` turns allocations into views, and views in ``global``, ``shared``,
    ``shared.dyn`` and ``local`` may not have an address. Other scopes keep theirs.

    Returns
    -------
    tvm.transform.Pass
        A function pass, to run before `LowerTVMBuiltin`.
    """

    def transform(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return drop_addresses(func)

    return prim_func_pass(transform, opt_level=0, name="tvm_ext.DropAddresses")


def plan_function(
    func: PrimFunc,
    planner: str = "best",
    options: ProblemOptions | None = None,
    budget: Budget | None = None,
) -> PrimFunc:
    """Plan one function and write the plan into it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat; it stays as it is.
    planner, options, budget
        As in `plan_addresses`; ``options.addressed`` chooses the form.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function.

    Raises
    ------
    ValueError
        As `plan_addresses` does, and when the form cannot hold what the function does with its
        memory.
    """
    options = options or ProblemOptions()
    if options.memory is None:
        options = replace(options, memory=memory_of(func))
    plan = plan_addresses(func, planner, options, budget)
    for line in plan.found.left_alone:
        LOGGER.info("left alone: %s", line)
    for line in plan.found.remarks:
        LOGGER.info("%s", line)
    return write_plan(func, plan, "address" if options.addressed else "arena")


def write_plan(func: PrimFunc, plan: AddressPlan, form: Form) -> PrimFunc:
    """Write the plans of a function into it.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        What was planned; it stays as it is.
    plan : AddressPlan
        Where everything lives.
    form : {"address", "arena"}
        As in `PlanAddresses`.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function.

    Raises
    ------
    ValueError
        When the form cannot hold what the function does with its memory.
    """
    target = target_of(func)
    kind = None if target is None else target.kind.name
    if plan.scopes and form == "arena" and kind in EXACT_DTYPE_TARGETS:
        raise ValueError(f"target {kind!r} cannot see one piece of memory as several types")
    if form == "address":
        func = write_addresses(func, _addresses(plan))
    else:
        func = write_arenas(func, plan.found.access, plan.found.uses, tuple(_arenas(plan)))
    return assert_bounds(func, plan.found.bounded)


def plan_addresses(
    func: PrimFunc,
    planner: str = "best",
    options: ProblemOptions | None = None,
    budget: Budget | None = None,
) -> AddressPlan:
    """Decide where each allocation of a function lives.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    planner : str
        The name of a planner.
    options : ProblemOptions, optional
        What to plan, and the memory there is.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    AddressPlan
        Each plan is verified.

    Raises
    ------
    ValueError
        When a plan is above the capacity.
    PlanError
        When a plan is wrong, which would be a fault of the planner.
    """
    return plan_problems(
        find_problems(func, options), lambda problem: solve(problem, planner, budget)
    )


def plan_problems(
    found: FunctionProblems,
    solver: Callable[[Problem], Plan],
    over_capacity: Callable[[Problem, Plan, int], str] | None = None,
) -> AddressPlan:
    """Decide where each buffer of a function's problems lives.

    Parameters
    ----------
    found : FunctionProblems
        What there is to plan.
    solver : callable
        From a problem to a complete plan, also when that does not fit.
    over_capacity : callable, optional
        What to say of a plan that does not fit: from the problem, the plan, and the bytes at the
        start of the memory that enclosing scopes have taken.

    Returns
    -------
    AddressPlan
        Each plan is verified.

    Raises
    ------
    ValueError
        When a plan is above the capacity.
    PlanError
        When a plan is wrong, which would be a fault of the planner.
    """
    planned: list[ScopePlan] = []
    for attached in found.problems:
        taken = max((planned[at].plan.peak for at in attached.inside), default=0)
        problem, base = _above(attached.problem, taken)
        plan = solver(problem)
        if not plan.fits:
            raise ValueError((over_capacity or _over_capacity)(problem, plan, base))
        check(problem, plan)
        planned.append(ScopePlan(attached, problem, plan, base))
    return AddressPlan(found, tuple(planned))


def memory_of(func: PrimFunc) -> MemoryHierarchy | None:
    """Return the memory that a function's own target describes, if it does."""
    target = target_of(func)
    if target is None or target.features.memory is None:
        return None
    return MemoryHierarchy.from_target(target)


def target_of(func: PrimFunc) -> Target | None:
    """Return the target that a function is bound to, if any."""
    target = func.attrs.get("target") if func.attrs else None
    return target if isinstance(target, Target) else None


def _above(problem: Problem, taken: int) -> tuple[Problem, int]:
    """Return the problem with the bytes that enclosing scopes take reserved, and their end.

    That end is a multiple of every alignment, so that an arena can begin there.
    """
    if taken == 0:
        return problem, 0
    unit = math.lcm(*(problem.alignment_of(buffer) for buffer in problem.buffers))
    base = -(-taken // unit) * unit
    if problem.capacity is not None and base >= problem.capacity:
        base = problem.capacity
    memory = replace(problem.memory, reserved=_union((0, base), problem.memory.reserved))
    return replace(problem, memory=memory), base


def _union(first: ByteRange, others: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    """Return ranges joined where they overlap or touch."""
    joined: list[ByteRange] = []
    for begin, end in sorted((first, *others)):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return tuple(joined)


def _addresses(plan: AddressPlan) -> Iterator[tuple[Any, list[int]]]:
    for scope in plan.scopes:
        start = scope.problem.memory.base
        for name, allocation in scope.attached.allocations.items():
            offsets = scope.plan.offsets[name]
            yield allocation.statement, [start + offset for offset in offsets]


def _arenas(plan: AddressPlan) -> Iterator[Arena]:
    for scope in plan.scopes:
        if scope.plan.peak == 0:
            continue
        members = tuple(
            (
                _in_turns(plan.found, allocation, scope.plan.offsets[name]),
                tuple(offset - scope.base for offset in scope.plan.offsets[name]),
            )
            for name, allocation in scope.attached.allocations.items()
        )
        yield Arena(
            scope.problem.memory.name, scope.plan.peak - scope.base, scope.attached.owner, members
        )


def _in_turns(
    found: FunctionProblems, allocation: Allocation, offsets: Sequence[int]
) -> Allocation:
    """Return the allocation with its loop, where a plan gave it more offsets than it has slots."""
    if len(offsets) == 1 or allocation.loop is not None:
        return allocation
    return replace(allocation, loop=found.uses.of[allocation.index].loop)


def _over_capacity(problem: Problem, plan: Plan, base: int) -> str:
    """Say what does not fit: what is live at the peak, and whether it could fit at all."""
    memory, bound = problem.memory, lower_bound(problem)
    lines = [
        f"scope {memory.name!r} needs {plan.peak} bytes as planned by {plan.planner!r}, "
        f"and has {memory.capacity}"
    ]
    if memory.reserved:
        taken = sum(end - begin for begin, end in memory.reserved)
        outer = f", {base} of them by enclosing scopes" if base else ""
        lines.append(f"{taken} bytes are reserved{outer}")
    lines += live_at_the_peak(problem)
    if plan.status is Status.INFEASIBLE or bound > (memory.capacity or 0):
        verdict = "it is proven that no plan fits"
    else:
        verdict = "whether another plan fits is not known: try the planner 'search', or a budget"
    lines.append(f"no plan needs less than {bound} bytes; {verdict}")
    return "\n  ".join(lines)


def live_at_the_peak(problem: Problem) -> Iterator[str]:
    """Yield lines that say which buffers are live where most bytes are."""
    position, total = max(live_bytes(problem), key=lambda entry: (entry[1], -entry[0]))
    live = {
        buffer.name: (buffer, begin, end)
        for buffer in problem.buffers
        for begin, end in buffer.live
        if begin <= position < end
    }
    sources: dict[str, list[str]] = {}
    for source, destination in problem.in_place:
        if source in live and destination in live:
            sources.setdefault(destination, []).append(source)
    apart = " with nothing in place" if sources else ""
    yield f"most is live at position {position}, {total} bytes{apart}:"
    for buffer, begin, end in sorted(
        live.values(), key=lambda entry: (-entry[0].size, entry[0].name)
    ):
        slots = f" in each of {buffer.slots} slots" if buffer.slots > 1 else ""
        places = " or ".join(map(repr, sources.get(buffer.name, ())))
        place = f", may be in place of {places}" if places else ""
        yield f"  {buffer.name}: {buffer.size} bytes{slots}, live in [{begin}, {end}){place}"
