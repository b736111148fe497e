# SPDX-License-Identifier: Apache-2.0
"""Many blocks at once: no pairs are listed, the offsets are right, and both forms agree."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import problems

from passes.planning import Budget, Buffer, Problem, Status, check, lower_bound, solve, verify
from passes.planning.engine import blocks, compiled
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.planner import BudgetTracker
from passes.planning.planners import best, feasibility, skyline_loop
from passes.planning.planners.first_fit import ORDERS, fit_blocks, ordered
from passes.planning.planners.skyline import make_state, place_by_skyline
from target_hw.memory import MemoryScope

LARGE_PLANNERS = ["first_fit", "best_fit", "skyline", "best"]


@pytest.fixture
def nothing_is_listed(monkeypatch):
    """As if each problem had too many pairs live together to list them."""
    monkeypatch.setattr(blocks, "LISTED_PAIRS", -1)
    monkeypatch.setattr(blocks, "LISTED_BLOCKS", -1)


def table(seed, count, share=0.1, alignments=(1,), reserved=(), separated=0):
    """Return buffers of which about `share` are live at once."""
    rng = random.Random(seed)
    buffers = []
    for index in range(count):
        begin = rng.randrange(10 * count)
        live = ((begin, begin + 1 + int(rng.expovariate(1 / (10 * count * share)))),)
        size = int(2 ** rng.uniform(4, 16))
        buffers.append(Buffer(str(index), size, live, rng.choice(alignments)))
    pairs = {tuple(sorted(rng.sample(range(count), 2))) for _ in range(separated)}
    separations = [(str(one), str(two)) for one, two in sorted(pairs)]
    memory = MemoryScope("global", reserved=reserved)
    return Problem(tuple(buffers), memory, separations=separations)


def small(problem):
    """Return the problem with buffers of a few bytes, so that one byte too many is seen."""
    buffers = (replace(b, size=1 + at % 4) for at, b in enumerate(problem.buffers))
    return replace(problem, buffers=tuple(buffers))


TABLES = {
    "plain": table(1, 100),
    "aligned, reserved": table(2, 100, 0.05, (1, 8, 96), ((64, 200), (5000, 5001))),
    "separated": small(table(3, 100, 0.03, separated=120)),
    "one": table(4, 1),
}


def gap_by_gap(problem, order, rule, fixed, limit):
    """Return where a fit puts buffers of one slot: one after the other, each in all its gaps."""
    apart = {frozenset(problem.index[name] for name in pair) for pair in problem.separations}
    offsets = dict(fixed)
    for at in order:
        buffer = problem.buffers[at]
        (begin, end), size, unit = buffer.live[0], buffer.size, buffer.alignment
        met = []
        for other, low in offsets.items():
            (first, last), nbytes = problem.buffers[other].live[0], problem.buffers[other].size
            if (begin < last and first < end) or {at, other} in apart:
                met.append((low, low + nbytes))
        taken = sorted((*met, *problem.memory.reserved))
        tops = {0, *(-(-end // unit) * unit for _, end in taken)}
        free = [top for top in tops if not any(a < top + size and top < b for a, b in taken)]
        rooms = {top: min((a - top for a, _ in taken if a >= top), default=1 << 60) for top in free}
        low = min(free, key=lambda top: (rooms[top] if rule == "best" else 0, top))
        if at not in fixed and low + size <= limit:
            offsets[at] = low
    return [offsets.get(at, UNPLACED) for at in range(len(problem.buffers))]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("rule", ["first", "best"])
@pytest.mark.parametrize("order", ["size", "time"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_fit_finds_the_gap(name, rule, order, listed, monkeypatch):
    problem = TABLES[name]
    if not listed:
        monkeypatch.setattr(blocks, "LISTED_PAIRS", -1)
        monkeypatch.setattr(blocks, "LISTED_BLOCKS", -1)
    block_list = BlockList(problem)
    blocks_in_order = ordered(block_list, order)
    expected = gap_by_gap(problem, blocks_in_order, rule, {}, 1 << 60)
    assert fit_blocks(block_list, blocks_in_order, rule) == expected
    limit = max(expected) // 2
    limited = gap_by_gap(problem, blocks_in_order, rule, {0: 8192}, limit)
    assert fit_blocks(block_list, blocks_in_order, rule, fixed={0: 8192}, limit=limit) == limited
    assert UNPLACED not in expected


@given(problem=problems(most_buffers=7, most_slots=10), name=st.sampled_from(LARGE_PLANNERS))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_plans_of_every_kind_are_right_without_a_list(problem, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LISTED_PAIRS", -1)
        patch.setattr(blocks, "LISTED_BLOCKS", -1)
        plan = solve(problem, name, Budget(5000))
    assert [v for v in verify(problem, plan) if v.kind != "capacity"] == []
    assert plan.fits == (problem.capacity is None or plan.peak <= problem.capacity)
    assert plan.peak >= lower_bound(problem)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("planner", LARGE_PLANNERS)
def test_plans_of_tables_are_right_without_a_list(name, planner, nothing_is_listed):
    problem = TABLES[name]
    plan = solve(problem, planner, Budget(3000))
    check(problem, plan)
    assert plan == solve(problem, planner, Budget(3000))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("some_are_shallow", [False, True])
def test_both_forms_of_the_skyline_take_the_same_steps(with_compiler, name, some_are_shallow):
    assert compiled.loop(skyline_loop.advance) is not None
    block_list = BlockList(TABLES[name])
    order = np.array(ordered(block_list, "time"))
    shallow = block_list.bound // 1000 if some_are_shallow else 0
    none = np.full(len(block_list), UNPLACED)
    state = make_state(block_list, order, none, 0, shallow)
    plain = compiled.start(skyline_loop.advance, state, False)
    fast = compiled.start(skyline_loop.advance, state, True)
    while plain.state.left[0]:
        plain.advance(3)
        fast.advance(3)
        for what in ("offset", "nodes", "slots", "left", "here"):
            assert np.array_equal(getattr(plain.state, what), getattr(fast.state, what))
    assert fast.state.left[0] == 0


@pytest.mark.parametrize("order", ORDERS)
def test_the_skyline_of_valleys_is_that_of_the_lowest_reach(order):
    # With one alignment and nothing reserved both place the block that can go lowest.
    problem = replace(table(7, 80), name="valleys")
    block_list = BlockList(problem)
    blocks_in_order = ordered(block_list, order)
    tracker = BudgetTracker(Budget())
    offsets = place_by_skyline(block_list, blocks_in_order, tracker, [UNPLACED] * 80)
    assert offsets.tolist() == lowest_reach(problem, blocks_in_order)


def test_without_a_compiler_the_rest_of_a_skyline_lies_on_top_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(compiled, "is_loaded", lambda _loop: False)
    monkeypatch.setattr(compiled, "loop", lambda _loop: None)
    block_list = BlockList(table(7, 80))
    late = BudgetTracker(Budget(seconds=0))
    offsets = place_by_skyline(block_list, range(80), late, [UNPLACED] * 80).tolist()
    assert offsets == sorted(offsets)
    ends = [offset + size for offset, size in zip(offsets, block_list.sizes, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, offsets[1:], strict=False))


def lowest_reach(problem, order):
    """Place the buffer that can go lowest above all that meets it, the first of `order` first."""
    offsets = {}
    left = list(order)
    while left:
        reach = {
            index: max(
                (
                    offsets[other] + problem.buffers[other].size
                    for other in offsets
                    if meet(problem.buffers[other], problem.buffers[index])
                ),
                default=0,
            )
            for index in left
        }
        chosen = min(left, key=lambda index: reach[index])
        offsets[chosen] = reach[chosen]
        left.remove(chosen)
    return [offsets[index] for index in range(len(problem.buffers))]


def meet(one, two):
    (begin, end), (other_begin, other_end) = one.live[0], two.live[0]
    return begin < other_end and other_begin < end


@pytest.mark.parametrize("planner", LARGE_PLANNERS)
def test_when_there_is_no_time_the_plan_is_complete_all_the_same(planner, nothing_is_listed):
    problem = table(5, 400)
    plan = solve(problem, planner, Budget(1 << 60, seconds=0))
    check(problem, plan)
    assert plan.status in (Status.FEASIBLE, Status.OPTIMAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "share", "most"),
    [(3000, 0.1, 1.02), (30_000, 0.01, 1.005), (30_000, 0.1, 1.005)],
)
def test_dense_tables_are_planned_near_the_bound(count, share, most):
    # The largest block is a fortieth of the bound of the small table, a 400th of the dense one.
    problem = table(9, count, share)
    plan = solve(problem)
    check(problem, plan)
    assert plan.peak < most * lower_bound(problem)


@pytest.mark.slow
def test_sixty_thousand_dense_buffers_are_planned():
    problem = table(9, 62_000)
    assert BlockList(problem).live_pairs > 180_000_000
    for planner in ("skyline", "best"):
        plan = solve(problem, planner, Budget(1 << 60, seconds=10))
        check(problem, plan)
        assert plan.peak < 1.1 * lower_bound(problem)


@pytest.mark.parametrize("planner", LARGE_PLANNERS)
def test_a_block_keeps_clear_of_a_pinned_one_that_lives_at_another_time(planner, nothing_is_listed):
    problem = Problem(
        (Buffer("late", 8, ((2, 4),)), Buffer("fixed", 8, ((0, 2),), pinned=(0,))),
        separations=(("late", "fixed"),),
    )
    assert solve(problem, planner).offsets == {"late": (8,), "fixed": (0,)}


@pytest.mark.parametrize("slack", [1.06, pytest.param(1.08, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("seed", "share"), [(19, 0.02), (22, 0.02), (24, 0.02), (2, 0.05), (4, 0.1)]
)
def test_the_search_of_a_core_fits_where_first_fit_does(seed, share, slack, monkeypatch):
    monkeypatch.setattr(feasibility, "WHOLE_BLOCKS", 100)
    monkeypatch.setattr(best, "MANY_BLOCKS", 100)
    problem = table(seed, 300, share)
    memory = MemoryScope("local", int(slack * lower_bound(problem)))
    problem = replace(problem, memory=memory)
    plan = solve(problem, "best", Budget(20_000))
    assert plan.fits or not solve(problem, "first_fit").fits
    assert not plan.fits or verify(problem, plan) == ()
