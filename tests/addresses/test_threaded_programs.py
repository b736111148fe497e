# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several threads: no plan lets threads race that do not race without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
from address_runs import identity, memory_after
from hypothesis import given, note, settings
from program_text import program
from thread_replay import races
from threaded_programs import THREADS, threaded_program, threaded_programs, with_barriers
from tvm import tirx
from tvm.ir.transform import Pass, PassContext

from passes.addresses.transform import PlanAddresses
from passes.ascend.analysis import kernel_problems as ascend_problems
from passes.ascend.kernel import AscendOptions
from passes.ascend.transform import ascend_plan_function
from passes.planning import Budget
from passes.planning.buffer import live_together
from passes.prim_func import thread_races
from passes.prim_func.module_calls import Callers
from passes.prim_func.problems import find_problems
from passes.storage_rewrite.transform import StorageRewrite
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.storage_scope import StorageScope

SCOPES = ("shared", "shared.dyn", "shared.l1", "shared.UB")
SMALL = MemoryHierarchy(tuple(MemoryScope(name, capacity=80) for name in SCOPES))


def ascend() -> Pass:
    """`AscendPlanMemory` in a memory that is too small for most: a plan that fits shares."""

    options = AscendOptions(memory=SMALL, budget=Budget(200))

    def transform(func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext) -> tirx.PrimFunc:
        try:
            return ascend_plan_function(func, Callers(), options)[0]
        except ValueError:
            return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="ascend")


PASSES = {
    "ascend": ascend,
    "address": lambda: PlanAddresses("best", "address"),
    "arena": lambda: PlanAddresses("best", "arena"),
    "sound": lambda: StorageRewrite(sound=True),
}


def races_under(mod: tvm.IRModule, name: str) -> bool:
    return races(with_barriers(PASSES[name]()(mod))["main"], THREADS)


@given(mod=threaded_programs())
@settings(max_examples=10, deadline=None, print_blob=True)
def test_no_thread_overwrites_what_another_has_still_to_read(mod: tvm.IRModule):
    note(mod.script())
    assert not races(with_barriers(mod)["main"], THREADS)
    for name in PASSES:
        assert not races_under(mod, name), name


@pytest.mark.slow
def test_no_thread_overwrites_in_many_kernels():
    for seed in range(1500):
        mod = threaded_program(seed)
        assert not any(races_under(mod, name) for name in PASSES), seed


def sees_no_tag(alloc: Any, uses: Any) -> bool:
    return not uses.handed_on


def sees_no_call(alloc: Any, uses: Any) -> bool:
    return str(alloc.scope) in ("shared", "shared.dyn")


@pytest.mark.parametrize(
    ("name", "rule", "broken"),
    [
        ("arena", "_is_synchronized", sees_no_tag),
        ("sound", "_is_synchronized", sees_no_tag),
        ("arena", "_is_synchronized", sees_no_call),
        ("arena", "_widths", lambda uses: frozenset()),
        ("sound", "_widths", lambda uses: frozenset()),
    ],
)
def test_the_programs_show_a_rule_that_is_left_out(name: str, rule: str, broken: Any, monkeypatch):
    monkeypatch.setattr(thread_races, rule, broken)
    assert any(races_under(threaded_program(seed), name) for seed in range(80))


def test_the_programs_show_scopes_that_are_told_by_their_names(monkeypatch):
    is_plain = property(lambda scope: str(scope) in ("shared", "shared.dyn"))
    monkeypatch.setattr(StorageScope, "is_shared_by_threads", is_plain)
    assert any(races_under(threaded_program(seed), "address") for seed in range(80))


def test_the_programs_show_separations_that_get_lost(monkeypatch):
    original = ascend_problems._attached

    def together(*given: Any) -> Any:
        attached = original(*given)
        return replace(attached, problem=replace(attached.problem, separations=()))

    monkeypatch.setattr(ascend_problems, "_attached", together)
    assert any(races_under(threaded_program(seed), "ascend") for seed in range(80))


one_thread_a_block = program("""
def one_thread_a_block(x: 8, y: 8):
    T.launch_thread("blockIdx.x", 4)
    a, b: shared.UB 8
    a[i] = x[i] for i in range(8)
    y[i] = a[7 - i] for i in range(8)
    b[i] = x[7 - i] for i in range(8)
    y[i] = y[i] + b[7 - i] for i in range(8)
""")


def test_a_block_of_one_thread_reuses_its_memory():
    text = PlanAddresses()(tvm.IRModule({"main": one_thread_a_block})).script()
    assert text.count("allocated_addr=0)") == 2


@pytest.mark.parametrize(
    ("pointer", "size", "barriers"),
    [
        ('T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 8, 1)', 32, 3),
        ('T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 8, 0)', 96, None),
        ("a.data", 96, None),
    ],
)
def test_memory_is_shared_where_a_pointer_says_what_is_read(
    pointer: str, size: int, barriers: int | None
):
    kernel = tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    tx = T.launch_thread("threadIdx.x", 8)
    a = T.alloc_buffer((8,), "float32", scope="shared")
    b = T.alloc_buffer((8,), "float32", scope="shared")
    a[tx] = x[tx]
    T.evaluate(T.call_extern("int32", "reads", {pointer}))
    b[tx] = x[tx] * T.float32(2)
    y[tx] = b[7 - tx]
"""
    )
    mod = PlanAddresses(form="arena")(tvm.IRModule({"main": kernel}))
    assert f'alloc_shared(({size},), "uint8")' in mod.script()
    if barriers is not None:
        # Behind the writes of both, and in front of the second, which takes the first one's bytes.
        synchronized = tvm.s_tir.transform.ThreadSync("shared")(mod).script()
        assert synchronized.count("tvm_storage_sync") == barriers


region = program("""
def region(x: 512, y: 512):
    first, second: local.UB 512
    with T.attr(T.int32(0), "pragma_parallel_launch_point", 1):
        own: local.UB 64
        for p in T.parallel(8):
            own[i] = x[p * 64 + i] for i in range(64)
            first[p * 64 + i] = own[63 - i] for i in range(64)
            y[p * 64 + i] = first[p * 64 + 63 - i] for i in range(64)
        for p in T.parallel(8):
            second[p * 64 + i] = x[p * 64 + i] for i in range(64)
            y[p * 64 + i] = y[p * 64 + i] + second[p * 64 + 63 - i] for i in range(64)
""")


@pytest.mark.parametrize("name", ["arena", "sound"])
def test_what_all_threads_of_a_cpu_run_makes_memory_for_each(name: str):
    mod = tvm.IRModule({"main": region.with_attr("global_symbol", "main")})
    text = PASSES[name]()(mod)["main"].script()
    assert text.index("pragma_parallel") < text.index("own = T.alloc_buffer")
    assert memory_after(mod, PASSES[name]()) == memory_after(mod, identity())


def test_nothing_orders_what_these_threads_do():
    (attached,) = find_problems(region).problems
    first, second = attached.problem.buffers
    assert live_together(first.live, second.live)
    assert not attached.problem.in_place
