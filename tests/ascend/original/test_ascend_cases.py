# SPDX-License-Identifier: Apache-2.0
"""The mirrored three-level planner on worked cases of AscendNPU-IR's PlanMemory."""

import re
from functools import cache

import pytest
from ascend_notation import SCOPES
from sweeps import sample
from test_worked_cases import AS_KERNELS, OURS, WORKED, chip, kernels, lowered

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.ascend.planning.mirror import ANY, CROSS_LOOP, TOP, WIDEN, bytes_apart, mirror
from passes.ascend.planning.mirror_entries import EntrySlot
from passes.ascend.planning.planner import entries_of, plan_levels
from passes.planning import Budget, Buffer, PipelineUse, Problem, Status, check, solve
from passes.planning.planner import BudgetTracker
from target_hw.memory import MemoryHierarchy, MemoryScope

UB = MemoryScope("local.UB", 196608, 32)
L0C = MemoryScope("local.L0C", 131072, 512)


@cache
def problems_of(name: str) -> tuple[Problem, ...]:
    """Return what the planner is told of the kernel of a worked case."""
    memory = MemoryHierarchy.from_target(chip(name))
    return read_kernel(lowered(kernels()[name])["main"], memory).problems


def problem_of(name: str) -> Problem:
    """Return the problem of the memory that a case is about."""
    scopes = {SCOPES[row.scope] for row in WORKED[name].buffers}
    (problem,) = (p for p in problems_of(name) if p.memory.name in scopes)
    return problem


@pytest.mark.parametrize("name", sample(AS_KERNELS, *AS_KERNELS[::3]))
def test_the_search_fits_what_the_original_fits_for_no_more(name: str):
    for problem in problems_of(name):
        first_fit = plan_levels(problem, search="mirror", strategy=WORKED[name].strategy)
        plan = plan_levels(problem)
        assert plan.fits or not first_fit.fits
        if plan.fits:
            check(problem, plan)
        if first_fit.fits:
            assert plan.penalty <= first_fit.penalty


@pytest.mark.parametrize("name", [name for name in AS_KERNELS if name not in OURS])
def test_bytes_apart_are_the_demand_that_the_original_says(name: str):
    demands = re.findall(r"(\w+) multi-level, level-3 demand (\d+)", WORKED[name].memory)
    found = {problem.memory.name: problem for problem in problems_of(name)}
    for scope, demand in demands:
        problem = found[SCOPES[scope]]
        apart = bytes_apart(problem, entries_of(problem), WORKED[name].strategy)
        assert 8 * apart == int(demand)


TRACES = {
    "test_mem_specalloc_max": [
        ("alloc", 0, TOP, 0),
        ("alloc_3", 0, TOP, 131072),
        ("alloc_2", 0, ANY, 0),
    ],
    "doubles_that_may_touch": [
        ("load", 0, TOP, 0),
        ("load", 1, TOP, 98304),
        ("store", 0, ANY, 0),
        ("store", 1, ANY, 98304),
    ],
    "test_mem_level1_single_buffer_reuse": [
        ("src1_ub", 0, TOP, 0),
        ("dst1_ub", 3, TOP, 172032),
        ("src2_ub", 0, WIDEN, 0),
    ],
    "equal_multi_buffers": [
        ("src2", 0, TOP, 163840),
        ("src2", 1, ANY, 0),
        ("dst2", 0, WIDEN, 81920),
        ("dst2", 3, WIDEN, 143360),
    ],
    "test_mem_level0_less_multi_buffers_reuse": [
        ("src2_ub", 0, TOP, 163840),
        ("src2_ub", 1, ANY, 0),
        ("dst2_ub", 0, WIDEN, 81920),
        ("dst2_ub", 1, WIDEN, 102400),
    ],
    "test_if_else": [
        ("alloc_1", 0, TOP, 46080),
        ("alloc_3", 0, TOP, 92160),
        ("alloc_4", 0, ANY, 46080),
        ("alloc_6", 0, ANY, 46080),
        ("alloc_5", 0, ANY, 46080),
    ],
    "two_loops_through_l0c": [
        ("a", 0, TOP, 0),
        ("d", 0, TOP, 98304),
        ("a", 1, CROSS_LOOP, 65536),
        ("b", 1, CROSS_LOOP, 98304),
        ("c", 1, CROSS_LOOP, 0),
        ("d", 1, CROSS_LOOP, 32768),
    ],
    "across_a_loop": [
        ("a", 0, TOP, 0),
        ("b", 0, TOP, 98304),
        ("c", 0, CROSS_LOOP, 0),
        ("d", 0, CROSS_LOOP, 98304),
    ],
    "back_twice": [
        ("store_ub", 0, ANY, 0),
        ("store_ub", 1, ANY, 57600),
        ("mid1", 0, ANY, 115200),
    ],
}


@pytest.mark.parametrize("name", TRACES)
def test_slots_are_placed_at_the_levels_of_the_original(name):
    problem = problem_of(name)
    entries = entries_of(problem)
    found = mirror(problem, entries, BudgetTracker(Budget()))
    numbers = {member.name: n for n, entry in enumerate(entries) for member in entry.members}
    for buffer, slot, level, offset in TRACES[name]:
        item = EntrySlot(numbers[buffer], slot)
        assert (found.levels[item], found.offsets[item]) == (level, offset), buffer


def test_a_result_of_level_one_says_so():
    problem = problem_of("test_mem_level1_single_buffer_reuse")
    plan = plan_levels(problem, search="mirror")
    assert len(plan.offsets["src2_ub"]) == 4
    assert [plan.reuse[n].level for n in ("src1_ub", "dst1_ub", "src2_ub", "dst2_ub")] == [
        2,
        2,
        1,
        1,
    ]
    assert plan.reuse["src2_ub"].reason == (
        "takes bytes of 'src1_ub', slot by slot, in the same loop on another pipeline; "
        "without such sharing first fit needs 221184 bytes"
    )


def test_sharing_across_loops_is_at_the_highest_level():
    problem = problem_of("across_a_loop")
    plan = plan_levels(problem, search="mirror")
    assert (plan.reuse["c"].level, plan.reuse["a"].reason) == (2, "")
    assert plan.reuse["c"].reason == "takes bytes of 'a', which is used outside of its loop"
    check(problem, plan)
    assert plan.offsets == {"a": (0,), "b": (98304,), "c": (0,), "d": (98304,)}


def buffer(name, size, first, last, slots=1, **use):
    return Buffer(name, size, ((first, last + 1),), slots=slots, use=PipelineUse(**use))


def test_no_address_is_beyond_the_memory():
    # The original gives C the bytes 0 and 147456: B's second slot is not placed yet when C takes
    # all slots of A, so its place is one of a trial without a capacity.
    use = {"dma": True, "loop": 1}
    problem = Problem(
        (
            buffer("A", 49152, 1, 2, 2, **use),
            buffer("B", 49152, 3, 4, 2, **use),
            buffer("C", 49152, 5, 6, **use),
        ),
        L0C,
    )
    plan = plan_levels(problem, search="mirror")
    check(problem, plan)
    assert plan.offsets == {"A": (0, 49152), "B": (49152, 0), "C": (0,)}
    assert plan.reuse["C"].level == 0


def test_a_value_that_two_branches_read_is_kept_for_both():
    # The original lets A die in the branch that it visits first, and C, loaded in the other before
    # A is read there, takes its place. With the whole life of A there is no room for that.
    use = {"dma": True}
    problem = Problem((buffer("A", 98304, 1, 8, **use), buffer("C", 98305, 6, 7, **use)), UB)
    plan = plan_levels(problem, search="mirror")
    assert plan.status is Status.INFEASIBLE
    fits = Problem((problem.buffers[0], buffer("C", 98304, 6, 7, **use)), UB)
    plan = plan_levels(fits, search="mirror")
    check(fits, plan)
    assert plan.offsets["A"] != plan.offsets["C"]


def test_largest_first_is_by_size_within_a_kind():
    # 64 and 96 bytes of transfers; the plain one fits between in neither order.
    memory = MemoryScope("local.UB", 160, 32)
    buffers = (
        buffer("small", 64, 1, 3, dma=True),
        buffer("plain", 96, 2, 3),
        buffer("large", 96, 4, 5, dma=True),
    )
    problem = Problem(buffers, memory)
    default = plan_levels(problem, search="mirror")
    largest = plan_levels(problem, search="mirror", strategy="largest-first")
    for plan in (default, largest):
        check(problem, plan)
    assert (default.offsets["small"], default.offsets["large"]) == ((0,), (64,))
    assert (largest.offsets["large"], largest.offsets["small"]) == ((0,), (96,))


def test_the_budget_ends_the_search():
    problem = problem_of("back_twice")
    meter = BudgetTracker(Budget(nodes=12))
    assert {*mirror(problem, entries_of(problem), meter).levels.values()} == {ANY}
    assert meter.used == 12
    # What is left is first fit without levels; here that is within the capacity.
    plan = solve(problem, "three_level_mirror", Budget(nodes=12))
    check(problem, plan)
    assert (plan.nodes, plan.reuse["store_ub"].level) == (12, 0)
