# SPDX-License-Identifier: Apache-2.0
"""Many blocks at once: no pairs are listed, the offsets are right, and both forms agree."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import problems, table
from sweeps import sample

from passes.planning import (
    Budget,
    BudgetTracker,
    Buffer,
    Problem,
    Status,
    check,
    lower_bound,
    solve,
    verify,
)
from passes.planning.engine import blocks, compiled
from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.planners import allocation_loop, feasibility, first_fit, first_fit_loop
from passes.planning.planners.first_fit import allocated, fit_blocks, ordered
from target_hw.memory import MemoryScope

LARGE_PLANNERS = ["first_fit", "best"]


@pytest.fixture
def nothing_is_listed(monkeypatch):
    """As if each problem had too many pairs live together to list them."""
    monkeypatch.setattr(blocks, "LISTED_PAIRS", -1)
    monkeypatch.setattr(first_fit, "FEW_PAIRS", -1)


def small(problem):
    """Return the problem with buffers of a few bytes, so that one byte too many is seen."""
    buffers = (replace(b, size=1 + at % 4) for at, b in enumerate(problem.buffers))
    return replace(problem, buffers=tuple(buffers))


TABLES = {
    "plain": table(1, 100),
    "aligned, reserved": table(2, 100, 0.05, (1, 8, 96), ((64, 200), (5000, 5001))),
    "separated": small(table(3, 100, 0.03, separated=120)),
    "crowded": small(table(5, 150, 0.9)),
    "one": table(4, 1),
}


def gap_by_gap(problem, order, fixed, limit):
    """Return where first fit puts buffers of one slot, each of which looks at all its gaps."""
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
        low = min(top for top in tops if not any(a < top + size and top < b for a, b in taken))
        if at not in fixed and low + size <= limit:
            offsets[at] = low
    return [offsets.get(at, UNPLACED) for at in range(len(problem.buffers))]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("order", ["size", "time"])
@pytest.mark.parametrize("way", ["listed", "long lists", "swept", "compiled"])
def test_first_fit_finds_the_gap(name, order, way, monkeypatch):
    problem = TABLES[name]
    if way == "long lists":
        monkeypatch.setattr(first_fit, "FEW_CONFLICTS", 0)
    if way in ("swept", "compiled"):
        monkeypatch.setattr(first_fit, "FEW_PAIRS", -1)
    monkeypatch.setattr(compiled, "is_ready", lambda loop: False)
    monkeypatch.setattr(compiled, "is_loaded", lambda loop: way == "compiled")
    if way == "compiled" and compiled.loop(first_fit_loop.advance) is None:
        pytest.skip("TVM is not installed, or has no llvm")
    block_list = BlockList(problem)
    blocks_in_order = ordered(block_list, order)
    expected = gap_by_gap(problem, blocks_in_order, {}, 1 << 60)
    assert fit_blocks(block_list, blocks_in_order) == expected
    limit = max(expected) // 2
    limited = gap_by_gap(problem, blocks_in_order, {0: 8192}, limit)
    assert fit_blocks(block_list, blocks_in_order, fixed={0: 8192}, limit=limit) == limited
    assert UNPLACED not in expected


@given(
    problem=problems(most_buffers=7, most_slots=10),
    name=st.sampled_from(LARGE_PLANNERS),
    most=st.sampled_from((0, first_fit.MOST_PAIRS)),
    few=st.sampled_from((-1, first_fit.FEW_PAIRS)),
)
@settings(max_examples=50, deadline=None, print_blob=True)
def test_plans_of_every_kind_are_right_without_a_list(problem, name, most, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LISTED_PAIRS", -1)
        patch.setattr(first_fit, "MOST_PAIRS", most)
        patch.setattr(first_fit, "FEW_PAIRS", few)
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


def as_they_begin(problem):
    """Return where buffers of one slot go as they begin, each into the smallest gap of all."""
    lives = [buffer.live[0] for buffer in problem.buffers]
    until = [end for _, end in lives]
    for pair in problem.separations:  # A separated buffer keeps its bytes until the other begins
        one, two = (problem.index[name] for name in pair)
        until[one] = max(until[one], lives[two][0] + 1)
        until[two] = max(until[two], lives[one][0] + 1)
    offsets = {}
    for at in sorted(range(len(lives)), key=lambda at: lives[at][0]):
        begin, size = lives[at][0], problem.buffers[at].size
        held = sorted(
            (low, low + problem.buffers[other].size)
            for other, low in offsets.items()
            if until[other] > begin
        )
        tops = [0, *(end for _, end in held)]
        gaps = [(low - top, top) for top, (low, _) in zip(tops, held, strict=False)]
        rooms = [gap for gap in gaps if gap[0] >= size]
        offsets[at] = min(rooms, default=(0, tops[-1]))[1]
    return [offsets[at] for at in range(len(lives))]


@pytest.fixture(params=["python", "compiled"])
def way(request, monkeypatch):
    """Whether the loop of the allocator runs as Python or as what TVM compiles."""
    monkeypatch.setattr(compiled, "is_loaded", lambda loop: request.param == "compiled")
    if request.param == "compiled" and compiled.loop(allocation_loop.advance) is None:
        pytest.skip("TVM is not installed, or has no llvm")


@pytest.mark.parametrize("name", ["plain", "separated", "crowded", "one"])
def test_an_allocator_takes_the_smallest_gap(name, way):
    assert allocated(BlockList(TABLES[name])).tolist() == as_they_begin(TABLES[name])


def test_an_allocator_aligns_within_a_gap(way):
    buffers = [Buffer("left", 3, ((0, 2),)), Buffer("gap", 8, ((0, 1),)), Buffer("c", 1, ((0, 9),))]
    buffers += [Buffer(f"{size}", size, ((1, 2),), alignment=4) for size in (0, 8, 4)]
    assert allocated(BlockList(Problem(tuple(buffers)))).tolist() == [0, 3, 11, 0, 12, 4]


@pytest.mark.parametrize("planner", LARGE_PLANNERS)
def test_when_there_is_no_time_the_plan_is_complete_all_the_same(planner, nothing_is_listed):
    problem = table(5, 400)
    plan = solve(problem, planner, Budget(1 << 60, seconds=0))
    check(problem, plan)
    assert plan.status in (Status.FEASIBLE, Status.OPTIMAL)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3000, 62_000])
def test_dense_tables_are_planned_near_the_bound(count):
    problem = table(9, count)
    plan = solve(problem, "best", Budget(1 << 60, seconds=10))
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
    "case", sample([(19, 0.02), (22, 0.02), (24, 0.02), (2, 0.05), (4, 0.1)], (19, 0.02), (2, 0.05))
)
def test_the_search_of_a_core_fits_where_first_fit_does(case, slack, monkeypatch):
    seed, share = case
    monkeypatch.setattr(feasibility, "WHOLE_BLOCKS", 100)
    problem = table(seed, 300, share)
    memory = MemoryScope("local", int(slack * lower_bound(problem)))
    problem = replace(problem, memory=memory)
    plan = solve(problem, "best", Budget(20_000))
    assert plan.fits or not solve(problem, "first_fit").fits
    assert not plan.fits or verify(problem, plan) == ()


@pytest.mark.parametrize("seed", [2, 4])
def test_what_has_no_place_around_a_core_lies_above(seed, monkeypatch):
    monkeypatch.setattr(feasibility, "WHOLE_BLOCKS", 100)
    problem = table(seed, 300, 0.05)
    block_list = BlockList(problem)
    search = feasibility.FeasibilityCheck(block_list)
    outcome, offsets = search.run(block_list.bound, BudgetTracker(Budget(20_000)))
    assert outcome is feasibility.Outcome.PAUSED
    plan = block_list.plan(offsets, "core")
    assert verify(problem, plan) == ()
    assert plan.peak > block_list.bound
    assert solve(problem, "best", Budget(20_000)).peak <= plan.peak
