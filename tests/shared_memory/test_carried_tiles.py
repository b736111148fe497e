# SPDX-License-Identifier: Apache-2.0
"""Shared memory in which a loop carries a value from one round to the next."""

from __future__ import annotations

from functools import partial
from textwrap import indent

import numpy as np
import pytest
from block_replay import replay
from opencl_runs import lowered, shared_bytes
from program_text import program
from tvm.tirx import PrimFunc

import tvm_ext
from passes.ir import find_accesses, find_linear_access

ROUNDS = 4

FILLS = {
    "in the first round": "if k == 0:\n    s[tx] = x[tx]",
    "in the first round of the outer loop": "if o == 0 and k == 0:\n    s[tx] = x[tx]",
    "as a sum": "s[tx] = T.if_then_else(k == 0, x[tx], s[tx] * T.float32(2))",
    "by some threads": "if k == 0 or tx < 4:\n    s[tx] = x[tx] + T.Cast('float32', k)",
    "in each round": "s[tx] = x[tx] + T.Cast('float32', k)",
}

BYTES = {"in each round": 64, "in the first round": 96, "as a sum": 96}
"""What the plan takes: two tiles of 32 bytes at once, and a third one where `s` is carried."""


def kernel(fill: str, before: str = "") -> PrimFunc:
    return program(f"""
def main(x: 8, out: {8 * 2 * ROUNDS}):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
{indent(before, " " * 4)}
    for o in range(2):
        for k in range({ROUNDS}):
            s, v, w: shared 8
{indent(fill, " " * 12)}
            v[tx] = s[7 - tx] + T.float32(1)
            w[tx] = v[7 - tx] * T.float32(2)
            out[(o * {ROUNDS} + k) * 8 + tx] = w[7 - tx]
""")


def expected(how: str) -> np.ndarray:
    x, rows = np.arange(8, dtype="float32"), []
    s = np.zeros(8, "float32")
    for _ in range(2):
        for k in range(ROUNDS):
            if how == "as a sum":
                s = x if k == 0 else s * 2
            elif how == "by some threads":
                s = np.where((k == 0) | (np.arange(8) < 4), x + k, s)
            else:
                s = x + k if how == "in each round" else x
            rows.append(2 * (s[::-1] + 1))
    return np.concatenate(rows)


@pytest.mark.parametrize("how", FILLS)
def test_a_tile_that_a_loop_carries_keeps_its_bytes(how: str):
    planned = lowered(kernel(FILLS[how]), partial(tvm_ext.use, "PlanSharedMemory"))
    out = np.zeros(8 * 2 * ROUNDS, "float32")
    replay(planned, {"x": np.arange(8, dtype="float32"), "out": out}, (1,), "backward")
    np.testing.assert_array_equal(out, expected(how))
    assert shared_bytes(planned) == BYTES.get(how, 96)


REGISTER = """
r = T.alloc_buffer((1,), "int32", scope="local")
r[0] = tx // 4
half: T.let[T.int32] = r[0]
"""

HALVES = {
    "half tells them apart": """
if half == 0:
    s[tx] = x[tx] + T.Cast('float32', k)
T.tvm_storage_sync("shared")
if half == 0:
    if k > 0:
        out[k * 8 + tx] = s[tx + 4]
T.tvm_storage_sync("shared")
if half != 0:
    s[tx] = x[tx] * T.Cast('float32', k)
""",
    "the other half is not there": """
if tx < 4:
    s[tx] = x[tx] + T.Cast('float32', k)
    if k > 0:
        T.call_extern("int32", "atomic_add", T.address_of(s[tx + 4]), T.float32(1))
T.tvm_storage_sync("shared")
if tx >= 4:
    s[tx] = x[tx] * T.Cast('float32', k)
""",
    "each stores its own": """
if T.bitwise_and(tx, 4) == half:
    s[tx] = x[tx]
else:
    s[tx] = x[tx] + T.Cast('float32', k)
""",
}
"""Threads of one half store a part of the tile, and read what the others stored a round before."""


@pytest.mark.parametrize("how", HALVES)
def test_what_other_threads_store_on_another_way_is_not_stored_on_this(how: str):
    func = kernel(HALVES[how], REGISTER)
    apart = lowered(func, config={"tirx.disable_storage_rewrite": True})
    planned = lowered(func, partial(tvm_ext.use, "PlanSharedMemory"))
    outs = []
    for each in (apart, planned):
        out = np.zeros(8 * 2 * ROUNDS, "float32")
        replay(each, {"x": np.arange(8, dtype="float32"), "out": out}, (1,), "backward")
        outs.append(out)
    np.testing.assert_array_equal(*outs)
    assert shared_bytes(planned) == (64 if how == "each stores its own" else 96)


WAYS = {
    "no other": ("", "4", False),
    "a branch of all": ("if n < 4:", "4", False),
    "as many rounds for all": ("if n < 4:", "n", False),
    "a branch of some": ("if tx < 4:", "4", True),
    "a loop of some": ("for o in range(tx // 4):", "4", True),
    "the end of others": ("if tx >= 4:\n    T.evaluate(T.thread_return())", "4", True),
    "more rounds for some": ("", "tx % 4", True),
}
"""What leads to the loop, its rounds, and whether only some threads of the block come by."""


@pytest.mark.parametrize(("way", "rounds", "is_carried"), WAYS.values(), ids=WAYS)
def test_threads_that_do_not_come_by_the_loop_store_nothing(
    way: str, rounds: str, is_carried: bool
):
    inner = "    " if way.endswith(":") else ""
    func = program(f"""
def main(x: 16, y: 64, n: T.int32):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
{indent(way, " " * 4)}
    {inner}for k in range({rounds}):
    {inner}    s: shared 8
    {inner}    if k == 0:
    {inner}        s[7 - tx] = x[tx]
    {inner}    s[tx] = x[tx + 8]
    {inner}    y[k * 8 + tx] = s[7 - tx]
""")
    (tile,) = find_accesses(find_linear_access(func)).of
    assert (tile.carrying is not None) == is_carried
