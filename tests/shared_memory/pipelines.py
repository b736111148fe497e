# SPDX-License-Identifier: Apache-2.0
"""Kernels with stages: buffers in turns, a prologue and an epilogue, copies on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def in_turns(a: T.Buffer((384,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    turns = T.alloc_buffer((128,), "float32", scope="shared")
    before = T.alloc_buffer((64,), "float32", scope="shared")
    behind = T.alloc_buffer((128,), "float32", scope="shared")
    total = T.alloc_buffer((1,), "float32", scope="local")
    before[tx] = a[63 - tx]
    T.tvm_storage_sync("shared")
    total[0] = before[(tx + 1) % 64]
    T.tvm_storage_sync("shared")
    turns[tx] = a[tx]
    for i in range(5):
        turns[(i + 1) % 2 * 64 + tx] = a[(i + 1) * 64 + tx]
        T.tvm_storage_sync("shared")
        total[0] = total[0] + turns[i % 2 * 64 + 63 - tx]
        T.tvm_storage_sync("shared")
    behind[tx] = total[0]
    behind[tx + 64] = total[0] + T.float32(1)
    T.tvm_storage_sync("shared")
    o[tx] = behind[127 - tx] + behind[(tx + 3) % 64]


@T.prim_func(s_tir=True)
def three_stages(a: T.Buffer((512,), "float32"), o: T.Buffer((512,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    loaded = T.alloc_buffer((128,), "float32", scope="shared")
    doubled = T.alloc_buffer((128,), "float32", scope="shared")
    last = T.alloc_buffer((64,), "float32", scope="shared")
    loaded[tx] = a[tx]
    T.tvm_storage_sync("shared")
    loaded[64 + tx] = a[64 + tx]
    doubled[tx] = loaded[63 - tx] * T.float32(2)
    T.tvm_storage_sync("shared")
    for k in range(6):
        loaded[k % 2 * 64 + tx] = a[(k + 2) * 64 + tx]
        doubled[(k + 1) % 2 * 64 + tx] = loaded[(k + 1) % 2 * 64 + 63 - tx] * T.float32(2)
        o[k * 64 + tx] = doubled[k % 2 * 64 + (tx + 5) % 64]
        T.tvm_storage_sync("shared")
    doubled[64 + tx] = loaded[127 - tx] * T.float32(2)
    o[384 + tx] = doubled[(tx + 5) % 64]
    T.tvm_storage_sync("shared")
    last[tx] = doubled[64 + (tx + 5) % 64]
    T.tvm_storage_sync("shared")
    o[448 + tx] = last[tx]


@T.prim_func(s_tir=True)
def rounds_of_rounds(
    a: T.Buffer((64,), "float32"), n: T.Buffer((2,), "int32"), o: T.Buffer((64,), "float32")
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    outer = T.alloc_buffer((64,), "float32", scope="shared")
    inner = T.alloc_buffer((64,), "float32", scope="shared")
    between = T.alloc_buffer((64,), "float32", scope="shared")
    behind = T.alloc_buffer((64,), "float32", scope="shared")
    o[tx] = T.float32(0)
    for _k in range(n[0]):
        outer[tx] = a[tx]
        for j in range(n[1]):
            T.tvm_storage_sync("shared")
            inner[tx] = outer[63 - tx] + T.Cast("float32", j)
            T.tvm_storage_sync("shared")
            o[tx] = o[tx] + inner[63 - tx]
        T.tvm_storage_sync("shared")
        between[tx] = a[tx] * T.float32(2)
        T.tvm_storage_sync("shared")
        o[tx] = o[tx] + between[63 - tx]
        T.tvm_storage_sync("shared")
    behind[tx] = o[tx]
    T.tvm_storage_sync("shared")
    o[tx] = behind[63 - tx]


@T.prim_func(s_tir=True)
def several_types(a: T.Buffer((64,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    half = T.alloc_buffer((64,), "float16", scope="shared")
    sign = T.alloc_buffer((64,), "bool", scope="shared")
    small = T.alloc_buffer((64,), "int8", scope="shared")
    wide = T.alloc_buffer((64,), "float64", scope="shared")
    half[tx] = T.Cast("float16", a[tx])
    sign[tx] = half[63 - tx] > T.float16(0)
    small[tx] = T.Cast("int8", T.if_then_else(sign[(tx + 1) % 64], 1, -1))
    wide[tx] = T.Cast("float64", small[63 - tx]) * T.float64(0.5)
    o[tx] = T.Cast("float32", wide[(tx + 9) % 64]) + T.if_then_else(
        sign[tx], T.float32(10), T.float32(0)
    )


@T.prim_func(s_tir=True)
def copied_ahead(a: T.Buffer((1024,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    turns = T.alloc_buffer((512,), "float32", scope="shared")
    total = T.alloc_buffer((1,), "float32", scope="local")
    behind = T.alloc_buffer((128,), "float32", scope="shared")
    total[0] = T.float32(0)
    with T.attr(0, "async_commit_queue_scope", 0), T.attr(0, "async_scope", 1):
        for v in T.vectorized(4):
            turns[tx * 4 + v] = a[tx * 4 + v]
    for k in range(3):
        with T.attr(0, "async_commit_queue_scope", 0), T.attr(0, "async_scope", 1):
            for v in T.vectorized(4):
                turns[(k + 1) % 2 * 256 + tx * 4 + v] = a[(k + 1) * 256 + tx * 4 + v]
        with T.attr(0, "async_wait_queue_scope", 0), T.attr(0, "async_wait_inflight_count", 1):
            T.tvm_storage_sync("shared")
            total[0] = total[0] + turns[k % 2 * 256 + 255 - tx]
        T.tvm_storage_sync("shared")
    with T.attr(0, "async_wait_queue_scope", 0), T.attr(0, "async_wait_inflight_count", 0):
        T.tvm_storage_sync("shared")
        total[0] = total[0] + turns[511 - tx]
    T.tvm_storage_sync("shared")
    behind[tx] = total[0]
    behind[tx + 64] = total[0]
    T.tvm_storage_sync("shared")
    o[tx] = behind[127 - tx]


def of_turns(a: np.ndarray) -> np.ndarray:
    rows = a.reshape(6, 64)
    total = np.roll(rows[0, ::-1], -1) + rows[:5, ::-1].sum(0)
    return total[::-1] + 1 + np.roll(total, -3)


def of_stages(a: np.ndarray) -> np.ndarray:
    return np.roll(a.reshape(8, 64)[:, ::-1] * 2, -5, axis=1).ravel()


def of_rounds(a: np.ndarray, n: Any) -> np.ndarray:
    outer, inner = map(int, n)
    total = sum((a + np.float32(j) for j in range(inner)), np.zeros_like(a))
    return (outer * (total + 2 * a[::-1]))[::-1]


def of_types(a: np.ndarray) -> np.ndarray:
    sign = a.astype("float16")[::-1] > 0
    small = np.where(np.roll(sign, -1), 1, -1)
    return (np.roll(small[::-1] * 0.5, -9) + np.where(sign, 10, 0)).astype("float32")


def of_copies(a: np.ndarray) -> np.ndarray:
    return a.reshape(4, 256)[:, :-65:-1].sum(0)[::-1]
