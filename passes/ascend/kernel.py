# SPDX-License-Identifier: Apache-2.0
"""Plans for a kernel of an Ascend core, as `AscendPlanMemory` makes them, and their cycles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from passes.ascend.analysis.kernel_problems import CoreKernel, check_is_planned, read_kernel
from passes.ascend.planning.fewer_slots import (
    CostModel,
    MemoryRequest,
    Placed,
    Planner,
    choose,
)
from passes.ascend.planning.levels import priced, reuse_of
from passes.ascend.planning.mirror_entries import Strategy, granule
from passes.ascend.planning.planner import Search, check_choice, plan_levels, plan_workspace
from passes.driver import FORMS, AddressPlan, Form, Solver, place_function
from passes.ir import PrimFunc, Target, target_of
from passes.planning import (
    Budget,
    Overflow,
    Plan,
    Problem,
    compressed,
    does_not_fit,
    solve,
)
from passes.prim_func import Callers, FunctionProblems, memory_of, statement_lines
from passes.simulation import Simulation, simulate
from target_hw.machine import Machine
from target_hw.memory import MemoryHierarchy, round_up

Mode = Literal["local-mem-plan", "global-work-space-plan"]

WORKSPACE = "global.workspace"  # The scope of what a kernel's cube and vector parts hand each other

RULES = " where only what the instruction set allows is in place"
"""The assumption of a lower bound, in messages."""

_NAMES = {"L1": "cbuf", "L0A": "ca", "L0B": "cb", "L0C": "cc", "UB": "ub", "FP": "fbuf", "BT": "bt"}

_REASON = (
    "possible reason: tiling basic block is too large or block number is more than what user "
    "expect due to multi-buffer feature is enabled and some ops need extra local buffer."
)


@dataclass(frozen=True)
class AscendOptions:
    """The options of `AscendPlanMemory`, which documents them."""

    mode: Mode = "local-mem-plan"
    enable_global_workspace_reuse: bool = False
    restrict_inplace_as_isa: bool = False
    strategy: Strategy = "default"
    search: Search = "search"
    form: Form = "address"
    memory: MemoryHierarchy | None = None
    budget: Budget | None = None
    degrade: bool = False
    machine: Machine | None = None  # In the place of that of a function's target

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("strategy", self.strategy, get_args(Strategy))
        check_choice("search", self.search, get_args(Search))
        check_choice("form", self.form, FORMS)

    def read(self, func: PrimFunc, callers: Callers | None = None) -> CoreKernel:
        """Read a flat function for planning with these options; raises as `read_kernel` does."""
        return read_kernel(
            func,
            self.memory or memory_of(func) or MemoryHierarchy(),
            restrict_inplace_as_isa=self.restrict_inplace_as_isa,
            results_of_branches_in_place=self.search != "mirror",
            addressed=self.form == "address",
            callers=callers,
        )


def printed(scope: str) -> str:
    """Return a storage scope as the original's messages print it."""
    return _NAMES.get(scope.removeprefix("local."), scope)


# Plans


def plan_kernel(kernel: CoreKernel, options: AscendOptions) -> AddressPlan:
    """Decide where each buffer of a kernel lives in the memories of one mode, by verified plans."""
    is_local = options.mode == "local-mem-plan"
    planned = [s.name for s in kernel.memory if (s.name == WORKSPACE) != is_local]
    check_is_planned(kernel, planned)
    if not is_local:
        return _plan_workspace(kernel, options)
    planner, budget = level_planner(options), options.budget or Budget()
    found, solver = kernel.found, lambda problem: planner(problem, budget)
    if options.degrade:
        found, solver = _with_least_cycles(kernel, options, planned, solver)
    placed = place_function(
        found,
        solver,
        overflow=_overflow(kernel),
        where=lambda attached: attached.problem.memory.name in planned,
    )
    scopes = []
    for scope in placed.scopes:
        problem, plan = priced(scope.problem, scope.plan)
        scopes.append(replace(scope, problem=problem, plan=plan))
    return replace(placed, scopes=tuple(scopes))


def level_planner(options: AscendOptions) -> Planner:
    """Return what plans a memory on the chip by levels of reuse."""
    return lambda problem, budget: plan_levels(
        compressed(problem),
        budget,
        search=options.search,
        strategy=options.strategy,
    )


def _with_least_cycles(
    kernel: CoreKernel, options: AscendOptions, scopes: Collection[str], planner: Solver
) -> tuple[FunctionProblems, Solver]:
    """Return a kernel's problems without the slots that are best given up, and what plans them.

    A memory in which nothing fits stays as it is, and goes to the planner, as does a problem in
    which enclosing scopes have taken bytes.
    """
    cost_model = simulated_cost(kernel, options.machine)
    if cost_model is None:
        raise ValueError(
            "what to give up is decided in cycles, and the target does not describe its pipelines "
            "(feature.machine)"
        )
    requests = memory_requests(kernel, scopes)
    choices = choose(requests, level_planner(options), cost_model, options.budget)
    chosen = {_key(choice.problem): choice.problem for choice in choices if choice is not None}
    plans = {
        choice.problem: replace(choice.plan, reuse=reuse_of(choice.problem, choice.plan.offsets))
        for choice in choices
        if choice is not None
    }
    problems = tuple(
        replace(each, problem=chosen.get(_key(each.problem), each.problem))
        for each in kernel.found.problems
    )
    return replace(kernel.found, problems=problems), lambda p: plans.get(p) or planner(p)


def _plan_workspace(kernel: CoreKernel, options: AscendOptions) -> AddressPlan:
    problems = []
    for attached in kernel.found.problems:
        problem = attached.problem
        if problem.memory.name != WORKSPACE:
            continue
        if attached.owner is not None:
            names = ", ".join(map(repr, attached.allocations))
            raise ValueError(
                f"buffer {names} in {WORKSPACE}: each iteration of the parallel loop around it "
                "needs its own, so that the workspace has no size; allocate it outside of that "
                "loop, with a part for each iteration"
            )
        # Neither pipelines nor operands in place count there.
        buffers = tuple(replace(buffer, use=None) for buffer in problem.buffers)
        plain = replace(problem, buffers=buffers, in_place=(), penalties=())
        problems.append(replace(attached, problem=plain))
    solver = partial(
        plan_workspace,
        budget=options.budget,
        reuse=options.enable_global_workspace_reuse,
        search=options.search,
    )
    return place_function(replace(kernel.found, problems=tuple(problems)), solver)


def _overflow(kernel: CoreKernel) -> Overflow:
    """Return what to say of what does not fit: first what the original says."""

    def overflow(problem: Problem, plan: Plan, base: int) -> str:
        name, capacity = problem.memory.name, problem.capacity or 0
        # The original rounds sizes up to the alignment.
        needed = round_up(plan.peak, granule(problem))
        first = (
            f"{printed(name)} overflow, requires {needed * 8} bits while {capacity * 8} "
            f"bits available! ({_REASON})"
        )
        places = statement_lines(kernel.func, kernel.found)
        explained = does_not_fit(problem, plan, base, places=places, rules=RULES)
        return f"{first}\n  {explained}"

    return overflow


# Cycles


def machine_of(target: Target | None) -> Machine | None:
    """Return the pipelines that a target describes, if it does."""
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


def simulated_cost(kernel: CoreKernel, machine: Machine | None = None) -> CostModel | None:
    """Return what simulates a kernel under plans; None where no pipelines are described.

    These are by default those of the function's target.
    """
    machine = machine or machine_of(target_of(kernel.func))
    if machine is None:
        return None
    endless = {_key(problem): (problem, solve(problem, "bump")) for problem in kernel.problems}

    def cycles(placed: Sequence[Placed]) -> int:
        everywhere = endless | {_key(problem): (problem, plan) for problem, plan in placed}
        return simulate(kernel.program, list(everywhere.values()), machine, timeline=0).makespan

    return cycles


def plan_cost(
    func: PrimFunc, options: AscendOptions | None = None, machine: Machine | None = None
) -> Simulation:
    """Simulate a flat function with the places that `AscendPlanMemory` gives its buffers.

    Both modes are run, whatever the options' own. The machine is by default that of the function's
    target; ValueError when none is described.
    """
    options, machine = options or AscendOptions(), machine or machine_of(target_of(func))
    if machine is None:
        raise ValueError("no machine is given, and the function's target describes no pipelines")
    kernel = options.read(func)
    plans = {
        _key(scope.attached.problem): (scope.attached.problem, scope.plan)
        for mode in get_args(Mode)
        for scope in plan_kernel(kernel, replace(options, mode=mode)).scopes
    }
    placed = []
    for problem in kernel.problems:
        planned, plan = plans[_key(problem)]
        # Buffers on the chip may have lost slots; those in the workspace have lost their loops.
        placed.append((problem if problem.memory.name == WORKSPACE else planned, plan))
    return simulate(kernel.program, placed, machine)


def _key(problem: Problem) -> tuple[str, ...]:
    """Return what tells the problems of one kernel apart, whatever their slots."""
    return (problem.memory.name, *sorted(buffer.name for buffer in problem.buffers))
