# SPDX-License-Identifier: Apache-2.0
"""What a planner makes of a memory, as commands show it: its bytes, and what is proven of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from passes.planning import Budget, Plan, Problem, Status, check, lower_bound, solve


@dataclass(frozen=True)
class PlannedMemory:
    """What one planner made of the buffers that compete for a memory."""

    planner: str
    """Its name."""
    nbytes: int
    """The peak of its plan; bytes below it that the memory reserves are among them."""
    fits: bool
    """Whether the plan is within the memory's capacity."""
    proven: str
    """What no plan is better in, as `what_is_proven` says it."""
    penalty: int | None
    """What the sharing of bytes costs, in cycles on an Ascend core; None where nothing does."""
    seconds: float
    """Time that the planner took."""


def plan_memory(
    problems: Sequence[Problem], planner: str, budget: Budget | None
) -> tuple[PlannedMemory, tuple[Plan, ...]]:
    """Plan the problems of a memory with one planner; a plan that fits is verified.

    There is one problem for each point of a function at which there is memory; their bytes are
    added up, and the budget is for each. Raises ValueError when the planner is not known, fails, or
    returns no plan; PlanError when its plan is wrong.
    """
    begin = time.perf_counter()
    plans = tuple(solve(problem, planner, budget) for problem in problems)
    seconds = time.perf_counter() - begin
    pairs = list(zip(problems, plans, strict=True))
    for problem, plan in pairs:
        if plan.fits:
            check(problem, plan)
    peak, fits = sum(plan.peak for plan in plans), all(plan.fits for plan in plans)
    proven = _common([what_is_proven(problem, plan) for problem, plan in pairs])
    costs = any(problem.penalties for problem in problems)
    penalty = sum(plan.penalty for plan in plans) if costs else None
    return PlannedMemory(planner, peak, fits, proven, penalty, seconds), plans


def what_is_proven(problem: Problem, plan: Plan) -> str:
    """Say in which regard it is proven that no plan is better; empty if nothing is proven.

    It is ``lowest peak``; ``least penalty``, for which a plan may need a higher peak; ``least
    penalty and peak``; or ``nothing fits``.
    """
    if plan.status is Status.INFEASIBLE:
        return "nothing fits"
    lowest = plan.peak == lower_bound(problem)
    if not problem.penalties:
        return "lowest peak" if lowest or plan.status is Status.OPTIMAL else ""
    if plan.status is Status.OPTIMAL or (plan.fits and plan.penalty == 0):
        return "least penalty and peak" if lowest else "least penalty"
    return "lowest peak" if lowest else ""


def _common(proofs: Sequence[str]) -> str:
    """Return what is proven of all of several problems."""
    if len(set(proofs)) == 1:
        return proofs[0]
    regards = (("lowest peak", "peak"), ("least penalty", "penalty"))
    return next((text for text, word in regards if all(word in proof for proof in proofs)), "")


def verdict(problem: Problem, plan: Plan) -> str:
    """Say in a few words whether a plan fits, and what is proven of it."""
    if not plan.fits:
        proven = plan.status is Status.INFEASIBLE
        return "does not fit, as no plan does" if proven else "does not fit"
    proof = what_is_proven(problem, plan)
    return f"{proof} (proven)" if proof else "a better plan may exist"
