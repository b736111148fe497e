# SPDX-License-Identifier: Apache-2.0
"""Kernels with stages: buffers in turns, a prologue and an epilogue, copies on their way."""

from __future__ import annotations

import numpy as np
from kernels import KERNELS, Case
from program_text import programs
from tvm.target import Target

KERNELS |= programs("""
def in_turns(a: 384, o: 64) on 1 x 64:
    turns: shared 128
    before: shared 64
    behind: shared 128
    total: local 1
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

def several_types(a: 64, o: 64) on 1 x 64:
    half: shared 64 float16
    sign: shared 64 bool
    small: shared 64 int8
    wide: shared 64 float64
    half[tx] = T.Cast("float16", a[tx])
    sign[tx] = half[63 - tx] > T.float16(0)
    small[tx] = T.Cast("int8", T.if_then_else(sign[(tx + 1) % 64], 1, -1))
    wide[tx] = T.Cast("float64", small[63 - tx]) * T.float64(0.5)
    o[tx] = T.Cast("float32", wide[(tx + 9) % 64]) + T.if_then_else(
        sign[tx], T.float32(10), T.float32(0)
    )

def copied_ahead(a: 1024, o: 64) on 1 x 64:
    turns: shared 512
    total: local 1
    behind: shared 128
    total[0] = T.float32(0)
    with T.attr(0, "async_commit_queue_scope", 0), T.attr(0, "async_scope", 1):
        turns[tx * 4 + v] = a[tx * 4 + v] for v in T.vectorized(4)
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

def two_groups(a: 8, o: 8) on 1 x 8:
    # `second` is on its way to the end, and nobody reads it; `behind` is too large for `first`.
    first: shared 8
    second, behind: shared 16
    T.evaluate(T.call_intrin("float32", "tirx.s_tir.cp_async_raw", first.data, tx, a.data, tx, 4))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    for i in range(2):
        T.evaluate(
            T.call_intrin(
                "float32", "tirx.s_tir.cp_async_raw", second.data, tx + i * 8, a.data, tx, 4
            )
        )
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 1))
    T.tvm_storage_sync("shared")
    o[tx] = first[7 - tx]
    T.tvm_storage_sync("shared")
    behind[tx + i * 8] = o[tx] for i in range(2)
    T.tvm_storage_sync("shared")
    o[tx] = behind[15 - tx] + behind[7 - tx]
    T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", 0))
""")


def of_turns(a: np.ndarray) -> np.ndarray:
    rows = a.reshape(6, 64)
    total = np.roll(rows[0, ::-1], -1) + rows[:5, ::-1].sum(0)
    return total[::-1] + 1 + np.roll(total, -3)


def of_types(a: np.ndarray) -> np.ndarray:
    sign = a.astype("float16")[::-1] > 0
    small = np.where(np.roll(sign, -1), 1, -1)
    return (np.roll(small[::-1] * 0.5, -9) + np.where(sign, 10, 0)).astype("float32")


def of_copies(a: np.ndarray) -> np.ndarray:
    return a.reshape(4, 256)[:, :-65:-1].sum(0)[::-1]


COPYING = {
    "target": Target({"kind": "cuda", "arch": "sm_80"}, host="llvm"),
    "config": {"tirx.use_async_copy": True},
}
CASES = {
    "in turns": Case("in_turns", of_turns, (384,), 64, (1,), 512),
    "types": Case("several_types", of_types, (64,), 64, (1,), 640),
    "copies": Case("copied_ahead", of_copies, (1024,), 64, (1,), 2048, lowering=COPYING),
    "two groups": Case("two_groups", lambda a: 2 * a, (8,), 8, (1,), 128),
}
