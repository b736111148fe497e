# SPDX-License-Identifier: Apache-2.0
"""All planners side by side on the memory of a program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import tvm
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx import AllocBuffer, IntImm, PrimFunc
from tvm_ffi import structural_walk

from passes.ascend.cost import core_kernel
from passes.driver import memory_of, target_of
from passes.planning import Budget, Plan, Problem, lower_bound
from passes.prim_func.function_problems import AllocationNote
from passes.prim_func.problems import ProblemOptions, find_problems
from passes.simulation import simulate
from target_hw.machine import Machine
from target_hw.storage_scope import parse_storage_scope
from tvm_ext.comparison.memory_comparison import (
    SEARCH_NODES,
    ActivationMemory,
    activation_memory,
    padded,
)
from tvm_ext.named_planners import EVERY, planners_for
from tvm_ext.planned_memory import PlannedMemory, end_of, plan_memory
from tvm_ext.programs import Program

_FEW = 4
"""So many buffers are named where they are not planned."""

REGISTER_BITS = 32
"""Untagged allocations up to here become registers: neither the stock pass nor ours plans them."""


@dataclass(frozen=True)
class ScopeResult:
    """The buffers of one function that compete for one memory, planned in every way.

    Bytes that the memory reserves below the last byte count in all numbers.
    """

    function: str  # The function's name
    # The memory: a storage scope; of a network's tensors, ``tensors, fused`` or ``tensors, not
    # fused``.
    scope: str
    buffers: int  # How many there are
    capacity: int | None  # Bytes that there are
    no_reuse: int  # Bytes of all slots of all buffers, each rounded up to its alignment
    # Bytes after the stock pass; None where that pass does not do the same, because a buffer has
    # several slots, or it lets buffers share that are live together.
    stock: int | None
    plans: tuple[PlannedMemory, ...]  # In the order in which the planners were asked
    lower_bound: int  # Bytes that no plan can do with less than
    reserved: int = 0  # Bytes of the capacity that are not for buffers


@dataclass(frozen=True)
class Makespan:
    """What a kernel for a chip costs under the plans of one planner."""

    # Their names.
    function: str
    planner: str
    cycles: int  # From the first statement's start to the last one's end, simulated


@dataclass(frozen=True)
class PlannerComparison:
    """All planners on one program.

    Attributes
    ----------
    program : str
        What it is called.
    scopes : tuple of ScopeResult
        In the order of the functions' names; the tensors of a network come first.
    makespans : tuple of Makespan
        Of the functions whose target describes its pipelines, for planners whose plans fit.
    notes : tuple of str
        What was assumed, and what the numbers leave out: a line each.
    """

    program: str
    scopes: tuple[ScopeResult, ...]
    makespans: tuple[Makespan, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the tables of `render_planners`."""
        from tvm_ext.comparison.planner_tables import render_planners  # It needs this module.

        return render_planners(self)

    def _repr_html_(self) -> str:
        """Return the same tables for a notebook."""
        from tvm_ext.comparison.planner_tables import html_of

        return html_of(self)


def compare_program(
    program: Program, planners: Sequence[str] = (EVERY,), *, budget: Budget | None = None
) -> PlannerComparison:
    """Plan every memory of a program with every planner.

    Every plan that fits is verified.

    Parameters
    ----------
    program : Program
        What `tvm_ext.programs.load_program` or `program_of` returned.
    planners : sequence of str
        Their names, or ``all`` for those that are made for each problem.
    budget : Budget, optional
        What each planner may spend on a problem; by default `SEARCH_NODES` placements.

    Raises
    ------
    ValueError
        When a planner is not known, or a function cannot be planned; the message names it.
    """
    budget = budget or Budget(SEARCH_NODES)
    tensors = tuple(_tensors(program, planners, budget))
    scopes = [_of_tensors(memory) for memory in tensors if memory.tensors]
    makespans: list[Makespan] = []
    left: list[tuple[str, AllocationNote]] = []
    for mod in program.functions:
        ((var, func),) = mod.functions.items()
        name = str(var.name_hint)
        try:
            found = _function(name, mod, func, planners, budget)
        except ValueError as error:
            raise ValueError(f"{program.name}: function {name!r}: {error}") from error
        scopes += found.scopes
        makespans += found.makespans
        left += [(name, note) for note in found.left]
    notes = [program.assumed] if program.assumed else []
    notes += [f"{m.function}, {line}" for m in tensors for line in m.not_counted()]
    notes += _left_alone(left)
    wrong = [s for s in scopes if s.stock is not None and s.stock < s.lower_bound]
    notes += [
        f"{s.function}, {s.scope}: the stock pass takes {s.stock:,} bytes, as no right plan can: "
        "it lets buffers share that are live together (docs/stock-differences.md)"
        for s in wrong
    ]
    right = tuple(replace(s, stock=None) if s in wrong else s for s in scopes)
    return PlannerComparison(program.name, right, tuple(makespans), tuple(notes))


def _left_alone(left: Sequence[tuple[str, AllocationNote]]) -> Iterator[str]:
    """Yield a line for each reason for which buffers are not planned."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for function, note in left:
        groups.setdefault((note.scope, note.text), []).append((function, note.name))
    for (scope, reason), buffers in groups.items():
        functions = list(dict.fromkeys(function for function, _ in buffers))
        where = functions[0] if len(functions) == 1 else f"{len(functions)} functions"
        names = ", ".join(repr(name) for _, name in buffers)
        few = f" ({names})" if len(buffers) <= _FEW and len(functions) == 1 else ""
        count = f"{len(buffers)} buffer{'s' * (len(buffers) > 1)}"
        yield f"not planned, {count} in {scope} of {where}{few}: {reason}"


def compare_problem(
    problem: Problem, planners: Sequence[str] = (EVERY,), *, budget: Budget | None = None
) -> PlannerComparison:
    """Plan one problem with every planner.

    Parameters
    ----------
    problem : Problem
        What to plan.
    planners, budget
        As in `compare_program`.
    """
    result, _ = _scope(problem.name, (problem,), planners, budget or Budget(SEARCH_NODES))
    return PlannerComparison(problem.name, (result,))


def _tensors(
    program: Program, planners: Sequence[str], budget: Budget
) -> Iterator[ActivationMemory]:
    """Yield the tensors of a network's functions, with operators fused and not."""
    if program.relax is None or program.target is None:
        return
    names = planners_for(Problem(()), planners, graph=True)
    for fuse in (True, False):
        yield from activation_memory(
            program.relax, program.target, fuse=fuse, names=names, budget=budget
        )


def _of_tensors(memory: ActivationMemory) -> ScopeResult:
    return ScopeResult(
        memory.function,
        "tensors, fused" if memory.fused else "tensors, not fused",
        memory.tensors,
        None,
        memory.no_reuse,
        memory.stock.nbytes,
        memory.plans,
        memory.lower_bound,
    )


class _Function(NamedTuple):
    """What is found of one function."""

    scopes: list[ScopeResult]
    makespans: list[Makespan]
    left: tuple[AllocationNote, ...]


def _function(
    name: str, mod: IRModule, func: PrimFunc, planners: Sequence[str], budget: Budget
) -> _Function:
    machine = _machine(target_of(func))
    if machine is not None:
        kernel = core_kernel(func)
        found, problems, program = kernel.found, kernel.problems, kernel.program
    else:
        # Without a chip's memory, plans are held against what the stock pass can place.
        memory = memory_of(func)
        found = find_problems(func, ProblemOptions(memory=memory, addressed=memory is not None))
        problems = tuple(attached.problem for attached in found.problems)
    stock = _stock_bytes(mod, {p.memory.name: p.memory.alignment for p in problems})
    results, chosen = [], []
    for scope in dict.fromkeys(problem.memory.name for problem in problems):
        of_scope = tuple(problem for problem in problems if problem.memory.name == scope)
        result, plans = _scope(name, of_scope, planners, budget, stock[scope])
        results.append(result)
        chosen.append(plans)
    makespans = []
    if machine is not None and chosen:
        for planner in chosen[0]:
            placed = [pair for plans in chosen for pair in plans.get(planner, ())]
            if len(placed) == len(problems) and all(plan.fits for _, plan in placed):
                cycles = simulate(program, placed, machine).makespan
                makespans.append(Makespan(name, planner, cycles))
    return _Function(results, makespans, found.left_alone)


def _machine(target: Target | None) -> Machine | None:
    if target is None or target.features.machine is None or target.features.memory is None:
        return None
    return Machine.from_target(target)


_Placed = tuple[tuple[Problem, Plan], ...]


def _scope(
    function: str,
    problems: tuple[Problem, ...],
    planners: Sequence[str],
    budget: Budget,
    stock: int | None = None,
) -> tuple[ScopeResult, dict[str, _Placed]]:
    """Plan the problems of one memory: one for each point of the function where there is memory."""
    names = list(dict.fromkeys(n for problem in problems for n in planners_for(problem, planners)))
    results, placed = [], {}
    for name in names:
        result, plans = plan_memory(problems, name, budget)
        results.append(result)
        placed[name] = tuple(zip(problems, plans, strict=True))
    buffers = [buffer for problem in problems for buffer in problem.buffers]
    has_slots = any(buffer.slots > 1 for buffer in buffers)
    whole = ScopeResult(
        function,
        problems[0].memory.name,
        len(buffers),
        problems[0].capacity,
        sum(end_of((problem,), _without_reuse(problem)) for problem in problems),
        None if stock is None or has_slots else end_of(problems, stock),
        tuple(results),
        sum(map(lower_bound, problems)),
        sum(end - begin for begin, end in problems[0].memory.reserved),
    )
    return whole, placed


def _without_reuse(problem: Problem) -> int:
    return sum(padded(b.size, problem.alignment_of(b)) * b.slots for b in problem.buffers)


def _stock_bytes(mod: IRModule, units: Mapping[str, int]) -> dict[str, int]:
    """Return what the stock pass allocates in some scopes, each allocation in whole units."""
    total = dict.fromkeys(units, 0)

    def add(op: AllocBuffer) -> None:
        ty = op.buffer.ty
        scope = parse_storage_scope(str(ty.storage_scope))
        extents = list(ty.shape)
        if str(scope) not in total or not all(isinstance(extent, IntImm) for extent in extents):
            return
        dtype = ty.dtype.dtype
        nbits = math.prod(int(extent) for extent in extents) * dtype.bits * dtype.lanes
        if scope.tag or nbits > REGISTER_BITS:
            total[str(scope)] += padded(-(-nbits // 8), units[str(scope)])

    for func in tvm.tirx.transform.StorageRewrite()(mod).functions.values():
        structural_walk(func.body, (AllocBuffer, add))
    return total
