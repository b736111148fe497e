# SPDX-License-Identifier: Apache-2.0
"""The memories of a flat `PrimFunc` beside its statements, as the pass for its target plans them.

That is `PlanAddresses`, or `AscendPlanMemory` for an Ascend core, whose reuse levels any planner
finds as penalties. Where the target describes all pipelines of a function, it is also simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from passes.addresses import has_tiles, naive_bytes, tile_problems
from passes.ascend import RULES, WORKSPACE, AscendOptions, machine_of, plan_workspace
from passes.driver import above
from passes.ir import (
    PrimFunc,
    find_linear_access,
    target_of,
    tir,
)
from passes.planning import Plan, Problem, Solver, compressed, solve
from passes.prim_func import (
    AttachedProblem,
    FunctionProblems,
    find_problems,
    limits_of,
    memory_of,
    options_of,
    statement_lines,
)
from passes.simulation import Step, simulate, statements_of
from passes.storage_rewrite import plan_storage
from tvm_ext.named_planners import FOR_LEVELS, STOCK
from tvm_ext.report.ask import PLANNERS, Ask
from tvm_ext.report.memory_view import (
    Axis,
    BufferNote,
    LeftAlone,
    MemoryView,
    PlannedProblem,
    PlannedRun,
    StockAllocation,
    Text,
    planned,
    stock_plan,
)
from tvm_ext.report.readers.rewrites import Rewritten
from tvm_ext.report.report import Finding
from tvm_ext.text import formula

FOR_ASCEND = ("three_level",)
"""The default of a kernel for an Ascend core: the planner of `AscendPlanMemory`."""

Solved = dict[tuple[str, Problem], Plan]
"""Plans by planner and problem, without its name: equal kernels of a program are planned once."""


def statements(
    name: str, func: PrimFunc, ask: Ask, known: Solved, rewritten: Callable[[str], Rewritten]
) -> Iterator[Finding]:
    """Yield a flat function's memories, simulated runs, and what is not planned.

    Plans that are in `known` are taken from there, and new ones are put there. `rewritten` returns
    what TVM's `StorageRewrite` and ours make of a function.
    """
    if has_tiles(func):
        yield from _tiles(name, func, ask)
        return
    function = _read(func)
    yield from (LeftAlone(name, n.name, n.text, n.scope) for n in function.found.left_alone)
    problems, notes = function.found.problems, []
    default = FOR_ASCEND if function.is_ascend else PLANNERS
    names = [n for a in problems for n in ask.names(a.problem, default)]
    by_planner: dict[str, list[PlannedProblem]] = {}
    for planner in dict.fromkeys([STOCK, *names] if ask.stock and problems else names):
        try:
            is_stock, ours = planner == STOCK, partial(_solve, planner, ask, known)
            solver = stock_solver(rewritten(name), function.found) if is_stock else ours
            by_planner[planner] = _placements(problems, planner, solver)
        except ValueError as error:
            if planner != STOCK or STOCK in ask.planners:
                raise
            notes.append(str(error).removeprefix(f"function {name!r}: "))
    text, rules = cache(partial(_text, name, func, function)), RULES if function.program else ""
    for each in zip(*by_planner.values(), strict=True):
        yield MemoryView(name, each, text, rules=rules)
    yield from notes
    if function.not_described:
        pipes = ", ".join(map(repr, function.not_described))
        yield f"not simulated: the target describes no pipeline {pipes}"
    elif function.machine is not None:
        for planner, plans in by_planner.items():
            placed = [(one.problem, one.plan) for one in plans]
            run = simulate(function.program, placed, function.machine)
            yield PlannedRun(name, planner, run)


@dataclass(frozen=True, eq=False)
class _ReadFunction:
    """The facts that were read of a function."""

    found: FunctionProblems
    is_ascend: bool = False
    program: Sequence[Step] = ()  # Its statements on their pipes, for a target that has pipes
    machine: Any = None  # The target's pipes, where it describes some
    not_described: tuple[str, ...] = ()  # Pipes that the function uses and the target lacks


def _read(func: PrimFunc) -> _ReadFunction:
    target = target_of(func)
    machine = machine_of(target)
    is_ascend = target is not None and "ascend" in target.keys
    if memory_of(func) is None or not (is_ascend or machine is not None):
        return _ReadFunction(find_problems(func, options_of(func)))
    kernel = AscendOptions().read(func)
    pipes = {statement.pipe for statement in statements_of(kernel.program)}
    lacking = tuple(sorted(pipe for pipe in pipes if pipe not in machine)) if machine else ()
    if lacking and not is_ascend:
        return _ReadFunction(find_problems(func, options_of(func)), False, (), machine, lacking)
    return _ReadFunction(kernel.found, is_ascend, kernel.program, machine, lacking)


def _solve(planner: str, ask: Ask, known: Solved, problem: Problem) -> Plan:
    """Plan a memory by a planner, as the pass does that the planner is made for."""
    key = planner, replace(problem, name="")
    if key not in known:
        if planner not in FOR_LEVELS:
            known[key] = solve(problem, planner, ask.limits)
        elif problem.memory.name == WORKSPACE:
            known[key] = plan_workspace(problem, ask.limits)
        else:
            known[key] = solve(compressed(problem), planner, ask.limits)
    return known[key]


def _placements(
    problems: Sequence[AttachedProblem], planner: str, solver: Solver
) -> list[PlannedProblem]:
    """Plan a function's problems with one planner, each above the problems that enclose it."""
    placed: list[PlannedProblem] = []
    for attached in problems:
        around = [(placed[at].problem, placed[at].plan) for at in attached.enclosing]
        problem, _ = above(attached, around)
        placed.append(planned(problem, planner, solver=solver))
    return placed


def _tiles(name: str, func: PrimFunc, ask: Ask) -> Iterator[MemoryView]:
    """Yield the memories of a function with tiles, beside the end of TVM's own allocator."""
    naive = naive_bytes(func) if ask.stock else {}
    for tile in tile_problems(func, memory_of(func) or limits_of(func)):
        problem, plans = tile.problem, ask.plan(tile.problem)
        if problem.name in naive:
            pieces = [(b.size, {b.name: 0}) for b in problem.buffers]
            plan = stock_plan(problem, pieces, "TrnNaiveAllocator", name)
            if plan.peak == naive[problem.name]:
                plans = (PlannedProblem(STOCK, problem, plan), *plans)
        yield MemoryView(name, plans)


# ------------------------------------------------------------------------------- beside its lines


def _text(name: str, func: PrimFunc, function: _ReadFunction) -> Text:
    """Return a function's lines, and notes on the buffers of all its memories."""
    text, notes = statement_lines(func, function.found), {}
    pipes: defaultdict[str, set[str]] = defaultdict(set)
    for statement in statements_of(function.program):
        for buffer in (*statement.reads, *statement.writes):
            pipes[buffer].add(statement.pipe)
    for attached in function.found.problems:
        scope = attached.problem.memory.name
        for buffer, allocation in attached.allocations.items():
            lines = [
                text.begins.get(each.statement.__chandle__(), ()) for each in allocation.accesses
            ]
            used = list(zip(allocation.accesses, lines, strict=True))
            allocated = text.begins.get(allocation.statement.__chandle__(), ())
            notes[buffer] = BufferNote(
                # Without the name of its memory, which says nothing in a view of that memory.
                buffer.removesuffix(f"_{scope}").removesuffix(f".{scope}") or buffer,
                type_and_shape(allocation.statement.buffer),
                allocated=min(allocated, default=None),
                reads=tuple(sorted({line for each, at in used if each.reads for line in at})),
                writes=tuple(sorted({line for each, at in used if each.writes for line in at})),
                pipes=tuple(sorted(pipes[buffer])),
            )
    return Axis(text.lines, text.line_of, name), notes


def type_and_shape(buffer: tir.Var) -> str:
    """Write the type of a buffer's or tensor's elements, and its shape: ``float32 1×64×56``."""
    shape = getattr(buffer.ty.shape, "values", buffer.ty.shape)
    return f"{buffer.ty.dtype.dtype} {'×'.join(map(formula, shape))}".rstrip()


# -------------------------------------------------------------------------------- TVM's own plan


def stock_solver(rewritten: Rewritten, found: FunctionProblems) -> Solver:
    """Return a solver that gives the stock `StorageRewrite`'s plan of each problem of a function.

    Our mirror of that pass says which allocation a buffer is in, once its result is the same IR.
    Raises ValueError when our mirror makes other IR.
    """
    name = rewritten.name
    func = rewritten.before[name]
    if rewritten.difference is not None:
        raise ValueError(
            f"function {name!r}: the plan of TVM's StorageRewrite cannot be read off its result"
        )
    access = find_linear_access(func)
    names = {
        allocation.statement.buffer.__chandle__(): buffer
        for attached in found.problems
        for buffer, allocation in attached.allocations.items()
    }
    sizes = {b.name: b.size for attached in found.problems for b in attached.problem.buffers}
    pieces: list[StockAllocation] = []
    for entry in plan_storage(func, access).entries:
        if entry.parent is None:
            offsets = {
                names[handle]: part.bits_offset // 8
                for part in (entry, *entry.children)
                for index in part.allocs
                if (handle := access.alloc_stmts[index].buffer.__chandle__()) in names
            }
            nbytes = (entry.packed_nbits or entry.const_nbits) // 8
            if not nbytes:  # Of a symbolic size, which the problem has at its upper bound
                nbytes = max((at + sizes[buffer] for buffer, at in offsets.items()), default=0)
            pieces.append((nbytes, offsets))
    return partial(stock_plan, pieces=pieces, stock_pass="StorageRewrite", function=name)
