# SPDX-License-Identifier: Apache-2.0
"""`AscendPlanMemory` by hand: its modes and options, what it writes, what it refuses."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
import tvm
from address_runs import build, num_arenas, poisoned
from ascend_modules import SEARCHES, TWIN, addresses, chip, message, module, planned, uses_scope
from ascend_programs import ascend_plan
from llvm_level import at_level
from made_kernels import made
from program_text import program, programs
from tvm import tirx
from tvm.target import Target

from passes.ascend.kernel import AscendOptions
from passes.planning.engine import compiled
from passes.planning.planners import relocation_loop as loop
from target_hw.memory import MemoryHierarchy
from tvm_ext.transform import AscendPlanMemory

MEMORY = MemoryHierarchy.from_target(Target("ascend/910b"))


# What is planned


KERNELS = programs("""
def four_slots(x: 65536 float16, y: 65536 float16):
    for t in range(5):
        a, b: local.UB 12288 float16 {"multi_buffer": 4}
        c: local.UB 12288 float16
        a[i] = x[i + t] for i in range(12288)
        b[i] = a[12287 - i] for i in range(12288)
        y[i + t] = y[i + t] + b[i] for i in range(12288)
        c[i] = x[i + t + 9] for i in range(12288)
        y[i + t] = y[i + t] + c[i] for i in range(12288)

def apart(x: 4096, y: 4096):
    a, b: local.UB 1024
    kept: local.UB 1024 float32 {"mem_unique": True}
    c: local.UB 2048
    a[i] = x[i] for i in range(1024)
    b[i] = T.exp(a[i]) for i in range(1024)
    kept[i] = b[1023 - i] for i in range(1024)
    c[i] = kept[i // 2] for i in range(2048)
    y[i] = c[i] for i in range(2048)

def sizes(x: 4096, y: 4096):
    for t in range(4):
        small: local.UB 256
        large, other: local.UB 512
        small[i] = x[i] for i in range(256)
        y[i + t] = small[i] for i in range(256)
        large[i] = x[i] for i in range(512)
        y[i + t] = large[i] for i in range(512)
        other[i] = x[i + t] for i in range(512)
        y[i + t] = other[i] for i in range(512)

def cores(x: 256, y: 256):
    shared: local.UB 32
    shared[i] = x[i] for i in range(32)
    for core in T.parallel(8):
        a, b: local.UB 32
        a[i] = x[core * 32 + 31 - i] for i in range(32)
        b[i] = a[31 - i] + shared[i] for i in range(32)
        y[core * 32 + i] = b[i] for i in range(32)
""")


@pytest.mark.parametrize("search", SEARCHES)
def test_a_single_buffer_takes_all_slots_of_a_multi_buffered_one(
    search: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "tvm_ext.AscendPlanMemory"):
        found = planned(KERNELS["four_slots"], search=search)
    slots = [24576 * k for k in range(8)]
    assert sorted((*found["a"], *found["b"])) == slots
    assert found["c"] in (found["a"], found["b"])
    if search == "mirror":
        assert found == {"a": tuple(slots[:4]), "b": tuple(slots[4:]), "c": tuple(slots[:4])}
    assert caplog.messages == [
        "function 'main': There reused some dma buffers in ub address space, which may stall "
        f"pipe. Not reusing dma buffer needs {9 * 24576 * 8} bits while 1572864 bits available!"
    ]


@pytest.mark.parametrize("search", SEARCHES)
def test_iterations_take_turns_with_the_slots_that_it_took(search: str):
    plan, mod = AscendPlanMemory(form="arena", search=search), module(KERNELS["four_slots"])
    before, arena = mod.script(), plan(mod)
    turns = re.findall(r"offset\w*: T.let\[T.int32\] = offsets\[(.*)\]", arena.script())
    assert turns
    assert all("t % 4" in turn for turn in turns)
    assert num_arenas(arena) == 1
    assert arena.script() == plan(mod).script()
    assert mod.script() == before
    random = np.random.default_rng(0)
    x, y = (random.integers(-8, 8, 65536).astype("float16") for _ in range(2))
    result = tvm.runtime.tensor(y)
    build(mod, poisoned(plan), TWIN)["main"](tvm.runtime.tensor(x), result)
    for t in range(5):
        y[t : t + 12288] += x[t : t + 12288][::-1]
        y[t : t + 12288] += x[t + 9 : t + 9 + 12288]
    np.testing.assert_array_equal(result.numpy(), y)


def test_both_forms_say_the_same():
    mod = module(KERNELS["four_slots"])
    (scope,) = ascend_plan(mod["main"], AscendOptions(memory=MEMORY)).scopes
    assert addresses(AscendPlanMemory()(mod)) == dict(scope.plan.offsets)
    assert {level.level for level in scope.plan.reuse.values()} == {1, 2}


@pytest.mark.parametrize("search", SEARCHES)
def test_what_fits_side_by_side_shares_nothing(search: str, caplog: pytest.LogCaptureFixture):
    # The original decides what is in place before it looks at the capacity.
    found = planned(KERNELS["apart"], search=search)
    assert (found["a"] == found["b"]) == (search == "mirror")
    assert len({*found.values()}) == (3 if search == "mirror" else 4)
    assert not caplog.messages


def test_in_place_as_the_smallest_instruction_set_has_it():
    found = planned(KERNELS["apart"], search="mirror", restrict_inplace_as_isa=True)
    assert len({*found.values()}) == 4


@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_unique_stays_alone(search: str):
    # 16 KiB are a and then c's first half, twice; kept takes 4 KiB that no one else has.
    target = chip(UB=16384)
    found = planned(KERNELS["apart"], search=search, target=target)
    kept = range(found["kept"][0], found["kept"][0] + 4096)
    for name, size in (("a", 4096), ("b", 4096), ("c", 8192)):
        assert not set(kept) & set(range(found[name][0], found[name][0] + size)), name


def test_the_largest_can_come_first():
    def mirrored(strategy: str) -> dict[str, tuple[int, ...]]:
        return planned(KERNELS["sizes"], search="mirror", strategy=strategy, target=chip(UB=4096))

    assert mirrored("default") == {"small": (0,), "large": (1024,), "other": (0,)}
    assert mirrored("largest-first") == {"large": (0,), "other": (2048,), "small": (0,)}


# In a build


def test_the_pipeline_plans_what_it_builds():
    recorded: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Recorder:
        def run_before_pass(self, _mod, info):
            recorded.append(str(info.name))

    kernel = made("matmul_add_relu", "fits")
    with tvm.transform.PassContext(instruments=[Recorder()]):
        executable = tirx.build(kernel.mod, at_level(TWIN), pipeline="tvm_ext.ascend")
    assert recorded.count("tvm_ext.AscendPlanMemory") == 2
    assert "tirx.StorageRewrite" not in recorded
    inputs, output = kernel.inputs(), tvm.runtime.tensor(kernel.output())
    executable["matmul_add_relu"](*map(tvm.runtime.tensor, inputs), output)
    expected = kernel.reference(*inputs).astype("float64")
    error = np.abs(output.numpy().astype("float64") - expected).max()
    assert error <= kernel.tolerance * np.abs(expected).max()


@pytest.mark.slow
def test_a_planner_s_own_kernel_is_built_as_usual(monkeypatch):
    # Where no other process can, the search compiles itself in the middle of a build.
    monkeypatch.setattr(compiled, "_start_compiler", lambda: False)
    monkeypatch.setenv(compiled.CACHE_VARIABLE, compiled.OFF)
    monkeypatch.setattr(compiled, "_loaded", {})
    kernel = made("gelu", "lowest")
    tirx.build(kernel.mod, at_level(TWIN), pipeline="tvm_ext.ascend")
    assert compiled.is_loaded(loop.advance)


# Memory of each iteration of a parallel loop


@pytest.mark.parametrize("search", SEARCHES)
def test_memory_inside_of_a_parallel_loop_is_above_what_is_around_it(search: str):
    found = planned(KERNELS["cores"], search=search, target=chip(UB=384))
    assert found["shared"] == (0,)
    assert sorted((*found["a"], *found["b"])) == [128, 256]
    text = message(KERNELS["cores"], search=search, target=chip(UB=256))
    assert "128 bytes are reserved, 128 of them by enclosing scopes" in text


# Annotations of the original


def rotating(annotations: str) -> tirx.PrimFunc:
    return program(f"""
    def func(x: 2048, y: 2048):
        y[i] = x[i] for i in range(256)
        for t in range(8):
            first: local.UB 256 float32 {annotations}
            second: local.UB 256
            first[i] = x[i + t * 256] for i in range(256)
            y[i + t * 256] = first[i] for i in range(256)
            second[i] = x[255 - i + t * 256] for i in range(256)
            y[i + t * 256] = y[i + t * 256] + second[i] for i in range(256)
    """)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_preloaded_buffer_shares_with_nothing_in_its_loop(search: str):
    assert planned(rotating("{}"), search=search, target=chip(UB=1024)) == {
        "first": (0,),
        "second": (0,),
    }
    preloaded = rotating('{"multi_buffer": 2, "preload_local_buffer": True}')
    found = planned(preloaded, search=search, target=chip(UB=3072))
    assert sorted((*found["first"], *found["second"])) == [0, 1024, 2048]
    assert "overflow" in message(preloaded, search=search, target=chip(UB=2048))


def test_a_preloaded_buffer_outside_of_a_loop():
    text = message(uses_scope("local.UB", annotations={"preload_local_buffer": True}))
    assert text == "buffer 'a' in local.UB: preload local buffer must be inside a loop-like op"


def test_a_tightly_coupled_buffer_is_refused():
    text = message(uses_scope("local.UB", annotations={"tightly_coupled_buffer": 2}))
    assert text.startswith("buffer 'a' in local.UB: tightly_coupled_buffer is not supported")
