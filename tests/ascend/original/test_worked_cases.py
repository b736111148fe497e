# SPDX-License-Identifier: Apache-2.0
"""`AscendPlanMemory` on worked cases of AscendNPU-IR: the original's addresses are expected."""

from __future__ import annotations

import logging
import re
from collections import Counter
from functools import cache

import address_runs
import numpy as np
import pytest
import tvm
from ascend_notation import CASES, SCOPES, Case
from case_kernels import MANY, kernel_of
from sweeps import sample
from tvm import tirx
from tvm.target import Target

from passes.ascend.analysis.kernel_problems import read_kernel
from passes.ascend.planning.mirror import ANY, TOP, mirror
from passes.ascend.planning.mirror_entries import EntrySlot
from passes.ascend.planning.planner import entries_of, plan_levels
from passes.planning import Budget, Buffer, PipelineUse, Problem, Status, check, solve
from passes.planning.planner import BudgetTracker
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import WORKSPACE_BYTES, AscendPlanMemory

_NAMES = Counter(case.name for case in CASES)
WORKED: dict[str, Case] = {
    case.name if _NAMES[case.name] == 1 else f"{case.name}_{case.number}": case for case in CASES
}

ELSEWHERE = {"left"}
"""Buffers of kernels that their cases do not have: operands of products."""

CARRIED = {"test_plan_memory_for_result": {"3"}, "test_dowhile_yield_inplace": {"alloc_3"}}
"""Buffers that a loop's next iteration has as others; in a kernel they are these."""

OURS = {
    # Two operands are equally good. A shuffle takes the second there; here it is the first.
    "test_plan_memory_expand_shape": {"alloc5": (0,)},
    # There, a cast that narrows may be in place with one dimension only. Here the order in which
    # the elements are written decides.
    "vcast_inplace_2d_large_to_small_invalid": {"vcast_res_ub": (0,)},
    # Nobody reads the result. There it is taken for its own partner, and has no other.
    "test_if_else": {"alloc_5": (46080,)},
    # There, what a loop carries is as late in the order as the buffer that it gets last.
    "test_dowhile_yield_inplace": {
        "alloc": (0,),
        "alloc_0": (64,),
        "alloc_1": (128,),
        "alloc_2": (128,),
    },
}
"""Addresses that are not those of the original, on purpose."""

_STRIDES = "a buffer with strides has the bytes between its elements, which do not count there"
_FUNCTION = "there is no call of a vector function, whose body says what it may write over"
_COUPLED = "a buffer that the other core has at the same address is refused"

UNWRITTEN = {
    "vcast_inplace_1d_s2l_stride2_invalid": _STRIDES,
    "vcast_inplace_1d_l2s_stride2_invalid": _STRIDES,
    "test_plan_memory_select": "no value selects between buffers",
    "test_multi_buffer_not_on_alloc": "slots are asked for at the allocation, not at a view",
    "test_vmul_dyn_same_shape_inplace": "a broadcast between extents that are not known",
    "test_vmul_one_dyn_same_2d_shape_inplace_one": "views whose extents are not known",
    "test_branchop_inplace": "there are no branches but `if`, and no buffers as block arguments",
    "test_vsel_i64_no_reuse": "an element of a mask has a byte, not a bit",
    "test_dead_after_op_nested_if_in_for": "an `if` has no result that is a buffer",
    "test_tightly_coupled_buffer_in_AIC_83": _COUPLED,
    "test_tightly_coupled_buffer_in_AIC_99": _COUPLED,
    "test_unique_memory_for_CV_tightly_coupled_buffer": _COUPLED,
    "plan_memory_vf_best_inplace_pair": _FUNCTION,
    "plan_memory_vf_no_inplace_reuse_widening_0": _FUNCTION,
    "plan_memory_vf_read_write_diff_blocks_0": _FUNCTION,
    "not_inplace_reuse_when_reach_load_and_store_0": _FUNCTION,
    "kernel_two_kill": _FUNCTION,
    "test_no_reachable_check": _FUNCTION,
}
"""Cases that are no kernels, and why TIR cannot say them."""


AS_KERNELS = [name for name in WORKED if name not in UNWRITTEN]


@cache
def kernels() -> dict[str, tirx.PrimFunc]:
    """Return the kernels by the names of their cases; to parse them takes a second."""
    import worked_kernels

    made = {name: kernel_of(case) for name, case in WORKED.items() if name not in UNWRITTEN}
    found = made | worked_kernels.KERNELS
    return {name: kernel for name, kernel in found.items() if kernel is not None}


@cache
def lowered(func: tirx.PrimFunc) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    return lowering.capture(tvm.IRModule({"main": func}), "ascend/910b-llvm")


def planned(func: tirx.PrimFunc, target: Target | str, **options: str) -> tvm.IRModule:
    """Lower a function, and plan as the original does."""
    return AscendPlanMemory(search="mirror", target=target, **options)(lowered(func))


def addresses(mod: tvm.IRModule) -> dict[str, tuple[int, ...]]:
    """Return the addresses in bytes, one a slot, by the buffers' names in the case."""
    found = {name: at for name, at in address_runs.addresses(mod).items() if at}
    # A name there can be a number, or that of an instruction.
    named = {re.sub(r"^b(?=\d+$)|_$", "", name): at for name, at in found.items()}
    assert len(named) == len(found)
    return named


@cache
def chip(name: str) -> Target:
    """Return a target with the on-chip memories of a case's chip."""
    case = WORKED[name]
    alignments = {"ub": 32, "cbuf": 32, "cc": 512}
    scopes = [
        MemoryScope(SCOPES[name], size, alignments[name]) for name, size in case.capacities.items()
    ]
    return with_memory("llvm", MemoryHierarchy(tuple(scopes)))


def expected(name: str) -> dict[str, tuple[int, ...]]:
    """Return the addresses that a kernel should have."""
    case = WORKED[name]
    temporaries = set(re.findall(r"tmp (\w+)", case.ops))
    absent = temporaries | CARRIED.get(name, set())
    original = {row.name: row.expected for row in case.buffers if row.name not in absent}
    ours = OURS.get(name, {})
    assert all(original[buffer] != address for buffer, address in ours.items())
    return original | ours


FITTING = [name for name in AS_KERNELS if "FAILS" not in WORKED[name].memory]


@pytest.mark.parametrize("name", FITTING)
def test_a_kernel_has_the_addresses_of_the_original(name: str):
    found = addresses(planned(kernels()[name], chip(name), strategy=WORKED[name].strategy))
    assert {b: a for b, a in found.items() if b not in ELSEWHERE} == expected(name)


@pytest.mark.parametrize("name", [name for name in AS_KERNELS if name not in OURS])
def test_a_kernel_needs_what_the_original_says(name: str, caplog: pytest.LogCaptureFixture):
    case = WORKED[name]
    fails = re.search(r"requires (\d+)", case.memory)
    if fails:
        text = rf"ub overflow, requires {fails[1]} bits while {8 * case.capacities['ub']} bits"
        with pytest.raises(ValueError, match=text):
            planned(kernels()[name], chip(name))
        return
    with caplog.at_level(logging.WARNING, "tvm_ext.AscendPlanMemory"):
        planned(kernels()[name], chip(name))
    side_by_side = [re.search(r"needs (\d+) bits", line) for line in caplog.messages]
    demands = re.findall(r"level-3 demand (\d+)", case.memory)
    if "sequential" in case.memory:
        assert side_by_side == []
    elif demands:
        assert [found and found[1] for found in side_by_side] == demands


def test_each_case_is_a_kernel_or_said_to_be_none():
    assert set(UNWRITTEN) <= set(WORKED)
    assert set(kernels()) == {*AS_KERNELS, "single_over_slots_in_l0c", *BRANCHES, *WORKSPACES}


def test_no_address_is_beyond_the_memory():
    # The original gives c the bytes 0 and 147456, of which the second are those of a trial.
    found = addresses(planned(kernels()["single_over_slots_in_l0c"], "ascend/910b"))
    del found["left"]
    assert found == {"a": (0, 49152), "b": (49152, 0), "c": (0,)}


# Branches

BRANCHES = {
    "test_infer_plan_memory_if_yield": {
        "alloc1": (0,),
        "alloc5": (8192,),
        "alloc9": (16384,),
        "alloc10": (24576,),
        "result": (32768,),
    },
    "in_place_of_the_result_of_an_if": {"given": (0,), "result": (8192,), "last": (16384,)},
    "scratch_of_the_branches_of_an_if": {"given": (0,), "scratch": (0,)},
}
"""Kernels whose branches write one buffer, with what the original gives.

Two buffers that the branches hand on to one result there are one buffer here.
"""


@pytest.mark.parametrize("name", BRANCHES)
def test_the_result_of_an_if_has_a_place_of_its_own(name: str):
    assert addresses(planned(kernels()[name], "ascend/910b")) == BRANCHES[name]


def test_the_search_puts_the_result_of_an_if_in_place_where_bytes_are_short():
    short = with_memory("llvm", MemoryHierarchy((MemoryScope("local.UB", 32768, 32),)))
    mod = lowered(kernels()["test_infer_plan_memory_if_yield"])
    assert addresses(AscendPlanMemory(target=short)(mod))["result"] < (32768,)
    built = tirx.build(AscendPlanMemory(target=short, form="arena")(mod), target="llvm")
    for first in (1, 5):
        x = (np.arange(MANY) % 128).astype("float16")
        x[0] = first
        y = tvm.runtime.tensor(np.zeros(MANY, "float16"))
        built["test_infer_plan_memory_if_yield"](tvm.runtime.tensor(x), y)
        assert np.array_equal(y.numpy()[:4096], 2 * x[:4096])


# The workspace

WORKSPACE = "global-work-space-plan"
WORKSPACES = "workspace_of_a_loop", "unwritten_workspace"
"""Kernels of no case."""


def test_a_loop_keeps_its_workspace():
    # The original gives 0 to the workspace before the loop and to the one that the loop makes of
    # it, which are one buffer here. What is on the chip is left alone.
    mod = planned(kernels()["workspace_of_a_loop"], "ascend/910b", mode=WORKSPACE)
    assert addresses(mod) == {"carried": (0,)}
    assert int(mod["main"].attrs[WORKSPACE_BYTES]) == 65536


def test_a_workspace_without_a_write_is_refused():
    text = r"buffer 'unwritten' in global\.workspace: error: read before first write"
    with pytest.raises(ValueError, match=text):
        planned(kernels()["unwritten_workspace"], "ascend/910b", mode=WORKSPACE)


# The planner alone

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


def test_slots_that_may_not_touch_at_one_level_are_placed_at_the_next():
    problem = problem_of("doubles_that_may_touch")
    entries = entries_of(problem)
    found = mirror(problem, entries, BudgetTracker(Budget()))
    numbers = {member.name: n for n, entry in enumerate(entries) for member in entry.members}
    levels = [
        (n, slot, found.levels[EntrySlot(numbers[n], slot)]) for n in numbers for slot in (0, 1)
    ]
    assert levels == [("load", 0, TOP), ("load", 1, TOP), ("store", 0, ANY), ("store", 1, ANY)]


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


def test_no_address_is_beyond_the_memory_of_a_problem():
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
