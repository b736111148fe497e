# SPDX-License-Identifier: Apache-2.0
"""What a memory map says of a plan, held against a walk over every position and byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from planning_oracles import problems

import tvm_ext
from passes.planning import Buffer, Problem, solve
from passes.planning.overflow import does_not_fit
from target_hw.memory import MemoryScope
from tvm_ext.report import Axis, LeftAlone, MemoryView, PlannedProblem, Report


def live_at(problem, position):
    return [b for b in problem.buffers if any(a <= position < z for a, z in b.live)]


@given(problems(most_buffers=6))
@settings(deadline=None, max_examples=40)
def test_the_peak_is_where_the_plan_is_highest(problem):
    plan = solve(problem, "best")
    peak = PlannedProblem("best", problem, plan).peak()

    def reaches(position):
        return any(
            max(plan.offsets[b.name]) + b.size == plan.peak for b in live_at(problem, position)
        )

    def nbytes(position):
        spans = [(b, o) for b in live_at(problem, position) for o in plan.offsets[b.name]]
        return len({byte for b, o in spans for byte in range(o, o + b.size)})

    positions = range(0, 9)
    used = {p: nbytes(p) for p in positions}
    most = max(used[p] for p in positions if reaches(p))
    assert peak.places[0] == min(p for p in positions if reaches(p) and used[p] == most)
    tied = [p for p in positions if reaches(p) and used[p] == most]
    assert set(peak.places) <= set(tied)
    for p in tied:  # Where it is no place of its own, no bytes have changed since the last one.
        last = max(q for q in peak.places if q <= p)
        filled = [[b for b in live_at(problem, q) if b.size] for q in range(last, p + 1)]
        assert all(one == filled[0] for one in filled)
    others = max((used[p] for p in positions if p not in tied), default=0)
    assert (peak.below or (0,))[0] == others
    live = live_at(problem, peak.places[0])
    assert sorted(peak.live) == sorted(b.name for b in live)
    sizes = [problem.buffers[problem.index[n]].size * len(plan.offsets[n]) for n in peak.live]
    assert sizes == sorted(sizes, reverse=True)
    assert peak.occupied == most


def test_a_span_stays_within_the_listing():
    listing = Axis(("a", "b", "c"), (1, 1, 2), "f")
    assert listing.span(0, 2) == (1, 1)
    assert listing.span(1, 3) == (1, 2)
    assert listing.span(0, 99) == (1, 2)


def test_nothing_to_show_is_an_error_that_says_what_is_left():
    left = [LeftAlone("main", name, "too odd") for name in map(str, range(100))]
    for some, of in (
        (left[:1], r"1 buffer of main \('0'\): too odd"),
        (left, "100 buffers of main,"),
    ):
        with pytest.raises(
            ValueError, match=f"^f: there is no buffer to plan; not planned, {of}"
        ) as error:
            Report("f", left=tuple(some)).page()
        assert len(str(error.value)) < 100


def test_a_reason_that_several_buffers_have_is_said_of_each():
    reason = "its size rests on n, and no upper bound of it is known"
    left = [LeftAlone("f", name, reason, scope="local.UB") for name in "ab"]
    one = Report("k", left=tuple(left[:1])).lines()
    assert one == [f"not planned, 1 buffer in local.UB of f ('a'): {reason}"]
    two = Report("k", left=tuple(left)).lines()
    assert two == [f"not planned, 2 buffers in local.UB of f ('a', 'b'), each because {reason}"]


def test_the_planner_that_was_asked_is_named_first():
    problem = Problem((Buffer("a", 4, ((0, 2),)),), MemoryScope("global"))
    plan = solve(problem, "best")
    assert PlannedProblem(plan.planner, problem, plan).label == plan.planner
    assert PlannedProblem("own", problem, plan).label == f"own ({plan.planner})"
    shown = Report("t", (MemoryView("t", (PlannedProblem("best", problem, plan),)),))
    assert shown.planners == ("best",)


def test_scopes_and_functions_can_be_chosen_by_name():
    shown = tvm_ext.memory_map("ascend:matmul:reuse", scopes=("local.L0A", "local.L1"))
    assert {scope.scope for scope in shown.memories} == {"local.L0A", "local.L1"}
    with pytest.raises(ValueError, match=r"no scope 'local\.UB' to show; there are: .*local\.L0A"):
        tvm_ext.memory_map("ascend:matmul:reuse", scopes=("local.UB",))
    with pytest.raises(ValueError, match="no function 'matmull' to show; there are: matmul"):
        tvm_ext.memory_map("ascend:matmul:reuse", functions=("matmull",))


def test_what_does_not_fit_is_explained_beside_the_lines():
    (scope,) = tvm_ext.memory_map("ascend:vector_add:overflow").memories
    text = scope.explain(scope.plans[0])
    assert text.splitlines()[0].endswith("and has 196608")
    assert "most is live at line 17 (for i in range" in text
    assert "it fits with one slot of 'x_ub'" in text
    (fits,) = tvm_ext.memory_map("ascend:vector_add:fits").memories
    assert fits.explain(fits.plans[0]) == ""


def test_a_message_says_how_many_places_are_as_full():
    lives = [((0, 1),), ((1, 2),), ((2, 3),), ((3, 4),)]
    sizes = [96, 64, 96, 96]
    buffers = tuple(Buffer(f"b{at}", sizes[at], live) for at, live in enumerate(lives))
    problem = Problem(buffers, MemoryScope("global", 80), name="tied")
    plan = solve(problem, "best")
    text = does_not_fit(problem, plan)
    assert "most is live at position 0, 96 bytes" in text
    assert "as much is live at 2 other places: to need less, each has to hold less" in text
    assert PlannedProblem("best", problem, plan).peak().places == (0, 2, 3)
    alone = Problem(buffers[:2], MemoryScope("global", 80), name="alone")
    assert "other place" not in does_not_fit(alone, solve(alone, "best"))
