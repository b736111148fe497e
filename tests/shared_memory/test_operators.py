# SPDX-License-Identifier: Apache-2.0
"""Operators that TVM's dlight schedules: replayed for two targets, and run on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import tvm
from block_replay import replay
from opencl_runs import extents, lowered, run, shared_bytes
from sweeps import sample
from tvm import te, topi
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_ext

SIZES = {"max_num_threads": 128, "max_threads_per_block": 128, "max_shared_memory_per_block": 32768}
TARGETS = {
    "opencl": Target({"kind": "opencl", **SIZES}, host="llvm"),
    # Reduces among the lanes of a warp, without shared memory.
    "cuda": Target({"kind": "cuda", "arch": "sm_61", **SIZES, "thread_warp_size": 32}, host="llvm"),
}
RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.LowBatchGEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.RMSNorm,
    dlight.gpu.Transpose,
    dlight.gpu.Fallback,
)
Numbers = np.ndarray
Operator = tuple[dict[str, tuple[int, ...]], Callable[..., te.Tensor], Callable[..., Numbers]]


def softmax(x: Numbers) -> Numbers:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def layer_norm(x: Numbers, w: Numbers, z: Numbers) -> Numbers:
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5) * w + z


def rms_norm(x: Numbers, w: Numbers) -> Numbers:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w


def variance(x: te.Tensor) -> te.Tensor:
    count = int(x.shape[1])
    mean = topi.divide(topi.sum(x, 1, keepdims=True), count)
    return topi.divide(topi.sum(topi.power(topi.subtract(x, mean), 2), 1), count)


ROWS, VECTOR = (4, 128), (128,)
OPERATORS: dict[str, Operator] = {
    "matmul": ({"a": (32, 32), "b": (32, 32)}, topi.matmul, np.matmul),
    "gemv": (
        {"a": (1, 64), "b": (64, 64)},
        lambda a, b: topi.matmul(a, b, False, True),
        lambda a, b: a @ b.T,
    ),
    "softmax": ({"x": ROWS}, topi.nn.softmax, softmax),
    "sum": ({"x": ROWS}, lambda x: topi.sum(x, 1), lambda x: x.sum(1)),
    "argmax": ({"x": ROWS}, lambda x: topi.argmax(x, 1), lambda x: x.argmax(1).astype("int32")),
    "layer norm": (
        {"x": ROWS, "w": VECTOR, "z": VECTOR},
        lambda x, w, z: topi.nn.layer_norm(x, w, z, [1]),
        layer_norm,
    ),
    "rms norm": ({"x": ROWS, "w": VECTOR}, lambda x, w: topi.nn.rms_norm(x, w, [1]), rms_norm),
    "transpose": ({"x": ROWS}, topi.transpose, np.transpose),
    # Two reductions, whose buffers stock shares in one way each.
    "variance": ({"x": ROWS}, variance, lambda x: x.var(1)),
}
WAYS: dict[str, Any] = {
    "best": partial(tvm_ext.use, "PlanSharedMemory"),
    "insert": lambda: tvm_ext.use("PlanSharedMemory", barriers="insert"),
}


@cache
def scheduled(name: str, kind: str) -> Any:
    shapes, compute, _ = OPERATORS[name]
    tensors = [te.placeholder(shape, "float32", key) for key, shape in shapes.items()]
    func = te.create_prim_func([*tensors, compute(*tensors)]).with_attr("global_symbol", "main")
    with TARGETS[kind]:
        rules = (rule() for rule in RULES)
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))["main"]


def arguments(name: str, kernel: Any) -> tuple[dict[str, Numbers], Numbers, Numbers]:
    """Return the arguments by name, of these the result, and what is to be in it."""
    shapes, _, compute = OPERATORS[name]
    chosen = np.random.default_rng(0)
    inputs = {k: chosen.standard_normal(s).astype("float32") for k, s in shapes.items()}
    expected = compute(*inputs.values())
    (output,) = {param.name.removesuffix("_ptr") for param in kernel.params} - inputs.keys()
    result = np.zeros(expected.size, expected.dtype)
    return {**{k: v.ravel() for k, v in inputs.items()}, output: result}, result, expected


def blocks(kernel: Any) -> list[int]:
    return [n for tag, n in extents(kernel).items() if tag.startswith("blockIdx")]


NAMES = sample(OPERATORS, "softmax", "variance")


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_no_two_threads_meet_in_a_byte(name: str, kind: str):
    stock = lowered(scheduled(name, kind), target=TARGETS[kind])
    for way, within in WAYS.items():
        kernel = lowered(scheduled(name, kind), within, target=TARGETS[kind])
        given, result, expected = arguments(name, kernel)
        replay(kernel, given, blocks(kernel), "random" if way == "best" else "backward")
        np.testing.assert_allclose(result, expected.ravel(), rtol=1e-4, atol=1e-5)
        assert shared_bytes(kernel) <= shared_bytes(stock)
        if way == "best":  # Nor is a barrier added below what TVM takes.
            barriers = [one.script().count("tvm_storage_sync") for one in (kernel, stock)]
            assert barriers[0] <= barriers[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_device_computes_the_same(name: str):
    kernel = lowered(scheduled(name, "opencl"), WAYS["insert"], target=TARGETS["opencl"])
    given, result, expected = arguments(name, kernel)
    run(kernel, given, blocks(kernel))
    np.testing.assert_allclose(result, expected.ravel(), rtol=1e-4, atol=1e-5)
