# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: B023
# (TVMScript annotates arguments with values, which are no types to a type checker. The functions
# in a loop are called where the loop's body is parsed.)
"""Attention: products on the cube unit, the softmax between them on the vector unit."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from .instructions import buffer, buffers, each, multiply
from .kernel import Array, Program, ascend, normal, parts


@ascend(
    fits={"queries": 64, "keys": 64, "depth": 64, "rows": 32},
    reuse={"queries": 128, "keys": 64, "depth": 64, "rows": 64},
    lowest={"queries": 128, "keys": 128, "depth": 128, "rows": 64},
    overflow={"queries": 128, "keys": 192, "depth": 128, "rows": 64},
)
def flash_attention(
    queries: int,
    keys: int,
    depth: int,
    rows: int,
    tiles: int = 2,
    slots: int = 2,
    dtype: str = "float16",
) -> Program:
    """Attend, one head, a tile of keys at a time: the softmax is corrected as keys come in.

    Scores, their softmax and what it selects go between cube and vector unit by workspaces. The
    vector unit takes `rows` queries at a time through the softmax; the largest score and the sum
    of each query, and the output so far, are carried on from one tile of keys to the next.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
    Partitioning", 2023, algorithm 1.
    """
    times = parts("flash_attention", queries, rows, "queries")
    root = float(1 / np.sqrt(depth))

    @T.prim_func(s_tir=True)
    def function(
        q: T.Buffer((tiles * queries, depth), dtype),
        k: T.Buffer((tiles * keys, depth), dtype),
        v: T.Buffer((tiles * keys, depth), dtype),
        o: T.Buffer((tiles * queries, depth), dtype),
    ):
        for tile in range(tiles):
            q_l1 = buffer((queries, depth), dtype, scope="local.L1")
            most, total = buffers(2, (queries,))
            so_far = buffer((queries, depth))
            inverse = buffer((queries,))
            normed = buffer((queries, depth))
            out = buffer((queries, depth), dtype)
            each(q_l1, lambda i, j: q[tile * queries + i, j])
            each(most, lambda i: T.float32(-1e30))
            each(total, lambda i: T.float32(0))
            each(so_far, lambda i, j: T.float32(0))
            for step in range(tiles):
                k_l1, v_l1 = buffers(2, (keys, depth), dtype, scope="local.L1", slots=slots)
                p_l1 = buffer((queries, keys), dtype, scope="local.L1")
                q_l0 = buffer((queries, depth), dtype, scope="local.L0A")
                k_l0 = buffer((depth, keys), dtype, scope="local.L0B")
                p_l0 = buffer((queries, keys), dtype, scope="local.L0A")
                v_l0 = buffer((keys, depth), dtype, scope="local.L0B")
                s_l0 = buffer((queries, keys), scope="local.L0C")
                o_l0 = buffer((queries, depth), scope="local.L0C")
                scores = buffer((queries, keys), scope="global.workspace", slots=slots)
                weights = buffer((queries, keys), dtype, scope="global.workspace", slots=slots)
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
                    p = buffer((rows, keys), dtype, slots=slots)
                    each(raw, lambda i, j: scores[part * rows + i, j])
                    each(scaled, lambda i, j: raw[i, j] * T.float32(root))
                    for i, j in T.grid(rows, keys):
                        if j == 0:
                            higher[i] = most[part * rows + i]
                        higher[i] = T.max(higher[i], scaled[i, j])
                    each(fall, lambda i: most[part * rows + i] - higher[i])
                    for i in range(rows):
                        correction[part * rows + i] = T.exp(fall[i])
                    for i in range(rows):
                        most[part * rows + i] = higher[i]
                    each(shifted, lambda i, j: scaled[i, j] - higher[i])
                    each(power, lambda i, j: T.exp(shifted[i, j]))
                    for i in range(rows):
                        total[part * rows + i] = (
                            total[part * rows + i] * correction[part * rows + i]
                        )
                    for i, j in T.grid(rows, keys):
                        total[part * rows + i] = total[part * rows + i] + power[i, j]
                    each(p, lambda i, j: T.Cast(dtype, power[i, j]))
                    for i, j in T.grid(rows, keys):
                        weights[part * rows + i, j] = p[i, j]
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
            each(out, lambda i, j: T.Cast(dtype, normed[i, j]))
            for i, j in T.grid(queries, depth):
                o[tile * queries + i, j] = out[i, j]

    draws = (
        normal((tiles * queries, depth), dtype),
        normal((tiles * keys, depth), dtype),
        normal((tiles * keys, depth), dtype),
    )
    return Program(function, draws, _attention, tolerance=2e-3)


def _attention(q: Array, k: Array, v: Array) -> Array:
    scores = q.astype("float64") @ k.astype("float64").T / np.sqrt(q.shape[1])
    power = np.exp(scores - scores.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True) @ v.astype("float64")
