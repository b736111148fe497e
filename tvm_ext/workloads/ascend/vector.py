# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: B023
# (TVMScript annotates arguments with values, which are no types to a type checker. The functions
# in a loop are called where the loop's body is parsed.)
"""Kernels of the vector unit: chains of elementwise steps through UB, and a sum of rows.

The tiles that are loaded and those that are stored have `slots` slots, so that loading the next
tile, computing on this and storing the last can happen at the same time. The first functions here
are the buffers and loop nests that the kernels of both units are written with.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

from .kernels import HALF, Array, AscendKernel, ascend


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
