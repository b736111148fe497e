# SPDX-License-Identifier: Apache-2.0
"""`solve`, `verify` and `check` for problems of one memory and of several."""

from __future__ import annotations

from itertools import islice
from typing import overload

from passes.planning.memories import MemoriesPlan, MemoriesProblem
from passes.planning.plan import Plan
from passes.planning.planner import Budget, as_budget, solve_one
from passes.planning.problem import Problem
from passes.planning.verify import PlanError, Violation, violations
from passes.planning.verify_memories import memories_violations

REPORT_LIMIT = 1000
"""Violations that `verify` lists unless told otherwise: a plan can have one a pair of buffers."""


@overload
def solve(problem: Problem, planner: str = "best", budget: Budget | int | None = None) -> Plan: ...


@overload
def solve(
    problem: MemoriesProblem,
    planner: str = "best",
    budget: Budget | int | None = None,
    *,
    moves: bool = False,
) -> MemoriesPlan: ...


def solve(
    problem: Problem | MemoriesProblem,
    planner: str = "best",
    budget: Budget | int | None = None,
    *,
    moves: bool = False,
) -> Plan | MemoriesPlan:
    """Plan a problem.

    Parameters
    ----------
    problem : Problem or MemoriesProblem
        What to place in one memory, or in several.
    planner : str
        A registered name, for one memory: several are planned in one way.
    budget : Budget or int, optional
        Limits for planners that search, or the number of placements that one may try. The default
        is deterministic for one memory, and ten seconds for several.
    moves : bool
        For several memories: whether a buffer may leave a fast memory and come back.

    Returns
    -------
    Plan or MemoriesPlan
        Complete, also when it does not fit the capacity (its status says so).

    Raises
    ------
    ValueError
        If there is no problem, no planner has this name, the budget is none, the planner raises or
        returns no plan, or a planner or `moves` is given where it has no meaning.
    """
    if not isinstance(problem, MemoriesProblem):
        if moves:
            raise ValueError("only a problem of several memories has buffers that move")
        return solve_one(problem, planner, budget)
    if planner != "best":
        raise ValueError(f"several memories are planned in one way, got the planner {planner!r}")
    from passes.planning.memories.planner import solve_memories  # It takes a while to import

    return solve_memories(problem, None if budget is None else as_budget(budget), moves=moves)


def verify(
    problem: Problem | MemoriesProblem,
    plan: Plan | MemoriesPlan,
    limit: int | None = REPORT_LIMIT,
) -> tuple[Violation, ...]:
    """Return every way in which `plan` breaks `problem`; none means that it is right.

    Parameters
    ----------
    problem : Problem or MemoriesProblem
        What was asked.
    plan : Plan or MemoriesPlan
        What was decided. Its status is not judged, but a plan above a capacity breaks it.
    limit : int, optional
        Stop after this many violations; None lists all.

    Raises
    ------
    ValueError
        If these are no problem and its plan.
    """
    if isinstance(problem, MemoriesProblem) and isinstance(plan, MemoriesPlan):
        return tuple(islice(memories_violations(problem, plan), limit))
    if isinstance(problem, Problem) and isinstance(plan, Plan):
        return tuple(islice(violations(problem, plan), limit))
    raise ValueError(
        f"verify needs a problem and its plan, got {type(problem).__name__} and "
        f"{type(plan).__name__}"
    )


def check(problem: Problem | MemoriesProblem, plan: Plan | MemoriesPlan) -> None:
    """Raise `PlanError`, naming the buffers, unless `plan` is right."""
    if wrong := verify(problem, plan):
        raise PlanError(problem.name, plan.planner, wrong)
