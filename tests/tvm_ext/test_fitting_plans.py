# SPDX-License-Identifier: Apache-2.0
"""What a kernel can give up so that it fits: the table, the pass, and the numbers of the result."""

from __future__ import annotations

import logging

import pytest
import tvm
from made_kernels import lowered
from tvm.target import Target

import tvm_ext
from passes.ascend.kernel import AscendOptions, plan_cost
from tvm_ext import workloads
from tvm_ext.transform import AscendPlanMemory

TWIN = "ascend/910b-llvm"
TOO_LARGE = ("vector_add", "overflow")
"""A kernel that does not fit as it is, and does with a single buffer."""


def kernel(name: str, size: str):
    (func,) = lowered(name, size).functions.values()
    return func


@pytest.fixture(scope="module")
def too_large():
    return kernel(*TOO_LARGE)


@pytest.fixture(scope="module")
def fitting(too_large):
    (memory,) = tvm_ext.what_fits(too_large)
    return memory


def test_a_kernel_that_does_not_fit_fits_with_fewer_slots(too_large, fitting):
    mod = tvm.IRModule({"vector_add": too_large})
    with pytest.raises(ValueError, match="overflow"):
        AscendPlanMemory()(mod)
    assert fitting.capacity < fitting.asked
    assert all(plan.slots and plan.peak <= fitting.capacity for plan in fitting.plans)
    AscendPlanMemory(degrade=True)(mod)


def test_the_log_names_what_was_given_up_and_the_levels(too_large, fitting, caplog):
    (chosen,) = [plan for plan in fitting.plans if plan.chosen]
    with caplog.at_level(logging.INFO, logger="tvm_ext.AscendPlanMemory"):
        AscendPlanMemory(degrade=True)(tvm.IRModule({"main": too_large}))
    for name, _ in chosen.slots:
        assert f"buffer {name!r} in local.UB has 1 slots in the place of 2" in caplog.text
    assert "is at level 0" in caplog.text


def test_cycles_decide_also_where_everything_fits_somehow():
    func = kernel("vector_add", "lowest")
    with_all_slots = plan_cost(func).makespan
    assert plan_cost(func, AscendOptions(degrade=True)).makespan < with_all_slots


def test_a_memory_in_which_nothing_fits_says_so():
    (memory,) = tvm_ext.what_fits(kernel("gelu", "overflow"))
    assert memory.plans == ()
    assert "nothing fits" in str(memory)


def test_the_table_has_a_line_for_each_plan_and_marks_one(fitting):
    lines = str(fitting).splitlines()
    assert len(lines) == 3 + len(fitting.plans)
    assert sum(line.startswith("*") for line in lines) == 1


def test_without_pipelines_there_are_no_cycles_to_decide_by(too_large):
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("local.UB", 196_608, 32),))
    bare = tvm_ext.with_memory("llvm", memory)
    (memory,) = tvm_ext.what_fits(too_large, bare)
    (chosen,) = [plan for plan in memory.plans if plan.chosen]
    assert memory.asked > memory.capacity >= chosen.peak
    assert len(chosen.slots) == 1  # With none it does not fit.
    assert {plan.cycles for plan in memory.plans} == {None}
    assert "describes no pipelines" in str(memory)
    with pytest.raises(ValueError, match=r"feature\.machine"):
        AscendPlanMemory(degrade=True)(
            tvm.IRModule({"main": too_large.with_attr("target", Target(bare))})
        )


def test_a_small_budget_is_for_all_plans_together(too_large):
    (memory,) = tvm_ext.what_fits(too_large, budget=1)
    assert any(plan.chosen for plan in memory.plans)
    with pytest.raises(ValueError, match="what_fits: a budget must be"):
        tvm_ext.what_fits(too_large, budget="much")


def test_a_program_is_lowered_for_the_chip():
    made = workloads.ascend_kernel(*TOO_LARGE)
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("local.UB", 196_608, 32),))
    bare = tvm_ext.with_memory("llvm", memory)
    assert tvm_ext.what_fits(made.mod, bare) == tvm_ext.what_fits(kernel(*TOO_LARGE), bare)
    for target in (None, "llvm"):
        with pytest.raises(
            ValueError, match=r"what_fits: function 'vector_add'.*describes a memory"
        ):
            tvm_ext.what_fits(made.mod, target)


@pytest.mark.parametrize("program", [None, 5, "vector_add"])
def test_what_is_no_program_is_refused(program):
    with pytest.raises(TypeError, match=r"needs a tvm.IRModule or a PrimFunc"):
        tvm_ext.what_fits(program, TWIN)
