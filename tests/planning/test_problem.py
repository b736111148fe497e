# SPDX-License-Identifier: Apache-2.0
"""Problems: what is kept, and how each bad one is refused by name."""

from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import is_right, parts

from passes.planning import Buffer, Penalty, PipelineUse, Plan, Problem, Status, compressed
from target_hw.memory import MemoryScope

ONE, TWO = Buffer("one", 8, ((0, 2),)), Buffer("two", 8, ((1, 3),))


def test_live_ranges_are_kept_sorted_and_joined():
    assert Buffer("a", 1, ((4, 6), (0, 2), (2, 3))).live == ((0, 3), (4, 6))
    assert Buffer("a", 1, ([0, 2],)).live == ((0, 2),)


def test_the_memory_aligns_every_buffer():
    problem = Problem((Buffer("a", 1, ((0, 1),), alignment=3),), MemoryScope("local", alignment=4))
    assert problem.alignment_of(problem.buffers[0]) == 12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": -1}, "size must be an integer of at least 0"),
        ({"size": 1.0}, "size must be an integer"),
        ({"size": 1 << 62}, r"below 2\*\*62"),
        ({"alignment": 0}, "alignment must be an integer of at least 1"),
        ({"slots": 0}, "slots must be an integer of at least 1"),
        ({"live": ()}, "at least one live range"),
        ({"live": ((3, 3),)}, r"live range \[3, 3\) is empty"),
        ({"live": ((0, 3), (2, 4))}, r"live ranges \[0, 3\) and \[2, 4\) overlap"),
        ({"live": ((0.5, 3),)}, "must be two integers"),
        ({"live": ((0, 3.5),)}, "must be two integers"),
        ({"live": ((0, 1 << 62),)}, r"must be two integers within 2\*\*62"),
        ({"live": ((0, 1, 2),)}, "must be two integers"),
        ({"live": 5}, r"live ranges must be pairs \(begin, end\), got 5"),
        ({"live": (0, 3)}, r"live ranges must be pairs \(begin, end\), got \(0, 3\)"),
        ({"live": ("03",)}, r"live ranges must be pairs"),
        ({"slots": 2, "pinned": (0,)}, r"2 slots need 2 pinned offsets, got \(0,\)"),
        ({"pinned": 8}, "1 slots need 1 pinned offsets, got 8"),
        ({"pinned": (0.5,)}, "a pinned offset must be an integer from 0, got 0.5"),
        ({"pinned": (-4,)}, "a pinned offset must be an integer from 0, got -4"),
    ],
)
def test_bad_buffers_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message) as error:
        Buffer(**{"name": "acc", "size": 8, "live": ((0, 1),), **fields})
    assert "'acc'" in str(error.value)


def test_use_says_how_often():
    with pytest.raises(ValueError, match="runs must be an integer from 1, got 0"):
        PipelineUse(runs=0)


def pinned(name, offset, live=((0, 2),), size=8):
    return Buffer(name, size, live, pinned=(offset,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"buffers": (ONE, ONE)}, "two buffers are called 'one'"),
        ({"buffers": ("a",)}, "buffers must be of Buffer, got 'a'"),
        ({"buffers": ONE}, "buffers must be a tuple, got Buffer"),
        ({"in_place": ("one", "two")}, "in_place must be pairs of names, got 'one'"),
        ({"separations": (("one",),)}, r"separations must be pairs of names, got \('one',\)"),
        ({"buffers": (Buffer("a", 0, ((0, 1),), slots=1 << 31),)}, r"slots, above 2\*\*31"),
        ({"penalties": (("one", "two", 3),)}, "penalties must be of Penalty, got"),
        ({"memory": 1024}, "memory must be a MemoryScope, got 1024"),
        ({"in_place": (("one", "none"),)}, "in_place names an unknown buffer 'none'"),
        ({"separations": (("one", "one"),)}, "separations pairs buffer 'one' with itself"),
        ({"separations": (("one", "two"), ("two", "one"))}, "lists 'two' and 'one' twice"),
        ({"penalties": (Penalty("one", "two", 0),)}, "must be a positive integer, got 0"),
        ({"penalties": (Penalty("one", "two", 0.5),)}, "must be a positive integer, got 0.5"),
        ({"penalties": (Penalty("one", "two", 3, 1.5),)}, "an integer from 1 to 3, got 1.5"),
        (
            {"in_place": (("one", "two"),), "separations": (("two", "one"),)},
            "'one' and 'two' are both an in-place pair and separated",
        ),
        ({"penalties": (Penalty("one", "two", 3, 4),)}, "must be an integer from 1 to 3, got 4"),
        ({"buffers": (pinned("one", 4),)}, "pinned at 4, which is not a multiple of its alignment"),
        ({"buffers": (pinned("one", 32),)}, r"pinned at 32, inside the reserved range \[36, 40\)"),
        (
            {"buffers": (pinned("one", 0, size=16), pinned("two", 8))},
            "'one' and 'two' may not share bytes, but are pinned at 0 and 8",
        ),
        ({"buffers": (Buffer("one", 1 << 61, ((0, 1),), slots=2),)}, r"above 2\*\*62"),
        (
            {"buffers": (pinned("one", (1 << 62) - 8, size=1 << 61),)},
            r"up to \d+ bytes, above 2\*\*62",
        ),
    ],
)
def test_bad_problems_are_refused_by_name(fields, message):
    memory = MemoryScope("local.UB", alignment=8, reserved=((36, 40),))
    with pytest.raises(ValueError, match=message) as error:
        Problem(**{"buffers": (ONE, TWO), "memory": memory, "name": "main", **fields})
    assert str(error.value).startswith("main: ")


def test_pinned_buffers_may_share_what_they_need_not_keep_apart():
    later = pinned("two", 8, ((2, 3),))
    assert Problem((pinned("one", 0, size=16), later)).buffers[1] is later
    in_place = (("one", "two"),)
    with pytest.raises(ValueError, match="'one' and 'two' may not share bytes"):
        Problem((pinned("one", 0, size=16), later), separations=in_place)
    Problem((pinned("one", 8), pinned("two", 8)), in_place=in_place)
    Problem((pinned("one", 0), pinned("two", 4, size=0)))
    for at, related in ((8, ()), (12, in_place)):
        with pytest.raises(ValueError, match="may not share bytes"):
            Problem((pinned("one", 8), pinned("two", at)), in_place=related)


@given(st.integers(0, 1 << 32))
@settings(max_examples=100)
def test_pins_are_refused_where_no_plan_with_them_is_right(seed):
    buffers, related = parts(Random(seed), 3, roles="-iiis", pins=10)
    offsets = {buffer.name: buffer.pinned for buffer in buffers}
    free = Problem(tuple(replace(buffer, pinned=None) for buffer in buffers), **related)
    right = is_right(free, Plan(offsets, 0, 0, "by hand", Status.FEASIBLE))
    with nullcontext() if right else pytest.raises(ValueError, match="pinned at"):
        Problem(tuple(buffers), **related)


# Renumbered positions

RANGES = st.tuples(st.integers(-50, 50), st.integers(1, 20)).map(lambda r: (r[0], r[0] + r[1]))


def live_together(problem: Problem) -> set[tuple[str, str]]:
    return {
        (one.name, two.name)
        for one in problem.buffers
        for two in problem.buffers
        if any(max(a, c) < min(b, d) for a, b in one.live for c, d in two.live)
    }


@given(st.lists(RANGES, min_size=1, max_size=8))
@settings(max_examples=40, print_blob=True)
def test_the_same_buffers_are_live_together(ranges: list[tuple[int, int]]):
    problem = Problem(tuple(Buffer(f"b{i}", 1, (live,)) for i, live in enumerate(ranges)))
    small = compressed(problem)
    assert live_together(small) == live_together(problem)
    ends = sorted({at for b in small.buffers for live in b.live for at in live})
    assert ends == list(range(len(ends)))
    assert compressed(small) == small


def test_what_touches_in_one_statement_touches_at_one_position():
    problem = Problem((Buffer("a", 1, ((1, 7),)), Buffer("b", 1, ((5, 11), (20, 30)))))
    assert [b.live for b in compressed(problem).buffers] == [((0, 2),), ((1, 3), (4, 5))]
