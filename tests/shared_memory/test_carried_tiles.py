# SPDX-License-Identifier: Apache-2.0
"""Shared memory in which a loop carries a value from one round to the next."""

from __future__ import annotations

from functools import partial
from textwrap import indent

import numpy as np
import pytest
from block_replay import replay
from opencl_runs import lowered, shared_bytes
from program_text import cases, program
from tvm.tirx import PrimFunc

import tvm_ext
from passes.ir import find_accesses, find_linear_access

ROUNDS = 4

FILLS = cases("""
# in the first round
if k == 0:
    s[tx] = x[tx]
# in the first round of the outer loop
if o == 0 and k == 0:
    s[tx] = x[tx]
# as a sum
s[tx] = T.if_then_else(k == 0, x[tx], s[tx] * T.float32(2))
# by some threads
if k == 0 or tx < 4:
    s[tx] = x[tx] + T.Cast("float32", k)
# in each round
s[tx] = x[tx] + T.Cast("float32", k)
# by one half, which reads what the other stored a round before
if half == 0:
    s[tx] = x[tx] + T.Cast("float32", k)
T.tvm_storage_sync("shared")
if half == 0:
    if k > 0:
        out[k * 8 + tx] = s[tx + 4]
T.tvm_storage_sync("shared")
if half != 0:
    s[tx] = x[tx] * T.Cast("float32", k)
# by one half, which changes what the other stored a round before
if tx < 4:
    s[tx] = x[tx] + T.Cast("float32", k)
    if k > 0:
        T.call_extern("int32", "atomic_add", T.address_of(s[tx + 4]), T.float32(1))
T.tvm_storage_sync("shared")
if tx >= 4:
    s[tx] = x[tx] * T.Cast("float32", k)
# by each half in its own way
if T.bitwise_and(tx, 4) == half:
    s[tx] = x[tx]
else:
    s[tx] = x[tx] + T.Cast("float32", k)
""")
OWN = ("in each round", "by each half in its own way")
"""Ways in which each round stores all that it reads."""


def kernel(fill: str) -> PrimFunc:
    return program(f"""
def main(x: 8, out: {8 * 2 * ROUNDS}) on 1 x 8:
    r: local 1 int32
    r[0] = tx // 4
    half: T.let[T.int32] = r[0]
    for o in range(2):
        for k in range({ROUNDS}):
            s, v, w: shared 8
{indent(fill, " " * 12)}
            v[tx] = s[7 - tx] + T.float32(1)
            w[tx] = v[7 - tx] * T.float32(2)
            out[(o * {ROUNDS} + k) * 8 + tx] = w[7 - tx]
""")


@pytest.mark.parametrize("how", FILLS)
def test_a_tile_that_a_loop_carries_keeps_its_bytes(how: str):
    func = kernel(FILLS[how])
    apart = lowered(func, config={"tirx.disable_storage_rewrite": True})
    planned = lowered(func, partial(tvm_ext.use, "PlanSharedMemory"))
    outs = []
    for each in (apart, planned):
        out = np.zeros(8 * 2 * ROUNDS, "float32")
        replay(each, {"x": np.arange(8, dtype="float32"), "out": out}, (1,), "backward")
        outs.append(out)
    np.testing.assert_array_equal(*outs)
    # Two tiles of 32 bytes at once, and a third one where `s` is carried.
    assert shared_bytes(planned) == (64 if how in OWN else 96)


@pytest.mark.parametrize(
    ("scope", "is_carried"), [("shared", False), ("warp", True), ("local", True)]
)
def test_threads_that_begin_in_the_loop_store_in_memory_of_their_own(scope: str, is_carried: bool):
    func = program(f"""
def main(x: 8, y: 32):
    T.launch_thread("blockIdx.x", 1)
    for k in range(4):
        s: {scope} 8
        with T.launch_thread("threadIdx.x", 8) as tx:
            s[(tx + k) % 8] = x[tx]
        with T.launch_thread("threadIdx.x", 8) as ty:
            y[k * 8 + ty] = s[(ty + 3) % 8]
""")
    (tile,) = find_accesses(find_linear_access(func)).of
    assert (tile.carrying is not None) == is_carried


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
def main(x: 16, y: 64, n: T.int32) on 1 x 8:
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
