# SPDX-License-Identifier: Apache-2.0
"""Plans for a kernel of an Ascend core, as `AscendPlanMemory` makes and as its cost is reported."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from tvm.tirx import PrimFunc

from passes.ascend.analysis.problems import (
    CoreKernel,
    check_is_planned,
    read_kernel,
    without_pipelines,
)
from passes.ascend.degrade import simulated_cost, with_least_cycles
from passes.ascend.planning.planner import Search, plan_levels, plan_workspace
from passes.ascend.planning.slot_search import Planner
from passes.driver import FORMS, AddressPlan, Form, memory_of, place_function
from passes.planning import Budget, Overflow, Plan, Problem, does_not_fit
from passes.planning.engine import compressed
from passes.prim_func import Callers, sink_allocations, statement_lines
from target_hw.memory import MemoryHierarchy

Mode = Literal["local-mem-plan", "global-work-space-plan"]
Strategy = Literal["default", "largest-first"]

WORKSPACE = "global.workspace"  # The scope of what a kernel's cube and vector parts hand each other

RULES = " where only what the instruction set allows is in place"
"""What a lower bound rests on, in messages."""

_PRINTED = {
    "local.UB": "ub",
    "local.L1": "cbuf",
    "local.L0A": "ca",
    "local.L0B": "cb",
    "local.L0C": "cc",
    "local.BT": "bt",
    "local.FP": "fbuf",
}

_REASON = (
    "possible reason: tiling basic block is too large or block number is more than what user "
    "expect due to multi-buffer feature is enabled and some ops need extra local buffer."
)


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
    degrade: bool = False

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
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")

    def read(self, func: PrimFunc, callers: Callers | None = None) -> CoreKernel:
        """Read a flat function for planning with these options; raises as `read_kernel` does.

        A search takes what a loop or a branch alone uses to be allocated there: see
        `sink_allocations`. The original does not, so neither does its mirror.
        """
        return read_kernel(
            sink_allocations(func) if self.search == "search" else func,
            self.memory or memory_of(func) or MemoryHierarchy(),
            restrict_inplace_as_isa=self.restrict_inplace_as_isa,
            addressed=self.form == "address",
            callers=callers,
        )


def printed(scope: str) -> str:
    """Return a storage scope as the original's messages print it."""
    return _PRINTED.get(scope, scope)


def plan_kernel(kernel: CoreKernel, options: AscendOptions) -> AddressPlan:
    """Decide where each buffer of a kernel lives, in the memories of one mode, by verified plans.

    Raises `ValueError` as `AscendPlanMemory` does.
    """
    is_local = options.mode == "local-mem-plan"
    scopes = [s.name for s in kernel.memory if (s.name == WORKSPACE) != is_local]
    check_is_planned(kernel.found, scopes)
    if is_local:
        return _plan_local(kernel, options, scopes)
    return _plan_workspace(kernel, options)


def level_planner(options: AscendOptions) -> Planner:
    """Return what plans a memory on the chip by levels of reuse."""
    chosen = partial(
        plan_levels, search=options.search, strategy=options.strategy, cross_loop=options.cross_loop
    )
    return lambda problem, budget: chosen(compressed(problem), budget)


def _plan_local(kernel: CoreKernel, options: AscendOptions, scopes: Collection[str]) -> AddressPlan:
    budget = options.budget or Budget()

    def placed(options: AscendOptions, overflow: Overflow) -> AddressPlan:
        planner = level_planner(options)
        planned, solver = kernel, lambda problem: planner(problem, budget)
        if options.degrade:
            planned, solver = with_least_cycles(kernel, planner, scopes, budget, options.cross_loop)
        return place_function(
            planned.found,
            solver,
            overflow=overflow,
            where=lambda attached: attached.problem.memory.name in scopes,
        )

    plan = placed(options, _overflow(kernel))
    cost_model = simulated_cost(kernel)
    waits = any(scope.plan.penalty for scope in plan.scopes)
    if options.search == "mirror" or cost_model is None or not waits:
        return plan
    try:
        mirrored = placed(replace(options, search="mirror", degrade=False), lambda *_: "")
    except ValueError:
        return plan
    # Plans of one penalty can take different cycles: penalties do not say which slot waits.
    return min(plan, mirrored, key=lambda plan: cost_model(_problems_and_plans(plan)).cycles)


def _problems_and_plans(plan: AddressPlan) -> list[tuple[Problem, Plan]]:
    return [(scope.attached.problem, scope.plan) for scope in plan.scopes]


def _plan_workspace(kernel: CoreKernel, options: AscendOptions) -> AddressPlan:
    problems = []
    for attached in kernel.found.problems:
        if attached.problem.memory.name != WORKSPACE:
            continue
        if attached.owner is not None:
            names = ", ".join(map(repr, attached.allocations))
            raise ValueError(
                f"buffer {names} in {WORKSPACE}: each iteration of the parallel loop around it "
                "needs its own, so that the workspace has no size; allocate it outside of that "
                "loop, with a part for each iteration"
            )
        problems.append(without_pipelines(attached))
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
        unit = math.lcm(*(problem.alignment_of(buffer) for buffer in problem.buffers))
        needed = -(-plan.peak // unit) * unit
        first = (
            f"{printed(name)} overflow, requires {needed * 8} bits while {capacity * 8} "
            f"bits available! ({_REASON})"
        )
        places, cost_model = statement_lines(kernel.func, kernel.found), simulated_cost(kernel)

        def cost(changed: Problem, found: Plan) -> str:
            assert cost_model is not None
            return (
                f"{cost_model([(changed, found)]).cycles} cycles in simulation, where memory "
                f"without end would give {cost_model([]).cycles}"
            )

        told = None if cost_model is None else cost
        explained = does_not_fit(problem, plan, base, places=places, rules=RULES, cost=told)
        return f"{first}\n  {explained}"

    return overflow
