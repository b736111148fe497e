# SPDX-License-Identifier: Apache-2.0
"""What a kernel can give up so that it fits: the table, the pass, choices by hand, numpy."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from address_runs import build, poisoned
from made_kernels import asking_for, lowered
from program_text import program
from tvm import tirx
from tvm.target import Target

import tvm_ext
from passes.ascend.kernel import AscendOptions, plan_cost
from passes.planning import Problem, lower_bound
from target_hw.memory import MemoryHierarchy
from tvm_ext import workloads
from tvm_ext.lowering import capture
from tvm_ext.transform import AscendPlanMemory

TWIN = "ascend/910b-llvm"
BUDGET = 20_000
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
    assert fitting.plan.slots
    assert fitting.plan.peak <= fitting.capacity
    planned = AscendPlanMemory(degrade=True)(mod)["vector_add"]
    unbound = tvm.IRModule({"vector_add": too_large.with_attr("target", Target("llvm"))})
    given = AscendPlanMemory(degrade=True, target=TWIN)(unbound)["vector_add"]
    tvm.ir.assert_structural_equal(given.body, planned.body, map_free_vars=True)


def test_the_log_names_what_was_given_up_and_the_levels(too_large, fitting, caplog):
    with caplog.at_level(logging.INFO, logger="tvm_ext.AscendPlanMemory"):
        AscendPlanMemory(degrade=True)(tvm.IRModule({"main": too_large}))
    for name, _ in fitting.plan.slots:
        assert f"buffer {name!r} in local.UB has 1 slots in the place of 2" in caplog.text
    assert "is at level 0" in caplog.text


def test_cycles_decide_also_where_everything_fits_somehow():
    func = kernel("vector_add", "lowest")
    with_all_slots = plan_cost(func).makespan
    assert plan_cost(func, AscendOptions(degrade=True)).makespan < with_all_slots


def test_a_memory_in_which_nothing_fits_says_so():
    (memory,) = tvm_ext.what_fits(kernel("gelu", "overflow"))
    assert memory.plan is None
    assert "nothing fits" in str(memory)


def test_without_pipelines_there_are_no_cycles_to_decide_by(too_large):
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("local.UB", 196_608, 32),))
    bare = tvm_ext.with_memory("llvm", memory)
    (memory,) = tvm_ext.what_fits(too_large, bare)
    assert memory.asked > memory.capacity >= memory.plan.peak
    assert len(memory.plan.slots) == 1  # With none it does not fit.
    assert memory.plan.cycles is None
    assert "describes no pipelines" in str(memory)
    with pytest.raises(ValueError, match=r"feature\.machine"):
        AscendPlanMemory(degrade=True)(
            tvm.IRModule({"main": too_large.with_attr("target", Target(bare))})
        )


def test_a_small_budget_is_for_all_plans_together(too_large):
    (memory,) = tvm_ext.what_fits(too_large, budget=1)
    assert memory.plan is not None
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


# ------------------------------------------------------------------ kernels as users write them

multiplied = program("""
def multiplied(a: 16x64 float16, b: 64x192 float16, c: 16x192):
    for tile in range(6):
        sums: local.L0C 16x32 float32 {"multi_buffer": 2}
        for part in range(4):
            a_l1: local.L1 16x16 float16 {"multi_buffer": 3}
            b_l1: local.L1 16x32 float16 {"multi_buffer": 2}
            a_l0: local.L0A 16x16 float16 {"multi_buffer": 2}
            b_l0: local.L0B 16x32 float16 {"multi_buffer": 2}
            a_l1[i, x] = a[i, part * 16 + x] for i, x in T.grid(16, 16)
            b_l1[x, j] = b[part * 16 + x, tile * 32 + j] for x, j in T.grid(16, 32)
            a_l0[i, x] = a_l1[i, x] for i, x in T.grid(16, 16)
            b_l0[x, j] = b_l1[x, j] for x, j in T.grid(16, 32)
            for i, x, j in T.grid(16, 16, 32):
                if part == 0 and x == 0:
                    sums[i, j] = T.float32(0)
                sums[i, j] = sums[i, j] + T.Cast("float32", a_l0[i, x]) * T.Cast(
                    "float32", b_l0[x, j]
                )
        c[i, tile * 32 + j] = sums[i, j] for i, j in T.grid(16, 32)
""")
"""A product through L1, L0A, L0B and L0C: the sums of a tile drain while the next one runs."""


SCOPE = "local.L1"
"""The memory to be short of."""


@pytest.fixture(scope="module")
def flat() -> tirx.PrimFunc:
    return capture(tvm.IRModule({"multiplied": multiplied}), TWIN)["multiplied"]


def on_chip(func: tirx.PrimFunc, capacity: int | None = None, **options: Any) -> Any:
    """What fits where the memory has this capacity, by default the chip's."""
    target = TWIN if capacity is None else tvm_ext.with_memory(TWIN, with_capacity(capacity))
    found = tvm_ext.what_fits(func, target, **options)
    (tight,) = [one for one in found if one.scope == SCOPE]
    return tight


def problem_of(func: tirx.PrimFunc) -> Problem:
    """The buffers that compete for the memory."""
    options = AscendOptions(memory=MemoryHierarchy.from_target(Target(TWIN)))
    return next(p for p in options.read(func).problems if p.memory.name == SCOPE)


def with_capacity(capacity: int) -> MemoryHierarchy:
    memory = MemoryHierarchy.from_target(Target(TWIN))
    return MemoryHierarchy(
        tuple(replace(m, capacity=capacity) if m.name == SCOPE else m for m in memory)
    )


def by_hand(func: tirx.PrimFunc, memory: MemoryHierarchy) -> int | None:
    """The fewest cycles of all ways to ask for fewer slots; each is planned by the usual search."""
    asked, best = {b.name: b.slots for b in problem_of(func).buffers}, None
    for counts in product(*(range(1, count + 1) for count in asked.values())):
        changed = asking_for(func, dict(zip(asked, counts, strict=True)))
        try:
            cycles = plan_cost(changed, AscendOptions(memory=memory)).makespan
        except ValueError:
            continue
        best = cycles if best is None else min(best, cycles)
    return best


def capacities(func: tirx.PrimFunc) -> list[int]:
    """Less than one slot of each needs; as much; and a quarter of the way to all side by side."""
    problem = problem_of(func)
    whole = sum(b.size * b.slots for b in problem.buffers)
    single = tuple(replace(b, slots=1) for b in problem.buffers)
    least = lower_bound(replace(problem, buffers=single))
    steps = [least + (whole - least) * part // 4 // 32 * 32 for part in (0, 1)]
    return [least - 32, *steps]


def test_no_choice_by_hand_is_better(flat: tirx.PrimFunc):
    fitted = 0
    for capacity in capacities(flat):
        memory = with_capacity(capacity)
        best, tight = by_hand(flat, memory), on_chip(flat, capacity)
        if best is None:
            assert tight.plan is None
            assert f"{tight.least:,} bytes" in str(tight)
            assert tight.least > capacity
            continue
        fitted += 1
        assert tight.plan.cycles <= best
        assert tight.plan.peak <= capacity
        planned = plan_cost(flat, AscendOptions(degrade=True, memory=memory))
        assert planned.makespan == tight.plan.cycles
    assert fitted == 2


def test_the_kernel_computes_what_numpy_does(flat: tirx.PrimFunc):
    mod = tvm.IRModule({"multiplied": multiplied})
    random = np.random.default_rng(0)
    *sources, result = [
        random.integers(-3, 4, [int(n) for n in param.ty.shape]).astype(str(param.ty.dtype.dtype))
        for param in flat.params
    ]
    target = tvm_ext.with_memory(TWIN, with_capacity(capacities(flat)[1]))
    options = {"form": "arena", "target": target, "budget": BUDGET}
    plan = poisoned(AscendPlanMemory(degrade=True, **options))
    arrays = [tvm.runtime.tensor(array) for array in (*sources, result)]
    build(mod, plan, TWIN)["multiplied"](*arrays)
    a, b = (source.astype("float32") for source in sources)
    np.testing.assert_allclose(arrays[-1].numpy(), a @ b, rtol=1e-6)


def test_of_three_slots_two_may_stay(flat: tirx.PrimFunc):
    found = on_chip(flat, capacities(flat)[2], budget=BUDGET)
    assert ("a_l1", 2) in found.plan.slots
    assert "a_l1 (2)" in str(found)
