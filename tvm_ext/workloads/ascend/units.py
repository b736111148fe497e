# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: B023
# (TVMScript annotates arguments with values, which are no types to a type checker. The functions
# in a loop are called where the loop's body is parsed.)
"""Kernels of the vector and of the cube unit, and the buffers and loop nests that they consist of.

Of the vector unit, they are chains of elementwise steps through UB, and a sum of rows; of the cube
unit, products through L1, L0A, L0B and L0C, and attention. Buffers that are loaded, and in vector
kernels also those that are stored, have `slots` slots, so that loading the next tile, computing on
this and storing the last can happen at the same time. Sums of `float16` are in `float32`.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

from .kernels import HALF, Array, AscendKernel, ascend, parts


def argument(*shape):
    """Return the type of an argument: a buffer in global memory."""
    return T.Buffer(shape, HALF)


def buffer(shape, dtype="float32", *, scope="local.UB", slots=None):
    """Allocate a buffer, with `slots` slots if they are given."""
    turns = None if slots is None else {"multi_buffer": slots}
    return T.alloc_buffer(shape, dtype, scope=scope, annotations=turns)


def buffers(count, *kind, **options):
    """Allocate some buffers that are alike."""
    return [buffer(*kind, **options) for _ in range(count)]


def each(dst, value, *begin, shape=None):
    """Write each element, of its indices; or a part of this shape, which begins at `begin`."""
    shape = shape or tuple(dst.shape)
    with T.grid(*shape) as found:
        at = [*found] if len(shape) > 1 else [found]
        for name, variable in zip("ijkl", at, strict=False):
            IRBuilder.name(name, variable)
        place = [first + i for first, i in zip(begin, at, strict=False)] + at[len(begin) :]
        T.buffer_store(dst, value(*at), place)


def store(dst, src, *begin):
    """Copy a buffer into the part of another one that begins at `begin`."""
    each(dst, lambda *at: src[at], *begin, shape=tuple(src.shape))


def to_float(value):
    """Convert to float32."""
    return T.Cast("float32", value)


@T.inline
def multiply(dst, a, b, done):
    """Add a product of matrices to sums in float32, which begin at zero where none is `done`."""
    for i, x, j in T.grid(dst.shape[0], a.shape[1], dst.shape[1]):
        if done + x == 0:
            dst[i, j] = T.float32(0)
        dst[i, j] += to_float(a[i, x]) * to_float(b[x, j])


@ascend(tile=(4096, 9216, 14336, 18432))
def vector_add(tile: int, tiles: int = 3, slots: int = 2) -> AscendKernel:
    """Add two vectors, in float32."""
    n = tiles * tile

    @T.prim_func(s_tir=True)
    def function(x: argument(n), y: argument(n), z: argument(n)):
        for step in range(tiles):
            wide_x, wide_y, total = buffers(3, (tile,))
            z_ub, x_ub, y_ub = buffers(3, (tile,), HALF, slots=slots)
            each(y_ub, lambda i: y[step * tile + i])
            each(x_ub, lambda i: x[step * tile + i])
            each(wide_y, lambda i: to_float(y_ub[i]))
            each(wide_x, lambda i: to_float(x_ub[i]))
            each(total, lambda i: wide_x[i] + wide_y[i])
            each(z_ub, lambda i: T.Cast(HALF, total[i]))
            store(z, z_ub, step * tile)

    return AscendKernel(function, lambda x, y: x + y, whole=8)


@ascend(tile=(4096, 8192, 18432, 28672))
def gelu(tile: int, tiles: int = 3, slots: int = 2) -> AscendKernel:
    """GELU by its usual approximation with tanh, computed in float32."""
    n = tiles * tile
    # x * (1 + tanh(c * inner)) / 2 is x / (1 + exp(-2 * c * inner)).
    minus_2c = -2 * float(np.sqrt(2 / np.pi))

    @T.prim_func(s_tir=True)
    def function(x: argument(n), y: argument(n)):
        for step in range(tiles):
            wide, square, cube, inner, scaled, power, divisor, result = buffers(8, (tile,))
            y_ub, x_ub = buffers(2, (tile,), HALF, slots=slots)
            each(x_ub, lambda i: x[step * tile + i])
            each(wide, lambda i: to_float(x_ub[i]))
            each(square, lambda i: wide[i] * wide[i])
            each(cube, lambda i: square[i] * wide[i])
            each(inner, lambda i: cube[i] * T.float32(0.044715) + wide[i])
            each(scaled, lambda i: inner[i] * T.float32(minus_2c))
            each(power, lambda i: T.exp(scaled[i]))
            each(divisor, lambda i: power[i] + T.float32(1))
            each(result, lambda i: wide[i] / divisor[i])
            each(y_ub, lambda i: T.Cast(HALF, result[i]))
            store(y, y_ub, step * tile)

    return AscendKernel(function, _gelu, tolerance=1e-3)


def _gelu(x: Array) -> Array:
    wide = x.astype("float64")
    return wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))


@ascend(columns=(4096, 6656, 11264, 12800))
def reduction(columns: int, rows: int = 5, tiles: int = 2, slots: int = 2) -> AscendKernel:
    """Mean step between consecutive rows: a sum, and the row before, that a loop carries on."""
    if rows < 2:
        raise ValueError(f"kernel 'reduction': rows must be at least 2, got {rows}")

    @T.prim_func(s_tir=True)
    def function(x: argument(rows, tiles * columns), y: argument(tiles * columns)):
        for tile in range(tiles):
            first = buffer((columns,), HALF)
            before, total, mean = buffers(3, (columns,))
            out = buffer((columns,), HALF)
            each(first, lambda j: x[0, tile * columns + j])
            each(before, lambda j: to_float(first[j]))
            each(total, lambda j: T.float32(0))
            for i in range(rows - 1):
                row = buffer((columns,), HALF, slots=slots)
                wide, step, distance = buffers(3, (columns,))
                each(row, lambda j: x[i + 1, tile * columns + j])
                each(wide, lambda j: to_float(row[j]))
                each(step, lambda j: wide[j] - before[j])
                each(distance, lambda j: T.abs(step[j]))
                each(total, lambda j: total[j] + distance[j])
                each(before, lambda j: wide[j])
            each(mean, lambda j: total[j] * T.float32(1.0 / (rows - 1)))
            each(out, lambda j: T.Cast(HALF, mean[j]))
            store(y, out, tile * columns)

    # Sums of whole numbers are exact, and so are their halves and quarters.
    tolerance = 0.0 if rows in (2, 3, 5) else 1e-3
    return AscendKernel(function, _reduction, whole=8, tolerance=tolerance)


def _reduction(x: Array) -> Array:
    return np.abs(np.diff(x.astype("float64"), axis=0)).mean(axis=0)


# ------------------------------------------------------------------------ the cube unit


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
