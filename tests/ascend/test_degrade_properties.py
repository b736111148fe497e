# SPDX-License-Identifier: Apache-2.0
"""Random kernels compute the same with fewer slots, in memory that is too small for all of them."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest
import tvm
from address_replay import Replay
from address_runs import build, poisoned
from ascend_programs import ascend_plan, random_kernel
from test_ascend_properties import ROOMY, SCOPES, inputs, unplanned, with_workspace
from tvm.ir.transform import Sequential
from tvm.target import Target

from passes.ascend.kernel import WORKSPACE, AscendOptions
from passes.driver import AddressPlan
from passes.planning import Budget, lower_bound
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory

CHIP = "ascend/910b"
# LLVM gets `b[(i + j) % 8 + k % 2 * 8]` wrong when it vectorizes, in programs without a plan, too.
TARGET = f"{CHIP}-llvm"
BUDGET = Budget(nodes=3_000)
TIGHTNESS = (1.0, 1.15, 1.4, 2.0, 100.0)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "tvm_ext.AscendPlanMemory")


def kernel(seed: int) -> tvm.IRModule:
    mod = random_kernel(seed)
    return tvm.IRModule({"main": mod["main"].with_attr("target", Target(f"{CHIP}-llvm"))})


def memories(mod: tvm.IRModule):
    """Memories from what one slot for each buffer needs at least, the tightest first."""
    read = AscendOptions(memory=ROOMY).read(mod["main"])
    bounds = {}
    for number, problem in enumerate(read.problems):
        single = read.with_slots(number, {b.name: 1 for b in problem.buffers if not b.pinned})
        bounds[problem.memory.name] = lower_bound(single)
    for factor in TIGHTNESS:
        capacities = {s: -(-int(bounds.get(s, 64) * factor) // 32) * 32 for s in SCOPES}
        del capacities[WORKSPACE]  # Its size is what is asked for.
        yield MemoryHierarchy(tuple(MemoryScope(s, capacities.get(s), 32) for s in SCOPES))


def tightest(mod: tvm.IRModule) -> tuple[MemoryHierarchy, AddressPlan]:
    for memory in memories(mod):
        options = AscendOptions(memory=memory, budget=BUDGET, degrade=True)
        try:
            return memory, ascend_plan(mod["main"], options)
        except ValueError as error:
            if "overflow, requires" not in str(error):
                raise
    raise AssertionError("a hundred times the bound is too little")


def lost(mod: tvm.IRModule, plan: AddressPlan) -> int:
    """How many slots a plan gives up."""
    read = AscendOptions(memory=ROOMY).read(mod["main"])
    asked = {b.name: b.slots for problem in read.problems for b in problem.buffers}
    scopes = [scope.problem for scope in plan.scopes]
    return sum(max(0, asked[b.name] - b.slots) for problem in scopes for b in problem.buffers)


def replay(seeds: range) -> int:
    given_up = 0
    for seed in seeds:
        print(f"seed {seed}")
        mod = kernel(seed)
        _, plan = tightest(mod)
        run = Replay(mod["main"], with_workspace(mod["main"], plan, True))
        run(inputs(seed))
        assert run.num_checked > 0
        given_up += lost(mod, plan)
    return given_up


def test_no_value_is_overwritten_while_it_is_needed():
    assert replay(range(4)) > 0


@pytest.mark.slow
def test_no_value_is_overwritten_in_many_kernels():
    assert replay(range(4, 200)) > 0


def compare(seed: int) -> None:
    print(f"seed {seed}")
    mod = kernel(seed)
    # The maximum of a number and itself is in place, and lowered it is a copy, which is not.
    memory, _ = tightest(*lowering.capture(mod, TARGET))
    plan = partial(AscendPlanMemory, form="arena", target=with_memory(TARGET, memory))
    both = [poisoned(plan("global-work-space-plan")), poisoned(plan(budget=BUDGET, degrade=True))]
    arrays = [tvm.runtime.tensor(array) for array in inputs(seed)]
    build(mod, Sequential(both), TARGET)["main"](*arrays)
    np.testing.assert_equal([array.numpy() for array in arrays], unplanned(mod, seed))


@pytest.mark.parametrize("seed", range(2))
def test_an_arena_computes_the_same_when_compiled(seed: int):
    compare(seed)


@pytest.mark.slow
def test_arenas_compute_the_same_in_many_compiled_kernels():
    for seed in range(3, 40):
        compare(seed)
