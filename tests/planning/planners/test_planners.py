# SPDX-License-Identifier: Apache-2.0
"""Every planner on problems with every feature: right plans, and as good as they claim."""

import random
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, note, settings
from planning_oracles import best_by_brute_force, is_right, problems, written
from sweeps import swept

from passes.planning import (
    Budget,
    Buffer,
    Penalty,
    Plan,
    Problem,
    Status,
    lower_bound,
    planner,
    planner_names,
    register,
    solve,
    verify,
)
from target_hw.memory import MemoryScope
from tvm_ext.named_planners import known_planner

EVERY = planner_names()
BUDGET, FEW = Budget(nodes=20_000), Budget(nodes=3000)


def violations_but_capacity(problem, plan):
    return [v for v in verify(problem, plan) if v.kind != "capacity"]


@pytest.mark.parametrize("name", EVERY)
@given(problem=problems(most_buffers=6, most_slots=9))
@settings(max_examples=12, deadline=None, print_blob=True)
def test_plans_are_right_and_say_whether_they_fit(name, problem):
    plan = solve(problem, name, FEW)
    note(repr(plan))
    assert violations_but_capacity(problem, plan) == []
    assert plan.fits == (problem.capacity is None or plan.peak <= problem.capacity)
    assert plan.peak >= lower_bound(problem)


def crowded(seed, buffers=250):
    """Return buffers of which about ten are live at once, most with a partner to be in place."""
    rng = random.Random(seed)
    begins = sorted(rng.randrange(2 * buffers) for _ in range(buffers))
    lives = [(begin, begin + rng.randrange(2, 40)) for begin in begins]
    made = [Buffer(str(n), rng.randrange(1, 99), (live,)) for n, live in enumerate(lives)]
    follows = {begin: str(number) for number, (begin, _) in enumerate(lives)}
    pairs = [(str(n), follows.get(end - 1)) for n, (_, end) in enumerate(lives)]
    return Problem(tuple(made), in_place=[pair for pair in pairs if pair[1] is not None])


@pytest.mark.parametrize("seed", [9, 22])
def test_best_is_not_above_first_fit_where_time_ends(seed, monkeypatch):
    # First fit ends in time; a search with the pairs in place leaves none for them apart.
    peaks = {}
    for name in ("first_fit", "best"):
        ticks = count()  # Each look at the clock takes a millisecond
        clock = SimpleNamespace(monotonic=lambda ticks=ticks: next(ticks) / 1000)
        monkeypatch.setattr(planner, "time", clock)
        peaks[name] = solve(crowded(seed), name, Budget(1 << 60, 1.5)).peak
    assert peaks["best"] <= peaks["first_fit"]


@swept(25, 5000, problems())
def test_the_optimum_is_found(problem):
    plan = solve(problem, "best", BUDGET)
    best = best_by_brute_force(problem)
    note(f"{plan!r}, brute force {best}")
    if best is None:
        assert not plan.fits
    else:
        assert plan.fits
        assert (plan.penalty, plan.peak) == best


@pytest.mark.parametrize("name", EVERY)
@given(problem=problems())
@settings(max_examples=5, deadline=None, print_blob=True)
def test_planning_twice_gives_the_same_plan(name, problem):
    assert solve(problem, name, FEW) == solve(problem, name, FEW)


def test_an_empty_problem_has_a_plan():
    for name in EVERY:
        plan = solve(Problem(()), name)
        assert (plan.offsets, plan.peak, plan.penalty) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("more", "peak"), [("loop=0", 16), ("loop=", 24), ("", 24), ("loop=0 pin=0", 24)]
)
def test_only_what_a_loop_writes_anew_gets_more_offsets(more, peak):
    problem = written(f"a 8 0 4 slots=2; b 8 3 6 {more}", in_place="ab")
    for name in EVERY:
        assert is_right(problem, solve(problem, name)), name
    assert solve(problem, "best").peak == peak


def test_what_cannot_fit_is_proven_and_says_what_was_needed():
    # No position needs more than 5 bytes, but only one order of the odd pair fits 5.
    for capacity in (3, 4, 5):
        problem = written("a 3 0 2; b 2 0 1; c 2 1 3; d 3 2 4; e 2 3 5; f 3 4 6", capacity)
        plan = solve(problem, "best")
        assert plan.fits == (best_by_brute_force(problem) is not None)
        if not plan.fits:
            assert plan.status is Status.INFEASIBLE
            assert plan.peak > capacity


def test_an_unknown_planner_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown planner 'nope'; there are: best, .*first_fit"):
        solve(Problem(()), "nope")


def test_a_planner_is_registered_once(registered):
    def run(problem, budget):
        return solve(problem, "bump", budget)

    name = registered(run)
    assert name in planner_names()
    assert solve(Problem(()), name).peak == 0
    for taken in (name, "first_fit"):
        with pytest.raises(ValueError, match="already registered"):
            register(taken)(run)


@pytest.fixture
def registered():
    """Register planners for a test alone."""
    names = []

    def add(run):
        names.append(f"test only {len(names)}")
        register(names[-1])(run)
        return names[-1]

    yield add
    for name in names:
        del planner._PLANNERS[name]


def test_offsets_alone_are_completed(registered):
    def stacked(problem, budget):
        return {"a": 0, "b": (8, 16), "c": [0]}

    costs = [Penalty("a", "c", 5), Penalty("a", "b", 7)]
    problem = written("a 8 0 2; b 8 1 3 slots=2; c 4 2 3", 24, penalties=costs)
    name = registered(stacked)
    plan = solve(problem, name)
    assert (plan.peak, plan.penalty, plan.planner, plan.status) == (24, 5, name, Status.FEASIBLE)
    assert plan.offsets == {"a": (0,), "b": (8, 16), "c": (0,)}
    assert verify(problem, plan) == ()
    too_small = replace(problem, memory=MemoryScope("local.UB", 20))
    assert not solve(too_small, name).fits


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return a Plan, or offsets by buffer name, got None"),
        ([0], r"must return a Plan, or offsets by buffer name, got \[0\]"),
        ({}, "buffer 'a' needs 1 offsets in bytes"),
        ({"a": "0"}, "buffer 'a' needs 1 offsets in bytes, got '0'"),
        ({"a": 1.5}, "buffer 'a' needs 1 offsets in bytes, got 1.5"),
        ({"a": -8}, "buffer 'a' needs 1 offsets in bytes, got -8"),
        ({"a": [2**63 - 1]}, r"buffer 'a' needs 1 offsets in bytes, got \[9223372036854775807\]"),
        (Plan({"a": (0,)}, 8, 0, Status.FEASIBLE, "mine"), "status must be a Status, got 'mine'"),
    ],
)
def test_what_is_no_plan_is_named(registered, answer, message):
    problem = Problem((Buffer("a", 8, ((0, 2),)),), name="main")
    name = registered(lambda problem, budget: answer)
    with pytest.raises(ValueError, match=f"main: planner '{name}': .*{message}"):
        solve(problem, name)


def test_a_plan_at_the_lower_bound_is_optimal(registered):
    problem = written("a 8 0 2; b 8 2 3")
    for offset, status in ((0, Status.OPTIMAL), (8, Status.FEASIBLE)):
        plan = Plan({"a": (0,), "b": (offset,)}, 8 + offset, 0, "mine", Status.FEASIBLE)
        assert solve(problem, registered(lambda problem, budget, plan=plan: plan)).status is status


def test_integers_of_numpy_are_integers(registered):
    eight, zero = np.int64(8), np.int32(0)
    buffer = Buffer("a", eight, ((zero, np.int64(2)),), np.int64(4), np.int64(1), (zero,))
    assert buffer == Buffer("a", 8, ((0, 2),), 4, 1, (0,))
    assert {type(n) for n in (buffer.size, *buffer.live[0], *buffer.pinned)} == {int}
    problem = Problem((buffer,), MemoryScope("local", eight))
    assert problem.capacity == 8
    name = registered(lambda problem, budget: {"a": np.array([0])})
    assert solve(problem, name, np.int64(5)).offsets == {"a": (0,)}
    for wrong in (np.float64(8), np.bool_(True), "8"):
        with pytest.raises(ValueError, match="size must be an integer"):
            Buffer("a", wrong, ((0, 2),))


def test_a_planner_that_fails_is_named(registered):
    def forgets(problem, budget):
        return {}["a"]

    name = registered(forgets)
    with pytest.raises(ValueError, match=f"main: planner '{name}' raised KeyError: 'a'") as raised:
        solve(Problem((), name="main"), name)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("function", ["os:system", "json:dumps", "os:getcwd"])
def test_a_function_that_is_no_planner_is_named(function):
    name = known_planner(function)
    try:
        with pytest.raises(ValueError, match=f"problem: planner '{function}' raised TypeError: "):
            solve(Problem(()), name)
    finally:
        del planner._PLANNERS[name]


def test_what_is_no_problem_and_no_plan_is_refused():
    with pytest.raises(ValueError, match="what is to be planned must be a Problem, got NoneType"):
        solve(None)
    with pytest.raises(ValueError, match="a lower bound is that of a Problem, got NoneType"):
        lower_bound(None)
    problem = Problem(())
    for pair, said in (((problem, {}), "Problem and dict"), ((None, None), "NoneType and None")):
        with pytest.raises(ValueError, match=f"needs a problem and its plan, got {said}"):
            verify(*pair)


@pytest.mark.parametrize("name", [5, None, "", "one,two"])
def test_a_planners_name_is_a_text(name):
    with pytest.raises(ValueError, match="a planner's name must be a text without a comma, got"):
        register(name)


def test_a_planner_can_be_called():
    with pytest.raises(ValueError, match="planner 'three' must be a function, got 3"):
        register("three")(3)


def test_a_budget_may_be_a_number(registered):
    seen = []
    name = registered(lambda problem, budget: seen.append(budget) or {})
    for number, expected in ((7, Budget(7)), (None, Budget()), (Budget(3, 1.0), Budget(3, 1.0))):
        solve(Problem(()), name, number)
        assert seen[-1] == expected
    for wrong in (1.5, "100", True):
        with pytest.raises(ValueError, match="must be a Budget or a number of placements, got"):
            solve(Problem(()), name, wrong)


@pytest.mark.parametrize("budget", [{"nodes": -1}, {"seconds": -0.5}, {"seconds": float("nan")}])
def test_a_bad_budget_is_refused(budget):
    with pytest.raises(ValueError, match="must not be negative"):
        Budget(**budget)
