# SPDX-License-Identifier: Apache-2.0
"""Which slots a kernel gives up: by hand, by the pass, and what numpy says of the result."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tvm
import tvm_ffi
from address_runs import build, poisoned
from made_kernels import lowered
from tvm import tirx
from tvm.script import tirx as T
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
TOO_LARGE = ("vector_add", "overflow")
"""A kernel that does not fit as it is, and does with a single buffer."""


def kernel(name: str, size: str):
    (func,) = lowered(name, size).functions.values()
    return func


@pytest.fixture(scope="module")
def too_large():
    return kernel(*TOO_LARGE)


def test_a_kernel_that_does_not_fit_fits_with_fewer_slots(too_large):
    mod = tvm.IRModule({"vector_add": too_large})
    with pytest.raises(ValueError, match="overflow"):
        AscendPlanMemory()(mod)
    AscendPlanMemory(degrade=True)(mod)


def test_the_log_names_what_was_given_up_and_the_levels(too_large, caplog):
    with caplog.at_level(logging.INFO, logger="tvm_ext.AscendPlanMemory"):
        AscendPlanMemory(degrade=True)(tvm.IRModule({"main": too_large}))
    assert "in local.UB has 1 slots in the place of 2" in caplog.text
    assert "is at level 0" in caplog.text


def test_cycles_decide_also_where_everything_fits_somehow():
    func = kernel("vector_add", "lowest")
    with_all_slots = plan_cost(func).makespan
    assert plan_cost(func, AscendOptions(degrade=True)).makespan < with_all_slots


def test_without_pipelines_there_are_no_cycles_to_decide_by(too_large):
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("local.UB", 196_608, 32),))
    bare = tvm_ext.with_memory("llvm", memory)
    with pytest.raises(ValueError, match=r"feature\.machine"):
        AscendPlanMemory(degrade=True)(
            tvm.IRModule({"main": too_large.with_attr("target", Target(bare))})
        )


# ------------------------------------------------------------------ kernels as users write them

TWO, THREE = {"multi_buffer": 2}, {"multi_buffer": 3}  # Slots


M, N, K, PARTS, TILES = 16, 32, 16, 4, 6


@T.prim_func(s_tir=True)
def multiplied(
    a: T.Buffer((M, PARTS * K), "float16"),
    b: T.Buffer((PARTS * K, TILES * N), "float16"),
    c: T.Buffer((M, TILES * N), "float32"),
):
    """A product through L1, L0A, L0B and L0C: the sums of a tile drain while the next one runs."""
    for tile in range(TILES):
        sums = T.alloc_buffer((M, N), "float32", scope="local.L0C", annotations=TWO)
        for part in range(PARTS):
            a_l1 = T.alloc_buffer((M, K), "float16", scope="local.L1", annotations=THREE)
            b_l1 = T.alloc_buffer((K, N), "float16", scope="local.L1", annotations=TWO)
            a_l0 = T.alloc_buffer((M, K), "float16", scope="local.L0A", annotations=TWO)
            b_l0 = T.alloc_buffer((K, N), "float16", scope="local.L0B", annotations=TWO)
            for i, x in T.grid(M, K):
                a_l1[i, x] = a[i, part * K + x]
            for x, j in T.grid(K, N):
                b_l1[x, j] = b[part * K + x, tile * N + j]
            for i, x in T.grid(M, K):
                a_l0[i, x] = a_l1[i, x]
            for x, j in T.grid(K, N):
                b_l0[x, j] = b_l1[x, j]
            for i, x, j in T.grid(M, K, N):
                if part == 0 and x == 0:
                    sums[i, j] = T.float32(0)
                sums[i, j] = sums[i, j] + T.Cast("float32", a_l0[i, x]) * T.Cast(
                    "float32", b_l0[x, j]
                )
        for i, j in T.grid(M, N):
            c[i, tile * N + j] = sums[i, j]


SCOPE = "local.L1"
"""The memory to be short of."""


@pytest.fixture(scope="module")
def flat() -> tirx.PrimFunc:
    function = multiplied.with_attr("global_symbol", "multiplied")
    return capture(tvm.IRModule({"multiplied": function}), TWIN)["multiplied"]


def slots_of(func: tirx.PrimFunc) -> dict[str, int]:
    """What the allocations in a memory ask for."""
    found: list[AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (AllocBuffer, found.append))
    return {
        op.buffer.name: int(op.annotations.get("multi_buffer", 1))
        for op in found
        if str(op.buffer.ty.storage_scope) == SCOPE
    }


def asking_for(func: tirx.PrimFunc, slots: dict[str, int]) -> tirx.PrimFunc:
    """The kernel as its author would change it by hand."""

    def change(op: AllocBuffer, _mutator):
        if op.buffer.name not in slots:
            return op
        return AllocBuffer(op.buffer, {"multi_buffer": slots[op.buffer.name]})

    return func.with_body(tvm_ffi.structural_mutate(func.body, (AllocBuffer, change)))


def with_capacity(capacity: int) -> MemoryHierarchy:
    memory = MemoryHierarchy.from_target(Target(TWIN))
    return MemoryHierarchy(
        tuple(replace(m, capacity=capacity) if m.name == SCOPE else m for m in memory)
    )


def by_hand(func: tirx.PrimFunc, memory: MemoryHierarchy) -> int | None:
    """The fewest cycles of all ways to ask for fewer slots; each is planned by the usual search."""
    asked = slots_of(func)
    best = None
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
    problems = AscendOptions(memory=MemoryHierarchy.from_target(Target(TWIN))).read(func).problems
    problem = next(p for p in problems if p.memory.name == SCOPE)
    whole = sum(b.size * b.slots for b in problem.buffers)
    least = lower_bound(
        replace(problem, buffers=tuple(replace(b, slots=1) for b in problem.buffers))
    )
    steps = [least + (whole - least) * part // 4 // 32 * 32 for part in (0, 1)]
    return [least - 32, *steps]


def test_no_choice_by_hand_is_better(flat: tirx.PrimFunc):
    fitted = 0
    for capacity in capacities(flat):
        memory = with_capacity(capacity)
        best, options = by_hand(flat, memory), AscendOptions(degrade=True, memory=memory)
        if best is None:
            with pytest.raises(ValueError, match=r"no plan needs less than \d+ bytes"):
                plan_cost(flat, options)
            continue
        fitted += 1
        assert plan_cost(flat, options).makespan <= best
    assert fitted == 2


def test_the_kernel_computes_what_numpy_does(flat: tirx.PrimFunc):
    mod = tvm.IRModule({"multiplied": multiplied.with_attr("global_symbol", "multiplied")})
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


def test_of_three_slots_two_may_stay(flat: tirx.PrimFunc, caplog):
    memory = with_capacity(capacities(flat)[2])
    mod = tvm.IRModule({"multiplied": flat})
    AscendPlanMemory(degrade=True, target=tvm_ext.with_memory(TWIN, memory))(mod)
    assert "'a_l1' in local.L1 has 2 slots in the place of 3" in caplog.text
