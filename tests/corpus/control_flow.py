# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (TVMScript annotates arguments with values, which are no types to a type checker.)
"""Functions written in TVMScript: branches and loops that lowering seldom produces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from .families import CPU, Case, kernel

# ----------------------------------------------------------------------------------- branches


@cache
def _one_branch() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def one_branch(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), flag: T.int32):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[63 - i]
        if flag > 0:
            for i in range(64):
                y[i] = x[63 - i] * 2.0
            for i in range(64):
                b[i] = y[63 - i]
        else:
            for i in range(64):
                b[i] = x[i]

    return one_branch


@cache
def _both_branches() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def both_branches(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), flag: T.int32):
        if flag > 0:
            x = T.alloc_buffer((64,), "float32")
            for i in range(64):
                x[i] = a[63 - i]
            for i in range(64):
                b[i] = x[i] + x[63 - i]
        else:
            y = T.alloc_buffer((64,), "float32")
            for i in range(64):
                y[i] = a[i] * a[63 - i]
            for i in range(64):
                b[i] = y[i] - y[63 - i]

    return both_branches


@cache
def _written_in_one_branch() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def written_in_one_branch(
        a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32"), flag: T.int32
    ):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[i]
            y[i] = T.float32(0)
        if flag > 0:
            for i in range(64):
                y[i] = x[63 - i]
        for i in range(64):
            b[i] = y[63 - i]

    return written_in_one_branch


@cache
def _branch_in_loop() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def branch_in_loop(a: T.Buffer((16, 32), "float32"), b: T.Buffer((16, 32), "float32")):
        for i in range(16):
            x = T.alloc_buffer((32,), "float32")
            for j in range(32):
                x[j] = a[i, 31 - j]
            if i % 2 == 0:
                y = T.alloc_buffer((32,), "float32")
                for j in range(32):
                    y[j] = x[31 - j] + 1.0
                for j in range(32):
                    b[i, j] = y[31 - j]
            else:
                for j in range(32):
                    b[i, j] = x[j]

    return branch_in_loop


@cache
def _nested_branches() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def nested_branches(a: T.Buffer((64,), "int32"), b: T.Buffer((64,), "int32"), n: T.int32):
        x = T.alloc_buffer((64,), "int32", scope="local.UB")
        y = T.alloc_buffer((64,), "int32", scope="local.UB")
        z = T.alloc_buffer((64,), "int32", scope="local.UB")
        for i in range(64):
            x[i] = a[i] + 1
        if n > 0:
            for i in range(64):
                y[i] = x[63 - i]
            if n > 10:
                for i in range(64):
                    z[i] = y[63 - i]
            else:
                for i in range(64):
                    z[i] = y[i]
            for i in range(64):
                b[i] = z[63 - i]

    return nested_branches


@kernel(CPU)
def branches() -> Iterator[Case]:
    """Buffers written or read under conditions."""
    yield "one_branch", _one_branch()
    yield "both_branches", _both_branches()
    yield "written_in_one_branch", _written_in_one_branch()
    yield "branch_in_loop", _branch_in_loop()
    yield "nested_branches", _nested_branches()


# -------------------------------------------------------------------------------------- loops


@cache
def _while() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def while_(a: T.Buffer((128,), "float32"), b: T.Buffer((128,), "float32")):
        at = T.alloc_buffer((1,), "int32", scope="local")
        x = T.alloc_buffer((128,), "float32")
        y = T.alloc_buffer((128,), "float32")
        z = T.alloc_buffer((128,), "float32")
        at[0] = 0
        while at[0] < 128:
            x[at[0]] = a[at[0]] * 2.0
            at[0] = at[0] + 1
        for i in range(128):
            y[i] = x[127 - i]
        for i in range(128):
            z[i] = y[127 - i]
        for i in range(128):
            b[i] = z[i] + 1.0

    return while_


@cache
def _while_carried() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def while_carried(a: T.Buffer((32,), "float32"), b: T.Buffer((32,), "float32")):
        count = T.alloc_buffer((1,), "int32", scope="local")
        x = T.alloc_buffer((32,), "float32")
        y = T.alloc_buffer((32,), "float32")
        for i in range(32):
            x[i] = a[i]
        count[0] = 0
        while count[0] < 10:
            for i in range(32):
                y[i] = x[31 - i] * 0.5
            for i in range(32):
                x[i] = y[i] + 1.0
            count[0] = count[0] + 1
        for i in range(32):
            b[i] = x[i]

    return while_carried


@cache
def _loop_carried() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def loop_carried(a: T.Buffer((8, 32), "float32"), b: T.Buffer((32,), "float32")):
        state = T.alloc_buffer((32,), "float32")
        for i in range(32):
            state[i] = T.float32(0)
        for t in range(8):
            x = T.alloc_buffer((32,), "float32")
            y = T.alloc_buffer((32,), "float32")
            for i in range(32):
                x[i] = state[31 - i] + a[t, i]
            for i in range(32):
                y[i] = T.tanh(x[31 - i])
            for i in range(32):
                state[i] = y[31 - i]
        for i in range(32):
            b[i] = state[i]

    return loop_carried


@cache
def _read_from_last_iteration() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def read_from_last_iteration(a: T.Buffer((8, 32), "float32"), b: T.Buffer((8, 32), "float32")):
        last = T.alloc_buffer((32,), "float32")
        x = T.alloc_buffer((32,), "float32")
        for i in range(32):
            last[i] = T.float32(0)
        for t in range(8):
            for i in range(32):
                x[i] = a[t, 31 - i]
            for i in range(32):
                b[t, i] = x[i] - last[i]
            for i in range(32):
                last[i] = x[31 - i]

    return read_from_last_iteration


@cache
def _loops_in_sequence() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def loops_in_sequence(a: T.Buffer((256,), "float32"), b: T.Buffer((256,), "float32")):
        for i in range(16):
            x = T.alloc_buffer((16,), "float32")
            for j in range(16):
                x[j] = a[i * 16 + 15 - j]
            for j in range(16):
                b[i * 16 + j] = x[15 - j]
        for i in range(16):
            y = T.alloc_buffer((16,), "float32")
            for j in range(16):
                y[j] = b[i * 16 + 15 - j]
            for j in range(16):
                b[i * 16 + j] = y[j] * 2.0

    return loops_in_sequence


@cache
def _parallel() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def parallel(a: T.Buffer((16, 64), "float32"), b: T.Buffer((16, 64), "float32")):
        for i in T.parallel(16):
            x = T.alloc_buffer((64,), "float32")
            y = T.alloc_buffer((64,), "float32")
            z = T.alloc_buffer((64,), "float32")
            for j in range(64):
                x[j] = a[i, 63 - j]
            for j in range(64):
                y[j] = T.exp(x[63 - j])
            for j in range(64):
                z[j] = y[63 - j]
            for j in range(64):
                b[i, j] = z[63 - j]

    return parallel


@cache
def _outer_buffer_in_parallel() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def outer_buffer_in_parallel(
        a: T.Buffer((16, 64), "float32"), b: T.Buffer((16, 64), "float32")
    ):
        table = T.alloc_buffer((64,), "float32")
        other = T.alloc_buffer((64,), "float32")
        for j in range(64):
            table[j] = a[0, 63 - j]
        for i in T.parallel(16):
            for j in range(64):
                b[i, j] = a[i, j] + table[j]
        for j in range(64):
            other[j] = b[3, 63 - j]
        for j in range(64):
            b[0, j] = other[j]

    return outer_buffer_in_parallel


@kernel(CPU)
def loops() -> Iterator[Case]:
    """Buffers allocated in loops, carried from one iteration to the next, or read after."""
    yield "while", _while()
    yield "while_carried", _while_carried()
    yield "loop_carried", _loop_carried()
    yield "read_from_last_iteration", _read_from_last_iteration()
    yield "loops_in_sequence", _loops_in_sequence()
    yield "parallel", _parallel()
    yield "outer_buffer_in_parallel", _outer_buffer_in_parallel()
