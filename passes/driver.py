# SPDX-License-Identifier: Apache-2.0
"""The shared driver of the placement passes: from problems to verified plans, and into functions.

A pass reads problems off a function and chooses how each is solved. The driver checks each plan
before anything is written, and raises an error that names the live buffers if a plan does not fit.
`place` serves any problem; `place_function` serves the allocations of a `PrimFunc`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from passes.ir import (
    NO_LOWER,
    Bound,
    IRModule,
    Pass,
    PrimFunc,
    does_not_wrap,
    make_pass,
    names_of_sizes,
    prim_funcs,
    target_kind,
    target_of,
    tir,
    with_body,
)
from passes.pass_errors import error_context
from passes.pass_options import check_bound_names
from passes.planning import Overflow, Plan, Problem, check, does_not_fit, join_ranges, live_together
from passes.planning import Solver as Solver
from passes.prim_func import (
    ADDRESS_SPACES,
    Arena,
    AttachedProblem,
    Callers,
    CallGraph,
    FunctionProblems,
    before_carrying_loops,
    call_sites,
    find_calls,
    has_exact_dtype,
    names_with_pointers,
    write_addresses,
    write_arenas,
)
from target_hw.memory import ByteRange, round_up

Form = Literal["address", "arena"]
"""The form of a plan in the IR: addresses on the allocations, or one allocation with offsets."""
FORMS: tuple[Form, ...] = ("address", "arena")


def place(
    problem: Problem, solver: Solver, *, base: int = 0, overflow: Overflow | None = None
) -> Plan:
    """Solve a problem, and return the plan if it fits and is right.

    `base` is the number of bytes at the start of the memory that enclosing scopes have taken, for
    the message alone; `overflow` gives the text of the error for a plan that does not fit.
    ValueError is raised when the plan is above the capacity, and PlanError when it is wrong, which
    would be a fault of the planner.
    """
    plan = solver(problem)
    if not isinstance(plan, Plan):
        raise ValueError(f"{problem.name}: the planner returned {plan!r}, which is no Plan")
    if not plan.fits:
        raise ValueError((overflow or does_not_fit)(problem, plan, base))
    check(problem, plan)
    return plan


def per_function(
    pass_name: str,
    transform: Callable[[str, PrimFunc, Callers], tuple[PrimFunc, AddressPlan | None]],
    form: Form,
    upper_bounds: Sequence[tuple[str, int]] = (),
) -> Pass:
    """Return a module pass that plans functions one by one, callers before callees.

    `transform` takes a function's name, the function and what is known of its callers, and returns
    the new function, or the same one, with its plan; None for a plan that no function which it
    calls has to avoid. A `ValueError` of it is raised again with the names of the pass and the
    function. So is one for an upper bound that no function's variable has, without a function. Each
    function has arenas of its own.
    """

    def transform_module(mod: IRModule) -> IRModule:
        result = mod.clone()
        functions = prim_funcs(mod)
        with error_context(pass_name):
            check_bound_names(dict(upper_bounds), names_of_sizes(functions.values()))
        graph = find_calls(functions)
        planned: dict[str, AddressPlan] = {}
        for name in graph.order:
            func = functions[name]
            on_stack = graph.is_on_stack(name, func)
            callers = Callers(lasting=graph.lasting, on_stack=on_stack)
            if form == "address":
                callers = _callers_of(name, graph, planned, functions)
            with error_context(pass_name, name):
                changed, plan = transform(name, func, callers)
            if plan is not None:
                planned[name] = plan
            if not changed.same_as(func):
                result[mod.get_global_var(name)] = changed
        return result

    return make_pass(pass_name, transform_module)


def _callers_of(
    name: str,
    graph: CallGraph,
    planned: Mapping[str, AddressPlan],
    functions: Mapping[str, PrimFunc],
) -> Callers:
    """Return the bytes that a function's callers hold while it runs, from their plans.

    Callers of callers count too: in a recursive cycle some direct callers are not planned yet.
    """
    taken: dict[str, list[ByteRange]] = {}
    at_once, unknown = False, set[str]()
    leading = graph.callers[name]
    for caller, plan in planned.items():
        if caller not in leading or _on_other_devices(functions[caller], functions[name]):
            continue
        ways = [callee for callee in graph.calls[caller] if callee == name or callee in leading]
        for position, by_several in call_sites(plan.found.access, graph, ways):
            at_once |= by_several
            unknown |= _unplanned(plan)
            for scope in plan.scopes:
                held = taken.setdefault(scope.problem.memory.name, [])
                held.extend(_held_at(position, scope, plan.found))
    ranges = {scope: join_ranges(held) for scope, held in taken.items()}
    return Callers(ranges, at_once, name in leading, graph.lasting, frozenset(unknown))


def _unplanned(plan: AddressPlan) -> set[str]:
    """Return the scopes in which a function uses addresses of its own that are in no plan."""
    planned = {use.index for s in plan.scopes for use in s.attached.allocations.values()}
    return {
        uses.scope
        for uses in plan.found.accesses.of
        if uses.accesses and len(uses.buffer.ty.allocated_addr) and uses.index not in planned
    }


def _held_at(position: int, scope: ScopePlan, found: FunctionProblems) -> Iterator[ByteRange]:
    """Yield the addresses of the buffers that are live at a position."""
    for buffer in scope.problem.buffers:
        uses = scope.attached.allocations[buffer.name]
        # A buffer that lives to the end is still live after the last entry of the sequence.
        lasts = uses.escapes or found.access.allocs[uses.index].is_volatile
        during = position - 1 if lasts else position, position + 1
        if buffer.size and live_together(buffer.live, (during,)):
            for offset in scope.plan.offsets[buffer.name]:
                begin = scope.problem.memory.base + offset
                yield begin, begin + buffer.size


def _on_other_devices(one: PrimFunc, other: PrimFunc) -> bool:
    """Return whether two functions are bound to devices of two kinds, each with its memories."""
    targets = [target for target in map(target_of, (one, other)) if target is not None]
    return len({target.get_target_device_type() for target in targets}) > 1


@dataclass(frozen=True, eq=False)
class ScopePlan:
    """One problem of a function with its plan."""

    attached: AttachedProblem  # As it was read off the function
    problem: Problem  # As it was planned: with the bytes below `base` reserved
    plan: Plan  # Verified, and within the capacity
    # Bytes at the start of the memory that enclosing scopes have taken; 0 for the outermost.
    base: int


@dataclass(frozen=True, eq=False)
class AddressPlan:
    """All plans of a function."""

    found: FunctionProblems  # The problems, and the allocations that were left alone
    scopes: tuple[ScopePlan, ...]  # One for each problem that was planned


def place_function(
    found: FunctionProblems,
    solver: Solver,
    *,
    overflow: Overflow | None = None,
    where: Callable[[AttachedProblem], bool] = lambda _attached: True,
) -> AddressPlan:
    """Decide where each buffer of a function's problems lives; each plan is verified.

    Problems for which `where` is false are not planned; it must choose whole scopes. The bytes that
    enclosing problems use while a problem's owner runs are reserved in it, so that all plans of one
    memory fit together. Errors are those of `place`.
    """
    planned: dict[int, ScopePlan] = {}
    for number, attached in enumerate(found.problems):
        if where(attached):
            outer = (planned[number] for number in attached.enclosing)
            problem, base = above(attached, ((scope.problem, scope.plan) for scope in outer))
            plan = place(problem, solver, base=base, overflow=overflow)
            planned[number] = ScopePlan(attached, problem, plan, base)
    return AddressPlan(found, tuple(planned.values()))


def write_address_plan(func: PrimFunc, plan: AddressPlan, form: Form) -> PrimFunc:
    """Write the plans of a function into it, with asserts of the bounds they rest on.

    ``address`` writes ``allocated_addr`` onto each allocation; ``arena`` makes one allocation for
    each scope and attach point, and puts the offsets in the indices. ValueError is raised when the
    form cannot hold what the function does with its memory.
    """
    kind = target_kind(func)
    if plan.scopes and form == "arena" and has_exact_dtype(func):
        raise ValueError(f"target {kind!r} cannot see one piece of memory as several types")
    in_kernels = any(scope.attached.owner is not None for scope in plan.scopes)
    if in_kernels and form == "arena" and kind in ADDRESS_SPACES:
        raise ValueError(
            f"for target {kind!r}, TVM writes neither the alignment of an arena in a kernel nor "
            "the address space of vectors that are gathered from it"
        )
    if form == "address":
        uses = [use for scope in plan.scopes for use in scope.attached.allocations.values()]
        func = write_addresses(before_carrying_loops(func, uses), _addresses(plan))
    else:
        func = write_arenas(func, tuple(_arenas(func, plan)))
    return _with_asserts(func, plan.found.bounds)


def above(attached: AttachedProblem, around: Iterable[tuple[Problem, Plan]]) -> tuple[Problem, int]:
    """Return a problem with the bytes reserved that enclosing scopes take, and where they end.

    `around` has the problems that enclose it, with their plans. Their end is that of what is live
    while the problem's owner runs, rounded up to every alignment, so that an arena can begin there.
    """
    problem, during = attached.problem, attached.owner_range
    taken = max(
        (
            offset + buffer.size
            for outer, plan in around
            for buffer in outer.buffers
            if during is None or live_together(buffer.live, (during,))
            for offset in plan.offsets[buffer.name]
        ),
        default=0,
    )
    if taken == 0:
        return problem, 0
    base = round_up(taken, math.lcm(*map(problem.alignment_of, problem.buffers)))
    if problem.capacity is not None:
        base = min(base, problem.capacity)
    reserved = join_ranges(((0, base), *problem.memory.reserved))
    return replace(problem, memory=replace(problem.memory, reserved=reserved)), base


def _addresses(plan: AddressPlan) -> Iterator[tuple[Any, list[int]]]:
    for scope in plan.scopes:
        problem, start = scope.problem, scope.problem.memory.base
        for buffer in problem.buffers:
            alignment = problem.alignment_of(buffer)
            if start % alignment:
                raise ValueError(
                    f"{problem.name}: buffer {buffer.name!r} needs an address that is a multiple "
                    f"of {alignment}, but its memory {problem.memory.name!r} begins at {start}"
                )
            offsets = scope.plan.offsets[buffer.name]
            statement = scope.attached.allocations[buffer.name].statement
            yield statement, [start + offset for offset in offsets]


def _with_asserts(func: PrimFunc, bounds: Sequence[Bound]) -> PrimFunc:
    """Assert at the start of a function that variables, which have a value there, are in bounds."""
    checks = []
    for bound in bounds:
        name, value = bound.variable.name, bound.variable
        if not does_not_wrap(value.ty.dtype):
            value = value.astype("int64")  # A bound may be above what the type can hold.
        limits = [
            (value <= tir.IntConstant(value.ty, bound.upper), f"{name} is above {bound.upper}")
        ]
        if bound.lower > NO_LOWER:
            is_above = value >= tir.IntConstant(value.ty, bound.lower)
            limits.append((is_above, f"{name} is below {bound.lower}"))
        for holds, otherwise in limits:
            message = tir.StringConstant(f"{otherwise}, for which the memory was planned")
            checks.append(tir.Assertion(holds, tir.StringConstant("ValueError"), [message]))
    return with_body(func, tir.Sequence([*checks, func.body])) if checks else func


def _arenas(func: PrimFunc, plan: AddressPlan) -> Iterator[Arena]:
    """Yield the arenas of a function, without the buffers that pointers of their own may reach.

    These keep their allocations, and no arena has room that only they would take.
    """
    apart = names_with_pointers(func.body)
    for scope in plan.scopes:
        problem, sizes, members = scope.problem, [], []
        for buffer in problem.buffers:
            uses = scope.attached.allocations[buffer.name]
            names = (uses.buffer, *uses.aliases)
            if apart.isdisjoint(name.__chandle__() for name in names):
                sizes.append(buffer.size)
                members.append((uses, scope.plan.offsets[buffer.name]))
        ranges = [
            (at, at + size)
            for (_, offsets), size in zip(members, sizes, strict=True)
            for at in offsets
        ]
        if not any(begin < end for begin, end in ranges):
            continue
        moves, size = [(0, scope.base)], scope.plan.peak - scope.base
        if len(members) < len(problem.buffers):
            step = math.lcm(*map(problem.alignment_of, problem.buffers))
            moves, size = _without_gaps(join_ranges(ranges), step)
        placed = tuple(
            (uses, tuple(at - max(move for move in moves if move[0] <= at)[1] for at in offsets))
            for uses, offsets in members
        )
        alignment = max(buffer.alignment & -buffer.alignment for buffer in problem.buffers)
        yield Arena(problem.memory.name, size, scope.attached.owner, placed, alignment)


def _without_gaps(ranges: Sequence[ByteRange], step: int) -> tuple[list[tuple[int, int]], int]:
    """Return from where on sorted ranges move down by how much, in whole steps, and their end."""
    moves, end = [], 0
    for begin, after in ranges:
        by = (begin - end) // step * step
        moves.append((begin, by))
        end = after - by
    return moves, end
