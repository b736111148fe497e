# SPDX-License-Identifier: Apache-2.0
"""The memories of a flat `PrimFunc`, planned as the pass for its target plans them.

That is `PlanAddresses`, or `AscendPlanMemory` for an Ascend core, whose reuse levels any planner
finds as penalties. Where the target describes all pipelines of a function, it is also simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.tirx import PrimFunc

from passes.addresses import has_tiles, tile_problems
from passes.ascend import RULES, WORKSPACE, AscendOptions, machine_of, plan_workspace
from passes.driver import above, limits_of, memory_of, options_of, target_of
from passes.ir import find_linear_access, first_line
from passes.planning import Budget, Plan, Problem, Solver, compressed, solve
from passes.prim_func import AttachedProblem, FunctionProblems, find_problems
from passes.simulation import Step, simulate, statements_of
from passes.storage_rewrite import plan_storage, storage_rewrite
from tvm_ext.named_planners import FOR_LEVELS, STOCK
from tvm_ext.planned.placements import (
    PLANNERS,
    MapOptions,
    PlannedProblem,
    PlannedRun,
    StockAllocation,
    planned,
    stock_plan,
)

FOR_ASCEND = ("three_level",)
"""The default of a kernel for an Ascend core: the planner of `AscendPlanMemory`."""


@dataclass(frozen=True, eq=False)
class PlannedFunction:
    """The memories of one function, as each planner fills them."""

    name: str
    func: PrimFunc
    found: FunctionProblems | None  # Its problems; None of a function with tiles
    placements: tuple[tuple[PlannedProblem, ...], ...]  # By problem, by planner
    program: Sequence[Step] = ()  # Its statements on their pipes, for a target that has pipes
    rules: str = ""  # For messages: the rules of the target that the lower bound rests on
    runs: tuple[PlannedRun, ...] = ()  # By planner, where the target describes all pipes
    not_described: tuple[str, ...] = ()  # Pipes that the function uses and the target lacks


def plan_function(name: str, func: PrimFunc, options: MapOptions) -> PlannedFunction:
    """Plan every memory of a flat function with every planner, and simulate it under the plans."""
    if has_tiles(func):
        tiles = [tile.problem for tile in tile_problems(func, memory_of(func) or limits_of(func))]
        return PlannedFunction(name, func, None, tuple(map(options.plan, tiles)))
    target, machine = target_of(func), machine_of(func)
    kernel = None
    lacking: tuple[str, ...] = ()
    is_ascend = target is not None and "ascend" in target.keys
    if memory_of(func) is not None and (is_ascend or machine is not None):
        kernel = AscendOptions().read(func)
        pipes = {statement.pipe for statement in statements_of(kernel.program)}
        if machine is not None:
            lacking = tuple(sorted(pipe for pipe in pipes if pipe not in machine))
        if lacking and not is_ascend:
            kernel = None
    found = find_problems(func, options_of(func)) if kernel is None else kernel.found
    default = FOR_ASCEND if is_ascend and kernel is not None else PLANNERS
    names = dict.fromkeys(n for a in found.problems for n in options.names(a.problem, default))
    solvers: dict[str, Solver] = {n: partial(_solve, n, options.budget) for n in names}
    if STOCK in solvers:
        solvers[STOCK] = stock_solver(name, func, found)
    by_planner = [_placements(found.problems, *one) for one in solvers.items()]
    placements = tuple(zip(*by_planner, strict=True))
    runs = []
    if kernel is not None and machine is not None and not lacking:
        for planner, plans in zip(solvers, by_planner, strict=True):
            placed = [(one.problem, one.plan) for one in plans]
            runs.append(PlannedRun(name, planner, simulate(kernel.program, placed, machine)))
    program, rules = ((), "") if kernel is None else (kernel.program, RULES)
    return PlannedFunction(name, func, found, placements, program, rules, tuple(runs), lacking)


def _solve(planner: str, budget: Budget | None, problem: Problem) -> Plan:
    """Plan a memory by a planner, as the pass does that the planner is made for."""
    if planner not in FOR_LEVELS:
        return solve(problem, planner, budget)
    if problem.memory.name == WORKSPACE:
        return plan_workspace(problem, budget)
    return solve(compressed(problem), planner, budget)


def _placements(
    problems: Sequence[AttachedProblem], planner: str, solver: Solver
) -> list[PlannedProblem]:
    """Plan a function's problems with one planner, each above the problems that enclose it."""
    placed: list[PlannedProblem] = []
    for attached in problems:
        around = [(placed[at].problem, placed[at].plan) for at in attached.enclosing]
        problem, base = above(attached, around)
        placed.append(planned(problem, planner, solver=solver, base=base))
    return placed


def stock_solver(name: str, func: PrimFunc, found: FunctionProblems) -> Solver:
    """Return a solver that gives the stock `StorageRewrite`'s plan of each problem of a function.

    Our mirror of that pass says which allocation a buffer is in, once its result is the same IR.
    Raises ValueError when the stock pass fails, or our mirror makes other IR.
    """
    try:
        stock = tirx.transform.StorageRewrite()(IRModule({name: func}))[name]
    except Exception as error:  # whatever an internal check of the stock pass raises
        raise ValueError(
            f"function {name!r}: TVM's StorageRewrite fails: {first_line(error)}"
        ) from error
    ours = storage_rewrite(func)
    if not tvm_ffi.structural_equal(stock, ours, map_free_vars=True):
        raise ValueError(
            f"function {name!r}: the plan of TVM's StorageRewrite cannot be read off its result; "
            f"leave out the planner {STOCK!r}"
        )
    access = find_linear_access(func)
    names = {
        allocation.statement.buffer.__chandle__(): buffer
        for attached in found.problems
        for buffer, allocation in attached.allocations.items()
    }
    pieces: list[StockAllocation] = []
    for entry in plan_storage(func, access).entries:
        if entry.parent is None:
            offsets = {
                names[handle]: part.bits_offset // 8
                for part in (entry, *entry.children)
                for index in part.allocs
                if (handle := access.alloc_stmts[index].buffer.__chandle__()) in names
            }
            nbits = entry.packed_nbits or entry.const_nbits
            pieces.append((nbits // 8, offsets))
    return partial(stock_plan, pieces=pieces, stock_pass="StorageRewrite", function=name)
