# SPDX-License-Identifier: Apache-2.0
"""The attention kernels of TVM's KV cache at small sizes, with what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.target import Target

HEADS, SIZE, LATENT, PAGE = 2, 32, 16, 16
KEYS, QUERIES = (5, 19), (3, 2)
"""Of each of two sequences."""

# No more threads than what these sizes keep busy.
SMALL = Target(
    {
        "kind": "opencl",
        "max_num_threads": 128,
        "max_threads_per_block": 128,
        "max_shared_memory_per_block": 32768,
    },
    host="llvm",
)


@dataclass(frozen=True)
class Attention:
    """A kernel, its arguments by name, and what is to be in ``output``."""

    func: tirx.PrimFunc
    arguments: dict[str, Any]
    expected: np.ndarray
    grid: tuple[int, ...]


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the attention of one sequence: queries by heads by elements, keys by elements."""
    scores = np.einsum("qhd,kd->qhk", q, k) * 0.25
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("qhk,kd->qhd", powers / powers.sum(-1, keepdims=True), v)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, "int32")


def _common(queries: tuple[int, ...]) -> dict[str, Any]:
    """Return what all kernels of two sequences ask for: no rotation, no mask, offsets of zero."""
    count = sum(queries)
    names = ("k_rope_pos_offset", "length_info", "page_indptr", "page_values", "q_indptr")
    names += ("q_rope_position", "kv_indptr")
    zeros: dict[str, Any] = {f"{name}_elem_offset": np.int32(0) for name in names}
    zeros["pages_elem_offset"] = np.int64(0)
    return {
        **zeros,
        "batch_size": np.int32(2),
        "B": np.int32(2),
        "causal": np.int32(0),
        "rotary_mode": np.int32(0),
        "rope_scale": np.float32(1),
        "rope_theta": np.float32(10000),
        "sm_scale": np.float32(0.25),
        "lse": np.zeros(count * HEADS, "float32"),
        "q_indptr": _ints(0, queries[0], count),
        "q_rope_position": np.zeros(count, "int32"),
        "k_rope_pos_offset": np.zeros(2, "int32"),
    }


def _paged(keys: np.ndarray) -> np.ndarray:
    """Return rows in pages, each sequence from a page of its own on; the second one backwards."""
    pages = np.zeros((4, PAGE, *keys.shape[1:]), "float32")
    for row in range(KEYS[0]):
        pages[0, row] = keys[row]
    for row in range(KEYS[1]):
        pages[3 - row // PAGE, row % PAGE] = keys[KEYS[0] + row]
    return pages


def _pages() -> dict[str, Any]:
    return {
        "page_indptr": _ints(0, 1, 3),
        "page_table_indptr": _ints(0, 1, 3),
        "page_values": _ints(0, 3, 2),
        "page_table_values": _ints(0, 3, 2),
        "length_info": _ints(KEYS[0], KEYS[1] - PAGE),
    }


def _by_sequence(q: np.ndarray, k: np.ndarray, v: np.ndarray, queries: tuple[int, ...]) -> Any:
    return np.concatenate(
        [
            _attended(q[: queries[0]], k[: KEYS[0]], v[: KEYS[0]]),
            _attended(q[queries[0] :], k[KEYS[0] :], v[KEYS[0] :]),
        ]
    ).ravel()


def _with_pages(func: tirx.PrimFunc, queries: tuple[int, ...], grid: tuple[int, ...]) -> Attention:
    q, k, v = _numbers(sum(queries), HEADS, SIZE), _numbers(24, SIZE), _numbers(24, SIZE + 1)[:, 1:]
    pages = np.stack([_paged(k), _paged(v)], axis=1)
    flat = {
        "q": q.ravel(),
        "Q": q.ravel(),
        "pages": pages.ravel(),
        "output": np.zeros_like(q).ravel(),
    }
    return Attention(
        func, {**_common(queries), **_pages(), **flat}, _by_sequence(q, k, v, queries), grid
    )


def decode() -> Attention:
    func = kv_cache._attention_decode(1, HEADS, SIZE, "float32", False, {}, SMALL)
    return _with_pages(func, (1, 1), (2, 1))


def prefill() -> Attention:
    func = kv_cache._attention_prefill(1, HEADS, SIZE, "float32", False, {}, SMALL)
    return _with_pages(func, QUERIES, (16, 1))


def ragged() -> Attention:
    func = kv_cache._attention_prefill_ragged(1, HEADS, SIZE, SIZE, "float32", {}, SMALL)
    q, k, v = _numbers(5, HEADS, SIZE), _numbers(24, SIZE), _numbers(24, SIZE + 1)[:, 1:]
    flat = {
        "q": q.ravel(),
        "k": k.ravel(),
        "v": v.ravel().copy(),
        "output": np.zeros(q.size, "float32"),
    }
    arguments = {**_common(QUERIES), "kv_indptr": _ints(0, KEYS[0], sum(KEYS)), **flat}
    return Attention(func, arguments, _by_sequence(q, k, v, QUERIES), (16, 1))


def latent() -> Attention:
    func = kv_cache._attention_prefill_mla(HEADS, SIZE, LATENT, "float32", False, SMALL)
    q, k = _numbers(5, HEADS, SIZE + LATENT), _numbers(24, SIZE + LATENT)
    flat = {
        "q": q.ravel(),
        "pages": _paged(k).ravel(),
        "output": np.zeros(5 * HEADS * SIZE, "float32"),
    }
    expected = _by_sequence(q, k, k[:, :SIZE], QUERIES)
    return Attention(func, {**_common(QUERIES), **_pages(), **flat}, expected, (16,))


KERNELS: dict[str, Callable[[], Attention]] = {
    "decode": decode,
    "prefill": prefill,
    "ragged": ragged,
    "latent": latent,
}
