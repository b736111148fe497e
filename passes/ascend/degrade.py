# SPDX-License-Identifier: Apache-2.0
"""What a kernel for an Ascend core gives up so that it fits: the plans of the fewest cycles.

What reuse makes wait and what slots win are weighed against each other by the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from tvm.tirx import PrimFunc

from passes.ascend.analysis.problems import CoreKernel
from passes.ascend.planning.fewer_slots import choose
from passes.ascend.planning.levels import reuse_of
from passes.ascend.planning.slot_search import Cost, CostModel, MemoryRequest, Placed, Planner
from passes.driver import Solver, target_of
from passes.planning import Budget, Plan, Problem, solve
from passes.prim_func import AttachedProblem
from passes.simulation import Cause, simulate
from target_hw.machine import Machine


def machine_of(func: PrimFunc) -> Machine | None:
    """Return the pipelines that a function's target describes, if it does."""
    target = target_of(func)
    if target is None or target.features.machine is None:
        return None
    return Machine.from_target(target)


def memory_requests(kernel: CoreKernel, scopes: Collection[str]) -> tuple[MemoryRequest, ...]:
    """Return some memories of a kernel, as it requests them."""
    return tuple(
        MemoryRequest(problem, partial(kernel.with_slots, number))
        for number, problem in enumerate(kernel.problems)
        if problem.memory.name in scopes
    )


def simulated_cost(kernel: CoreKernel) -> CostModel | None:
    """Return what simulates a kernel under plans for its memories.

    None where the function's target does not describe its pipelines.
    """
    machine = machine_of(kernel.func)
    if machine is None:
        return None
    endless = {_key(problem): (problem, solve(problem, "bump")) for problem in kernel.problems}

    def cost(placed: Sequence[Placed]) -> Cost:
        given = {_key(problem): (problem, plan) for problem, plan in placed}
        everywhere = [given.get(key, roomy) for key, roomy in endless.items()]
        found = simulate(kernel.program, everywhere, machine, timeline=0)
        waits: dict[tuple[str, str], int] = {}
        for stall in found.stalls:
            if stall.cause is Cause.REUSE and stall.buffer != stall.other_buffer:
                pair = min(stall.buffer, stall.other_buffer), max(stall.buffer, stall.other_buffer)
                waits[pair] = waits.get(pair, 0) + stall.cycles
        longest_first = sorted(waits, key=lambda pair: (-waits[pair], pair))
        return Cost(found.makespan, tuple(longest_first))

    return cost


def with_least_cycles(
    kernel: CoreKernel, planner: Planner, scopes: Collection[str], budget: Budget, cross_loop: bool
) -> tuple[CoreKernel, Solver]:
    """Return a kernel without the slots that are best given up, and what plans its memories.

    A memory in which nothing fits stays as it is; `budget` is for all plans together. The solver
    gives each problem the chosen plan; one that has none, or in which enclosing scopes have taken
    bytes, goes to `planner`, which seeks the plan of the least penalty.
    """
    cost_model = simulated_cost(kernel)
    if cost_model is None:
        raise ValueError(
            "what to give up is decided in cycles, and the function's target does not describe its "
            "pipelines (feature.machine)"
        )
    found = choose(memory_requests(kernel, scopes), planner, cost_model, budget)
    best = {_key(choices[0].problem): choices[0] for choices in found if choices}

    def changed(attached: AttachedProblem) -> AttachedProblem:
        choice = best.get(_key(attached.problem))
        return attached if choice is None else replace(attached, problem=choice.problem)

    problems = tuple(map(changed, kernel.found.problems))

    def chosen(problem: Problem) -> Plan:
        choice = best.get(_key(problem))
        if choice is None or choice.problem.memory != problem.memory:
            return planner(problem, budget)
        reuse = reuse_of(problem, choice.plan.offsets, cross_loop)
        return replace(choice.plan, reuse=reuse)

    return replace(kernel, found=replace(kernel.found, problems=problems)), chosen


def _key(problem: Problem) -> tuple[str, ...]:
    """Return what tells the problems of one kernel apart, whatever their slots."""
    return (problem.memory.name, *(buffer.name for buffer in problem.buffers))
