# SPDX-License-Identifier: Apache-2.0
"""The lower bound against brute force, and cases worked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from planning_oracles import best_by_brute_force, problems, written

import passes.planning.bound as bound_module
from passes.planning import Buffer, Penalty, Problem, live_bytes, lower_bound, may_fit, solve
from target_hw.memory import MemoryScope


@given(problem=problems())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_nothing_is_below_the_bound(problem):
    best = best_by_brute_force(problem)
    if best is not None:
        assert best[1] >= lower_bound(problem)


def test_the_bound_of_a_problem_is_found_once(monkeypatch):
    most_live, found = bound_module._most_live, []
    monkeypatch.setattr(bound_module, "_most_live", lambda *of: found.append(of) or most_live(*of))
    problem = Problem(
        (Buffer("a", 5, ((0, 2),)), Buffer("b", 7, ((1, 3),)), Buffer("c", 9, ((2, 3),)))
    )
    for planner in ("best", "first_fit"):
        assert solve(problem, planner).peak == lower_bound(problem) == 16
    assert len(found) == 1


@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (written(""), 0),
        (written("a 5 0 2; b 7 1 3; c 9 2 3"), 16),
        # Slots live together.
        (written("a 5 0 2 slots=3"), 15),
        # All but the topmost are padded, and the best to be on top is the one with most padding.
        (written("a 33 0 2 align=32; b 1 0 2 align=32"), 65),
        # Three positions are full, and what is live in two of them is on top in one alone: then
        # "b" or "d", which have no padding, are on top of another.
        (
            written("a 33 0 2 align=32; b 64 0 1 align=32; c 33 1 3 align=32; d 64 2 3 align=32"),
            128,
        ),
        # Small alignments fit in the padding of large ones, which cannot be had for less.
        (written("a 33 0 1 align=32; b 33 0 1 align=32; c 1 0 1"), 97),
        # An in-place destination takes nothing while its source lives, and one of two sources goes.
        (written("a 8 0 2; b 8 1 3", in_place="ab"), 8),
        (written("a 8 0 2; b 8 0 2; c 12 1 3", in_place="ac bc"), 20),
        # Reserved ranges below push up, also for a single buffer that no gap below them holds.
        (written("a 8 0 1", MemoryScope("local", reserved=((0, 4),))), 12),
        (written("a 8 0 1", MemoryScope("local", reserved=((4, 5), (12, 16)))), 24),
        (written("a 8 0 1 pin=64"), 72),
        # Not live together, but separated: as if they were.
        (written("a 8 0 1; b 8 1 2", separations="ab"), 16),
        (written("a 8 0 1; b 8 1 2", penalties=[Penalty("a", "b", 1)]), 8),
    ],
)
def test_bounds_worked_by_hand(problem, bound):
    assert lower_bound(problem) == bound
    assert may_fit(problem)
    assert may_fit(replace(problem, memory=replace(problem.memory, capacity=bound + 1)))


def test_live_bytes_by_position():
    problem = written("a 5 0 2 slots=2; b 7 1 3")
    assert live_bytes(problem) == [(0, 10), (1, 17), (2, 7), (3, 0)]


def test_a_pair_that_can_never_be_in_place_saves_nothing():
    for other, bound in (("b 8 1 3", 24), ("b 8 1 3 slots=2 loop=1", 32), ("b 8 1 3 loop=0", 16)):
        problem = written(f"a 8 0 2 slots=2 loop=0; {other}", in_place="ab")
        assert lower_bound(problem) == bound
        assert len(problem.sharing.pairs) == (bound == 16)
