# SPDX-License-Identifier: Apache-2.0
"""Moving buffers: right plans that are no worse, and compiled, the same steps."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from planning_oracles import problems

from passes.planning import Budget, Buffer, Penalty, Problem, check, solve
from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList, widened
from passes.planning.planner import BudgetTracker
from passes.planning.planners import relocation_loop as loop
from passes.planning.planners.relocation import Relocation, improved
from passes.planning.planners.relocation_loop import FIXED_POINT, NOWHERE, TOTAL, advance
from target_hw.memory import MemoryScope


def as_placed(problem, plan):
    """Return the blocks of a plan: in-place pairs of unequal slots are widened there."""
    counts = {name: len(offsets) for name, offsets in plan.offsets.items()}
    return BlockList(widened(problem, counts))


def crowded(seed, count, slots=(1,)):
    """Return a problem at the peak of first fit, with many penalties and in-place pairs."""
    rng = random.Random(seed)
    buffers = []
    for index in range(count):
        begin = rng.randrange(2 * count)
        live = ((begin, begin + rng.randint(1, count // 2)),)
        alignment = rng.choice([1, 1, 32])
        size = rng.randrange(1, 40) * 8
        buffers.append(Buffer(f"b{index}", size, live, alignment, rng.choice(slots)))
    names = [buffer.name for buffer in buffers]
    roles = {}
    for _ in range(6 * count):
        pair = tuple(sorted(rng.sample(names, 2)))
        roles.setdefault(pair, rng.choice(["penalty", "penalty", "penalty", "in place"]))
    charges = {pair: rng.randint(1, 9) for pair, role in roles.items() if role == "penalty"}
    penalties = [Penalty(*p, cost, rng.randint(1, cost)) for p, cost in charges.items()]
    in_place = [pair for pair, role in roles.items() if role == "in place"]
    # No bounds of the memory are multiples of what sizes are: one byte too many is then seen.
    memory = MemoryScope("local", reserved=((96, 121),))
    problem = Problem(tuple(buffers), memory, in_place, penalties=penalties)
    peak = solve(replace(problem, penalties=()), "first_fit").peak
    memory = MemoryScope("local", peak + 7, reserved=((96, 121),))
    return Problem(tuple(buffers), memory, in_place, penalties=penalties)


def penalty_blind(problem):
    """Return the blocks, and a plan that pays for much."""
    start = solve(replace(problem, penalties=()), "first_fit")
    block_list = as_placed(problem, start)
    return block_list, block_list.plan(block_list.flat(start), "first_fit")


@given(problem=problems(most_buffers=7, most_slots=10))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_moving_buffers_keeps_a_plan_right_and_makes_it_no_worse(problem):
    start = solve(problem, "first_fit")
    if not start.fits:
        return
    block_list = as_placed(problem, start)
    moved = Relocation(block_list, block_list.flat(start))
    assert moved.score == (start.penalty, start.peak)
    for _ in range(5):
        moved.advance(30, FIXED_POINT, 1 << 60)
        now = block_list.plan(low(moved), "moved")
        check(block_list.problem, now)
        assert now.penalty == moved.running.state.now[TOTAL]
    plan = block_list.plan(moved.best, "moved")
    check(block_list.problem, plan)
    assert moved.score == (plan.penalty, plan.peak)
    assert moved.score <= (start.penalty, start.peak)
    moved.restart()
    assert low(moved) == moved.best


def low(search):
    """Return the offset of each block as the plan is now."""
    return list(search.running.state.low)


def assert_same_steps(plain, fast, chunks):
    for steps, heat in chunks:
        plain.advance(steps, heat, 1 << 60)
        fast.advance(steps, heat, 1 << 60)
        assert (plain.nodes, plain.score) == (fast.nodes, fast.score)
        assert (low(plain), plain.best) == (low(fast), fast.best)
        fast.restart()
        plain.restart()
        assert low(plain) == low(fast)


@given(problem=problems(most_buffers=7, most_slots=10))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_both_versions_take_the_same_steps_on_small_problems(with_compiler, problem):
    start = solve(problem, "first_fit")
    if not start.fits or not problem.penalties:
        return
    block_list = as_placed(problem, start)
    flat = block_list.flat(start)
    plain, fast = Relocation(block_list, flat), Relocation(block_list, flat)
    fast.compile()
    assert_same_steps(plain, fast, [(1, 0), (2, FIXED_POINT), (50, 3 * FIXED_POINT)])


@pytest.mark.parametrize("slots", [(1,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_both_versions_take_the_same_steps_on_a_larger_one(with_compiler, seed, slots):
    problem = crowded(seed, 60, slots)
    block_list, start = penalty_blind(problem)
    flat = block_list.flat(start)
    assert block_list.penalty(flat) > 0
    plain, fast = Relocation(block_list, flat), Relocation(block_list, flat)
    fast.compile()
    assert_same_steps(plain, fast, [(20, 8 * FIXED_POINT), (60, 2 * FIXED_POINT), (60, 100)])


def test_without_a_compiler_the_result_is_the_same(with_compiler, monkeypatch):
    problem = crowded(5, 60)
    block_list, start = penalty_blind(problem)
    best = improved(block_list, block_list.flat(start), BudgetTracker(Budget(3000)))
    assert block_list.penalty(best) < start.penalty
    monkeypatch.setitem(compiled._loaded, compiled._name(advance), None)
    assert improved(block_list, block_list.flat(start), BudgetTracker(Budget(3000))) == best


@pytest.mark.parametrize(
    ("nodes", "seed", "count"), [(0, 2, 40), (1, 2, 40), (50, 5, 40), (700, 5, 40), (700, 3, 20)]
)
def test_no_more_nodes_are_taken_than_allowed(nodes, seed, count):
    problem = crowded(seed, count, (1, 2))
    block_list, start = penalty_blind(problem)
    tracker = BudgetTracker(Budget(nodes))
    plan = block_list.plan(improved(block_list, block_list.flat(start), tracker), "moved")
    check(block_list.problem, plan)
    assert tracker.used <= nodes
    assert plan.penalty <= start.penalty


def charged(count, most):
    """Return buffers one after the other, each two of which cost something if they share."""
    rng = random.Random(5)
    buffers = [Buffer(f"b{at}", 1, ((at, at + 1),)) for at in range(count)]
    pairs = itertools.combinations([buffer.name for buffer in buffers], 2)
    penalties = [Penalty(*pair, rng.randint(1, most)) for pair in pairs]
    return Problem(tuple(buffers), MemoryScope("local", 5), penalties=tuple(penalties))


def test_search_goes_on_while_a_lower_penalty_is_possible():
    # An hour: what ends the search is its nodes.
    few, many = (solve(charged(40, 99), "best", Budget(n, 3600.0)) for n in (5_000, 80_000))
    assert few.penalty > many.penalty
    assert few.nodes <= 5_000
    assert 70_000 < many.nodes <= 80_000
    # Without a clock it ends after some rounds that found nothing better.
    assert solve(charged(26, 1), "best", 80_000).nodes < 40_000
    assert solve(charged(26, 1), "best", Budget(80_000, 3600.0)).nodes > 70_000


def test_what_cannot_be_moved_is_not_moved_for_ever():
    pinned = [Buffer(name, 8, ((at, at + 1),), pinned=(0,)) for at, name in enumerate("ab")]
    block_list = BlockList(Problem(tuple(pinned), penalties=(Penalty("a", "b", 5),)))
    assert improved(block_list, [0, 0], BudgetTracker(Budget(1000))) == [0, 0]


def test_what_is_pinned_stays_and_what_more_is_in_the_way_of_does_not_move():
    places = [(0, 80), *((at, 8) for at in range(80, 160, 8))]
    buffers = [Buffer(f"b{at}", size, ((1, 2),)) for at, size in places]
    pinned = Buffer("pinned", 80, ((0, 1),), pinned=(0,))
    costs = [Penalty("pinned", "b0", 5)]
    problem = Problem((pinned, *buffers), MemoryScope("local", 160), penalties=costs)
    moved = Relocation(BlockList(problem), [0, *(at for at, _ in places)])
    for _ in range(20):
        moved.advance(1, FIXED_POINT, 1 << 60)
        check(problem, BlockList(problem).plan(low(moved), "moved"))


@pytest.mark.parametrize("capacity", range(12, 17))
@pytest.mark.parametrize("reserved", [(3, 5), (3, 6), (4, 6), (4, 7)])
def test_no_offset_is_tried_outside_of_the_memory(capacity, reserved):
    live = ((0, 2),)
    buffers = tuple(Buffer(f"b{size}", size, live, 1 + size // 3) for size in (1, 2, 3, 4))
    memory = MemoryScope("local", capacity, reserved=(reserved,))
    problem = Problem(buffers, memory, penalties=[Penalty("b1", "b2", 1)])
    begin, end = reserved
    for seed in range(20):
        order = random.Random(seed).sample(range(4), 4)
        state = Relocation(BlockList(problem), [NOWHERE] * 4).running.state
        for block in order:
            candidates = 1 + state.reserved + 2 * 3
            tried = [loop._candidate(state, block, at) for at in range(candidates)]
            inside = [offset for offset in tried if offset != NOWHERE]
            for offset in inside:
                last = offset + buffers[block].size
                assert last <= capacity
                assert last <= begin or end <= offset
            if inside:
                loop.put(state, block, inside[seed % len(inside)])
