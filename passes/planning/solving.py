# SPDX-License-Identifier: Apache-2.0
"""`solve`, for problems of one memory and of several."""

from __future__ import annotations

from typing import overload

from passes.planning.memories.memories_problem import MemoriesPlan, MemoriesProblem
from passes.planning.plan import Plan
from passes.planning.planner import Budget, as_budget, get_planner
from passes.planning.problem import Problem


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
        Limits for planners that search, or the number of placements that one may try. Without
        seconds, which the default has not, the plan does not depend on the machine.
    moves : bool
        For several memories: whether a buffer may leave a fast memory and come back.

    Returns
    -------
    Plan or MemoriesPlan
        Complete, also when it does not fit the capacity (its status says so).

    Raises
    ------
    ValueError
        If there is no problem, no planner has this name, the budget is malformed, the planner
        raises or returns no plan, or a planner or `moves` is given where it has no meaning.
    """
    if isinstance(problem, MemoriesProblem):
        if planner != "best":
            raise ValueError(
                f"several memories are planned in one way, got the planner {planner!r}"
            )
        from passes.planning.memories.planner import solve_memories  # It takes a while to import

        return solve_memories(problem, None if budget is None else as_budget(budget), moves=moves)
    if moves:
        raise ValueError("only a problem of several memories has buffers that move")
    if not isinstance(problem, Problem):
        raise ValueError(f"what is to be planned must be a Problem, got {type(problem).__name__}")
    return get_planner(planner)(problem, as_budget(budget))
