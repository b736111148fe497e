# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: B023
# (TVMScript annotates arguments with values, which are no types to a type checker. The functions
# in a loop are called where the loop's body is parsed.)
"""Kernels of the vector unit that reduce: rows in UB, and values that a loop carries on."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .instructions import add_up, each
from .kernel import Array, Program, ascend, normal, whole


@ascend(
    fits={"rows": 8, "columns": 768},
    reuse={"rows": 8, "columns": 1280},
    lowest={"rows": 16, "columns": 2048, "slots": 1},
    overflow={"rows": 16, "columns": 2304, "slots": 1},
)
def softmax(
    rows: int, columns: int, tiles: int = 2, slots: int = 2, dtype: str = "float16"
) -> Program:
    """Softmax of rows, computed in float32."""
    turns = {"multi_buffer": slots}

    @T.prim_func(s_tir=True)
    def function(
        x: T.Buffer((tiles * rows, columns), dtype), y: T.Buffer((tiles * rows, columns), dtype)
    ):
        for tile in range(tiles):
            row = T.alloc_buffer((rows, columns), dtype, scope="local.UB", annotations=turns)
            wide = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            most = T.alloc_buffer((rows,), "float32", scope="local.UB")
            shifted = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            power = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            total = T.alloc_buffer((rows,), "float32", scope="local.UB")
            share = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            out = T.alloc_buffer((rows, columns), dtype, scope="local.UB", annotations=turns)
            each(row, lambda i, j: x[tile * rows + i, j])
            each(wide, lambda i, j: T.Cast("float32", row[i, j]))
            for i, j in T.grid(rows, columns):
                if j == 0:
                    most[i] = wide[i, j]
                most[i] = T.max(most[i], wide[i, j])
            each(shifted, lambda i, j: wide[i, j] - most[i])
            each(power, lambda i, j: T.exp(shifted[i, j]))
            add_up(total, columns, lambda i, j: power[i, j])
            each(share, lambda i, j: power[i, j] / total[i])
            each(out, lambda i, j: T.Cast(dtype, share[i, j]))
            for i, j in T.grid(rows, columns):
                y[tile * rows + i, j] = out[i, j]

    draws = (normal((tiles * rows, columns), dtype),)
    return Program(function, draws, _softmax, tolerance=1e-3)


def _softmax(x: Array) -> Array:
    wide = x.astype("float64")
    power = np.exp(wide - wide.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


@ascend(
    fits={"rows": 8, "columns": 512},
    reuse={"rows": 8, "columns": 1024},
    lowest={"rows": 16, "columns": 1152},
    overflow={"rows": 16, "columns": 1536},
)
def layer_norm(
    rows: int, columns: int, tiles: int = 2, slots: int = 2, dtype: str = "float16"
) -> Program:
    """Layer norm of rows in float32; the scalar unit computes the scales of the rows."""
    turns = {"multi_buffer": slots}

    @T.prim_func(s_tir=True)
    def function(
        x: T.Buffer((tiles * rows, columns), dtype),
        weight: T.Buffer((columns,), "float32"),
        bias: T.Buffer((columns,), "float32"),
        y: T.Buffer((tiles * rows, columns), dtype),
    ):
        gamma = T.alloc_buffer((columns,), "float32", scope="local.UB")
        beta = T.alloc_buffer((columns,), "float32", scope="local.UB")
        each(gamma, lambda j: weight[j])
        each(beta, lambda j: bias[j])
        for tile in range(tiles):
            row = T.alloc_buffer((rows, columns), dtype, scope="local.UB", annotations=turns)
            wide = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            mean = T.alloc_buffer((rows,), "float32", scope="local.UB")
            centred = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            square = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            variance = T.alloc_buffer((rows,), "float32", scope="local.UB")
            scale = T.alloc_buffer((rows,), "float32", scope="local.UB")
            normed = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            scaled = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            moved = T.alloc_buffer((rows, columns), "float32", scope="local.UB")
            out = T.alloc_buffer((rows, columns), dtype, scope="local.UB", annotations=turns)
            each(row, lambda i, j: x[tile * rows + i, j])
            each(wide, lambda i, j: T.Cast("float32", row[i, j]))
            add_up(mean, columns, lambda i, j: wide[i, j] * T.float32(1.0 / columns))
            each(centred, lambda i, j: wide[i, j] - mean[i])
            each(square, lambda i, j: centred[i, j] * centred[i, j])
            add_up(variance, columns, lambda i, j: square[i, j] * T.float32(1.0 / columns))
            with T.attr({"pipe": "S"}):
                each(scale, lambda i: T.float32(1) / T.sqrt(variance[i] + T.float32(1e-5)))
            each(normed, lambda i, j: centred[i, j] * scale[i])
            each(scaled, lambda i, j: normed[i, j] * gamma[j])
            each(moved, lambda i, j: scaled[i, j] + beta[j])
            each(out, lambda i, j: T.Cast(dtype, moved[i, j]))
            for i, j in T.grid(rows, columns):
                y[tile * rows + i, j] = out[i, j]

    draws = (
        normal((tiles * rows, columns), dtype),
        normal((columns,), "float32"),
        normal((columns,), "float32"),
    )
    return Program(function, draws, _layer_norm, tolerance=1e-3)


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x.astype("float64") - x.astype("float64").mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * weight + bias


@ascend(
    fits={"columns": 4096},
    reuse={"columns": 6656},
    lowest={"columns": 11264},
    overflow={"columns": 12800},
)
def reduction(
    columns: int, rows: int = 5, tiles: int = 2, slots: int = 2, dtype: str = "float16"
) -> Program:
    """Mean step between consecutive rows: a sum, and the row before, that a loop carries on."""
    if rows < 2:
        raise ValueError(f"kernel 'reduction': rows must be at least 2, got {rows}")
    turns = {"multi_buffer": slots}

    @T.prim_func(s_tir=True)
    def function(
        x: T.Buffer((rows, tiles * columns), dtype), y: T.Buffer((tiles * columns,), dtype)
    ):
        for tile in range(tiles):
            first = T.alloc_buffer((columns,), dtype, scope="local.UB")
            before = T.alloc_buffer((columns,), "float32", scope="local.UB")
            total = T.alloc_buffer((columns,), "float32", scope="local.UB")
            mean = T.alloc_buffer((columns,), "float32", scope="local.UB")
            out = T.alloc_buffer((columns,), dtype, scope="local.UB")
            each(first, lambda j: x[0, tile * columns + j])
            each(before, lambda j: T.Cast("float32", first[j]))
            each(total, lambda j: T.float32(0))
            for i in range(rows - 1):
                row = T.alloc_buffer((columns,), dtype, scope="local.UB", annotations=turns)
                wide = T.alloc_buffer((columns,), "float32", scope="local.UB")
                step = T.alloc_buffer((columns,), "float32", scope="local.UB")
                distance = T.alloc_buffer((columns,), "float32", scope="local.UB")
                each(row, lambda j: x[i + 1, tile * columns + j])
                each(wide, lambda j: T.Cast("float32", row[j]))
                each(step, lambda j: wide[j] - before[j])
                each(distance, lambda j: T.abs(step[j]))
                each(total, lambda j: total[j] + distance[j])
                each(before, lambda j: wide[j])
            each(mean, lambda j: total[j] * T.float32(1.0 / (rows - 1)))
            each(out, lambda j: T.Cast(dtype, mean[j]))
            for j in range(columns):
                y[tile * columns + j] = out[j]

    draws = (whole((rows, tiles * columns), dtype),)
    # Sums of whole numbers are exact, and so are their halves and quarters.
    return Program(function, draws, _reduction, tolerance=0.0 if rows in (2, 3, 5) else 1e-3)


def _reduction(x: Array) -> Array:
    return np.abs(np.diff(x.astype("float64"), axis=0)).mean(axis=0)
