# SPDX-License-Identifier: Apache-2.0
"""Kernels as users write them: several pipes, loops in loops, and the cube unit."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

TILES, ROWS, COLUMNS = 6, 16, 64
TWO, THREE = {"multi_buffer": 2}, {"multi_buffer": 3}  # Slots


@T.prim_func(s_tir=True)
def normalised(
    x: T.Buffer((TILES * ROWS, COLUMNS), "float32"),
    y: T.Buffer((TILES * ROWS, COLUMNS), "float32"),
):
    """Rows over their largest element: loads, vector and scalar unit, stores."""
    for tile in range(TILES):
        row = T.alloc_buffer((ROWS, COLUMNS), "float32", scope="local.UB", annotations=TWO)
        size = T.alloc_buffer((ROWS, COLUMNS), "float32", scope="local.UB")
        most = T.alloc_buffer((ROWS,), "float32", scope="local.UB")
        inverse = T.alloc_buffer((ROWS,), "float32", scope="local.UB")
        out = T.alloc_buffer((ROWS, COLUMNS), "float32", scope="local.UB", annotations=TWO)
        for i, j in T.grid(ROWS, COLUMNS):
            row[i, j] = x[tile * ROWS + i, j]
        for i, j in T.grid(ROWS, COLUMNS):
            size[i, j] = T.abs(row[i, j])
        for i, j in T.grid(ROWS, COLUMNS):
            if j == 0:
                most[i] = T.float32(1)
            most[i] = T.max(most[i], size[i, j])
        with T.attr({"pipe": "S"}):
            for i in range(ROWS):
                inverse[i] = T.float32(1) / most[i]
        for i, j in T.grid(ROWS, COLUMNS):
            out[i, j] = row[i, j] * inverse[i]
        for i, j in T.grid(ROWS, COLUMNS):
            y[tile * ROWS + i, j] = out[i, j]


def normalised_by_numpy(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.abs(x).max(axis=1, keepdims=True), 1)


BLOCKS, STEPS, WIDTH = 3, 5, 128


@T.prim_func(s_tir=True)
def weighted(
    w: T.Buffer((BLOCKS, WIDTH), "float16"),
    x: T.Buffer((BLOCKS * STEPS, WIDTH), "float16"),
    y: T.Buffer((BLOCKS, WIDTH), "float16"),
):
    """Weighted sums: a loop in a loop, with two, three and two slots."""
    for block in range(BLOCKS):
        weight = T.alloc_buffer((WIDTH,), "float16", scope="local.UB", annotations=TWO)
        total = T.alloc_buffer((WIDTH,), "float32", scope="local.UB")
        out = T.alloc_buffer((WIDTH,), "float16", scope="local.UB", annotations=TWO)
        for j in range(WIDTH):
            weight[j] = w[block, j]
        for j in range(WIDTH):
            total[j] = T.float32(0)
        for step in range(STEPS):
            row = T.alloc_buffer((WIDTH,), "float16", scope="local.UB", annotations=THREE)
            product = T.alloc_buffer((WIDTH,), "float16", scope="local.UB")
            wide = T.alloc_buffer((WIDTH,), "float32", scope="local.UB")
            for j in range(WIDTH):
                row[j] = x[block * STEPS + step, j]
            for j in range(WIDTH):
                product[j] = row[j] * weight[j]
            for j in range(WIDTH):
                wide[j] = T.Cast("float32", product[j])
            for j in range(WIDTH):
                total[j] = total[j] + wide[j]
        for j in range(WIDTH):
            out[j] = T.Cast("float16", total[j])
        for j in range(WIDTH):
            y[block, j] = out[j]


def weighted_by_numpy(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    rows = x.reshape(BLOCKS, STEPS, WIDTH).astype("float32")
    return (rows * w[:, None].astype("float32")).sum(axis=1).astype("float16")


M, N, K, PARTS = 16, 32, 16, 4


@T.prim_func(s_tir=True)
def product(
    a: T.Buffer((M, PARTS * K), "float16"),
    b: T.Buffer((PARTS * K, TILES * N), "float16"),
    c: T.Buffer((M, TILES * N), "float32"),
):
    """A product through L1, L0A, L0B and L0C: the sums of a tile drain while the next one runs."""
    for tile in range(TILES):
        sums = T.alloc_buffer((M, N), "float32", scope="local.L0C", annotations=TWO)
        for part in range(PARTS):
            a_l1 = T.alloc_buffer((M, K), "float16", scope="local.L1", annotations=TWO)
            b_l1 = T.alloc_buffer((K, N), "float16", scope="local.L1", annotations=TWO)
            a_l0 = T.alloc_buffer((M, K), "float16", scope="local.L0A", annotations=TWO)
            b_l0 = T.alloc_buffer((K, N), "float16", scope="local.L0B", annotations=TWO)
            for i, x in T.grid(M, K):
                a_l1[i, x] = a[i, part * K + x]
            for x, j in T.grid(K, N):
                b_l1[x, j] = b[part * K + x, tile * N + j]
            for i, x in T.grid(M, K):
                a_l0[i, x] = a_l1[i, x]
            for x, j in T.grid(K, N):
                b_l0[x, j] = b_l1[x, j]
            for i, x, j in T.grid(M, K, N):
                if part == 0 and x == 0:
                    sums[i, j] = T.float32(0)
                sums[i, j] = sums[i, j] + T.Cast("float32", a_l0[i, x]) * T.Cast(
                    "float32", b_l0[x, j]
                )
        for i, j in T.grid(M, N):
            c[i, tile * N + j] = sums[i, j]


def product_by_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype("float32") @ b.astype("float32")
