# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# (TVMScript annotates arguments with values, which are no types to a type checker.)
"""Functions written in TVMScript: aliases, calls and elements that lowering seldom produces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from .families import CPU, Case, kernel

# ------------------------------------------------------------------------------------ aliases


@cache
def _same_bits() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def same_bits(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        bits = T.decl_buffer((64,), "int32", data=x.data)
        y = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[i]
        for i in range(64):
            bits[i] = T.bitwise_and(bits[i], 0x7FFFFFFF)
        for i in range(64):
            y[i] = x[63 - i]
        for i in range(64):
            b[i] = y[63 - i]

    return same_bits


@cache
def _view() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def view(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[i] + 1.0
        grid = x.view(8, 8)
        for i, j in T.grid(8, 8):
            y[i * 8 + j] = grid[j, i]
        for i in range(64):
            b[i] = y[63 - i]

    return view


@cache
def _read_through_alias_late() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def read_through_alias_late(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        again = T.decl_buffer((64,), "float32", data=x.data)
        y = T.alloc_buffer((64,), "float32")
        z = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[63 - i]
        for i in range(64):
            y[i] = x[63 - i]
        for i in range(64):
            z[i] = y[63 - i]
        for i in range(64):
            b[i] = z[i] + again[i]

    return read_through_alias_late


@cache
def _arena() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def arena(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        arena = T.alloc_buffer((512,), "uint8")
        low = T.decl_buffer((64,), "float32", data=arena.data)
        high = T.decl_buffer((64,), "float32", data=arena.data, elem_offset=64)
        for i in range(64):
            low[i] = a[63 - i]
        for i in range(64):
            high[i] = low[63 - i] * 2.0
        for i in range(64):
            b[i] = high[i] + low[i]

    return arena


@kernel(CPU)
def aliases() -> Iterator[Case]:
    """Several buffers over the memory of one."""
    yield "same_bits", _same_bits()
    yield "view", _view()
    yield "read_through_alias_late", _read_through_alias_late()
    yield "arena", _arena()


# ------------------------------------------------------------------------------- opaque calls


@cache
def _address_of() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def address_of(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        z = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[i]
        T.evaluate(T.call_extern("int32", "transform", T.address_of(x[0]), T.address_of(y[0]), 64))
        T.evaluate(T.call_extern("int32", "transform", T.address_of(y[0]), T.address_of(z[0]), 64))
        for i in range(64):
            b[i] = z[i]

    return address_of


@cache
def _address_in_loop() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def address_in_loop(a: T.Buffer((8, 64), "float32"), b: T.Buffer((8, 64), "float32")):
        x = T.alloc_buffer((8, 64), "float32")
        y = T.alloc_buffer((8, 64), "float32")
        for i, j in T.grid(8, 64):
            x[i, j] = a[i, 63 - j]
        for i in range(8):
            T.evaluate(
                T.call_extern(
                    "int32", "transform", T.address_of(x[i, 0]), T.address_of(y[i, 0]), 64
                )
            )
        for i, j in T.grid(8, 64):
            b[i, j] = y[i, 63 - j]

    return address_in_loop


@cache
def _access_pointers() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def access_pointers(a: T.Buffer((64,), "float16"), b: T.Buffer((64,), "float16")):
        x = T.alloc_buffer((64,), "float16", scope="local.UB")
        y = T.alloc_buffer((64,), "float16", scope="local.UB")
        z = T.alloc_buffer((64,), "float16", scope="local.UB")
        T.evaluate(T.call_extern("int32", "copy_in", x.access_ptr("w"), a.access_ptr("r"), 64))
        T.evaluate(T.call_extern("int32", "vector_exp", y.access_ptr("w"), x.access_ptr("r"), 64))
        T.evaluate(T.call_extern("int32", "vector_abs", z.access_ptr("w"), y.access_ptr("r"), 64))
        T.evaluate(T.call_extern("int32", "copy_out", b.access_ptr("w"), z.access_ptr("r"), 64))

    return access_pointers


@cache
def _packed() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def packed(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(64):
            x[i] = a[63 - i]
        T.evaluate(
            T.call_packed(
                "library.transform",
                T.tvm_stack_make_array(
                    x.data, T.tvm_stack_make_shape(64, dtype="handle"), 0, 1, 0.0, 0, dtype="handle"
                ),
            )
        )
        for i in range(64):
            y[i] = x[63 - i]
        for i in range(64):
            b[i] = y[63 - i]

    return packed


@kernel(CPU)
def opaque_calls() -> Iterator[Case]:
    """Buffers whose address is handed to functions that planning cannot look into."""
    yield "address_of", _address_of()
    yield "address_in_loop", _address_in_loop()
    yield "access_pointers", _access_pointers()
    yield "packed", _packed()


# -------------------------------------------------------------------------- sizes and elements


@cache
def _scalars() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def scalars(a: T.Buffer((64,), "float32"), b: T.Buffer((3,), "float32")):
        total = T.alloc_buffer((1,), "float32")
        highest = T.alloc_buffer((1,), "float32")
        lowest = T.alloc_buffer((1,), "float32", scope="local")
        total[0] = T.float32(0)
        for i in range(64):
            total[0] = total[0] + a[i]
        b[0] = total[0]
        highest[0] = a[0]
        for i in range(64):
            highest[0] = T.max(highest[0], a[i])
        b[1] = highest[0]
        lowest[0] = a[0]
        for i in range(64):
            lowest[0] = T.min(lowest[0], a[i])
        b[2] = lowest[0]

    return scalars


@cache
def _odd_sizes() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def odd_sizes(a: T.Buffer((100,), "float32"), b: T.Buffer((100,), "float32")):
        w = T.alloc_buffer((100,), "float32")
        x = T.alloc_buffer((37,), "float32")
        y = T.alloc_buffer((91,), "float32")
        z = T.alloc_buffer((13,), "float32")
        for i in range(100):
            w[i] = a[99 - i]
        for i in range(37):
            x[i] = w[i * 2]
        for i in range(91):
            y[i] = x[i % 37]
        for i in range(13):
            z[i] = y[i * 7]
        for i in range(100):
            b[i] = z[i % 13]

    return odd_sizes


@cache
def _vector_elements() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def vector_elements(a: T.Buffer((16,), "float32x4"), b: T.Buffer((16,), "float32x4")):
        x = T.alloc_buffer((16,), "float32x4")
        y = T.alloc_buffer((16,), "float32x4")
        z = T.alloc_buffer((16,), "float32x4")
        for i in range(16):
            x[i] = a[15 - i]
        for i in range(16):
            y[i] = x[15 - i] + x[i]
        for i in range(16):
            z[i] = y[15 - i]
        for i in range(16):
            b[i] = z[15 - i]

    return vector_elements


@cache
def _vector_accesses() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def vector_accesses(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(16):
            x[T.ramp(i * 4, 1, 4)] = a[T.ramp(i * 4, 1, 4)]
        for i in range(8):
            y[T.ramp(i * 8, 1, 8)] = x[T.ramp(56 - i * 8, 1, 8)]
        for i in range(16):
            b[T.ramp(i * 4, 1, 4)] = y[T.ramp(i * 4, 1, 4)]

    return vector_accesses


@cache
def _never_read() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def never_read(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        z = T.alloc_buffer((64,), "float32")  # noqa: F841 - that is the point
        for i in range(64):
            x[i] = a[63 - i]
        for i in range(64):
            y[i] = a[i]
        for i in range(64):
            b[i] = y[63 - i]

    return never_read


@cache
def _partly_written() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def partly_written(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        x = T.alloc_buffer((64,), "float32")
        y = T.alloc_buffer((64,), "float32")
        for i in range(32):
            x[i] = a[63 - i]
        for i in range(32):
            y[i] = x[31 - i]
        for i in range(32):
            x[i + 32] = y[31 - i]
        for i in range(64):
            b[i] = x[63 - i]

    return partly_written


@cache
def _several_scopes() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def several_scopes(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        w = T.alloc_buffer((64,), "float32", scope="local.L1")
        x = T.alloc_buffer((64,), "float32", scope="local.UB")
        y = T.alloc_buffer((64,), "float32", scope="local.L1")
        z = T.alloc_buffer((64,), "float32", scope="local.UB")
        for i in range(64):
            w[i] = a[63 - i]
        for i in range(64):
            x[i] = w[63 - i]
        for i in range(64):
            y[i] = x[63 - i]
        for i in range(64):
            z[i] = y[63 - i]
        for i in range(64):
            b[i] = z[63 - i]

    return several_scopes


@kernel(CPU)
def elements() -> Iterator[Case]:
    """Scalars, vectors, odd sizes, buffers never read or written in part, several scopes."""
    yield "scalars", _scalars()
    yield "odd_sizes", _odd_sizes()
    yield "vector_elements", _vector_elements()
    yield "vector_accesses", _vector_accesses()
    yield "never_read", _never_read()
    yield "partly_written", _partly_written()
    yield "several_scopes", _several_scopes()


# ------------------------------------------------------------------------------------ devices


@cache
def _two_kernels() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def two_kernels(a: T.Buffer((1024,), "float32"), b: T.Buffer((1024,), "float32")):
        x = T.alloc_buffer((1024,), "float32")
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(128, "threadIdx.x"):
                x[block * 128 + thread] = a[1023 - block * 128 - thread]
        for block in T.thread_binding(8, "blockIdx.x"):
            for thread in T.thread_binding(128, "threadIdx.x"):
                b[block * 128 + thread] = x[1023 - block * 128 - thread] * 2.0

    return two_kernels


@cache
def _shared_of_two_kernels() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def shared_of_two_kernels(a: T.Buffer((8, 64), "float32"), b: T.Buffer((8, 64), "float32")):
        for block in T.thread_binding(8, "blockIdx.x"):
            x = T.alloc_buffer((64,), "float32", scope="shared")
            for thread in T.thread_binding(64, "threadIdx.x"):
                x[thread] = a[block, thread]
                b[block, thread] = x[63 - thread]
        for block in T.thread_binding(8, "blockIdx.x"):
            y = T.alloc_buffer((64,), "float32", scope="shared")
            for thread in T.thread_binding(64, "threadIdx.x"):
                y[thread] = b[block, thread] + 1.0
                b[block, thread] = y[63 - thread]

    return shared_of_two_kernels


@cache
def _types_in_registers() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def types_in_registers(a: T.Buffer((64, 16), "float32"), b: T.Buffer((64, 16), "float32")):
        for thread in T.thread_binding(64, "threadIdx.x"):
            x = T.alloc_buffer((16,), "float32", scope="local")
            y = T.alloc_buffer((16,), "int32", scope="local")
            z = T.alloc_buffer((16,), "float32", scope="local")
            for i in range(16):
                x[i] = a[thread, 15 - i]
            for i in range(16):
                y[i] = T.cast(x[15 - i], "int32")
            for i in range(16):
                z[i] = T.cast(y[15 - i], "float32")
            for i in range(16):
                b[thread, i] = z[15 - i]

    return types_in_registers


@cache
def _register_in_branch() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def register_in_branch(a: T.Buffer((128, 8), "float32"), b: T.Buffer((128, 8), "float32")):
        for block in T.thread_binding(2, "blockIdx.x"):
            for thread in T.thread_binding(64, "threadIdx.x"):
                if thread < 50:
                    x = T.alloc_buffer((8,), "float32", scope="local")
                    y = T.alloc_buffer((8,), "float32", scope="local")
                    for i in range(8):
                        x[i] = a[block * 64 + thread, 7 - i]
                    for i in range(8):
                        y[i] = x[7 - i] * x[i]
                    for i in range(8):
                        b[block * 64 + thread, i] = y[7 - i]

    return register_in_branch


@kernel(("cuda", "vulkan", "metal", "webgpu", "opencl"))
def device_kernels() -> Iterator[Case]:
    """Kernels of a GPU: several in a function, shared memory, registers of several types."""
    yield "two_kernels", _two_kernels()
    yield "shared_of_two_kernels", _shared_of_two_kernels()
    yield "types_in_registers", _types_in_registers()
    yield "register_in_branch", _register_in_branch()
