# SPDX-License-Identifier: Apache-2.0
"""The branch and bound: its answers against brute force, and compiled, step by step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import best_by_brute_force, problems, table
from sweeps import sample

from passes.planning import Budget, Buffer, Problem, check, solve
from passes.planning.engine import compiled
from passes.planning.engine.blocks import BlockList
from passes.planning.planners.canonical_loop import UNPLACED, advance
from passes.planning.planners.feasibility import (
    ATTEMPTS,
    BranchAndBound,
    Outcome,
    pack,
)
from target_hw.memory import MemoryScope


def packed(problem):
    """Return the packing of a problem's free blocks."""
    block_list = BlockList(problem)
    free = [b for b, size in enumerate(block_list.sizes) if size and b not in block_list.pinned]
    return pack(block_list, free)


def random_table(seed, count):
    """Return buffers that are live some twenty at a time, in three alignments."""
    return table(seed, count, min(1, 20 / count), (1, 8, 32), ((64, 96),), count // 9)


def assert_right(problem, packing, found):
    """Hold the offsets of the blocks that are free, with those of the others, against `verify`."""
    block_list = BlockList(problem)
    offsets = [block_list.pinned.get(block, 0) for block in range(len(block_list))]
    for block, offset in zip(packing.blocks, found, strict=True):
        offsets[block] = offset
    check(problem, block_list.plan(offsets, "best"))


@given(problem=problems(), attempt=st.sampled_from(ATTEMPTS))
@settings(max_examples=60, deadline=None, print_blob=True)
def test_the_answer_is_that_of_brute_force(problem, attempt):
    problem = replace(problem, in_place=(), penalties=())
    packing = packed(problem)
    if len(packing) == 0:
        return
    capacity = problem.capacity or 10
    # Pinned buffers above the capacity are no matter of the search, which does not place them.
    free = replace(problem, memory=replace(problem.memory, capacity=None))
    pins = [max(b.pinned) + b.size for b in problem.buffers if b.pinned is not None]
    best = best_by_brute_force(replace(free, memory=replace(free.memory, capacity=200)))
    if max(pins, default=0) > capacity:
        return
    search = BranchAndBound(packing, attempt, capacity)
    outcome = search.advance(100_000)
    assert outcome is (Outcome.FOUND if best[1] <= capacity else Outcome.EXHAUSTED)
    assert (UNPLACED not in search.offsets) == (outcome is Outcome.FOUND)
    if outcome is Outcome.FOUND:
        assert_right(problem, packing, search.offsets)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize(
    ("reserved", "capacity", "offsets"), [(3, 7, [0, 4]), (3, 6, None), (6, 6, [0, 3])]
)
def test_not_one_byte_is_taken_of_what_is_reserved_or_not_there(
    attempt, reserved, capacity, offsets
):
    buffers = tuple(Buffer(name, 3, [(0, 1)], 1) for name in "ab")
    packing = packed(Problem(buffers, MemoryScope("local", reserved=((reserved, reserved + 1),))))
    search = BranchAndBound(packing, attempt, capacity)
    assert search.advance(100) is (Outcome.FOUND if offsets else Outcome.EXHAUSTED)
    assert not offsets or sorted(search.offsets) == offsets


@pytest.mark.parametrize("seed", sample(range(16), *range(1, 16, 2)))
def test_no_search_rules_out_what_another_one_finds(seed):
    problem = random_table(seed, 8 + 2 * seed)
    packing, peak = packed(problem), solve(problem, "best", Budget(2000)).peak
    for attempt in ATTEMPTS:
        assert BranchAndBound(packing, attempt, peak).advance(1000) is not Outcome.EXHAUSTED


def twins(packing, attempt, capacity):
    plain, fast = (BranchAndBound(packing, attempt, capacity) for _ in range(2))
    fast.compile()
    return plain, fast


def assert_same_steps(plain, fast, limits):
    for limit in limits:
        assert plain.advance(limit) is fast.advance(limit)
        assert (plain.nodes, plain.offsets) == (fast.nodes, fast.offsets)


@given(problem=problems(most_buffers=6, most_slots=8), attempt=st.sampled_from(ATTEMPTS))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_both_versions_take_the_same_steps_on_small_problems(with_compiler, problem, attempt):
    packing = packed(replace(problem, in_place=()))
    if len(packing):
        assert_same_steps(*twins(packing, attempt, problem.capacity or 8), [1, 2, 1000])


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
@pytest.mark.parametrize("slack", [0, 0.05, 0.3])
def test_both_versions_take_the_same_steps_on_a_larger_one(with_compiler, attempt, slack):
    problem = random_table(1, 120)
    packing = packed(problem)
    capacity = int(BlockList(problem).bound * (1 + slack))
    assert_same_steps(*twins(packing, attempt, capacity), [1, 7, 300, 700])


def test_without_a_compiler_the_plans_are_the_same(with_compiler, monkeypatch):
    problem = random_table(7, 150)
    expected = solve(problem, "best", Budget(3000))
    monkeypatch.setitem(compiled._loaded, compiled._name(advance), None)
    assert solve(problem, "best", Budget(3000)) == expected
