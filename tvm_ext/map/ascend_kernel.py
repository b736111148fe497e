# SPDX-License-Identifier: Apache-2.0
"""The memory map of a kernel for an Ascend core, as `AscendPlanMemory` plans it.

The reuse levels stand in the problems as penalties, so any planner can be asked; each plan is also
simulated on the chip's pipelines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvm.tirx import PrimFunc

from passes.ascend import RULES, WORKSPACE, AscendOptions, machine_of, plan_workspace
from passes.driver import target_of
from passes.planning import Budget, Plan, Problem, compressed, solve
from passes.simulation import Step, simulate, statements_of
from tvm_ext.map.map_options import MapOptions
from tvm_ext.map.model import PlannedRun, Shown
from tvm_ext.map.prim_func import Solver, scope_maps, stock_solver
from tvm_ext.named_planners import FOR_LEVELS, STOCK

PLANNERS = ("three_level",)
"""Asked by default: what `AscendPlanMemory` does."""


def is_ascend(func: PrimFunc) -> bool:
    """Whether a function is for an Ascend core, by its target."""
    target = target_of(func)
    return target is not None and "ascend" in target.keys and target.features.memory is not None


def ascend_maps(name: str, func: PrimFunc, options: MapOptions) -> Iterator[Shown]:
    """Plan every memory of a kernel with every planner, and run the kernel under each.

    The function is flat, with the target of a chip. Yielded are the memories that it uses; a run
    for each planner, none where the chip's pipelines are not described; and a line for each
    allocation that is not planned. Raises ValueError when the function cannot be read.
    """
    kernel = AscendOptions().read(func)
    yield from (f"{name}: {note}" for note in kernel.found.left_alone)
    if not kernel.problems:
        return
    planners = options.names(kernel.problems[0], PLANNERS)
    solvers = {planner: _solver(planner, options.budget) for planner in planners}
    if STOCK in solvers:
        solvers[STOCK] = stock_solver(name, func, kernel.found)
    scopes = scope_maps(name, kernel.func, kernel.found, solvers, _pipes(kernel.program))
    yield from (replace(scope, rules=RULES) for scope in scopes)
    machine = machine_of(func)
    if machine is None:
        return
    for at, planner in enumerate(planners):
        placed = [(s.placements[at].problem, s.placements[at].plan) for s in scopes]
        yield PlannedRun(name, planner, simulate(kernel.program, placed, machine))


def _solver(planner: str, budget: Budget | None) -> Solver:
    def run(problem: Problem) -> Plan:
        if planner not in FOR_LEVELS:
            return solve(problem, planner, budget)
        if problem.memory.name == WORKSPACE:
            return plan_workspace(problem, budget)
        return solve(compressed(problem), planner, budget)

    return run


def _pipes(program: Sequence[Step]) -> dict[str, list[str]]:
    """Return the pipelines that touch each buffer, sorted."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for statement in statements_of(program):
        for buffer in (*statement.reads, *statement.writes):
            found[buffer].add(statement.pipe)
    return {buffer: sorted(pipes) for buffer, pipes in found.items()}
