# SPDX-License-Identifier: Apache-2.0
"""The verifier against a byte-by-byte check, and each violation by name."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import is_right, problems, written

from passes.planning import (
    Buffer,
    Penalty,
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
        or tuple(
            data.draw(st.integers(0, 8)) * problem.alignment_of(buffer)
            for _ in range(data.draw(counts(buffer)))
        )
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
@settings(max_examples=25, deadline=None, print_blob=True)
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


COSTLY = written("a 8 0 4; c 8 6 8", penalties=[Penalty("a", "c", 5)])


@pytest.mark.parametrize(
    ("problem", "offsets", "peak", "kind", "names"),
    [
        (written("a 8 0 4; b 8 3 6"), {"a": (0,)}, 0, "unplaced", "b"),
        # As many offsets as buffers, but not one for each.
        (
            written("a 8 0 4; c 8 6 8 loop=0; b 8 3 6"),
            {"c": (0, 8), "b": (0,)},
            16,
            "unplaced",
            "a",
        ),
        (written("a 8 0 4"), {"a": (0,), "z": (0,)}, 0, "unknown", "z"),
        (written("a 8 0 4"), {"a": (0, 8)}, 16, "slots", "a"),
        (written("a 8 0 4 slots=2"), {"a": (0,)}, 8, "slots", "a"),
        (written("a 8 0 4 loop="), {"a": (0, 8)}, 16, "slots", "a"),
        (written("a 8 0 4"), {"a": (-8,)}, 0, "offset", "a"),
        (written("a 8 0 4"), {"a": 0}, 8, "offset", "a"),
        (written("a 8 0 4"), {"a": (0.0,)}, 8, "offset", "a"),
        (written("a 8 0 4 align=4"), {"a": (2,)}, 10, "misaligned", "a"),
        (written("a 8 0 4", MemoryScope("local", alignment=4)), {"a": (2,)}, 10, "misaligned", "a"),
        (written("a 8 0 4", 15), {"a": (8,)}, 16, "capacity", "a"),
        (
            written("a 8 0 4", MemoryScope("local", reserved=((7, 9),))),
            {"a": (0,)},
            8,
            "reserved",
            "a",
        ),
        (written("a 8 0 4 pin=8"), {"a": (0,)}, 8, "pinned", "a"),
        (written("a 8 0 4; b 8 3 6"), {"a": (0,), "b": (7,)}, 15, "overlap", "ab"),
        (written("a 8 0 4 slots=2"), {"a": (0, 4)}, 12, "overlap", "aa"),
        (
            written("a 8 0 4; b 8 3 6", in_place="ab"),
            {"a": (0,), "b": (4,)},
            12,
            "in place",
            "ab",
        ),
        (
            written("a 8 0 4; c 8 6 8", separations="ca"),
            {"a": (0,), "c": (7,)},
            15,
            "separated",
            "ca",
        ),
        (
            written("a 8 0 4 loop=3; c 8 6 8", separations="ac"),
            {"a": (0, 8), "c": (12,)},
            20,
            "separated",
            "ac",
        ),
        (
            written("a 8 0 4 slots=2; b 8 3 6 loop=0", in_place="ab"),
            {"a": (0, 8), "b": (0,)},
            16,
            "in place",
            "ab",
        ),
        (written("a 8 0 4 slots=2 loop=0"), {"a": (0, 8, 12)}, 20, "overlap", "aa"),
        (written("a 8 0 4 loop=0", 8), {"a": (0, 8)}, 16, "capacity", "a"),
        (written("a 8 0 4"), {"a": (0,)}, 9, "peak", ""),
        (COSTLY, {"a": (0,), "c": (0,)}, 8, "penalty", ""),
    ],
)
def test_each_violation_is_named(lives, problem, offsets, peak, kind, names):
    plan = plan_of(offsets, peak)
    (violation,) = verify(problem, plan)
    assert (violation.kind, violation.buffers) == (kind, tuple(names))
    assert all(repr(name) in violation.message for name in names)
    with pytest.raises(PlanError, match="plan of 'by hand' is wrong") as error:
        check(problem, plan)
    assert error.value.violations == (violation,)


def test_right_plans_pass(lives):
    in_place = written("a 8 0 4; b 8 3 6", in_place="ab")
    of_two_loops = written("a 8 0 4 loop=0; b 8 3 6 loop=1", in_place="ab")
    # A buffer of a loop may have more offsets than slots, and sharing costs less if slots match.
    pair = written("a 8 0 4 slots=2; b 8 3 6 loop=0", in_place="ab")
    costly = [Penalty("a", "c", 5, cost_if_slots_match=2)]
    matched = written("a 8 0 4 slots=2 loop=0; c 8 6 8 loop=0", penalties=costly)
    for problem, offsets, peak, penalty in (
        (in_place, {"a": (0,), "b": (0,)}, 8, 0),
        (in_place, {"a": (0,), "b": (8,)}, 16, 0),
        (of_two_loops, {"a": (0,), "b": (0,)}, 8, 0),
        (COSTLY, {"a": (0,), "c": (7,)}, 15, 5),
        (COSTLY, {"a": (0,), "c": (8,)}, 16, 0),
        (pair, {"a": (0, 8), "b": (0, 8)}, 16, 0),
        (pair, {"a": (0, 8), "b": (24, 16)}, 32, 0),
        (matched, {"a": (0, 8), "c": (0,)}, 16, 5),
        (matched, {"a": (0, 8), "c": (0, 8)}, 16, 2),
        (matched, {"a": (0, 8), "c": (8, 0)}, 16, 5),
        (matched, {"a": (0, 8), "c": (0, 16)}, 24, 2),
        (matched, {"a": (0, 8), "c": (16, 0)}, 24, 5),
    ):
        check(problem, plan_of(offsets, peak, penalty))


def test_a_pair_that_meets_twice_is_named_once_and_every_pair_up_to_the_limit(lives):
    lives_twice = ((0, 2), (4, 6))
    twice = Problem(tuple(Buffer(name, 8, lives_twice) for name in "ab"))
    (violation,) = verify(twice, plan_of({"a": (0,), "b": (4,)}, 12))
    assert violation.kind == "overlap"
    piled = Problem(tuple(Buffer(f"b{i}", 1, ((0, 1),)) for i in range(60)))
    plan = plan_of({f"b{i}": (0,) for i in range(60)}, 1)
    assert len(verify(piled, plan, limit=None)) == 60 * 59 // 2
    assert len(verify(piled, plan, limit=10)) == 10
