# SPDX-License-Identifier: Apache-2.0
"""Functions written out: branches, loops, aliases, calls and elements lowering seldom makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from program_text import programs

from .families import CPU, Case, kernel


@cache
def _written(text: str) -> tuple[Case, ...]:
    """Return functions in the short notation, labelled by their names."""
    return tuple((name.strip("_"), func) for name, func in programs(text).items())


_BRANCHES = """
def branch_in_loop(a: 16x32, b: 16x32):
    for i in range(16):
        x: global 32
        x[j] = a[i, 31 - j] for j in range(32)
        if i % 2 == 0:
            y: global 32
            y[j] = x[31 - j] + 1.0 for j in range(32)
            b[i, j] = y[31 - j] for j in range(32)
        else:
            b[i, j] = x[j] for j in range(32)

def nested_branches(a: 64 int32, b: 64 int32, n: T.int32):
    x, y, z: local.UB 64 int32
    x[i] = a[i] + 1 for i in range(64)
    if n > 0:
        y[i] = x[63 - i] for i in range(64)
        if n > 10:
            z[i] = y[63 - i] for i in range(64)
        else:
            z[i] = y[i] for i in range(64)
        b[i] = z[63 - i] for i in range(64)
"""


@kernel(CPU)
def branches() -> Iterator[Case]:
    """Buffers written or read under conditions."""
    yield from _written(_BRANCHES)


_LOOPS = """
def while_(a: 128, b: 128):
    at: local 1 int32
    x, y, z: global 128
    at[0] = 0
    while at[0] < 128:
        x[at[0]] = a[at[0]] * 2.0
        at[0] = at[0] + 1
    y[i] = x[127 - i] for i in range(128)
    z[i] = y[127 - i] for i in range(128)
    b[i] = z[i] + 1.0 for i in range(128)

def loop_carried(a: 8x32, b: 32):
    state: global 32
    state[i] = T.float32(0) for i in range(32)
    for t in range(8):
        x, y: global 32
        x[i] = state[31 - i] + a[t, i] for i in range(32)
        y[i] = T.tanh(x[31 - i]) for i in range(32)
        state[i] = y[31 - i] for i in range(32)
    b[i] = state[i] for i in range(32)

def parallel(a: 16x64, b: 16x64):
    for i in T.parallel(16):
        x, y, z: global 64
        x[j] = a[i, 63 - j] for j in range(64)
        y[j] = T.exp(x[63 - j]) for j in range(64)
        z[j] = y[63 - j] for j in range(64)
        b[i, j] = z[63 - j] for j in range(64)
"""


@kernel(CPU)
def loops() -> Iterator[Case]:
    """Buffers allocated in loops, carried from one iteration to the next, or read after."""
    yield from _written(_LOOPS)


_ALIASES = """
def view(a: 64, b: 64):
    x, y: global 64
    x[i] = a[i] + 1.0 for i in range(64)
    grid = x.view(8, 8)
    y[i * 8 + j] = grid[j, i] for i, j in T.grid(8, 8)
    b[i] = y[63 - i] for i in range(64)

def arena(a: 64, b: 64):
    arena: global 512 uint8
    low = T.decl_buffer((64,), "float32", data=arena.data)
    high = T.decl_buffer((64,), "float32", data=arena.data, elem_offset=64)
    low[i] = a[63 - i] for i in range(64)
    high[i] = low[63 - i] * 2.0 for i in range(64)
    b[i] = high[i] + low[i] for i in range(64)
"""


@kernel(CPU)
def aliases() -> Iterator[Case]:
    """Several buffers over the memory of one."""
    yield from _written(_ALIASES)


_OPAQUE_CALLS = """
def address_of(a: 64, b: 64):
    x, y, z: global 64
    x[i] = a[i] for i in range(64)
    T.evaluate(T.call_extern("int32", "transform", T.address_of(x[0]), T.address_of(y[0]), 64))
    T.evaluate(T.call_extern("int32", "transform", T.address_of(y[0]), T.address_of(z[0]), 64))
    b[i] = z[i] for i in range(64)

def access_pointers(a: 64 float16, b: 64 float16):
    x, y, z: local.UB 64 float16
    T.evaluate(T.call_extern("int32", "copy_in", x.access_ptr("w"), a.access_ptr("r"), 64))
    T.evaluate(T.call_extern("int32", "vector_exp", y.access_ptr("w"), x.access_ptr("r"), 64))
    T.evaluate(T.call_extern("int32", "vector_abs", z.access_ptr("w"), y.access_ptr("r"), 64))
    T.evaluate(T.call_extern("int32", "copy_out", b.access_ptr("w"), z.access_ptr("r"), 64))
"""


@kernel(CPU)
def opaque_calls() -> Iterator[Case]:
    """Buffers whose address is handed to functions that planning cannot look into."""
    yield from _written(_OPAQUE_CALLS)


_ELEMENTS = """
def odd_sizes(a: 100, b: 100):
    w: global 100
    x: global 37
    y: global 91
    z: global 13
    w[i] = a[99 - i] for i in range(100)
    x[i] = w[i * 2] for i in range(37)
    y[i] = x[i % 37] for i in range(91)
    z[i] = y[i * 7] for i in range(13)
    b[i] = z[i % 13] for i in range(100)

def vector_accesses(a: 64, b: 64):
    x, y: global 64
    x[T.ramp(i * 4, 1, 4)] = a[T.ramp(i * 4, 1, 4)] for i in range(16)
    y[T.ramp(i * 8, 1, 8)] = x[T.ramp(56 - i * 8, 1, 8)] for i in range(8)
    b[T.ramp(i * 4, 1, 4)] = y[T.ramp(i * 4, 1, 4)] for i in range(16)

def never_read(a: 64, b: 64):
    x, y, z: global 64
    x[i] = a[63 - i] for i in range(64)
    y[i] = a[i] for i in range(64)
    b[i] = y[63 - i] for i in range(64)

def several_scopes(a: 64, b: 64):
    w: local.L1 64
    x: local.UB 64
    y: local.L1 64
    z: local.UB 64
    w[i] = a[63 - i] for i in range(64)
    x[i] = w[63 - i] for i in range(64)
    y[i] = x[63 - i] for i in range(64)
    z[i] = y[63 - i] for i in range(64)
    b[i] = z[63 - i] for i in range(64)
"""


@kernel(CPU)
def elements() -> Iterator[Case]:
    """Scalars, vectors, odd sizes, buffers never read or written in part, several scopes."""
    yield from _written(_ELEMENTS)


_DEVICE_KERNELS = """
def two_kernels(a: 1024, b: 1024):
    x: global 1024
    for block in T.thread_binding(8, "blockIdx.x"):
        for thread in T.thread_binding(128, "threadIdx.x"):
            x[block * 128 + thread] = a[1023 - block * 128 - thread]
    for block in T.thread_binding(8, "blockIdx.x"):
        for thread in T.thread_binding(128, "threadIdx.x"):
            b[block * 128 + thread] = x[1023 - block * 128 - thread] * 2.0

def shared_of_two_kernels(a: 8x64, b: 8x64):
    for block in T.thread_binding(8, "blockIdx.x"):
        x: shared 64
        for thread in T.thread_binding(64, "threadIdx.x"):
            x[thread] = a[block, thread]
            b[block, thread] = x[63 - thread]
    for block in T.thread_binding(8, "blockIdx.x"):
        y: shared 64
        for thread in T.thread_binding(64, "threadIdx.x"):
            y[thread] = b[block, thread] + 1.0
            b[block, thread] = y[63 - thread]

def types_in_registers(a: 64x16, b: 64x16):
    for thread in T.thread_binding(64, "threadIdx.x"):
        x: local 16
        y: local 16 int32
        z: local 16
        x[i] = a[thread, 15 - i] for i in range(16)
        y[i] = T.cast(x[15 - i], "int32") for i in range(16)
        z[i] = T.cast(y[15 - i], "float32") for i in range(16)
        b[thread, i] = z[15 - i] for i in range(16)
"""


@kernel(("cuda", "vulkan", "metal", "webgpu", "opencl"))
def device_kernels() -> Iterator[Case]:
    """Kernels of a GPU: several in a function, shared memory, registers of several types."""
    yield from _written(_DEVICE_KERNELS)
