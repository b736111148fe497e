# SPDX-License-Identifier: Apache-2.0
"""`rec_tbl`: the original's worked cases, its rules one by one, and any graph at all."""

from dataclasses import replace

import pytest
from graph_oracles import (
    Graph,
    NaiveTable,
    OverwrittenError,
    graphs,
    op,
    problem_of,
    replay,
)
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from passes.planning import Buffer, Plan, Problem, check, solve, verify
from passes.planning.plan import Status
from target_hw.memory import MemoryScope

K = 1024

RESIDUAL = Graph(
    (
        op("input", "input", "", [("X", 16 * K)]),
        op("conv1", "conv", "X", [("A", 64 * K)]),
        op("relu", "relu", "A", [("B", 64 * K)]),
        op("conv2", "conv", "B", [("C", 32 * K)]),
        op("conv3", "conv", "C", [("D", 64 * K)]),
        op("add", "add", "DB", [("E", 64 * K)]),
        op("reshape", "reshape", "E", [("R", 64 * K)]),
        op("fc", "fc", "R", [("F", 4000)]),
        op("return", "return", "F"),
    )
)
CHAIN = Graph(
    (
        op("oa", "conv", "", [("a", 16 * K)]),
        op("ob", "conv", "a", [("b", 16 * K)]),
        op("oc", "conv", "b", [("c", 32 * K)]),
        op("od", "conv", "c", [("d", 32 * K)]),
        op("return", "return", "d"),
    )
)
HAZARD = Graph(
    (
        op("oA", "conv", "", [("A", 8 * K)]),
        op("reshape", "reshape", "A", [("R", 8 * K)]),
        op("oB", "conv", "R", [("B", 8 * K)]),
        op("oC", "conv", "B", [("C", 8 * K)]),
        op("oD", "add", "AC", [("D", 8 * K)]),
        op("return", "return", "D"),
    )
)


def aligned(graph, alignment):
    """Return the problem of a graph in a memory of an alignment."""
    return problem_of(graph, MemoryScope("global", alignment=alignment))


def placed(problem):
    """Return the offset of each buffer in one slot."""
    return {name: at for name, (at,) in solve(problem, "rec_tbl").offsets.items()}


def placed_by(table):
    """Return what another table says of the first names of memory."""
    root = table.graph.root
    return {name: at for name, at in table.address.items() if root[name] == name}


# The worked cases


def test_the_residual_chain_step_by_step_as_the_original():
    table = NaiveTable(RESIDUAL, 0, 4096, by_value=True).run()
    original = [
        ("X", "new", None, ("X",), (0,)),
        ("A", "new", None, ("A",), (0x4000,)),
        ("B", "new", None, ("B",), (0x14000,)),
        ("C", "reuse", "A", ("B", "C"), (0x4000, 0x14000)),
        ("D", "new", None, ("B", "D"), (0x14000, 0x24000)),
        ("E", "reuse", "A", ("E",), (0x4000,)),
        ("R", "share", "E", ("E", "R"), (0x4000,)),
        ("F", "reuse", "X", ("E", "F"), (0,)),  # E is lost: its last reader is the reshape
    ]
    assert table.steps == original
    assert table.cursor == 0x34000
    problem = aligned(RESIDUAL, 4096)
    assert placed(problem) == placed_by(table)
    assert solve(problem, "rec_tbl").peak == table.cursor


def test_neighbours_are_not_joined():
    problem = aligned(CHAIN, 4096)
    assert placed(problem) == {"a": 0, "b": 0x4000, "c": 0x8000, "d": 0x10000}
    assert solve(problem, "rec_tbl").peak == 98304
    assert solve(problem, "best").peak == 65536
    assert NaiveTable(CHAIN, 0x1000, 4096, by_value=True).run().cursor == 0x1000 + 98304


def test_the_alias_hazard_is_the_originals_and_the_verifier_sees_it():
    problem = aligned(HAZARD, 4096)
    original = NaiveTable(HAZARD, 0, 4096, by_value=True).run().address
    assert original["C"] == original["A"] == 0
    offsets = {buffer.name: (original[buffer.name],) for buffer in problem.buffers}
    plan = Plan(offsets, 16 * K, 0, "the original", Status.FEASIBLE)
    (violation,) = verify(problem, plan)
    assert (violation.kind, set(violation.buffers)) == ("overlap", {"A", "C"})
    with pytest.raises(OverwrittenError, match=r"oD finds .* in 'A'"):
        replay(HAZARD, original)

    ours = solve(problem, "rec_tbl")
    assert ours.offsets["C"] != ours.offsets["A"]
    check(problem, ours)
    assert replay(HAZARD, {name: at for name, (at,) in ours.offsets.items()}) > 0


# The rules


def test_what_begins_and_ends_at_one_position_is_free_behind_it():
    buffers = (
        Buffer("brief", 8, ((0, 1),)),
        Buffer("other", 8, ((0, 2),)),
        Buffer("next", 8, ((1, 2),)),
    )
    problem = Problem(buffers)
    assert placed(problem) == {"brief": 0, "other": 8, "next": 0}
    check(problem, solve(problem, "rec_tbl"))


def test_an_empty_buffer_does_not_give_away_the_address_of_another():
    buffers = (
        Buffer("empty", 0, ((0, 4),)),
        Buffer("a", 64, ((0, 2),)),  # both at offset 0
        Buffer("b", 64, ((1, 3),)),
        Buffer("c", 64, ((2, 5),)),
        Buffer("d", 64, ((3, 5),)),
    )
    problem = Problem(buffers, MemoryScope("global", alignment=64))
    plan = solve(problem, "rec_tbl")
    assert plan.offsets["empty"] == plan.offsets["a"] == (0,)
    check(problem, plan)


def test_slots_are_buffers_of_their_own():
    problem = Problem((Buffer("a", 8, ((0, 2),), slots=2), Buffer("b", 8, ((2, 3),))))
    assert solve(problem, "rec_tbl").offsets == {"a": (0, 8), "b": (0,)}


def test_offsets_are_aligned():
    buffers = (Buffer("a", 1, ((0, 1),)), Buffer("b", 65, ((0, 1),)), Buffer("c", 8, ((0, 1),)))
    wide = Buffer("wide", 4, ((0, 1),), alignment=96)
    problem = Problem((*buffers, wide), MemoryScope("global", alignment=64))
    offsets = solve(problem, "rec_tbl").offsets
    assert offsets == {"a": (0,), "b": (64,), "c": (192,), "wide": (384,)}


def test_a_record_that_is_not_aligned_is_passed_by():
    buffers = (
        Buffer("a", 8, ((0, 3),)),
        Buffer("b", 32, ((0, 1),)),
        Buffer("wide", 16, ((1, 3),), alignment=16),
    )
    assert placed(Problem(buffers))["wide"] == 48


# Any graph


ALIGNMENTS = st.sampled_from([1, 2, 4])


@given(graph=graphs(), alignment=ALIGNMENTS)
@settings(max_examples=40, deadline=None, print_blob=True)
@example(RESIDUAL, 4)
@example(HAZARD, 4)
def test_each_offset_is_that_of_the_table_scanned_from_the_front(graph, alignment):
    naive = NaiveTable(graph, 0, alignment, by_value=False).run()
    note("\n".join(map(str, naive.steps)))
    assert placed(aligned(graph, alignment)) == placed_by(naive)


@pytest.mark.parametrize("planner", ["best", "rec_tbl"])
@given(graph=graphs(), alignment=ALIGNMENTS)
@settings(max_examples=20, deadline=None, print_blob=True)
def test_no_operand_is_overwritten_before_it_is_read(planner, graph, alignment):
    problem = aligned(graph, alignment)
    plan = solve(problem, planner)
    note(repr(plan))
    check(problem, plan)
    replay(graph, {name: at for name, (at,) in plan.offsets.items()})


# What graphs do not have


def test_separated_buffers_take_no_address_of_their_partners():
    buffers = tuple(Buffer(f"b{i}", 8, ((2 * i, 2 * i + 1),)) for i in range(3))
    problem = Problem(buffers, separations=(("b0", "b1"), ("b0", "b2")))
    assert solve(problem, "rec_tbl").offsets == {"b0": (0,), "b1": (8,), "b2": (8,)}
    shared = replace(problem, separations=())
    assert solve(shared, "rec_tbl").peak == 8


def test_pinned_and_reserved_bytes_are_stepped_over():
    buffers = (
        Buffer("pin", 8, ((0, 1),), pinned=(8,)),
        Buffer("a", 8, ((0, 2),)),
        Buffer("b", 8, ((1, 3),)),
        Buffer("c", 8, ((5, 6),)),
    )
    problem = Problem(buffers, MemoryScope("global", reserved=((18, 20),)))
    plan = solve(problem, "rec_tbl")
    assert plan.offsets == {"pin": (8,), "a": (0,), "b": (20,), "c": (0,)}
    check(problem, plan)
