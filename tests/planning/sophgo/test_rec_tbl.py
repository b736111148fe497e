"""`rec_tbl`: the original's worked cases, its rules one by one, and any graph at all."""

import random
from dataclasses import replace

import pytest
from graph_oracles import NaiveTable, OverwrittenError, op, replay, sequences
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from passes.planning import Buffer, Problem, check, lower_bound, solve, verify
from passes.planning.sophgo.op_sequence import Op, OpSequence, Value, to_problem
from passes.planning.sophgo.rec_tbl import Condition, Decision, RecTbl, allocate, plan_of, trace
from passes.planning.sophgo.records import ReusableRecords
from passes.planning.sophgo.regions import NewMemory, place_weights
from target_hw.memory import MemoryScope

K = 1024
NEW, REUSE, SHARE = Decision.NEW, Decision.REUSE, Decision.SHARE

RESIDUAL = OpSequence(
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
    ),
    "residual",
)
CHAIN = OpSequence(
    (
        op("oa", "conv", "", [("a", 16 * K)]),
        op("ob", "conv", "a", [("b", 16 * K)]),
        op("oc", "conv", "b", [("c", 32 * K)]),
        op("od", "conv", "c", [("d", 32 * K)]),
        op("return", "return", "d"),
    ),
    "chain",
)
HAZARD = OpSequence(
    (
        op("oA", "conv", "", [("A", 8 * K)]),
        op("reshape", "reshape", "A", [("R", 8 * K)]),
        op("oB", "conv", "R", [("B", 8 * K)]),
        op("oC", "conv", "B", [("C", 8 * K)]),
        op("oD", "add", "AC", [("D", 8 * K)]),
        op("return", "return", "D"),
    ),
    "hazard",
)


def decisions(steps, base=0):
    """Return result, decision and offset from the base of each step that places something."""
    return [(s.result, s.decision, s.offset - base) for s in steps if s.result is not None]


def one_size(*ops, size=64):
    """Return the ops of ``(kind, operands, results)``, each result of one size."""
    return OpSequence(
        tuple(
            op(f"{kind}{index}", kind, operands, [(name, size) for name in results])
            for index, (kind, operands, results) in enumerate(ops)
        )
    )


# The worked cases


def test_weights_stand_one_after_another():
    weights = (Value("w0", 10000), Value("w1", 4096), Value("w2", 100))
    region = place_weights(weights, 0x1_0000_0000)
    assert region.addresses == {"w0": 0x1_0000_0000, "w1": 0x1_0000_3000, "w2": 0x1_0000_4000}
    assert (region.start, region.size, region.end) == (0x1_0000_0000, 20480, 0x1_0000_5000)


def test_weights_ask_for_more_alignment_and_come_from_weight_ops():
    ops = (
        Op("w", "weight", (), (Value("w", 5),)),
        Op("v", "weight", (), (Value("v", 16, 64), Value("u", 1))),
        Op("conv", "conv", ("w", "v"), (Value("x", 3),)),
    )
    sequence = OpSequence(ops)
    region = place_weights(sequence.weights, 16, 16)
    assert region.addresses == {"w": 16, "v": 64, "u": 80}
    assert region.end == 96
    assert allocate(sequence, region.end, 16).offsets == {"x": 96}


def test_the_residual_chain_step_by_step_as_the_original():
    base = 0x1_0000_5000
    steps = list(trace(RESIDUAL, base, by_value=True))
    held = [(s.held, tuple(at - base for at in s.in_use)) for s in steps]
    assert decisions(steps, base) == [
        ("X", NEW, 0),
        ("A", NEW, 0x4000),
        ("B", NEW, 0x14000),
        ("C", REUSE, 0x4000),
        ("D", NEW, 0x24000),
        ("E", REUSE, 0x4000),
        ("R", SHARE, 0x4000),
        ("F", REUSE, 0),
    ]
    assert held == [
        (("X",), (0,)),
        (("A",), (0x4000,)),
        (("B",), (0x14000,)),
        (("B", "C"), (0x4000, 0x14000)),
        (("B", "D"), (0x14000, 0x24000)),
        (("E",), (0x4000,)),
        (("E", "R"), (0x4000,)),
        (("E", "F"), (0,)),  # E is lost: its last reader is the reshape
        (("E", "F"), (0,)),
    ]
    assert [s.source for s in steps] == [None, None, None, "A", None, "A", "E", "X", None]
    assert allocate(RESIDUAL, base, by_value=True).size == 0x34000


def test_the_residual_chain_by_storage_loses_nothing():
    by_value, by_storage = (list(trace(RESIDUAL, by_value=flag)) for flag in (True, False))
    assert decisions(by_value) == decisions(by_storage)
    assert by_storage[-2].held == ("F",)
    assert by_storage[-2].released == ("E", "R")
    assert allocate(RESIDUAL).size == 0x34000
    assert lower_bound(to_problem(RESIDUAL)) == 196608


def test_a_step_says_why_records_were_passed_over():
    steps = {step.op: step for step in trace(RESIDUAL)}
    assert steps["relu"].passed_over == (("X", Condition.SIZE), ("A", Condition.HOLD_EDGES))
    assert steps["conv3"].passed_over == (
        ("X", Condition.SIZE),
        ("A", Condition.IN_USING_ADDR),
        ("B", Condition.HOLD_EDGES),
        ("C", Condition.HOLD_EDGES),
    )
    assert steps["add"].references == {"E": 2}
    assert steps["return"].decision is Decision.NOTHING


@pytest.mark.parametrize("by_value", [False, True])
def test_neighbours_are_not_joined(by_value):
    steps = trace(CHAIN, 0x1000, by_value=by_value)
    offsets = [("a", 0), ("b", 0x4000), ("c", 0x8000), ("d", 0x10000)]
    assert decisions(steps, 0x1000) == [(name, NEW, at) for name, at in offsets]
    assert allocate(CHAIN, 0x1000, by_value=by_value).size == 98304
    assert solve(to_problem(CHAIN), "best").peak == 65536


def test_the_alias_hazard_is_the_originals_and_the_verifier_sees_it():
    problem = to_problem(HAZARD, MemoryScope("global", alignment=4096))
    original = allocate(HAZARD, by_value=True)
    assert original.offsets["C"] == original.offsets["A"] == 0
    (violation,) = verify(problem, plan_of(problem, original))
    assert (violation.kind, set(violation.buffers)) == ("overlap", {"A", "C"})
    with pytest.raises(OverwrittenError, match=r"oD finds .* in 'A'"):
        replay(HAZARD, original.offsets)

    ours = allocate(HAZARD)
    assert ours.offsets["C"] != ours.offsets["A"]
    check(problem, plan_of(problem, ours))
    assert replay(HAZARD, ours.offsets) > 0


# The rules


def test_what_dies_at_an_op_is_free_for_the_next_only():
    sequence = one_size(("op", "", "a"), ("op", "a", "b"), ("op", "b", "c"))
    assert decisions(trace(sequence, alignment=64)) == [
        ("a", NEW, 0),
        ("b", NEW, 64),
        ("c", REUSE, 0),
    ]


def test_a_second_result_does_not_take_an_operand_released_after_the_first():
    sequence = one_size(("op", "", "a"), ("op", "a", "bc"), ("op", "b", "d"))
    steps = list(trace(sequence, alignment=64))
    assert decisions(steps) == [("a", NEW, 0), ("b", NEW, 64), ("c", NEW, 128), ("d", REUSE, 0)]
    assert [step.released for step in steps] == [(), ("a",), (), ("b",)]
    assert steps[2].passed_over == (("a", Condition.OPERANDS), ("b", Condition.HOLD_EDGES))


def test_a_second_result_may_take_what_was_free_before():
    sequence = one_size(("op", "", "ab"), ("op", "ab", "c"), ("op", "c", "de"))
    assert decisions(trace(sequence, alignment=64))[3:] == [("d", REUSE, 0), ("e", REUSE, 64)]


def test_a_value_that_nobody_reads_is_kept():
    sequence = one_size(("op", "", "a"), ("op", "", "b"), ("op", "b", "c"), ("op", "c", "d"))
    for by_value in (False, True):
        steps = list(trace(sequence, alignment=64, by_value=by_value))
        assert decisions(steps)[-1] == ("d", REUSE, 64)
        assert steps[-1].held[0] == "a"


def test_an_operand_that_is_read_twice_counts_twice():
    sequence = one_size(("op", "", "a"), ("op", "aa", "b"), ("op", "b", "c"))
    steps = list(trace(sequence, alignment=64))
    assert steps[0].references == {"a": 2}
    assert steps[1].held == ("b",)
    assert decisions(steps)[-1] == ("c", REUSE, 0)


def test_the_first_record_is_taken_not_the_tightest_and_its_slot_is_remembered():
    sequence = OpSequence(
        (
            op("1", "op", "", [("a", 256), ("b", 64)]),
            op("2", "op", "ab", [("c", 64)]),
            op("3", "op", "c", [("d", 32)]),  # takes a's slot, though b's is large enough
            op("4", "op", "d", [("e", 64)]),
            op("5", "op", "e", [("f", 256)]),  # the slot is still as large as a
        )
    )
    for by_value in (False, True):
        steps = trace(sequence, alignment=32, by_value=by_value)
        assert decisions(steps)[2:] == [
            ("c", NEW, 320),
            ("d", REUSE, 0),
            ("e", REUSE, 256),
            ("f", REUSE, 0),
        ]


@pytest.mark.parametrize("kind", ["func", "none", "return", "weight", "call", "yield"])
def test_what_is_skipped_counts_down_and_no_more(kind):
    sequence = one_size(("op", "", "a"), (kind, "a", "w"), ("op", "w", "b"), ("op", "b", "c"))
    steps = list(trace(sequence, alignment=64))
    assert steps[1].references == {"a": 0}
    assert steps[1].held == ("a",)
    assert (steps[1].result, steps[1].offset) == (None, None)
    assert decisions(steps) == [("a", NEW, 0), ("b", NEW, 64), ("c", NEW, 128)]


def test_what_stands_in_a_group_shares_and_is_not_recorded():
    sequence = OpSequence(
        (
            op("input", "input", "", [("x", 64)]),
            op("load", "load", "x", [("t", 999)], nested=True),
            op("conv", "conv", "t", [("u", 999)], nested=True),
            op("yield", "yield", "u"),
            op("group", "group", "x", [("y", 64)]),
            op("relu", "relu", "y", [("z", 64)]),
        )
    )
    for by_value in (False, True):
        steps = list(trace(sequence, alignment=64, by_value=by_value))
        assert decisions(steps) == [
            ("x", NEW, 0),
            ("t", SHARE, 0),
            ("u", SHARE, 0),
            ("y", NEW, 64),
            ("z", REUSE, 0),
        ]
        assert steps[2].held == ("x",)
    assert [b.name for b in to_problem(sequence).buffers] == ["x", "y", "z"]


def test_a_reshape_of_what_has_no_address_has_none():
    sequence = OpSequence(
        (
            op("main", "func", "", [("x", 64)]),
            op("reshape", "reshape", "x", [("r", 64)]),
            op("conv", "conv", "r", [("y", 64)]),
        )
    )
    for by_value in (False, True):
        assert allocate(sequence, 4096, by_value=by_value).offsets == {"y": 4096}


def test_an_op_without_results_lets_go_of_what_it_reads():
    sequence = one_size(("op", "", "a"), ("store", "a", ""), ("op", "", "b"))
    assert decisions(trace(sequence, alignment=64))[-1] == ("b", REUSE, 0)
    # In the original, only placing a result releases.
    assert decisions(trace(sequence, alignment=64, by_value=True))[-1] == ("b", NEW, 64)


def test_an_empty_value_does_not_give_away_the_address_of_another():
    sequence = OpSequence(
        (
            op("1", "op", "", [("z", 0), ("a", 64)]),  # both at address 0
            op("2", "op", "a", [("b", 64)]),
            op("3", "op", "b", [("c", 64)]),
            op("4", "op", "z", [("d", 64)]),
            op("5", "op", "cd"),
        )
    )
    problem = to_problem(sequence, MemoryScope("global", alignment=64))
    check(problem, plan_of(problem, allocate(sequence, alignment=64)))


def test_offsets_count_from_the_base_and_are_aligned():
    sequence = OpSequence((op("1", "op", "", [("a", 1), ("b", 65), ("c", 64)]),))
    allocation = allocate(sequence, 128, 64)
    assert allocation.offsets == {"a": 128, "b": 192, "c": 320}
    assert (allocation.base, allocation.size) == (128, 256)


def test_a_storage_is_aligned_for_all_its_names():
    ops = (
        Op("1", "op", (), (Value("a", 4), Value("b", 8))),
        Op("2", "reshape", ("b",), (Value("wide", 8, 8),)),
    )
    assert allocate(OpSequence(ops), alignment=4).offsets == {"a": 0, "b": 8, "wide": 8}


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([op("f", "conv", "x")], "ops: op 'f' reads 'x', which no op before it makes"),
        ([op("f", "conv", "", [("x", 1)]), op("g", "conv", "", [("x", 1)])], "is made before"),
        ([op("f", "conv", "", [("x", -1)])], "op 'f': the size of 'x' must be an integer"),
        ([op("f", "conv", "", [("x", 1.5)])], "got 1.5"),
        ([op("f", "conv", "", [("x", 1, 0)])], "the alignment of 'x' must be an integer"),
        ([op("f", "reshape", "", [("x", 1)])], r"op 'f' \(reshape\) has no operand"),
        ([op("f", "reshape", "x", [("x", 1)])], "reads 'x', which no op before it makes"),
        (
            [op("f", "conv", "", [("x", 4)]), op("g", "reshape", "x", [("y", 5)])],
            "op 'g' gives 'x' of 4 bytes the name 'y' of 5 bytes, which are not there",
        ),
    ],
)
def test_impossible_graphs_are_refused(ops, message):
    with pytest.raises(ValueError, match=message):
        OpSequence(tuple(ops))


def test_impossible_regions_are_refused():
    with pytest.raises(ValueError, match=r"chain: the base 100 is not a multiple of .* 4096 bytes"):
        allocate(CHAIN, 100)
    with pytest.raises(ValueError, match="chain: the alignment must be a positive integer, got 0"):
        list(trace(CHAIN, alignment=0))
    with pytest.raises(ValueError, match="weights: the base must be an integer of at least 0"):
        place_weights((), -4096)


# Any graph


ALIGNMENTS = st.sampled_from([1, 2, 3, 4])
BASES = st.sampled_from([0, 12, 24])


@given(sequence=sequences(), base=BASES, alignment=ALIGNMENTS, by_value=st.booleans())
@settings(max_examples=200, deadline=None, print_blob=True)
@example(RESIDUAL, 12, 1, True)
def test_each_decision_is_that_of_the_table_scanned_from_the_front(
    sequence, base, alignment, by_value
):
    naive = NaiveTable(sequence, base, alignment, by_value).run()
    steps = list(trace(sequence, base, alignment, by_value=by_value))
    note("\n".join(map(str, steps)))
    allocation = allocate(sequence, base, alignment, by_value=by_value)
    placed = [(s.result, s.decision.value, s.source) for s in steps if s.result is not None]
    assert placed == naive.decisions
    assert allocation.offsets == naive.address
    assert allocation.size == naive.cursor - base
    assert steps[-1].held == tuple(naive.hold)
    assert steps[-1].in_use == tuple(sorted({at for at, _ in naive.owners}))


@given(sequence=sequences(), base=BASES, alignment=ALIGNMENTS)
@settings(max_examples=200, deadline=None, print_blob=True)
def test_no_operand_is_overwritten_before_it_is_read(sequence, base, alignment):
    allocation = allocate(sequence, base, alignment)
    note(str(allocation))
    replay(sequence, allocation.offsets)
    problem = to_problem(sequence, MemoryScope("global", alignment=1))
    assert verify(problem, plan_of(problem, allocation)) == ()


@pytest.mark.parametrize("planner", ["best", "first_fit", "rec_tbl"])
@given(sequence=sequences())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_any_planner_plans_a_graph(planner, sequence):
    plan = solve(to_problem(sequence), planner)
    root = sequence.storage_of
    replay(sequence, {name: plan.offsets[root[name]][0] for name in root})


def test_the_replay_sees_what_the_original_overwrites():
    broken = 0
    for seed in range(200):
        sequence = random_graph(random.Random(seed), 20)
        try:
            replay(sequence, allocate(sequence, alignment=1, by_value=True).offsets)
        except OverwrittenError:
            broken += 1
    assert broken > 10


def random_graph(rng, count):
    """Return a graph with skips and reshapes, its sizes between 1 and 64 bytes."""
    sizes, ops = {}, []
    for index in range(count):
        recent = list(sizes)[-8:]
        operands = tuple(rng.choices(recent, k=rng.randint(1, 2))) if recent else ()
        if operands and rng.random() < 0.2:
            results = (Value(f"v{len(sizes)}", sizes[operands[0]]),)
            ops.append(Op(f"op{index}", "reshape", operands[:1], results))
        else:
            many = rng.choice([1, 1, 1, 2])
            results = tuple(Value(f"v{len(sizes) + i}", rng.randint(1, 64)) for i in range(many))
            ops.append(Op(f"op{index}", "op", operands, results))
        sizes.update((value.name, value.size) for value in results)
    return OpSequence(tuple(ops))


# As a planner


@given(sequence=sequences(), alignment=st.sampled_from([1, 2, 4]))
@settings(max_examples=200, deadline=None, print_blob=True)
def test_the_planner_decides_as_the_strategy_does(sequence, alignment):
    allocation = allocate(sequence, 0, alignment)
    plan = solve(to_problem(sequence, MemoryScope("global", alignment=alignment)), "rec_tbl")
    note(f"{allocation} {plan}")
    for name, (offset,) in plan.offsets.items():
        assert offset == allocation.offsets[name]


@pytest.mark.parametrize("seed", range(5))
def test_both_ways_agree_on_larger_graphs(seed):
    sequence = random_graph(random.Random(seed), 400)
    naive = NaiveTable(sequence, 0, 8, False).run()
    assert allocate(sequence, 0, 8).offsets == naive.address
    plan = solve(to_problem(sequence, MemoryScope("global", alignment=8)), "rec_tbl")
    assert {name: naive.address[name] for name in plan.offsets} == {
        name: offset for name, (offset,) in plan.offsets.items()
    }


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


# The tree that finds the first


@given(st.data())
@settings(max_examples=200, deadline=None, print_blob=True)
def test_the_first_that_is_large_enough_is_found(data):
    count = data.draw(st.integers(1, 12))
    records, free = [], set(range(3))
    reusable = ReusableRecords(count)
    pending = data.draw(st.permutations(range(count)))
    for index in pending:
        address, size = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 4))
        records.append((index, address, size))
        reusable.add(index, address, size, address in free)
        flip = data.draw(st.integers(0, 2))
        if flip in free:
            free.remove(flip)
            reusable.take(flip)
        else:
            free.add(flip)
            reusable.free(flip)
        for need in range(6):
            fitting = [i for i, at, size in records if at in free and size >= need]
            assert reusable.first(need) == min(fitting, default=-1)


def test_the_search_goes_on_behind_a_record():
    reusable = ReusableRecords(5)
    for index, size in enumerate((4, 8, 2, 8, 1)):
        reusable.add(index, 64 * index, size, True)
    assert [reusable.first(3, start) for start in range(6)] == [0, 1, 3, 3, -1, -1]
    assert reusable.first(1, 4) == 4
    assert ReusableRecords(1).first(0) == -1


def test_the_state_can_be_read_between_ops():
    table = RecTbl(CHAIN, NewMemory(0, 4096))
    for one in CHAIN.ops[:2]:
        assert [placed.decision for placed in table.visit(one)] == [NEW]
    assert [record.value for record in table.rec_tbl] == ["a", "b"]
    assert list(table.hold_edges) == ["b"]
    assert table.references("b") == 1
