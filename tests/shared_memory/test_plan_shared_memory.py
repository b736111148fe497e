# SPDX-License-Identifier: Apache-2.0
"""Kernels with planned shared memory: the same numbers, no races, no more bytes than TVM's own."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_replay import FaultError, replay
from kernels import CASES
from opencl_runs import lowered, run, shared_bytes, source_of
from tvm.target import Target

import tvm_ext

MERGED = {"tirx.merge_static_smem": True}
WAYS: dict[str, Any] = {
    "apart": (nullcontext, {"tirx.disable_storage_rewrite": True}),
    "stock": (nullcontext, {}),
    "merged": (nullcontext, MERGED),
    "best": (tvm_ext.use_plan_shared_memory, {}),
    "insert": (lambda: tvm_ext.use_plan_shared_memory(barriers="insert"), {}),
    "first fit": (lambda: tvm_ext.use_plan_shared_memory("first_fit"), {}),
}
OURS = ("best", "insert", "first fit")


@cache
def kernel(name: str, way: str) -> Any:
    within, config = WAYS[way]
    return lowered(CASES[name].func, within, config=config)


def replayed(name: str, way: str, order: str = "random") -> None:
    arguments, expected = CASES[name].arguments()
    replay(kernel(name, way), arguments, CASES[name].grid, order)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("name", CASES)
def test_no_two_threads_meet_in_a_byte(name: str, way: str):
    replayed(name, way, "backward" if way == "insert" else "random")


# What a device takes long for is compiling. TVM's OpenCL has no dynamic shared memory.
QUICK = ("three phases", "half")
OTHERS = (name for name in CASES if name not in (*QUICK, "dynamic"))
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("way", ["best", pytest.param("insert", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_device_computes_the_same(name: str, way: str):
    case = CASES[name]
    arguments, expected = case.arguments()
    run(kernel(name, way), arguments, case.grid)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_never_more_than_the_stock_default(name: str):
    taken = {way: shared_bytes(kernel(name, way)) for way in ("stock", "best", "insert")}
    assert taken["best"] == CASES[name].least, taken
    assert taken["insert"] <= taken["best"] <= taken["stock"]


def test_the_merge_of_tvm_races():
    faults = []
    for name in CASES:
        try:
            replayed(name, "merged")
        except (FaultError, AssertionError):
            faults.append(name)
    # The second holds its counts at one address with what is written later.
    assert {"three phases", "by address"} <= set(faults)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cuda_compiles(name: str, tmp_path: Path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    target = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    cuda = lowered(CASES[name].func, tvm_ext.use_plan_shared_memory, target=target)
    source = tmp_path / "kernel.cu"
    source.write_text(source_of(cuda, target).replace("atomic_add", "atomicAdd"))
    command = [nvcc, "-ptx", "-arch=sm_80", str(source), "-o", str(tmp_path / "kernel.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
