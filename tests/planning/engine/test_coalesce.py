# SPDX-License-Identifier: Apache-2.0
"""What is merged in place is a plan of the problem: byte by byte."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from planning_oracles import is_right, problems

from passes.planning import (
    Budget,
    Buffer,
    Penalty,
    PipelineUse,
    Plan,
    Problem,
    Status,
    solve,
    verify,
)
from passes.planning.engine.coalesce import better, coalesce, merged_groups
from passes.planning.planner import BudgetTracker
from target_hw.memory import MemoryScope


@given(problems(5, 8, roles="iiiisspq-", capacity_of=lambda *_: None))
@settings(max_examples=60)
def test_plans_of_what_is_merged_are_plans_of_the_problem(problem):
    merged, leader = coalesce(problem)
    plan = solve(merged, "first_fit")
    offsets = {buffer.name: plan.offsets[leader[buffer.name]] for buffer in problem.buffers}
    assert is_right(problem, Plan(offsets, 0, 0, "merged", Status.FEASIBLE))


def test_what_is_separated_is_not_merged():
    chain = [Buffer(name, 8, ((at, at + 2),)) for at, name in enumerate("abc")]
    pairs = (("a", "b"), ("b", "c"))
    _, leader = coalesce(Problem(tuple(chain), in_place=pairs, separations=(("a", "c"),)))
    assert leader["a"] != leader["c"]


def test_loops_of_what_is_merged():
    for loops in ((None, PipelineUse(loop=1)), (PipelineUse(loop=1), PipelineUse(loop=2))):
        pair = [Buffer(n, 4, ((at, at + 2),), use=loops[at]) for at, n in enumerate("ab")]
        (merged,) = coalesce(Problem(tuple(pair), in_place=(("a", "b"),)))[0].buffers
        assert not merged.may_widen
    pair.append(Buffer("c", 4, ((2, 4),), slots=2))
    problem = Problem(tuple(pair), in_place=(("a", "b"), ("b", "c")))
    assert verify(problem, solve(problem, "first_fit")) == ()


def test_what_holds_the_place_of_others_is_live_with_its_sources_alone():
    rng = random.Random(1)
    for _ in range(150):
        buffers = []
        for name in "abcdef"[: rng.randint(3, 6)]:
            size, begin, slots = rng.choice((4, 8)), rng.randrange(8), rng.choice((1, 1, 1, 2))
            buffers.append(Buffer(name, size, ((begin, begin + rng.randint(1, 5)),), slots=slots))
        pairs = combinations([buffer.name for buffer in buffers], 2)
        pairs = [rng.sample(pair, 2) for pair in pairs if rng.random() < 0.7]
        problem = Problem(tuple(buffers), in_place=pairs)
        assert verify(problem, solve(problem, "storage_rewrite")) == ()


def test_a_plan_that_fits_comes_before_one_that_costs_less():
    problem, fits = Problem((), MemoryScope("local", 8)), Plan({}, 8, 5, "a", Status.FEASIBLE)
    for other in (replace(fits, peak=9, penalty=0), replace(fits, peak=4, penalty=6)):
        assert better(problem, (other, fits), BudgetTracker(Budget())) is fits


@pytest.mark.parametrize(
    ("buffers", "penalties", "groups"),
    [
        # Size, slots and life of buffers of which each two are in place.
        ([(8, 1, 0, 2), (8, 1, 1, 3), (8, 1, 2, 4)], "", 1),
        ([(8, 2, 0, 2), (8, 2, 1, 3)], "", 1),
        ([(8, 1, 0, 2), (8, 2, 1, 3), (8, 2, 2, 4)], "", 1),
        ([(100, 1, 0, 2), (1, 9, 1, 3)], "", 2),
        ([(8, 1, 0, 3), (8, 1, 0, 3), (8, 1, 0, 3)], "ac", 2),
    ],
    ids=["a chain", "of several slots", "of unequal slots", "it does not pay", "one costs"],
)
def test_what_is_merged(buffers, penalties, groups):
    use = None if all(slots == 1 for _, slots, *_ in buffers) else PipelineUse(loop=1)
    buffers = [
        Buffer(name, size, ((begin, end),), slots=slots, use=use)
        for name, (size, slots, begin, end) in zip("abc", buffers, strict=False)
    ]
    pairs = list(combinations([buffer.name for buffer in buffers], 2))
    costly = [Penalty(*penalties, 1)] if penalties else []
    problem = Problem(tuple(buffers), in_place=pairs, penalties=costly)
    assert len(coalesce(problem)[0].buffers) == groups
    if penalties:
        assert len(merged_groups(problem, buffers, problem.sharing.pairs)) == groups
