# SPDX-License-Identifier: Apache-2.0
"""`AscendPlanMemory` on worked cases of the original, as kernels: its addresses are expected."""

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
from tvm import tirx
from tvm.target import Target

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
