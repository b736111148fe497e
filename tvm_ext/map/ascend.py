"""The memory map of a kernel for an Ascend core, as `AscendPlanMemory` plans it.

The reuse levels stand in the problems as penalties, so any planner can be asked; each plan is also
simulated on the chip's pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm.tirx import PrimFunc

from passes.analysis.ascend.problems import ascend_problems
from passes.analysis.tir.problems import ProblemOptions, find_problems
from passes.placement import memory_of, target_of
from passes.planning import Budget, Plan, Problem, solve
from passes.planning.ascend.levels import with_level_penalties
from passes.planning.ascend.workspace import plan_workspace
from passes.planning.engine.positions import compressed
from passes.simulation import simulate
from target_hw.machine import Machine
from tvm_ext.map.model import PlannedRun, ScopeMap
from tvm_ext.map.prim_func import Solver, scope_maps

PLANNERS = ("three_level",)
"""Asked by default: what `AscendPlanMemory` does."""

_LEVELS = ("three_level", "three_level_mirror")
_WORKSPACE = "global.workspace"


def is_ascend(func: PrimFunc) -> bool:
    """Whether a function is for an Ascend core, by its target."""
    target = target_of(func)
    return target is not None and "ascend" in target.keys and target.features.memory is not None


def ascend_maps(
    name: str, func: PrimFunc, planners: Sequence[str], budget: Budget | None = None
) -> tuple[tuple[ScopeMap, ...], tuple[PlannedRun, ...]]:
    """Plan every memory of a kernel with every planner, and run the kernel under each.

    Parameters
    ----------
    name : str
        The function's name.
    func : tvm.tirx.PrimFunc
        Flat, with the target of a chip.
    planners : sequence of str
        Names of planners.
    budget : Budget, optional
        Limits for planners that search.

    Returns
    -------
    scopes : tuple of ScopeMap
        One for each memory that it uses.
    runs : tuple of PlannedRun
        One for each planner; none where the chip's pipelines are not described.

    Raises
    ------
    ValueError
        When the function cannot be read, or a planner does not support what it asks for.
    """
    found = find_problems(func, ProblemOptions(memory=memory_of(func), unequal_slots=True))
    found, pipelines = ascend_problems(func, found)
    problems = (replace(a, problem=with_level_penalties(a.problem)) for a in found.problems)
    found = replace(found, problems=tuple(problems))
    pipes = {
        index: pipelines.readers[index] | pipelines.writers[index] for index in pipelines.readers
    }
    scopes = scope_maps(name, func, found, {p: _solver(p, budget) for p in planners}, pipes)
    target = target_of(func)
    if target is None or target.features.machine is None:
        return scopes, ()
    machine = Machine.from_target(target)
    runs = []
    for at, planner in enumerate(planners):
        placed = [(s.placements[at].problem, s.placements[at].plan) for s in scopes]
        runs.append(PlannedRun(name, planner, simulate(pipelines.program, placed, machine)))
    return scopes, tuple(runs)


def _solver(planner: str, budget: Budget | None) -> Solver:
    def run(problem: Problem) -> Plan:
        if planner not in _LEVELS:
            return solve(problem, planner, budget)
        if problem.memory.name == _WORKSPACE:
            return plan_workspace(problem, budget)
        return solve(compressed(problem), planner, budget)

    return run
