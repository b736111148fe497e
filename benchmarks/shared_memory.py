# SPDX-License-Identifier: Apache-2.0
"""Bytes of shared memory that GPU kernels take: by TVM's two settings, and by ours."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.relax.frontend.nn.llm.tree_attn import tree_attn, tree_attn_with_paged_kv_cache
from tvm.s_tir import dlight
from tvm.target import Target

import tvm_ext

Way = tuple[Mapping[str, Any], Callable[[], AbstractContextManager[None]]]

WAYS: dict[str, Way] = {
    "sum": ({"tirx.disable_storage_rewrite": True}, nullcontext),
    "default": ({}, nullcontext),
    "merged": ({"tirx.merge_static_smem": True}, nullcontext),
    "ours": ({}, tvm_ext.use_plan_shared_memory),
    "ours, more barriers": ({}, lambda: tvm_ext.use_plan_shared_memory(barriers="insert")),
}
"""Settings of TVM's passes, and what stands in the place of TVM's pass."""

SM_BYTES = {"sm_80": 164, "sm_90": 228, "gfx90a": 64, "adreno": 32, "apple": 32}
"""Kilobytes of shared memory of a multiprocessor (of a block, where that is all that is told)."""


@dataclass(frozen=True)
class Lowered:
    """A function's kernels behind one way of planning."""

    kernels: tuple[tirx.PrimFunc, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        """Bytes of shared memory of the kernel that takes most."""
        return max(map(shared_bytes, self.kernels), default=0)


def shared_bytes(kernel: tirx.PrimFunc) -> int:
    """Return the bytes of shared memory that a lowered kernel allocates."""
    found: list[int] = []

    def note(op: tirx.AllocBuffer) -> None:
        ty = op.buffer.ty
        if str(ty.storage_scope) in ("shared", "shared.dyn"):
            dtype = ty.dtype.dtype
            count = 1
            for extent in ty.shape:
                count *= int(extent.value)
            found.append(count * -(-dtype.bits * dtype.lanes // 8))

    tvm_ffi.structural_walk(kernel.body, (tirx.AllocBuffer, note))
    return sum(found)


def lower(func: tirx.PrimFunc, target: Target, way: str) -> Lowered:
    """Lower a function for a target, and return its kernels."""
    config, within = WAYS[way]
    with_host = Target(target, host="llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tirx.transform.BindTarget(with_host)(mod)
    pipeline, _, _ = tirx.get_tir_pipeline("default")
    with with_host, tvm.transform.PassContext(config=dict(config)), within():
        start = time.perf_counter()
        mod = pipeline(mod)
        seconds = time.perf_counter() - start
    functions = [f for _, f in sorted(mod.functions.items(), key=lambda item: item[0].name_hint)]
    kernels = tuple(f for f in functions if "tirx.kernel_launch_params" in (f.attrs or {}))
    return Lowered(kernels, seconds)


def attention(target: Target) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """Yield the attention kernels of TVM's KV cache."""
    rope: dict[str, Any] = {}
    for dtype in ("float16", "float32"):
        heads = (8, 32, 128)
        yield f"attention_decode {dtype}", kv_cache._attention_decode(*heads, dtype, False, rope, target)
        yield f"attention_prefill {dtype}", kv_cache._attention_prefill(*heads, dtype, False, rope, target)
        yield f"prefill_ragged {dtype}", kv_cache._attention_prefill_ragged(8, 32, 128, 128, dtype, rope, target)
        yield f"sequence_prefill {dtype}", kv_cache._attention_sequence_prefill(*heads, dtype, target)
        yield f"prefill_mla {dtype}", kv_cache._attention_prefill_mla(16, 512, 64, dtype, False, target)
        yield f"tree_attn {dtype}", tree_attn(*heads, dtype, rope, target)
        yield f"tree_attn paged {dtype}", tree_attn_with_paged_kv_cache(*heads, dtype, rope, target)


def operators() -> Iterator[tuple[str, relax.Expr]]:
    """Yield operators of one or two tensors, with their inputs."""
    for dtype in ("float32", "float16"):
        for m, n, k in ((512, 512, 512), (1, 4096, 4096), (8, 1024, 4096), (128, 128, 2048)):
            a = relax.Var("a", relax.TensorStructInfo((m, k), dtype)) if False else None
            del a
            yield f"matmul {m}x{n}x{k} {dtype}", ((m, k), (k, n), dtype, relax.op.matmul)
        yield f"softmax {dtype}", ((64, 2048), None, dtype, relax.op.nn.softmax)
        yield f"sum {dtype}", ((64, 2048), None, dtype, lambda x: relax.op.sum(x, axis=1))
        yield f"transpose {dtype}", ((512, 512), None, dtype, relax.op.permute_dims)


if __name__ == "__main__":
    target = Target({"kind": "cuda", "arch": "sm_61", "max_threads_per_block":1024, "max_num_threads":1024, "max_shared_memory_per_block":49152, "thread_warp_size":32})
    for name, func in attention(target):
        row = []
        for way in WAYS:
            try:
                l = lower(func, target, way)
                row.append(f"{l.bytes} ({l.seconds:.2f}s)")
            except Exception as e:
                row.append(str(e)[-100:])
        print(name, row, flush=True)
