# SPDX-License-Identifier: Apache-2.0
"""Plans cut into pieces: right in each piece, and the way that takes least first."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import tvm
from hypothesis import given, note, settings
from hypothesis import strategies as st
from planning_oracles import is_right, parts, written
from tvm import tirx

from passes.gmem.options import BEST, GMEMOptions, Solvers
from passes.gmem.planning.pool import (
    MOST_PATHS,
    PAGE,
    Piece,
    PoolAllocation,
    blocks_taken,
    bytes_of_blocks,
    in_given_slots,
    in_one_piece,
    skipped_on_paths,
    with_returned,
)
from passes.gmem.storages import pieces_of_group
from passes.planning import Buffer, Plan, Problem, Status, solve
from passes.relax import TensorGroup
from target_hw.memory import MemoryScope

ALIGNED = MemoryScope("global", alignment=64)
END = 8


def best(problem: Problem):
    return solve(problem, "best")


def problem_of(*buffers: Buffer) -> Problem:
    return Problem(buffers, ALIGNED)


def first_way(problem: Problem, returned=(), alone=(), page=PAGE):
    """Return how the default planner places a group; the pool counts in pages, or in units."""
    unit = None if page == PAGE else tirx.Var("n", "int64")
    group = TensorGroup(0, unit, problem, returned, alone)
    memory = SimpleNamespace(mod=tvm.IRModule(), kernel_arguments=None, bindings=())
    options = GMEMOptions(target=tvm.target.Target("llvm"))
    return pieces_of_group(memory, group, options, Solvers(BEST, options))


def assert_right(pieces, problem, returned=()):
    """Hold each piece against the oracle of plans: nothing live together shares a byte of it."""
    buffers = {buffer.name: buffer for buffer in (*problem.buffers, *returned)}
    placed = [name for piece in pieces for name in piece.offsets]
    assert len(placed) == len(set(placed))
    assert {buffer.name for buffer in problem.buffers} <= set(placed) <= set(buffers)
    for piece in pieces:
        inside = Problem(tuple(buffers[name] for name in piece.offsets), ALIGNED)
        offsets = {name: (at,) for name, at in piece.offsets.items()}
        plan = Plan(offsets, piece.size, 0, "a piece", Status.FEASIBLE)
        assert is_right(inside, plan)
        assert all(at + buffers[name].size <= piece.size for name, at in piece.offsets.items())
    for buffer in returned:
        for piece in pieces:
            if buffer.name in piece.offsets:
                assert sum(other.name in piece.offsets for other in returned) == 1
                assert piece.offsets[buffer.name] == 0
                assert piece.size - buffer.size < PAGE


def total(pieces, returned=()):
    placed = {name for piece in pieces for name in piece.offsets}
    alone = sum(buffer.size for buffer in returned if buffer.name not in placed)
    return sum(piece.size for piece in pieces) + alone


def cases(seed: int):
    """Return buffers with one or two live ranges, and returned tensors that live to the end."""
    rng = Random(seed)
    sizes = (4, 64, 100, 256, 400, 4096, 10_000)
    buffers = [
        Buffer(buffer.name, rng.choice(sizes), buffer.live)
        for buffer in parts(rng, 9, 12, roles="-", pins=0)[0]
    ]
    returned = (
        Buffer(f"r{index}", rng.choice(sizes), ((rng.randrange(END), END),))
        for index in range(rng.randint(0, 3))
    )
    return problem_of(*buffers), tuple(returned)


@given(st.integers(0, 1 << 32).map(cases))
@settings(max_examples=30, deadline=None, print_blob=True)
def test_pieces_are_right(case):
    problem, returned = case
    plan = best(problem)
    for pieces in (with_returned(problem, returned, best), in_one_piece(plan)):
        assert_right(pieces, problem, returned)
    for page in (1, PAGE):
        pieces = first_way(problem, returned, page=page)
        note(str(pieces))
        assert_right(pieces, problem, returned)


def test_what_ends_before_the_result_begins_is_in_its_memory():
    size = 1 << 16
    problem = written(f"a {size} 0 2; b {size} 1 3; c {size} 2 4", ALIGNED)
    result = (Buffer("result", size, ((3, 5),)),)
    pieces = first_way(problem, result)
    assert_right(pieces, problem, result)
    assert sorted(piece.size for piece in pieces) == [size, size]
    (shared,) = (piece for piece in pieces if "result" in piece.offsets)
    assert set(shared.offsets) == {"b", "result"}


def test_another_plan_s_slots_are_shared_as_far_as_they_are_right():
    """Not by buffers that are live together, nor in a branch by what is used outside of it."""
    problem = written("a 64 0 2; b 64 1 3; c 64 2 4; d 64 4 5; e 64 5 6", ALIGNED)
    paths = {**dict.fromkeys("abce", ()), "d": ((3, 0),)}
    pieces = in_given_slots(problem, ["abcd", "e"], paths)
    assert [set(piece.offsets) for piece in pieces] == [{"a", "c", "d"}, {"b"}, {"e"}]
    assert len(in_given_slots(problem, ["de"], paths)) == 2


def test_a_result_that_helps_nothing_has_no_piece():
    problem = written("a 4096 0 3; b 4096 1 3", ALIGNED)
    result = (Buffer("result", 4096, ((2, 4),)),)
    assert first_way(problem, result) == (Piece(8192, {"a": 0, "b": 4096}),)


@pytest.mark.parametrize("page", [1, PAGE])
def test_bytes_are_packed_where_slots_would_waste_them(page):
    problem = written("a 4096 0 2; b 4096 0 2; both 8192 2 4; c 4096 4 6", ALIGNED)
    assert total(first_way(problem, page=page)) == 8192


@given(
    st.lists(
        st.tuples(st.integers(1, 9000), st.integers(0, 9), st.integers(1, 4)).map(
            lambda a: (a[0], a[1], a[1] + a[2])
        ),
        max_size=12,
    ),
    st.sampled_from([1, PAGE]),
)
@settings(max_examples=80, deadline=None, print_blob=True)
def test_what_is_given_back_is_handed_out_again(allocations, page):
    taken, free, used = 0, [], []
    for position in range(14):
        free += [size for size, end in used if end == position]
        used = [(size, end) for size, end in used if end > position]
        for size, begin, end in allocations:
            if begin == position:
                pages = -(-size // page) * page
                if pages in free:
                    free.remove(pages)
                else:
                    taken += pages
                used.append((pages, end))
    made = [PoolAllocation(0, size, 0, begin, end) for size, begin, end in allocations]
    assert bytes_of_blocks(blocks_taken(made, page=page)) == taken


def test_a_path_skips_one_side_of_each_branch_that_it_comes_by():
    branches = {0: ((1, 6), (6, 8)), 2: ((3, 4), (4, 5))}
    paths = skipped_on_paths(branches)
    assert sorted(map(sorted, paths)) == [[(1, 6)], [(3, 4), (6, 8)], [(4, 5), (6, 8)]]
    in_a_row = {3 * at: ((3 * at + 1, 3 * at + 2), (3 * at + 2, 3 * at + 3)) for at in range(8)}
    assert len(skipped_on_paths(dict(list(in_a_row.items())[:7]))) == MOST_PATHS
    assert skipped_on_paths(in_a_row) is None
