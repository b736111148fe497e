# SPDX-License-Identifier: Apache-2.0
"""What a user's own kernel gives up: against every other choice by hand, and run against numpy."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import fitting_kernels as kernels
import numpy as np
import pytest
import tvm
import tvm_ffi
from address_runs import build, poisoned
from tvm import tirx
from tvm.target import Target
from tvm.tirx import AllocBuffer

import tvm_ext
from passes.ascend.kernel import AscendOptions, plan_cost
from passes.planning import lower_bound
from target_hw.memory import MemoryHierarchy
from tvm_ext.lowering import capture
from tvm_ext.transform import AscendPlanMemory

TWIN = "ascend/910b-llvm"
BUDGET = 20_000
KERNELS = {
    "normalised": ("local.UB", kernels.normalised_by_numpy),
    "weighted": ("local.UB", kernels.weighted_by_numpy),
    "product": ("local.L1", kernels.product_by_numpy),
}
"""Each kernel's memory to be short of, and what it computes."""


def flat(name: str) -> tirx.PrimFunc:
    function = getattr(kernels, name).with_attr("global_symbol", name)
    return capture(tvm.IRModule({name: function}), TWIN)[name]


def slots_of(func: tirx.PrimFunc, scope: str) -> dict[str, int]:
    """What the allocations in a memory ask for."""
    found: list[AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (AllocBuffer, found.append))
    return {
        op.buffer.name: int(op.annotations.get("multi_buffer", 1))
        for op in found
        if str(op.buffer.ty.storage_scope) == scope
    }


def asking_for(func: tirx.PrimFunc, slots: dict[str, int]) -> tirx.PrimFunc:
    """The kernel as its author would change it by hand."""

    def change(op: AllocBuffer, _mutator):
        if op.buffer.name not in slots:
            return op
        return AllocBuffer(op.buffer, {"multi_buffer": slots[op.buffer.name]})

    return func.with_body(tvm_ffi.structural_mutate(func.body, (AllocBuffer, change)))


def with_capacity(scope: str, capacity: int) -> MemoryHierarchy:
    memory = MemoryHierarchy.from_target(Target(TWIN))
    return MemoryHierarchy(
        tuple(replace(m, capacity=capacity) if m.name == scope else m for m in memory)
    )


def by_hand(func: tirx.PrimFunc, scope: str, memory: MemoryHierarchy) -> int | None:
    """The fewest cycles of all ways to ask for fewer slots; each is planned by the usual search."""
    asked = slots_of(func, scope)
    best = None
    for counts in product(*(range(1, count + 1) for count in asked.values())):
        changed = asking_for(func, dict(zip(asked, counts, strict=True)))
        try:
            cycles = plan_cost(changed, AscendOptions(memory=memory)).makespan
        except ValueError:
            continue
        best = cycles if best is None else min(best, cycles)
    return best


def capacities(func: tirx.PrimFunc, scope: str) -> list[int]:
    """Less than one slot of each needs; as much; and a quarter of the way to all side by side."""
    problems = AscendOptions(memory=MemoryHierarchy.from_target(Target(TWIN))).read(func).problems
    problem = next(p for p in problems if p.memory.name == scope)
    whole = sum(b.size * b.slots for b in problem.buffers)
    least = lower_bound(
        replace(problem, buffers=tuple(replace(b, slots=1) for b in problem.buffers))
    )
    steps = [least + (whole - least) * part // 4 // 32 * 32 for part in (0, 1)]
    return [least - 32, *steps]


@pytest.mark.parametrize(
    "name",
    [
        "product",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("weighted", "normalised")),
    ],
)
def test_no_choice_by_hand_is_better(name: str):
    scope, _ = KERNELS[name]
    func, fitted = flat(name), 0
    for capacity in capacities(func, scope):
        memory = with_capacity(scope, capacity)
        best = by_hand(func, scope, memory)
        found = tvm_ext.what_fits(func, tvm_ext.with_memory(TWIN, memory))
        (tight,) = [one for one in found if one.scope == scope]
        if best is None:
            assert tight.plans == ()
            assert f"{tight.least:,} bytes" in str(tight)
            assert tight.least > capacity
            continue
        fitted += 1
        (chosen,) = [plan for plan in tight.plans if plan.chosen]
        assert chosen.cycles <= best
        assert chosen.cycles == min(plan.cycles for plan in tight.plans)
        assert chosen.peak <= capacity
        planned = plan_cost(func, AscendOptions(degrade=True, memory=memory))
        assert planned.makespan == chosen.cycles
    assert fitted == 2


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_computes_what_numpy_does(name: str):
    scope, reference = KERNELS[name]
    func = flat(name)
    mod = tvm.IRModule({name: getattr(kernels, name).with_attr("global_symbol", name)})
    random = np.random.default_rng(0)
    *sources, result = [
        random.integers(-3, 4, [int(n) for n in param.ty.shape]).astype(str(param.ty.dtype.dtype))
        for param in func.params
    ]
    for capacity in capacities(func, scope)[1:2]:
        memory = with_capacity(scope, capacity)
        target = tvm_ext.with_memory(TWIN, memory)
        options = {"form": "arena", "target": target, "budget": BUDGET}
        plan = poisoned(AscendPlanMemory(degrade=True, **options))
        arrays = [tvm.runtime.tensor(array) for array in (*sources, result)]
        build(mod, plan, TWIN)[name](*arrays)
        np.testing.assert_allclose(arrays[-1].numpy(), reference(*sources), rtol=1e-6)


def test_what_fits_already_is_shown_beside_plans_of_fewer_bytes():
    (memory,) = tvm_ext.what_fits(flat("normalised"), TWIN)
    (chosen,) = [plan for plan in memory.plans if plan.chosen]
    assert chosen.slots == ()
    others = [plan for plan in memory.plans if not plan.chosen]
    assert any(plan.peak < chosen.peak and plan.slots for plan in others)
    assert memory.plans[0].peak == memory.lowest


def test_of_three_slots_two_may_stay():
    func = flat("weighted")
    memory = with_capacity("local.UB", capacities(func, "local.UB")[2])
    (found,) = tvm_ext.what_fits(func, tvm_ext.with_memory(TWIN, memory), budget=BUDGET)
    assert any(("row", 2) in plan.slots for plan in found.plans)
    assert "row (2)" in str(found)
