# SPDX-License-Identifier: Apache-2.0
"""The lower bound on penalties, against brute force and on problems whose penalty is known."""

import pytest
from hypothesis import given, note, settings
from planning_oracles import best_by_brute_force, problems

from passes.planning import Buffer, Penalty, Problem, Status, check, solve
from passes.planning.engine.blocks import BlockList
from passes.planning.engine.penalty_bound import penalty_bound
from target_hw.memory import MemoryScope


def assert_no_plan_is_below(problem):
    best = best_by_brute_force(problem)
    bound = penalty_bound(BlockList(problem), problem.capacity)
    note(f"bound {bound}, brute force {best}")
    if best is not None:
        assert bound <= best[0]


@given(problem=problems())
@settings(max_examples=150, deadline=None, print_blob=True)
def test_no_plan_pays_less(problem):
    assert_no_plan_is_below(problem)


@pytest.mark.slow
@given(problem=problems())
@settings(max_examples=5000, deadline=None, print_blob=True)
def test_no_plan_pays_less_on_many(problem):
    assert_no_plan_is_below(problem)


def groups(count, capacity):
    """Return groups of three buffers, one after the other, each pair of a group penalized."""
    buffers, penalties = [], []
    for group in range(count):
        names = [f"{kind}{group}" for kind in "abc"]
        for at, name in enumerate(names):
            buffers.append(Buffer(name, 8, ((9 * group + 3 * at, 9 * group + 3 * at + 3),)))
        costs = zip([names[:2], names[1:], names[::2]], [2, 3, 4], strict=True)
        penalties += [Penalty(*pair, cost) for pair, cost in costs]
    return Problem(tuple(buffers), MemoryScope("local", capacity), penalties=penalties)


@pytest.mark.parametrize(("capacity", "penalty"), [(24, 0), (23, 2), (16, 2), (15, 5), (8, 5)])
def test_disjoint_conflicts_add_up(capacity, penalty):
    # A third of the bytes can be saved by any two; all three together pay for each pair.
    problem = groups(12, capacity)
    assert 0 <= penalty_bound(BlockList(problem), capacity) <= 12 * penalty
    assert (penalty_bound(BlockList(problem), capacity) > 0) == (penalty > 0)


def test_above_the_exact_search_a_penalty_is_called_optimal():
    problem = groups(12, 16)
    plan = solve(problem, "search")
    check(problem, plan)
    assert (plan.penalty, plan.peak, plan.status) == (24, 16, Status.OPTIMAL)
