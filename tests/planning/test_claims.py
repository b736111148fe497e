# SPDX-License-Identifier: Apache-2.0
"""What planners and bounds claim of small problems, against brute force; and cases that were wrong.

Problems have up to six buffers with pins, in-place groups of unequal alignments, reserved ranges,
slots, holes, separations and penalties of up to 2**62, at capacities at or beside a peak that
matters.
"""

from dataclasses import replace
from itertools import product
from random import Random

import planning_oracles
import pytest
from level_limit import plan_at_level
from planning_oracles import (
    best_by_brute_force,
    blocks_of,
    may_stand,
    offsets_to_try,
    random_problem,
    written,
)
from sweeps import sample

from passes.ascend.planning.levels import with_level_penalties
from passes.ascend.planning.planner import plan_workspace
from passes.planning import (
    Budget,
    Buffer,
    Penalty,
    PipelineUse,
    Problem,
    Status,
    lower_bound,
    planner_names,
    solve,
    verify,
)
from passes.planning.engine import BlockList
from target_hw.memory import MemoryScope

HUGE = 1 << 61
COSTS = (1, 1, 2, 3, 5, 1 << 40, HUGE, (1 << 62) - 1)


def problem_of(seed):
    return random_problem(Random(seed), 6, 6, first=-2, costs=COSTS, capacity_of=_capacity)


def _capacity(rng, problem):
    """Return a capacity at or just beside a peak that matters."""
    free = replace(problem, penalties=())
    kind = rng.randrange(8)
    if kind == 0:
        return None
    best = best_by_brute_force(problem if kind < 4 else free)
    return max(1, best[1] + rng.choice((-1, 0, 0, 1, 3)))


def false_claims(problem, names=None):
    """Return what planners and bounds say of a problem that is not so, as texts."""
    best = best_by_brute_force(problem)
    endless = replace(problem, memory=replace(problem.memory, capacity=None), penalties=())
    bound, lowest = lower_bound(problem), best_by_brute_force(endless)
    found = []
    if bound > lowest[1]:
        found.append(f"bound {bound} above {lowest}")
    for name in names or planner_names():
        try:
            plan = solve(problem, name, Budget(nodes=3000))
        except Exception as error:
            found.append(f"{name} raises {type(error).__name__}: {error}")
            continue
        said = f"{name}: {plan!r}, best {best}"
        if [v for v in verify(problem, plan) if v.kind != "capacity"]:
            found.append(f"wrong: {said}")
        if plan.fits != (problem.capacity is None or plan.peak <= problem.capacity):
            found.append(f"status: {said}")
        if plan.fits and (best is None or (plan.penalty, plan.peak) < best):
            found.append(f"better than best: {said}")
        if plan.status is Status.OPTIMAL and (plan.penalty, plan.peak) != best:
            found.append(f"not optimal: {said}")
        if plan.status is Status.INFEASIBLE and best is not None:
            found.append(f"feasible: {said}")
        if plan.status is Status.FEASIBLE and plan.penalty == 0 and plan.peak == bound:
            found.append(f"at the bound: {said}")
        if plan.status is Status.NOT_FOUND and bound > problem.capacity:
            found.append(f"below the bound: {said}")
    return found


@pytest.mark.parametrize("block", sample(range(1000), *range(2)))
def test_claims_hold(block):
    for seed in range(5000 + 20 * block, 5020 + 20 * block):
        assert false_claims(problem_of(seed)) == [], seed


def every_offset(problem):
    """Return for each block all offsets below the top that is tried."""
    top = max((max(tried, default=0) for tried in offsets_to_try(problem)), default=0)
    buffers = [(problem.buffers[i], k) for i, k in blocks_of(problem)]
    places = [range(top + 1) if b.pinned is None else [b.pinned[k]] for b, k in buffers]
    pairs = zip(places, buffers, strict=True)
    return [[o for o in tried if may_stand(problem, b, o)] for tried, (b, _) in pairs]


def test_no_other_offset_makes_a_better_plan(monkeypatch):
    drawn = (problem_of(seed) for seed in range(10_000, 10_060))
    small = [problem for problem in drawn if len(blocks_of(problem)) <= 4]
    best = [best_by_brute_force(problem) for problem in small]
    monkeypatch.setattr(planning_oracles, "offsets_to_try", every_offset)
    assert [best_by_brute_force(problem) for problem in small] == best


A_GROUP = written(
    "X 12 2 3 pin=0; B 20 0 1 align=8; C 20 0 3 align=4",
    36,
    in_place="BC",
    penalties=[Penalty("B", "C", 1)],
)
A_CHAIN = written(
    "A 12 2 3 align=4; B 16 -1 1 align=8; C 12 0 3 align=4; X 12 1 2 pin=0;Y 8 -1 0 align=8 pin=0",
    32,
    in_place="AB BC",
)
TAKEN_TWICE = written("a 4 0 1; b 4 1 2; c 4 1 2; d 8 0 1", in_place="ab")
BOTH_PINNED = written("a 4 0 2 pin=0; b 4 1 3 pin=0", 8, in_place="ab")
DEAR = written(
    "a 4 0 2; b 4 1 3; c 4 2 4",
    4,
    in_place="ab bc",
    penalties=[Penalty(*pair, HUGE) for pair in ("ab", "bc", "ac")],
)
PRIMES = (2**31 - 1, 2**30 - 35, 2**29 - 3, 1_000_003)
COPRIME = Problem(
    tuple(
        Buffer(f"b{i}", 10, ((i, i + 2),), prime, use=PipelineUse(dma=i % 2 == 0))
        for i, prime in enumerate(PRIMES)
    ),
    MemoryScope("local.UB", 20),
    in_place=(("b0", "b1"), ("b1", "b2"), ("b2", "b3")),
)


def beside(first, size, second, other):
    lives = f"a {size} 0 2 pin={first}; b {other} 3 5 pin={second}; c 4 1 4"
    return written(lives, in_place="ac bc")


@pytest.mark.parametrize(
    ("problem", "best"),
    [
        (A_GROUP, (1, 36)),
        (A_CHAIN, (0, 32)),
        (TAKEN_TWICE, (0, 12)),
        (BOTH_PINNED, (0, 4)),
        (DEAR, (3 * HUGE, 4)),
        (COPRIME, (0, 10)),
        (written("a 3 0 1 align=4; b 1 0 1 align=8"), (0, 7)),
        (beside(0, 4, 2, 4), (0, 10)),
        (beside(3, 4, 0, 3), (0, 7)),
        (beside(4, 2, 0, 4), (0, 6)),
    ],
    ids=["group", "chain", "twice", "pinned", "dear", "primes", "gap", "on", "over", "under"],
)
def test_what_was_claimed_wrongly(problem, best):
    assert best_by_brute_force(problem) == best
    assert false_claims(problem) == []
    plan = solve(problem, "best")
    assert (plan.penalty, plan.peak, plan.status) == (*best, Status.OPTIMAL)
    assert solve(problem, "best", 3).nodes <= 3


def test_pieces_of_huge_alignments_stay_below_the_limit():
    live_at_once = tuple(Buffer(f"b{i}", 10, ((0, 1),), prime) for i, prime in enumerate(PRIMES))
    turns = tuple(Buffer(f"c{i}", 10, ((i, i + 1),), prime) for i, prime in enumerate(PRIMES))
    for buffers, name in product((live_at_once, turns), planner_names()):
        problem = Problem(buffers)
        plan = solve(problem, name)
        assert verify(problem, plan) == ()
        assert plan.peak < 1 << 62
    for reuse, search in ((False, "search"), (True, "mirror")):
        plan = plan_workspace(COPRIME, reuse=reuse, search=search)
        assert verify(replace(COPRIME, memory=MemoryScope("local.UB")), plan) == ()
        assert plan.peak < 1 << 62


def test_the_bound_is_never_below_the_live_bytes():
    three = Problem(tuple(Buffer(f"b{i}", 10, ((0, 1),), i) for i in (3, 5, 7)))
    assert lower_bound(three) == 30
    pair = Problem(tuple(Buffer(f"b{i}", 9, ((0, 1),), i) for i in (4, 6)))
    assert lower_bound(pair) == 19  # in units of two bytes


def test_what_gets_more_offsets_saves_all_that_another_asks_for():
    for loop, least in (("loop=0", 6), ("", 9)):
        lives = f"a 3 0 1 {loop}; b 1 0 1 align=3 slots=2; c 3 0 1 align=3 slots=2"
        problem = written(lives, in_place="ac ab cb")
        assert best_by_brute_force(problem) == (0, least)
        assert lower_bound(problem) == least


def test_a_level_can_hold_more_than_2_to_the_40():
    runs = 1 << 41
    buffers = (
        Buffer("loaded", 8, ((0, 2),), slots=2, use=PipelineUse(dma=True, loop=0, runs=runs)),
        Buffer("computed", 8, ((2, 4),), use=PipelineUse(loop=0, runs=runs)),
    )
    plan = plan_at_level(with_level_penalties(Problem(buffers, MemoryScope("local.UB", 16))), 1)
    assert plan.fits
    assert plan.penalty == runs


@pytest.mark.parametrize("lowest", [2, 1, 0])
def test_levels_leave_what_is_decided(lowest):
    costs = [Penalty("a", "b", 3)]
    pinned = replace(BOTH_PINNED, penalties=costs)
    assert plan_at_level(pinned, lowest).offsets == {"a": (0,), "b": (0,)}
    apart = written("a 4 0 1; b 4 1 2", 8, separations="ab", penalties=costs)
    assert plan_at_level(apart, lowest).peak == 8


def test_slots_match_only_where_all_that_meet_do():
    costs = [Penalty("a", "b", 5, 1)]
    found = BlockList(written("a 4 0 1 slots=2; b 8 1 2 slots=2", penalties=costs)).penalty
    assert [found((0, 4, 8, 0)), found((0, 4, 0, 8)), found((0, 4, 8, 16))] == [5, 5, 0]
