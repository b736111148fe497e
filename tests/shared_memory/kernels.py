# SPDX-License-Identifier: Apache-2.0
"""Kernels of several phases in shared memory, with what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from program_text import programs
from tvm.tirx import PrimFunc

KERNELS = programs("""
def three_phases(a: 128, o: 128) on 2 x 64:
    s0, s1, s2: shared 64
    s0[tx] = a[bx * 64 + tx]
    s1[tx] = s0[63 - tx] * T.float32(2)
    s2[tx] = s1[(tx + 7) % 64]
    o[bx * 64 + tx] = s2[(tx * 3) % 64]

def dynamic_phases(a: 128, o: 128) on 2 x 64:
    s0: shared.dyn 64
    s1: shared.dyn 128 int16
    s2: shared.dyn 64 int32
    s0[tx] = a[bx * 64 + tx]
    s1[tx] = T.Cast("int16", s0[63 - tx] * T.float32(9))
    s1[tx + 64] = T.Cast("int16", s0[tx])
    s2[tx] = T.Cast("int32", s1[(tx + 7) % 64] + s1[127 - tx])
    o[bx * 64 + tx] = T.Cast("float32", s2[(tx * 3) % 64])

def carried(a: 256, o: 320) on 1 x 64:
    total: shared 64
    total[tx] = T.float32(0)
    for k in range(4):
        first, second, third: shared 64
        first[tx] = a[k * 64 + tx]
        second[tx] = first[63 - tx] + T.float32(1)
        third[tx] = second[(tx + 5) % 64]
        total[tx] = total[tx] + third[63 - tx]
        o[k * 64 + tx] = third[(tx + 1) % 64]
    o[256 + tx] = total[63 - tx]

def in_branches(a: 128, which: 1 int32, o: 128) on 1 x 64:
    kept, one, other, last: shared 64
    kept[tx] = a[tx]
    if T.tvm_thread_invariant(which[0] > 0):
        one[tx] = a[64 + tx]
        T.tvm_storage_sync("shared")
        o[tx] = one[63 - tx]
    else:
        other[tx] = a[127 - tx]
        T.tvm_storage_sync("shared")
        o[tx] = other[(tx + 9) % 64]
    T.tvm_storage_sync("shared")
    last[tx] = a[tx] * T.float32(3)
    T.tvm_storage_sync("shared")
    o[64 + tx] = kept[63 - tx] + last[(tx + 1) % 64]

def half_of_the_threads(a: 64, o: 64) on 1 x 64:
    low, high, both: shared 64
    if tx < 32:
        low[tx] = a[tx]
    else:
        high[tx] = a[tx]
    T.tvm_storage_sync("shared")
    if tx < 32:
        both[tx] = low[31 - tx]
    else:
        both[tx] = high[95 - tx] * T.float32(2)
    T.tvm_storage_sync("shared")
    o[tx] = both[63 - tx]

def counts_in_order(a: 256 int32, o: 128 int32) on 1 x 64:
    counts: shared 64 int32
    sums: shared 128 int32
    keys: shared 64 int32
    kept: local 1 int32
    counts[tx] = 0
    T.tvm_storage_sync("shared")
    for i in range(4):
        T.evaluate(T.call_extern("int32", "atomic_add", T.address_of(counts[a[i * 64 + tx]]), 1))
    T.tvm_storage_sync("shared")
    sums[tx] = counts[tx]
    T.tvm_storage_sync("shared")
    for step in range(6):
        sums[(step + 1) % 2 * 64 + tx] = sums[step % 2 * 64 + tx] + T.if_then_else(
            tx >= T.shift_left(1, step), sums[step % 2 * 64 + tx - T.shift_left(1, step)], 0
        )
        T.tvm_storage_sync("shared")
    o[tx] = sums[tx]
    keys[tx] = counts[tx] * 64 + tx
    T.tvm_storage_sync("shared")
    for size in range(6):
        for step in range(size + 1):
            kept[0] = keys[T.bitwise_xor(tx, T.shift_left(1, size - step))]
            T.tvm_storage_sync("shared")
            if (T.bitwise_and(tx, T.shift_left(2, size)) == 0) == (
                T.bitwise_and(tx, T.shift_left(1, size - step)) == 0
            ):
                keys[tx] = T.min(keys[tx], kept[0])
            else:
                keys[tx] = T.max(keys[tx], kept[0])
            T.tvm_storage_sync("shared")
    o[64 + tx] = keys[tx] % 64

def counted_by_address(a: 64 int32, o: 64 int32) on 1 x 64:
    counts, later: shared 64 int32
    counts[tx] = 0
    T.tvm_storage_sync("shared")
    T.evaluate(T.call_extern("int32", "atomic_add", T.address_of(counts[a[tx]]), 1))
    T.tvm_storage_sync("shared")
    later[tx] = a[63 - tx]
    T.tvm_storage_sync("shared")
    o[tx] = later[(tx + 1) % 64]
    T.tvm_storage_sync("shared")
    o[tx] = o[tx] + T.call_extern("int32", "atomic_add", T.address_of(counts[tx]), 0)

def flash_attention(q: 256, k: 1024, v: 1024, o: 256) on 1 x 64:
    # 16 queries, 64 keys in tiles of 16, 16 elements each; a thread has 4 elements of a row.
    queries: shared 256
    most, total: shared 16
    result: local 4
    now: local 2
    staged: shared 256
    for i in range(4):
        queries[i * 64 + tx] = q[i * 64 + tx]
        result[i] = T.float32(0)
    if tx < 16:
        most[tx] = T.float32(-10000)
        total[tx] = T.float32(0)
    for tile in range(4):
        keys, values, scores: shared 256
        scale: shared 16
        powers: shared 256
        T.tvm_storage_sync("shared")
        keys[i * 64 + tx] = k[tile * 256 + i * 64 + tx] for i in range(4)
        T.tvm_storage_sync("shared")
        for i in range(4):
            scores[i * 64 + tx] = T.float32(0)
            for r in range(16):
                scores[i * 64 + tx] = scores[i * 64 + tx] + (
                    queries[(i * 64 + tx) // 16 * 16 + r] * keys[tx % 16 * 16 + r]
                )
        T.tvm_storage_sync("shared")
        values[i * 64 + tx] = v[tile * 256 + i * 64 + tx] for i in range(4)
        if tx < 16:
            now[0] = most[tx]
            now[0] = T.max(now[0], scores[tx * 16 + r]) for r in range(16)
            scale[tx] = T.exp(most[tx] - now[0])
            most[tx] = now[0]
            now[1] = total[tx] * scale[tx]
            for r in range(16):
                powers[tx * 16 + r] = T.exp(scores[tx * 16 + r] - now[0])
                now[1] = now[1] + T.exp(scores[tx * 16 + r] - now[0])
            total[tx] = now[1]
        T.tvm_storage_sync("shared")
        for i in range(4):
            result[i] = result[i] * scale[tx // 4]
            for r in range(16):
                result[i] = result[i] + powers[tx // 4 * 16 + r] * values[r * 16 + tx % 4 * 4 + i]
    T.tvm_storage_sync("shared")
    staged[tx * 4 + i] = result[i] / total[tx // 4] for i in range(4)
    T.tvm_storage_sync("shared")
    o[i * 64 + tx] = staged[i * 64 + tx] for i in range(4)

def only_the_warp(a: 64, o: 64) on 1 x 64:
    first, second: shared 64
    first[tx] = a[tx]
    T.tvm_storage_sync("warp")
    o[tx] = first[tx]
    T.tvm_storage_sync("warp")
    second[63 - tx] = a[tx] + T.float32(1)
    T.tvm_storage_sync("warp")
    o[63 - tx] = o[63 - tx] + second[63 - tx]
""")


def _of_phases(a: np.ndarray) -> np.ndarray:
    t = np.arange(64)
    return (a.reshape(2, 64)[:, ::-1] * 2)[:, (t + 7) % 64][:, (t * 3) % 64].ravel()


def _of_dynamic_phases(a: np.ndarray) -> np.ndarray:
    t, rows = np.arange(64), a.reshape(2, 64)
    both = np.concatenate([rows[:, ::-1] * 9, rows], axis=1).astype("int16")
    ints = both[:, (t + 7) % 64] + both[:, 127 - t]
    return ints[:, (t * 3) % 64].ravel()


def _of_carried(a: np.ndarray) -> np.ndarray:
    t, rows = np.arange(64), a.reshape(4, 64)
    third = (rows[:, ::-1] + 1)[:, (t + 5) % 64]
    total = third[:, ::-1].sum(0, dtype="float32")
    return np.concatenate([third[:, (t + 1) % 64].ravel(), total[::-1]])


def _of_branches(a: np.ndarray, which: np.ndarray) -> np.ndarray:
    t = np.arange(64)
    first = a[64:][::-1] if which[0] > 0 else a[127 - (t + 9) % 64]
    return np.concatenate([first, a[63 - t] + a[(t + 1) % 64] * 3])


def _of_half(a: np.ndarray) -> np.ndarray:
    return np.concatenate([a[:32][::-1], a[32:][::-1] * 2])[::-1]


def _of_warp(a: np.ndarray) -> np.ndarray:
    return a + a[::-1] + 1


def _of_counts(a: np.ndarray) -> np.ndarray:
    counts = np.bincount(a, minlength=64)
    return np.concatenate([counts.cumsum(), np.argsort(counts, kind="stable")])


def _of_addresses(a: np.ndarray) -> np.ndarray:
    return np.bincount(a, minlength=64) + np.roll(a[::-1], -1)


def _of_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.exp(q.reshape(16, 16) @ k.reshape(64, 16).T)
    return (scores / scores.sum(1, keepdims=True) @ v.reshape(64, 16)).ravel()


@dataclass(frozen=True)
class Case:
    """A kernel, what it computes, and its shared memory in bytes."""

    name: str
    expected: Callable[..., np.ndarray]
    shapes: tuple[int, ...]  # Elements of each input
    size: int  # Elements of the result
    grid: tuple[int, ...]
    least: int  # Bytes that a plan takes with the barriers that are there
    dtype: str = "float32"
    numbers: tuple[int, ...] = ()  # An input of integers behind the others
    lowering: Mapping[str, Any] = field(default_factory=dict)  # Target and options of its own

    @property
    def func(self) -> PrimFunc:
        """The kernel."""
        return KERNELS[self.name]

    def arguments(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the arguments by name, ``o`` the room for the result, and what is to be there."""
        chosen = np.random.default_rng(0)
        if self.dtype == "int32":
            inputs = [chosen.integers(0, 64, n).astype("int32") for n in self.shapes]
        else:
            inputs = [chosen.standard_normal(n).astype(self.dtype) for n in self.shapes]
        if self.numbers:
            inputs.append(np.array(self.numbers, "int32"))
        arrays = [*inputs, np.zeros(self.size, self.dtype)]
        names = [str(param.name) for param in self.func.params]
        return dict(zip(names, arrays, strict=True)), self.expected(*inputs)


CASES = {
    "three phases": Case("three_phases", _of_phases, (128,), 128, (2,), 512),
    "dynamic": Case("dynamic_phases", _of_dynamic_phases, (128,), 128, (2,), 512),
    "carried": Case("carried", _of_carried, (256,), 320, (1,), 768),
    "one branch": Case("in_branches", _of_branches, (128,), 128, (1,), 768, numbers=(1,)),
    "other branch": Case("in_branches", _of_branches, (128,), 128, (1,), 768, numbers=(0,)),
    "warp": Case("only_the_warp", _of_warp, (64,), 64, (1,), 256),
    "half": Case("half_of_the_threads", _of_half, (64,), 64, (1,), 512),
    "counts": Case("counts_in_order", _of_counts, (256,), 128, (1,), 768, "int32"),
    "by address": Case("counted_by_address", _of_addresses, (64,), 64, (1,), 512, "int32"),
    "attention": Case("flash_attention", _of_attention, (256, 1024, 1024), 256, (1,), 4288),
}
