# SPDX-License-Identifier: Apache-2.0
"""Kernels with planned shared memory: the same numbers, no races, no more bytes than TVM's own."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from block_replay import replay
from kernels import CASES as PHASES
from opencl_runs import lowered, run, shared_bytes, source_of
from pipelines import CASES as STAGES
from program_text import program
from sweeps import sample
from tagged_bytes import FaultError
from tvm import tirx
from tvm.ir.expr import Call
from tvm.ir.instrument import pass_instrument
from tvm.target import Target
from tvm_ffi import structural_walk

import tvm_ext

CASES = PHASES | STAGES
STOCK_REWRITE = tirx.transform.StorageRewrite
MERGED = {"tirx.merge_static_smem": True}
WAYS: dict[str, Any] = {
    "apart": (nullcontext, {"tirx.disable_storage_rewrite": True}),
    "stock": (nullcontext, {}),
    "merged": (nullcontext, MERGED),
    "best": (partial(tvm_ext.use, "PlanSharedMemory"), {}),
    "insert": (lambda: tvm_ext.use("PlanSharedMemory", barriers="insert"), {}),
    "first fit": (lambda: tvm_ext.use("PlanSharedMemory", planner="first_fit"), {}),
}
OURS = sample(("best", "insert", "first fit"), "best", "insert")


@cache
def kernel(name: str, way: str) -> Any:
    within, config = WAYS[way]
    own = dict(CASES[name].lowering)
    return lowered(CASES[name].func, within, config={**config, **own.pop("config", {})}, **own)


def replayed(name: str, way: str, order: str = "random") -> None:
    arguments, expected = CASES[name].arguments()
    replay(kernel(name, way), arguments, CASES[name].grid, order)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


SOME = ("three phases", "carried", "one branch", "warp", "half", "counts", "by address")
SOME += ("in turns", "copies", "two groups")


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("name", sample(CASES, *SOME))
def test_no_two_threads_meet_in_a_byte(name: str, way: str):
    replayed(name, way, "backward" if way == "insert" else "random")


# Compiling takes a second a kernel. TVM's OpenCL has no dynamic shared memory.
QUICK = ("three phases", "half", "in turns")
NOT_ON_DEVICE = ("dynamic", "types", "copies", "two groups")  # Nor has PoCL half floats, or copies.


@pytest.mark.parametrize("way", sample(("best", "insert"), "best"))
@pytest.mark.parametrize("name", sample([n for n in CASES if n not in NOT_ON_DEVICE], *QUICK))
def test_a_device_computes_the_same(name: str, way: str):
    case = CASES[name]
    arguments, expected = case.arguments()
    run(kernel(name, way), arguments, case.grid)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_never_more_than_the_stock_default(name: str):
    taken = {way: shared_bytes(kernel(name, way)) for way in ("stock", "best", "insert")}
    assert taken["best"] == CASES[name].least, taken
    assert taken["insert"] <= taken["best"]
    # Stock shares the bytes to which a copy is still on its way.
    assert taken["best"] <= taken["stock"] or name == "two groups"
    barriers = [kernel(name, way).script().count("tvm_storage_sync") for way in ("best", "stock")]
    # Behind a loop, to keep its next round apart from what follows takes one of its own.
    assert barriers[0] <= barriers[1] + 1


@pytest.mark.parametrize("name", ["three phases", "by address", "two groups"])
def test_the_merge_of_tvm_races(name: str):
    """The second has its counts at one address with what is written later."""
    with pytest.raises((FaultError, AssertionError)):
        replayed(name, "merged")


def test_a_copy_that_nobody_waits_for_is_seen():
    case = CASES["copies"]
    text = case.func.script()
    late = text.replace('"async_wait_inflight_count": 0', '"async_wait_inflight_count": 1')
    assert late != text
    late_kernel = lowered(tvm.script.from_source(late), **case.lowering)
    with pytest.raises(FaultError, match="to which a copy is on its way"):
        replay(late_kernel, case.arguments()[0], case.grid)


@pytest.mark.slow
@pytest.mark.parametrize("name", PHASES)
def test_cuda_compiles(name: str, tmp_path: Path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    target = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    cuda = lowered(CASES[name].func, partial(tvm_ext.use, "PlanSharedMemory"), target=target)
    source = tmp_path / "kernel.cu"
    source.write_text(source_of(cuda, target).replace("atomic_add", "atomicAdd"))
    command = [nvcc, "-ptx", "-arch=sm_80", str(source), "-o", str(tmp_path / "kernel.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# In TVM's pipelines

CUDA = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")


def by_pipeline(func: Any, target: Target = CUDA, **options: Any) -> Any:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    pipeline, _, _ = tirx.get_tir_pipeline("tvm_ext", **options)
    with target:
        return pipeline(tirx.transform.BindTarget(target)(mod))


def test_the_named_pipeline_plans_unless_it_is_told_not_to():
    func = CASES["three phases"].func
    ours, stock = by_pipeline(func), by_pipeline(func, shared_memory=False)
    assert "arena_shared" in ours["main_kernel"].script()
    assert "arena_shared" not in stock["main_kernel"].script()
    with pytest.raises(ValueError, match="shared_memory must be True or False"):
        by_pipeline(func, shared_memory=1)


def test_a_target_of_exact_types_is_left_to_tvm():
    func = CASES["three phases"].func
    vulkan = Target("vulkan", host="llvm")
    assert "arena_shared" not in by_pipeline(func, vulkan)["main_kernel"].script()


@pytest.mark.parametrize("target", [CUDA, Target("vulkan", host="llvm")], ids=str)
def test_passes_that_are_only_asked_are_hidden_from_instruments(target: Target):
    """What TVM would take is found by its own passes, which stand in no build."""
    names: list[str] = []

    @pass_instrument
    class Listed:
        def run_before_pass(self, _mod: Any, info: Any) -> None:
            names.append(str(info.name))

    with tvm.transform.PassContext(instruments=[Listed()]):
        by_pipeline(CASES["three phases"].func, target)
    assert "tvm_ext.PlanSharedMemory" in names
    assert not {"tirx.StorageRewrite", "s_tir.MergeSharedMemoryAllocations"} & {*names}


def test_what_another_pass_has_planned_stays():
    func = CASES["three phases"].func
    with tvm_ext.use("PlanAddresses", form="arena"), tvm_ext.use("PlanSharedMemory"):
        kernel = lowered(func)
    assert shared_bytes(kernel) == 512
    assert tvm.tirx.transform.StorageRewrite is STOCK_REWRITE


def test_each_kernel_of_a_function_has_memory_of_its_own():
    func = program("""
    def func(a: 64, b: 64):
        with T.launch_thread("blockIdx.x", 1):
            tx = T.launch_thread("threadIdx.x", 64)
            one, two: shared.dyn 64
            one[tx] = a[tx]
            two[tx] = one[63 - tx]
            b[tx] = two[(tx + 1) % 64]
        with T.launch_thread("blockIdx.x", 1):
            ty = T.launch_thread("threadIdx.x", 64)
            three, four: shared.dyn 64
            three[ty] = b[ty]
            T.tvm_storage_sync("shared.dyn")
            a[ty] = three[63 - ty]
            T.tvm_storage_sync("shared.dyn")
            four[ty] = b[ty] * T.float32(2)
            T.tvm_storage_sync("shared.dyn")
            b[ty] = four[63 - ty]
    """)

    mod = by_pipeline(func)
    kernels = [f for f in mod.functions.values() if "tirx.kernel_launch_params" in f.attrs]
    assert sorted(map(shared_bytes, kernels)) == [256, 512]


def test_a_copy_by_itself_goes_to_its_place():
    func = program("""
    def func(a: 64, b: 64) on 1 x 64:
        one, two: shared 64
        one[tx] = a[63 - tx]
        T.evaluate(T.call_intrin("float32", "tirx.s_tir.cp_async_raw", two.data, tx, a.data, tx, 4))
        T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_all"))
        b[tx] = one[tx] + two[tx]
    """)

    planned = tvm_ext.transform.PlanSharedMemory()(tvm.IRModule({"main": func}))["main"]
    copies: list[Any] = []

    def note(call: Call) -> None:
        if call.op.name == "tirx.s_tir.cp_async_raw":
            copies.append(call)

    structural_walk(planned.body, (Call, note))
    (copy,) = copies
    offsets = {str(copy.args[1]), str(copy.args[3])}
    assert str(copy.args[0].args[0].name) == "two"
    assert offsets <= {"tx", "tx + 64"}, offsets


VECTORS = """
def main(x: 64 {1}, y: 64 {0}, o: 64 {1}, p: 64 {0}) on 1 x 64:
    one: shared 64 {1}
    two: shared 64 {0}
    one[tx] = x[tx]
    two[tx] = y[tx]
    T.tvm_storage_sync("shared")
    o[tx] = one[63 - tx]
    p[tx] = two[63 - tx]
"""


@pytest.mark.parametrize(
    ("kind", "other", "array"),
    [
        ("metal", "int8", "half4 one[64]"),
        ("metal", "float16", "half4 one[64]"),
        ("metal", "float16x4", "half4 arena_shared[128]"),
        ("opencl", "int8", "half4 one_ptr[64]"),
        ("opencl", "float16x4", "half4 arena_shared_ptr[128]"),
        ("opencl", "float16x3", "half3 arena_shared_ptr[128]"),  # OpenCL's take the bytes of four.
        ("cuda", "int8", "ushort arena_shared_ptr[288]"),
    ],
)
def test_vectors_lie_where_tvm_can_write_them(kind: str, other: str, array: str):
    wide, target = other if "x" in other else "float16x4", Target(kind, host="llvm")
    func = program(VECTORS.format(other, wide))
    text = source_of(lowered(func, partial(tvm_ext.use, "PlanSharedMemory"), target=target), target)
    assert f" {array};" in text


halves_of_bytes = program("""
def halves_of_bytes(a: 256 int4, o: 256 int4):
    tx = T.launch_thread("threadIdx.x", 256)
    s0, s1, s2: shared 256 int4
    s0[tx] = a[tx]
    s1[tx] = s0[255 - tx]
    s2[tx] = s1[255 - tx]
    o[tx] = s2[255 - tx]
""")


@pytest.mark.parametrize("way", ["stock", "best"])
def test_elements_of_half_a_byte_share_as_under_tvm(way: str):
    within, _ = WAYS[way]
    assert lowered(halves_of_bytes, within).script().count("T.alloc_shared(") == 2


@pytest.mark.parametrize(
    ("kind", "dtype", "step", "arenas"),
    [
        ("opencl", "int32", 2, 2),
        ("opencl", "int32", 1, 1),
        ("opencl", "float32", 2, 1),
        ("cuda", "int32", 2, 1),
    ],
)
def test_what_tvm_would_gather_wrongly_stays_as_it_is(
    kind: str, dtype: str, step: int, arenas: int
):
    func = program(f"""
    def main(x: 64, o: 128) on 1 x 32:
        a: shared 64
        b: shared 64 {dtype}
        a[tx] = x[tx]
        o[T.Ramp(tx * 2, 1, 2)] = a[T.Ramp(tx, {step}, 2)]
        b[tx] = T.Cast("{dtype}", x[tx])
        o[tx] = T.Cast("float32", b[tx])
    """)
    mod = tvm.IRModule({"main": func.with_attr("target", Target(kind))})
    text = tvm_ext.transform.PlanSharedMemory(barriers="insert")(mod).script()
    assert text.count("T.alloc_shared(") == arenas
    # Between two arrays a barrier saves nothing.
    assert text.count("tvm_storage_sync") == 2 - arenas
