# SPDX-License-Identifier: Apache-2.0
"""Functions scheduled by hand: tiles, caches in special memories, threads, partial reductions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import s_tir, te, tirx, topi

from .families import CPU, Case, kernel, label, prim, tensor

_GPU = ("cuda", "vulkan", "webgpu")


def _matmul(n: Any, m: int, k: int, dtype: str = "float32") -> s_tir.Schedule:
    """Start to schedule a product whose block is named ``product``."""
    a, b = tensor((n, k), dtype, "a"), tensor((k, m), dtype, "b")
    axis = te.reduce_axis((0, k), "k")
    out = te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis), name="product")
    return s_tir.Schedule(prim([a, b], out))


def _chain(shape: tuple[int, ...], length: int, dtype: str = "float32") -> s_tir.Schedule:
    """Start to schedule a chain of elementwise blocks ``step0``, ``step1``, ..."""
    x = tensor(shape, dtype)
    out = x
    for i in range(length):
        out = _affine(out, i)
    return s_tir.Schedule(prim([x], out))


def _affine(x: te.Tensor, step: int) -> te.Tensor:
    one = tirx.const(step + 1, x.dtype)
    return te.compute(x.shape, lambda *at: x(*at) * one + one, name=f"step{step}")


@kernel(("llvm", "c"), ({}, {"tirx.disable_vectorize": True}))
def matmul_tiled() -> Iterator[Case]:
    """Matrix products in tiles summed in registers, vectorized, unrolled or in parallel."""
    for tile, dtype in ((8, "float32"), (16, "float32"), (16, "float16"), (32, "int32")):
        for kind in ("vectorize", "unroll", "parallel"):
            sch = _matmul(64, 64, 64, dtype)
            i, j, k = sch.get_loops("product")
            (i0, i1), (j0, j1) = sch.split(i, [None, tile]), sch.split(j, [None, tile])
            sch.reorder(i0, j0, k, i1, j1)
            sums = sch.cache_write("product", 0, "local")
            sch.reverse_compute_at(sums, j0)
            if kind == "parallel":
                sch.parallel(i0)
            else:
                getattr(sch, kind)(j1)
                getattr(sch, kind)(sch.get_loops(sums)[-1])
            sch.decompose_reduction("product", k)
            yield label(tile, dtype, kind), sch.mod["main"]


@kernel(CPU)
def chain_cached() -> Iterator[Case]:
    """Elementwise chains a tile at a time, each intermediate in a special memory."""
    for scope in ("local.UB", "local.LMEM", "local", "global"):
        for length in (3, 5):
            for tile, dtype in ((256, "float32"), (64, "float16")):
                sch = _chain((4096,), length, dtype)
                outer, _ = sch.split(sch.get_loops(f"step{length - 1}")[0], [None, tile])
                for i in reversed(range(length - 1)):
                    sch.set_scope(f"step{i}", 0, scope)
                    sch.compute_at(f"step{i}", outer)
                first = sch.cache_read("step0", 0, scope)
                sch.compute_at(first, outer)
                last = sch.cache_write(f"step{length - 1}", 0, scope)
                sch.reverse_compute_at(last, outer)
                yield label(scope, length, tile, dtype), sch.mod["main"]


@kernel(CPU)
def chain_vectorized() -> Iterator[Case]:
    """Elementwise chains whose inner loops are vectorized: buffers become vectors."""
    for length in (2, 4, 7):
        for lanes, dtype in ((4, "float32"), (8, "float32"), (16, "float16")):
            sch = _chain((64, 64), length, dtype)
            for i in range(length):
                sch.vectorize(sch.split(sch.get_loops(f"step{i}")[1], [None, lanes])[1])
            yield label(length, lanes, dtype), sch.mod["main"]


@kernel(CPU)
def software_pipeline() -> Iterator[Case]:
    """Loops whose stages overlap: a buffer between two stages gets as many versions."""
    for scope in ("local.UB", "global"):
        for length, tile, stages in (
            (2, 64, (0, 1, 1)),
            (2, 64, (0, 1, 2)),
            (4, 64, (0, 1, 1, 2, 2)),
            (4, 128, (0, 0, 1, 1, 1)),
            (3, 32, (0, 3, 3, 3)),
        ):
            sch = _chain((2048,), length)
            outer, _ = sch.split(sch.get_loops(f"step{length - 1}")[0], [None, tile])
            for i in reversed(range(length - 1)):
                sch.set_scope(f"step{i}", 0, scope)
                sch.compute_at(f"step{i}", outer)
            sch.compute_at(sch.cache_read("step0", 0, scope), outer)
            sch.annotate(outer, "software_pipeline_stage", list(stages))
            sch.annotate(outer, "software_pipeline_order", list(range(len(stages))))
            yield label(scope, tile, stages), sch.mod["main"]


@kernel(CPU)
def conv2d_tiled() -> Iterator[Case]:
    """Convolutions that pad a tile at a time and keep sums in a buffer of their own."""
    for tile, scope in ((7, "global"), (14, "local.UB")):
        for channels in (8, 16):
            x, w = tensor((1, channels, 28, 28)), tensor((16, channels, 3, 3), name="w")
            sch = s_tir.Schedule(prim([x, w], topi.nn.conv2d_nchw(x, w, 1, 1, 1)))
            block = sch.get_sblock("conv2d_nchw")
            _, _, h, _ = sch.get_loops(block)[:4]
            outer, _ = sch.split(h, [None, tile])
            sch.set_scope("pad_temp", 0, scope)
            sch.compute_at("pad_temp", outer)
            sch.reverse_compute_at(sch.cache_write(block, 0, scope), outer)
            yield label(tile, scope, channels), sch.mod["main"]


@kernel(CPU)
def dynamic_tiled() -> Iterator[Case]:
    """Tiled kernels on a symbolic number of rows."""
    for tile in (8, 16):
        n = te.var("n")
        sch = _matmul(n, 32, 64)
        i, _, k = sch.get_loops("product")
        i0, i1 = sch.split(i, [None, tile])
        sch.reorder(i0, k, i1)
        sch.reverse_compute_at(sch.cache_write("product", 0, "local.UB"), i0)
        yield label("matmul", tile), sch.mod["main"]


@kernel(_GPU, ({}, {"tirx.merge_static_smem": True}))
def gpu_shared_chain() -> Iterator[Case]:
    """Reversals in shared memory, a buffer for each: all of a block's threads read each."""
    for length in (2, 3, 5):
        for scope in ("shared", "shared.dyn"):
            x = tensor((16, 128))
            out = x
            for i in range(length):
                out = _reverse(out, f"step{i}")
            sch = s_tir.Schedule(prim([x], out))
            block, thread = sch.get_loops(f"step{length - 1}")
            sch.bind(block, "blockIdx.x")
            sch.bind(thread, "threadIdx.x")
            for i in reversed(range(length - 1)):
                sch.set_scope(f"step{i}", 0, scope)
                sch.compute_at(f"step{i}", block)
                sch.bind(sch.get_loops(f"step{i}")[-1], "threadIdx.x")
            yield label(length, scope), sch.mod["main"]


def _reverse(x: te.Tensor, name: str) -> te.Tensor:
    last = x.shape[1] - 1
    return te.compute(x.shape, lambda b, t: x[b, last - t] + 1.0, name=name)


@kernel(_GPU)
def gpu_matmul() -> Iterator[Case]:
    """Matrix products on threads: tiles in shared memory, sums in registers, virtual threads."""
    for tile, virtual, stages in ((32, 1, 1), (64, 2, 1), (64, 2, 2), (64, 4, 3)):
        for scope in ("shared", "shared.dyn"):
            sch = _gpu_matmul(tile, virtual, scope, stages)
            yield label(tile, virtual, scope, stages), sch.mod["main"]


def _gpu_matmul(tile: int, virtual: int, scope: str, stages: int) -> s_tir.Schedule:
    sch = _matmul(256, 256, 256)
    block = sch.get_sblock("product")
    i, j, k = sch.get_loops(block)
    bi, vi, ti, ii = sch.split(i, [None, virtual, 8, tile // 8 // virtual])
    bj, vj, tj, jj = sch.split(j, [None, virtual, 8, tile // 8 // virtual])
    k0, k1 = sch.split(k, [None, 8])
    sch.reorder(bi, bj, vi, vj, ti, tj, k0, k1, ii, jj)
    for loop, axis in (
        (bi, "blockIdx.y"),
        (bj, "blockIdx.x"),
        (vi, "vthread.y"),
        (vj, "vthread.x"),
        (ti, "threadIdx.y"),
        (tj, "threadIdx.x"),
    ):
        sch.bind(loop, axis)
    sch.reverse_compute_at(sch.cache_write(block, 0, "local"), tj)
    for index in range(2):
        load = sch.cache_read(block, index, scope)
        sch.compute_at(load, k0)
        fused = sch.fuse(*sch.get_loops(load)[-2:])
        _, ty, tx = sch.split(fused, [None, 8, 8])
        sch.bind(ty, "threadIdx.y")
        sch.bind(tx, "threadIdx.x")
    sch.decompose_reduction(block, k0)
    if stages > 1:
        sch.annotate(k0, "software_pipeline_stage", [0, 0, stages - 1])
        sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    return sch
