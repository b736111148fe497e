# SPDX-License-Identifier: Apache-2.0
"""The verifier against a byte-by-byte check, and each violation by name."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import is_right, problems

from passes.planning import (
    Buffer,
    Penalty,
    PipelineUse,
    Plan,
    PlanError,
    Problem,
    Status,
    check,
    solve,
    verify,
)
from passes.planning import violations as rules
from target_hw.memory import MemoryScope


@pytest.fixture(params=["few", "many"], scope="module")
def lives(request):
    """Lives as they are held against each other where they are few, and where they are many."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "many":
            patch.setattr(rules, "FEW_LIVES", 0)
            patch.setattr(rules, "LEAF", 2)
            patch.setattr(rules, "LIVES_AT_ONCE", 7)
            patch.setattr(rules, "PAIRS_AT_ONCE", 3)
        yield


def plan_of(offsets, peak=0, penalty=0):
    return Plan(offsets, peak, penalty, "by hand", Status.FEASIBLE)


@given(problem=problems(), data=st.data())
@settings(max_examples=60, deadline=None, print_blob=True)
def test_any_placement_is_judged_as_byte_by_byte(lives, problem, data):
    offsets = {
        buffer.name: buffer.pinned
        or tuple(data.draw(st.integers(0, 8)) for _ in range(data.draw(counts(buffer))))
        for buffer in problem.buffers
    }
    found = {v.kind for v in verify(problem, plan_of(offsets))} - {"peak", "penalty"}
    assert (not found) == is_right(problem, plan_of(offsets))


@given(problem=problems(), data=st.data())
@settings(max_examples=30, deadline=None, print_blob=True)
def test_a_right_plan_with_one_block_moved_is_judged_as_byte_by_byte(lives, problem, data):
    plan = solve(problem, "first_fit")
    buffer = data.draw(st.sampled_from(problem.buffers))
    moved = list(plan.offsets[buffer.name])
    moved[data.draw(st.integers(0, len(moved) - 1))] += data.draw(st.integers(-4, 4))
    moved = [max(0, offset) for offset in moved]
    changed = replace(plan, offsets={**plan.offsets, buffer.name: tuple(moved)})
    found = {v.kind for v in verify(problem, changed)} - {"peak", "penalty"}
    assert (not found) == is_right(problem, changed)


@given(seed=st.integers(0, 1 << 32))
@settings(deadline=None, print_blob=True)
def test_every_pair_that_overlaps_is_found(lives, seed):
    rng = random.Random(seed)
    # Offset, size, begin and life: mostly apart, some thirty live at once, and some of no bytes.
    ranges = ((1, 400), (0, 8), (1, 60), (1, 20))
    rows = [tuple(rng.randint(*each) for each in ranges) for _ in range(150)]
    buffers = [
        Buffer(str(i), size, ((begin, begin + life),))
        for i, (_, size, begin, life) in enumerate(rows)
    ]
    offsets = {str(i): (offset,) for i, (offset, *_) in enumerate(rows)}
    expected = {
        frozenset((str(i), str(j)))
        for (i, (a, m, p, s)), (j, (b, n, q, t)) in combinations(enumerate(rows), 2)
        if max(a, b) < min(a + m, b + n) and p < q + t and q < p + s
    }
    found = verify(Problem(tuple(buffers)), plan_of(offsets), limit=None)
    assert {frozenset(v.buffers) for v in found if v.kind == "overlap"} == expected


def counts(buffer):
    return st.sampled_from([buffer.slots] * 4 + [buffer.slots + 1])


LOOP = PipelineUse(loop=0)
A = Buffer("a", 8, ((0, 4),))
B = Buffer("b", 8, ((3, 6),))
C = Buffer("c", 8, ((6, 8),))


@pytest.mark.parametrize(
    ("problem", "plan", "kind", "names"),
    [
        (Problem((A, B)), plan_of({"a": (0,)}), "unplaced", ("b",)),
        # As many offsets as buffers, but not one for each.
        (
            Problem((A, replace(C, use=LOOP), B)),
            plan_of({"c": (0, 8), "b": (0,)}, 16),
            "unplaced",
            ("a",),
        ),
        (Problem((A,)), plan_of({"a": (0,), "z": (0,)}), "unknown", ("z",)),
        (Problem((A,)), plan_of({"a": (0, 8)}, 16), "slots", ("a",)),
        (Problem((replace(A, slots=2),)), plan_of({"a": (0,)}, 8), "slots", ("a",)),
        (
            Problem((replace(A, use=PipelineUse()),)),
            plan_of({"a": (0, 8)}, 16),
            "slots",
            ("a",),
        ),
        (Problem((A,)), plan_of({"a": (-8,)}), "offset", ("a",)),
        (Problem((A,)), Plan({"a": 0}, 8, 0, "by hand", Status.FEASIBLE), "offset", ("a",)),
        (Problem((A,)), Plan({"a": (0.0,)}, 8, 0, "by hand", Status.FEASIBLE), "offset", ("a",)),
        (
            Problem((replace(A, alignment=4),)),
            plan_of({"a": (2,)}, 10),
            "misaligned",
            ("a",),
        ),
        (
            Problem((A,), MemoryScope("local", alignment=4)),
            plan_of({"a": (2,)}, 10),
            "misaligned",
            ("a",),
        ),
        (Problem((A,), MemoryScope("local", 15)), plan_of({"a": (8,)}, 16), "capacity", ("a",)),
        (
            Problem((A,), MemoryScope("local", reserved=((7, 9),))),
            plan_of({"a": (0,)}, 8),
            "reserved",
            ("a",),
        ),
        (Problem((replace(A, pinned=(8,)),)), plan_of({"a": (0,)}, 8), "pinned", ("a",)),
        (Problem((A, B)), plan_of({"a": (0,), "b": (7,)}, 15), "overlap", ("a", "b")),
        (
            Problem((replace(A, slots=2),)),
            plan_of({"a": (0, 4)}, 12),
            "overlap",
            ("a", "a"),
        ),
        (
            Problem((A, B), in_place=(("a", "b"),)),
            plan_of({"a": (0,), "b": (4,)}, 12),
            "in place",
            ("a", "b"),
        ),
        (
            Problem((A, C), separations=(("c", "a"),)),
            plan_of({"a": (0,), "c": (7,)}, 15),
            "separated",
            ("c", "a"),
        ),
        (
            Problem((replace(A, use=PipelineUse(loop=3)), C), separations=(("a", "c"),)),
            plan_of({"a": (0, 8), "c": (12,)}, 20),
            "separated",
            ("a", "c"),
        ),
        (
            Problem((replace(A, slots=2), replace(B, use=LOOP)), in_place=(("a", "b"),)),
            plan_of({"a": (0, 8), "b": (0,)}, 16),
            "in place",
            ("a", "b"),
        ),
        (
            Problem((replace(A, slots=2, use=LOOP),)),
            plan_of({"a": (0, 8, 12)}, 20),
            "overlap",
            ("a", "a"),
        ),
        (
            Problem((replace(A, use=LOOP),), MemoryScope("local", 8)),
            plan_of({"a": (0, 8)}, 16),
            "capacity",
            ("a",),
        ),
        (Problem((A,)), plan_of({"a": (0,)}, 9), "peak", ()),
        (
            Problem((A, C), penalties=(Penalty("a", "c", 5),)),
            plan_of({"a": (0,), "c": (0,)}, 8),
            "penalty",
            (),
        ),
    ],
)
def test_each_violation_is_named(lives, problem, plan, kind, names):
    (violation,) = verify(problem, plan)
    assert (violation.kind, violation.buffers) == (kind, names)
    assert all(repr(name) in violation.message for name in names)
    with pytest.raises(PlanError, match="plan of 'by hand' is wrong") as error:
        check(problem, plan)
    assert error.value.violations == (violation,)


def test_right_plans_pass(lives):
    in_place = Problem((A, B), in_place=(("a", "b"),))
    check(in_place, plan_of({"a": (0,), "b": (0,)}, 8))
    check(in_place, plan_of({"a": (0,), "b": (8,)}, 16))
    costly = Problem((A, C), penalties=(Penalty("a", "c", 5),))
    check(costly, plan_of({"a": (0,), "c": (7,)}, 15, penalty=5))
    check(costly, plan_of({"a": (0,), "c": (8,)}, 16))
    of_two_loops = (replace(A, use=LOOP), replace(B, use=PipelineUse(loop=1)))
    check(Problem(of_two_loops, in_place=(("a", "b"),)), plan_of({"a": (0,), "b": (0,)}, 8))


def test_a_buffer_of_a_loop_may_have_more_offsets_than_slots():
    double, single = replace(A, slots=2), replace(B, use=LOOP)
    pair = Problem((double, single), in_place=(("a", "b"),))
    check(pair, plan_of({"a": (0, 8), "b": (0, 8)}, 16))
    check(pair, plan_of({"a": (0, 8), "b": (24, 16)}, 32))


def test_sharing_costs_less_if_slots_match():
    double, single = replace(A, slots=2, use=LOOP), replace(C, use=LOOP)
    problem = Problem((double, single), penalties=(Penalty("a", "c", 5, cost_if_slots_match=2),))
    for offsets, cost in (((0,), 5), ((0, 8), 2), ((8, 0), 5), ((0, 16), 2), ((16, 0), 5)):
        peak = max(16, *(offset + 8 for offset in offsets))
        check(problem, plan_of({"a": (0, 8), "c": offsets}, peak, cost))


def test_a_pair_that_meets_twice_is_named_once_and_every_pair_up_to_the_limit(lives):
    twice = Problem(tuple(replace(b, live=((0, 2), (4, 6))) for b in (A, B)))
    (violation,) = verify(twice, plan_of({"a": (0,), "b": (4,)}, 12))
    assert violation.kind == "overlap"
    piled = Problem(tuple(Buffer(f"b{i}", 1, ((0, 1),)) for i in range(60)))
    plan = plan_of({f"b{i}": (0,) for i in range(60)}, 1)
    assert len(verify(piled, plan, limit=None)) == 60 * 59 // 2
    assert len(verify(piled, plan, limit=10)) == 10
