# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: B023
# (TVMScript annotates arguments with values, which are no types to a type checker. The functions
# in a loop are called where the loop's body is parsed.)
"""Kernels of the cube unit: products through L1, L0A, L0B and L0C, tile by tile, and attention.

Buffers that are loaded have `slots` slots. Sums of `float16` are in `float32`.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .kernels import HALF, Array, AscendKernel, ascend, parts
from .vector import argument, buffer, buffers, each, multiply, store, to_float


@T.inline
def product_of(sums, a, b, column, tile_k, step_k, slots):
    """Write a product to `sums`, in L0C: of `a` and of columns of `b`, the first one `column`.

    `tile_k` columns of the first operand at a time are brought to L1, and `step_k` of those to
    L0A; likewise rows of the second operand, to L1 and L0B.
    """
    for tile in range(a.shape[1] // tile_k):
        a_l1 = buffer((a.shape[0], tile_k), HALF, scope="local.L1", slots=slots)
        b_l1 = buffer((tile_k, sums.shape[1]), HALF, scope="local.L1", slots=slots)
        each(b_l1, lambda i, j: b[tile * tile_k + i, column + j])
        each(a_l1, lambda i, j: a[i, tile * tile_k + j])
        for step in range(tile_k // step_k):
            a_l0 = buffer((a.shape[0], step_k), HALF, scope="local.L0A", slots=slots)
            b_l0 = buffer((step_k, sums.shape[1]), HALF, scope="local.L0B", slots=slots)
            each(a_l0, lambda i, j: a_l1[i, step * step_k + j])
            each(b_l0, lambda i, j: b_l1[step * step_k + i, j])
            multiply(sums, a_l0, b_l0, tile * tile_k + step * step_k)


@ascend(
    tile_m=(64, 64, 64, 96),
    tile_k=(64, 128, 64, 64),
    step_k=(32, 64, 32, 32),
    half_n=(128, 160, 384, 384),
)
def matmul(
    tile_m: int, half_n: int, tile_k: int, step_k: int, tiles: int = 2, slots: int = 2
) -> AscendKernel:
    """Multiply matrices; a tile is done in two halves with sums of their own."""
    parts("matmul", tile_k, step_k, "tile_k")
    m, n, k = tile_m, tiles * 2 * half_n, 2 * tile_k

    @T.inline
    def half(a, b, c, column):
        product = buffer((m, half_n), scope="local.L0C")
        product_of(product, a, b, column, tile_k, step_k, slots)
        each(c, lambda i, j: T.Cast(HALF, product[i, j]), 0, column, shape=(m, half_n))

    @T.prim_func(s_tir=True)
    def function(a: argument(m, k), b: argument(k, n), c: argument(m, n)):
        for tile in range(tiles):
            half(a, b, c, tile * 2 * half_n)
            half(a, b, c, tile * 2 * half_n + half_n)

    # The sums are whole numbers of at most 4 * k, exact in float16 up to 2048.
    return AscendKernel(function, _matmul, whole=2)


def _matmul(a: Array, b: Array) -> Array:
    return a.astype("float32") @ b.astype("float32")


@ascend(
    tile_m=64,
    tile_k=64,
    step_k=32,
    tile_n=(256, 240, 384, 320),
    rows=(16, 32, 32, 64),
    slots=(2, 2, 2, 1),
)
def matmul_add_relu(
    tile_m: int, tile_n: int, tile_k: int, step_k: int, rows: int, tiles: int = 2, slots: int = 2
) -> AscendKernel:
    """Multiply matrices, add one and clip at zero: the sums go to the vector unit by a workspace.

    The cube unit has `slots` slots for its operands and for a tile in the workspace; the vector
    unit takes `rows` rows of the tile at a time.
    """
    parts("matmul_add_relu", tile_k, step_k, "tile_k")
    times = parts("matmul_add_relu", tile_m, rows, "tile_m")
    m, n, k = tile_m, tiles * tile_n, 2 * tile_k

    @T.prim_func(s_tir=True)
    def function(a: argument(m, k), b: argument(k, n), residual: argument(m, n), c: argument(m, n)):
        for tile in range(tiles):
            product = buffer((m, tile_n), scope="local.L0C")
            sums = buffer((m, tile_n), scope="global.workspace", slots=slots)
            product_of(product, a, b, tile * tile_n, tile_k, step_k, slots)
            each(sums, lambda i, j: product[i, j])
            for part in range(times):
                wide, total, clipped = buffers(3, (rows, tile_n))
                c_ub, added = buffers(2, (rows, tile_n), HALF, slots=slots)
                raw = buffer((rows, tile_n), slots=slots)
                each(raw, lambda i, j: sums[part * rows + i, j])
                each(added, lambda i, j: residual[part * rows + i, tile * tile_n + j])
                each(wide, lambda i, j: to_float(added[i, j]))
                each(total, lambda i, j: raw[i, j] + wide[i, j])
                each(clipped, lambda i, j: T.max(total[i, j], T.float32(0)))
                each(c_ub, lambda i, j: T.Cast(HALF, clipped[i, j]))
                store(c, c_ub, part * rows, tile * tile_n)

    return AscendKernel(function, lambda a, b, d: np.maximum(_matmul(a, b) + d, 0), whole=2)


@ascend(
    queries=(64, 128, 128, 128),
    keys=(64, 64, 128, 192),
    depth=(64, 64, 128, 128),
    rows=(32, 64, 64, 64),
)
def flash_attention(
    queries: int, keys: int, depth: int, rows: int, tiles: int = 2, slots: int = 2
) -> AscendKernel:
    """Attend, one head, a tile of keys at a time: the softmax is corrected as keys come in.

    Scores, their softmax and what it selects go between cube and vector unit by workspaces. The
    vector unit takes `rows` queries at a time through the softmax; the largest score and the sum
    of each query, and the output so far, are carried on from one tile of keys to the next.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
    Partitioning", 2023, algorithm 1.
    """
    times = parts("flash_attention", queries, rows, "queries")
    m, n, root = tiles * queries, tiles * keys, float(1 / np.sqrt(depth))

    @T.prim_func(s_tir=True)
    def function(
        q: argument(m, depth), k: argument(n, depth), v: argument(n, depth), o: argument(m, depth)
    ):
        for tile in range(tiles):
            q_l1 = buffer((queries, depth), HALF, scope="local.L1")
            most, total = buffers(2, (queries,))
            so_far = buffer((queries, depth))
            inverse = buffer((queries,))
            normed = buffer((queries, depth))
            out = buffer((queries, depth), HALF)
            each(q_l1, lambda i, j: q[tile * queries + i, j])
            each(most, lambda i: T.float32(-1e30))
            each(total, lambda i: T.float32(0))
            each(so_far, lambda i, j: T.float32(0))
            for step in range(tiles):
                k_l1, v_l1 = buffers(2, (keys, depth), HALF, scope="local.L1", slots=slots)
                p_l1 = buffer((queries, keys), HALF, scope="local.L1")
                q_l0 = buffer((queries, depth), HALF, scope="local.L0A")
                k_l0 = buffer((depth, keys), HALF, scope="local.L0B")
                p_l0 = buffer((queries, keys), HALF, scope="local.L0A")
                v_l0 = buffer((keys, depth), HALF, scope="local.L0B")
                s_l0 = buffer((queries, keys), scope="local.L0C")
                o_l0 = buffer((queries, depth), scope="local.L0C")
                scores = buffer((queries, keys), scope="global.workspace", slots=slots)
                weights = buffer((queries, keys), HALF, scope="global.workspace", slots=slots)
                selected = buffer((queries, depth), scope="global.workspace", slots=slots)
                correction = buffer((queries,))
                added = buffer((queries, depth))
                each(k_l1, lambda i, j: k[step * keys + i, j])
                each(q_l0, lambda i, j: q_l1[i, j])
                each(k_l0, lambda i, j: k_l1[j, i])
                multiply(s_l0, q_l0, k_l0, 0)
                each(scores, lambda i, j: s_l0[i, j])
                for part in range(times):
                    raw = buffer((rows, keys), slots=slots)
                    scaled = buffer((rows, keys))
                    higher, fall = buffers(2, (rows,))
                    shifted, power = buffers(2, (rows, keys))
                    p = buffer((rows, keys), HALF, slots=slots)
                    each(raw, lambda i, j: scores[part * rows + i, j])
                    each(scaled, lambda i, j: raw[i, j] * T.float32(root))
                    for i, j in T.grid(rows, keys):
                        if j == 0:
                            higher[i] = most[part * rows + i]
                        higher[i] = T.max(higher[i], scaled[i, j])
                    each(fall, lambda i: most[part * rows + i] - higher[i])
                    each(correction, lambda i: T.exp(fall[i]), part * rows, shape=(rows,))
                    store(most, higher, part * rows)
                    each(shifted, lambda i, j: scaled[i, j] - higher[i])
                    each(power, lambda i, j: T.exp(shifted[i, j]))
                    for i in range(rows):
                        total[part * rows + i] *= correction[part * rows + i]
                    for i, j in T.grid(rows, keys):
                        total[part * rows + i] += power[i, j]
                    each(p, lambda i, j: T.Cast(HALF, power[i, j]))
                    store(weights, p, part * rows)
                each(p_l1, lambda i, j: weights[i, j])
                each(v_l1, lambda i, j: v[step * keys + i, j])
                each(p_l0, lambda i, j: p_l1[i, j])
                each(v_l0, lambda i, j: v_l1[i, j])
                multiply(o_l0, p_l0, v_l0, 0)
                each(selected, lambda i, j: o_l0[i, j])
                each(added, lambda i, j: selected[i, j])
                each(so_far, lambda i, j: so_far[i, j] * correction[i])
                each(so_far, lambda i, j: so_far[i, j] + added[i, j])
            with T.attr({"pipe": "S"}):
                each(inverse, lambda i: T.float32(1) / total[i])
            each(normed, lambda i, j: so_far[i, j] * inverse[i])
            each(out, lambda i, j: T.Cast(HALF, normed[i, j]))
            store(o, out, tile * queries)

    return AscendKernel(function, _attention, tolerance=2e-3)


def _attention(q: Array, k: Array, v: Array) -> Array:
    scores = q.astype("float64") @ k.astype("float64").T / np.sqrt(q.shape[1])
    power = np.exp(scores - scores.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True) @ v.astype("float64")
