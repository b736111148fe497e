# SPDX-License-Identifier: Apache-2.0
"""The lower bound against brute force, and cases worked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from planning_oracles import best_by_brute_force, problems

from passes.planning import Buffer, Penalty, PipelineUse, Problem, live_bytes, lower_bound, may_fit
from target_hw.memory import MemoryScope


@given(problem=problems())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_nothing_is_below_the_bound(problem):
    best = best_by_brute_force(problem)
    if best is not None:
        assert best[1] >= lower_bound(problem)


def live(size, begin, end, name, alignment=1, slots=1, pinned=None):
    return Buffer(name, size, ((begin, end),), alignment, slots, pinned)


@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (Problem(()), 0),
        (Problem((live(5, 0, 2, "a"), live(7, 1, 3, "b"), live(9, 2, 3, "c"))), 16),
        # Slots live together.
        (Problem((live(5, 0, 2, "a", slots=3),)), 15),
        # All but the topmost are padded, and the best to be on top is the one with most padding.
        (Problem((live(33, 0, 2, "a", 32), live(1, 0, 2, "b", 32))), 65),
        # Three positions are full, and what is live in two of them is on top in one alone: then
        # "b" or "d", which have no padding, are on top of another.
        (
            Problem(
                (
                    live(33, 0, 2, "a", 32),
                    live(64, 0, 1, "b", 32),
                    live(33, 1, 3, "c", 32),
                    live(64, 2, 3, "d", 32),
                )
            ),
            128,
        ),
        # Small alignments fit in the padding of large ones, which cannot be had for less.
        (Problem((live(33, 0, 1, "a", 32), live(33, 0, 1, "b", 32), live(1, 0, 1, "c"))), 97),
        # An in-place destination takes nothing while its source lives, and one of two sources goes.
        (Problem((live(8, 0, 2, "a"), live(8, 1, 3, "b")), in_place=(("a", "b"),)), 8),
        (
            Problem(
                (live(8, 0, 2, "a"), live(8, 0, 2, "b"), live(12, 1, 3, "c")),
                in_place=(("a", "c"), ("b", "c")),
            ),
            20,
        ),
        # Reserved ranges below push up, also for a single buffer that no gap below them holds.
        (Problem((live(8, 0, 1, "a"),), MemoryScope("local", reserved=((0, 4),))), 12),
        (Problem((live(8, 0, 1, "a"),), MemoryScope("local", reserved=((4, 5), (12, 16)))), 24),
        (Problem((live(8, 0, 1, "a", pinned=(64,)),)), 72),
        # Not live together, but separated: as if they were.
        (
            Problem((live(8, 0, 1, "a"), live(8, 1, 2, "b")), separations=(("a", "b"),)),
            16,
        ),
        (
            Problem((live(8, 0, 1, "a"), live(8, 1, 2, "b")), penalties=(Penalty("a", "b", 1),)),
            8,
        ),
    ],
)
def test_bounds_worked_by_hand(problem, bound):
    assert lower_bound(problem) == bound
    assert may_fit(problem)
    assert may_fit(replace(problem, memory=replace(problem.memory, capacity=bound + 1)))


def test_live_bytes_by_position():
    problem = Problem((live(5, 0, 2, "a", slots=2), live(7, 1, 3, "b")))
    assert live_bytes(problem) == [(0, 10), (1, 17), (2, 7), (3, 0)]


def test_a_pair_that_can_never_be_in_place_saves_nothing():
    double = Buffer("double", 8, ((0, 2),), slots=2, use=PipelineUse(loop=0))
    fixed = Buffer("fixed", 8, ((1, 3),))
    elsewhere = Buffer("elsewhere", 8, ((1, 3),), slots=2, use=PipelineUse(loop=1))
    rotates = Buffer("rotates", 8, ((1, 3),), use=PipelineUse(loop=0))
    for other, bound in ((fixed, 24), (elsewhere, 32), (rotates, 16)):
        problem = Problem((double, other), in_place=(("double", other.name),))
        assert lower_bound(problem) == bound
        assert len(problem.sharing.pairs) == (other is rotates)
