# SPDX-License-Identifier: Apache-2.0
"""Barriers between threads for memory that is reused: tilelang 2293, and TVM's own ThreadSync."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import tvm
from block_replay import races
from program_text import programs
from tvm import tirx

import tvm_ext

TARGET = {"kind": "cuda", "arch": "sm_80"}


PROGRAMS = programs("""
def same_type(x: 256, y: 256):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a, b: shared 128
    a[tx] = x[tx]
    y[tx] = a[127 - tx]
    b[tx] = x[128 + tx]
    y[128 + tx] = b[127 - tx]

def own_elements(x: 256, y: 256):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a, b: shared 128
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = x[128 + tx]
    y[128 + tx] = b[tx]

def narrower(x: 128, z: 256 int8, y: 128, w: 256 int8):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a: shared 128
    b: shared 256 int8
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = z[tx]
    w[tx] = b[tx]
    b[tx + 128] = z[tx + 128]
    w[tx + 128] = b[tx + 128]

def wider(x: 256 float16, y: 256 float16, w: 128):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a: shared 256 float16
    b: shared 128
    a[tx] = x[tx]
    y[tx] = a[tx]
    b[tx] = T.Cast("float32", x[tx])
    w[tx] = b[tx]
    y[tx + 128] = T.Cast("float16", b[tx])

def in_a_loop(x: 512, y: 512):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    for k in range(4):
        a, b: shared 128
        a[tx] = x[k * 128 + tx]
        b[tx] = a[127 - tx] + T.float32(1)
        y[k * 128 + tx] = b[127 - tx]

def never_read(x: 256, y: 256):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a, b: shared 128
    a[127 - tx] = x[tx]
    b[tx] = x[128 + tx]
    y[tx] = b[tx]

def stored_last(x: 256, y: 256):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 128)
    a, b: shared 128
    a[tx] = x[tx]
    y[tx] = a[tx]
    a[127 - tx] = x[128 + tx]
    b[tx] = x[128 + tx]
    y[128 + tx] = b[tx]
""")


def kernel(func: tirx.PrimFunc, replacement: Any) -> tirx.PrimFunc:
    """Lower a function for CUDA, and return the kernel without the host's part."""
    target = tvm.target.Target(TARGET, host="llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(target)(mod)
    lower, _, _ = tirx.get_tir_pipeline("default")
    # The merging of shared memory is another planner, behind ours and behind the barriers.
    with replacement, target, pytest.MonkeyPatch.context() as patch:
        keep = tvm.ir.transform.Sequential([])
        patch.setattr(tvm.s_tir.transform, "MergeSharedMemoryAllocations", lambda: keep)
        return lower(mod)["main_kernel"]


REPLACEMENTS = {
    "sound": lambda: tvm_ext.use("StorageRewrite", sound=True),
    "arena": lambda: tvm_ext.use("PlanAddresses", form="arena"),
    "first fit": lambda: tvm_ext.use("PlanAddresses", planner="first_fit"),
    "address": lambda: tvm_ext.use("PlanAddresses", form="address"),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_no_thread_overwrites_what_another_has_still_to_read(program: str, name: str):
    assert not races(kernel(PROGRAMS[program], REPLACEMENTS[name]()))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_do_not_race_by_themselves(program: str):
    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        assert not races(kernel(PROGRAMS[program], nullcontext()))


@pytest.mark.parametrize("replacement", [nullcontext, partial(tvm_ext.use, "StorageRewrite")])
def test_the_stock_pass_lets_threads_race_where_widths_differ(replacement: Any):
    assert races(kernel(PROGRAMS["narrower"], replacement()))


def test_equal_types_share_where_barriers_are_placed():
    text = kernel(PROGRAMS["same_type"], REPLACEMENTS["sound"]()).script()
    assert text.count("T.alloc_shared(") == 1
    assert text.count("tvm_storage_sync") == 3
