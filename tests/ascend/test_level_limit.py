# SPDX-License-Identifier: Apache-2.0
"""Plans limited to a reuse level: they are right, and nothing in them falls below it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from level_limit import LEVELS, plan_at_level

from passes.ascend.planning.levels import reuse_of, with_level_penalties
from passes.planning import Budget, Buffer, PipelineUse, Problem, Status, verify
from target_hw import MemoryScope

BUDGET = Budget(nodes=2_000)


@st.composite
def kernels(draw):
    """Return a problem as a kernel's: uses, slots, and the penalties of the levels."""
    buffers = []
    for i in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, 8))
        use = PipelineUse(
            dma=draw(st.booleans()),
            scalar=draw(st.integers(0, 4)) == 0,
            loop=draw(st.sampled_from((None, 0, 0, 0, 1))),
            runs=draw(st.integers(1, 9)),
        )
        slots = draw(st.integers(1, 2)) if use.loop is not None else 1
        live = ((begin, begin + draw(st.integers(1, 4))),)
        buffers.append(Buffer(f"b{i}", draw(st.integers(1, 6)), live, slots=slots, use=use))
    capacity = draw(st.integers(6, 40))
    return with_level_penalties(Problem(tuple(buffers), MemoryScope("local.UB", capacity)))


@pytest.mark.parametrize("lowest", LEVELS)
@given(problem=kernels())
@settings(max_examples=12)
def test_nothing_falls_below_the_level_and_the_plan_is_right(lowest, problem):
    plan = plan_at_level(problem, lowest, BUDGET)
    note(repr(plan))
    wrong = [v for v in verify(problem, plan) if v.kind != "capacity"]
    assert wrong == []
    if plan.fits:
        assert plan.peak <= problem.capacity
        reuse = reuse_of(problem, plan.offsets, cross_loop=False)
        assert min(entry.level for entry in reuse.values()) >= lowest
        assert plan.penalty == 0 or lowest < 2


@given(problem=kernels())
@settings(max_examples=12)
def test_a_lower_level_fits_where_a_higher_one_does(problem):
    fits = [plan_at_level(problem, lowest, Budget(nodes=20_000)).fits for lowest in LEVELS]
    assert fits == sorted(fits)


def two_in_one_loop(slots, capacity):
    use = PipelineUse(dma=True, loop=0, runs=4), PipelineUse(loop=0, runs=4)
    return with_level_penalties(
        Problem(
            (
                Buffer("loaded", 8, ((0, 2),), slots=slots, use=use[0]),
                Buffer("computed", 8, ((2, 4),), use=use[1]),
            ),
            MemoryScope("local.UB", capacity),
        )
    )


def test_what_each_level_does_with_a_load_and_a_scratch_buffer():
    problem = two_in_one_loop(slots=2, capacity=16)
    assert plan_at_level(problem, 2).status is Status.INFEASIBLE
    in_step = plan_at_level(problem, 1)
    assert in_step.offsets["computed"] == in_step.offsets["loaded"]
    assert in_step.penalty == 4
    roomy = replace(problem, memory=replace(problem.memory, capacity=24))
    assert plan_at_level(roomy, 2).penalty == plan_at_level(roomy, 1).penalty == 0
    assert plan_at_level(roomy, 0).peak == 16


def test_level_1_has_nothing_to_offer_where_nothing_is_multi_buffered():
    problem = two_in_one_loop(slots=1, capacity=8)
    assert not plan_at_level(problem, 1).fits
    assert plan_at_level(problem, 0).fits


def test_there_are_three_levels():
    with pytest.raises(ValueError, match="problem: there are levels 2, 1 and 0, got 3"):
        plan_at_level(two_in_one_loop(1, 8), 3)
