# SPDX-License-Identifier: Apache-2.0
"""What would make a problem fit: the remedy is judged by the verifier and by brute force."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_oracles import problems

from passes.planning import Buffer, Problem, overflow, solve, verify
from passes.planning.overflow import Remedy, does_not_fit, remedy
from target_hw.memory import MemoryScope


def memory(capacity: int, alignment: int = 1) -> MemoryScope:
    return MemoryScope("local.UB", capacity, alignment)


def undone(problem: Problem, found: Remedy) -> Problem:
    """Return the remedy's problem with the change that its text names taken back by hand."""
    changed, text = found.problem, found.text
    before = {b.name: b for b in problem.buffers}
    if text.startswith("the planner"):
        return changed
    if text.startswith("one slot"):
        named = [name for name in before if f"{name!r}" in text]
        assert named
        assert all(changed.buffers[changed.index[name]].slots == 1 for name in named)
        buffers = [replace(b, slots=before[b.name].slots) for b in changed.buffers]
    else:
        part = Fraction(
            re.fullmatch("smaller tiles, every buffer at most (.*) of its bytes", text)[1]
        )
        for old, new in zip(problem.buffers, changed.buffers, strict=True):
            assert new.size == (old.size if old.pinned else math.ceil(old.size * part))
        buffers = [replace(b, size=before[b.name].size) for b in changed.buffers]
    return replace(changed, buffers=tuple(buffers))


@given(problems(most_buffers=4), st.data())
@settings(deadline=None, max_examples=15)
def test_a_remedy_fits_and_changes_what_it_says_and_nothing_else(problem, data):
    # A byte less than it needs, or less than first fit does.
    peak = solve(problem, data.draw(st.sampled_from(["best", "first_fit"]))).peak
    taken = max((end for _, end in problem.memory.reserved), default=4)
    taken = max(taken, problem.memory.alignment)
    capacity = max(peak - data.draw(st.integers(1, 2)), taken)
    problem = replace(problem, memory=replace(problem.memory, capacity=capacity))
    found = remedy(problem)
    assert found == remedy(problem)
    if found is not None:
        assert found.plan.fits
        assert verify(found.problem, found.plan) == ()
        assert undone(problem, found) == problem


@pytest.mark.parametrize(
    ("sizes", "capacity", "text", "peak"),
    [
        ((40, 10), 60, "one slot of 'x' (2 of 40 bytes)", 60),
        ((20, 20, 20), 80, "one slot of 'x' (2 of 20 bytes) and of 'y' (2 of 20 bytes)", 80),
        ((20, 20, 20), 45, "smaller tiles, every buffer at most 5/16 of its bytes", 42),
    ],
)
def test_as_few_slots_as_it_takes_are_dropped(sizes, capacity, text, peak):
    buffers = [Buffer(n, size, ((0, 4),), slots=2) for n, size in zip("xyz", sizes, strict=False)]
    found = remedy(Problem(tuple(buffers), memory(capacity)))
    assert (found.text, found.plan.peak) == (text, peak)


def test_all_sizes_are_reduced_alike():
    problem = Problem(tuple(Buffer(name, 160, ((0, 4),)) for name in "abcd"), memory(480))
    found = remedy(problem)
    assert found.text == "smaller tiles, every buffer at most 3/4 of its bytes"
    assert {b.size for b in found.problem.buffers} == {120}


def test_a_planner_that_finds_what_another_missed_is_named():
    problem = Problem(
        (Buffer("a", 40, ((0, 2),)), Buffer("b", 40, ((2, 4),)), Buffer("c", 20, ((1, 3),))),
        memory(60),
    )
    assert not solve(problem, "bump").fits
    only = remedy(problem)
    assert only.text == "the planner 'first_fit', for this problem as it is"
    assert only.plan.peak == 60


def test_nothing_helps_a_buffer_that_is_alone_in_no_memory():
    assert remedy(Problem((Buffer("a", 4, ((0, 2),), pinned=(8,)),), memory(8))) is None


def test_nothing_is_tried_where_a_plan_takes_seconds(monkeypatch):
    buffers = tuple(Buffer(f"b{i:03}", 8, ((0, 1),)) for i in range(overflow.MOST_SHOWN + 1))
    problem = Problem(buffers, MemoryScope("local", 800))
    plan = solve(problem, "first_fit")
    said = does_not_fit(problem, plan)
    assert "b199: 8 bytes" in said
    assert "b200" not in said
    assert "and 1 more: 8 bytes" in said
    assert "smaller tiles" in said
    monkeypatch.setattr(overflow, "MOST_PLANNED", 100)
    said = does_not_fit(problem, plan)
    assert "smaller tiles" not in said
    assert said.endswith("no change is tried for more than 100 buffers")


def test_large_problems_are_asked_less():
    buffers = tuple(Buffer(f"b{at}", 64, ((at, at + 40),)) for at in range(3000))
    found = remedy(Problem(buffers, memory(2000)))
    assert found.plan.planner == "first_fit"
