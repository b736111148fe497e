# SPDX-License-Identifier: Apache-2.0
"""What one reuse level can do: plans in which no buffer falls below it.

For comparisons; `passes.ascend.planning.planner` lets each buffer fall as far as it must.
"""

from __future__ import annotations

from dataclasses import replace

from passes.planning import Budget, Problem, solve
from passes.planning.engine.blocks import BlockList
from passes.planning.engine.coalesce import avoidable
from passes.planning.plan import Plan, Status

LEVELS = (2, 1, 0)
"""From the one that shares least."""


def at_level(problem: Problem, lowest: int) -> Problem:
    """Return `problem` where its penalized pairs may share only as a level allows.

    At 2 no penalized pair shares bytes, in place neither. At 1 those may that do so in step, slot
    by slot. At 0 all may, and at no cost. What pinned buffers share stays as it is. The penalties
    are those of `with_level_penalties`.
    """
    if lowest not in LEVELS:
        raise ValueError(f"{problem.name}: there are levels 2, 1 and 0, got {lowest!r}")
    if lowest == 0:
        return replace(problem, penalties=())
    kept, apart = [], []
    forbidden = _out_of_step(problem)
    free = avoidable(problem)
    for penalty in problem.penalties:
        if (penalty.first, penalty.second) not in free:
            continue
        if lowest == 1 and penalty.cost_if_slots_match < penalty.cost:
            kept.append(replace(penalty, cost=forbidden))
        else:
            apart.append((penalty.first, penalty.second))
    pairs = {frozenset(pair) for pair in apart}
    return replace(
        problem,
        penalties=tuple(kept),
        in_place=tuple(pair for pair in problem.in_place if frozenset(pair) not in pairs),
        separations=(*problem.separations, *apart),
    )


def _out_of_step(problem: Problem) -> int:
    """Return a cost for what level 1 forbids: more than all that it allows can add up to."""
    return sum(penalty.cost_if_slots_match for penalty in problem.penalties) + 1


def plan_at_level(problem: Problem, lowest: int, budget: Budget | None = None) -> Plan:
    """Return the best plan that is found in which no buffer falls below a level.

    At levels 2 and 1 nothing is shared where everything fits without. At level 0 pipelines are
    ignored: the plan is the one of the lowest peak. It has the penalty that `problem` puts on it.
    Where no plan at this level was found, its status says so, also when its bytes would fit.
    """
    limited = at_level(problem, lowest)
    found = solve(limited, "bump" if lowest else "best", budget)
    found = found if found.fits else solve(limited, "best", budget)
    plan = BlockList(problem).plan_of(found.offsets, f"level {lowest}", found.nodes)
    if not found.fits:
        return replace(plan, status=found.status)
    if found.penalty >= _out_of_step(problem):
        return replace(plan, status=Status.NOT_FOUND)
    return replace(plan, status=Status.FEASIBLE)
