# SPDX-License-Identifier: Apache-2.0
"""Programs that `PlanAddresses` is tried on by hand, and what is read off a plan."""

import tvm
from program_text import programs
from tvm import tirx

from passes.planning import planner_names
from passes.prim_func.problems import ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import lowering

PLANNERS = list(planner_names())
UB = MemoryHierarchy((MemoryScope("local.UB", capacity=1024, alignment=32),))


def module(func: tirx.PrimFunc) -> tvm.IRModule:
    """Lower a function to where storage is planned."""
    return lowering.capture(tvm.IRModule({"main": func}), "llvm")


def only_problem(func: tirx.PrimFunc, **options):
    (attached,) = find_problems(func, ProblemOptions(**options)).problems
    return attached.problem


def live(func: tirx.PrimFunc, **options) -> dict[str, tuple[int, int]]:
    return {b.name: b.live[0] for b in only_problem(func, **options).buffers}


PROGRAMS = programs("""
def chain(x: 64, y: 64):
    a, b, c: local.UB 64
    a[i] = x[i] + T.float32(1) for i in range(64)
    b[i] = a[63 - i] * T.float32(2) for i in range(64)
    c[i] = b[63 - i] - T.float32(3) for i in range(64)
    y[i] = c[63 - i] for i in range(64)

def types(x: 64, y: 64):
    a: local.UB 64
    b: local.UB 64 float16
    c: local.UB 64 int8
    d: local.UB 64 bool
    for i in range(16):
        a[i * 4 + j] = x[i * 4 + j] + T.float32(1) for j in T.vectorized(4)
    for i in range(8):
        b[i * 8 + j] = T.Cast("float16", a[63 - (i * 8 + j)]) for j in T.vectorized(8)
    c[i] = T.Cast("int8", b[i]) for i in range(64)
    d[i] = c[i] < T.Cast("int8", b[63 - i]) for i in range(64)
    y[i] = T.Select(d[i], T.Cast("float32", c[63 - i]), T.float32(-1)) for i in range(64)

def opaque(x: 64, y: 64):
    first, second, third, fourth: local.UB 64
    first[i] = x[i] + T.float32(1) for i in range(64)
    T.evaluate(T.call_extern("int32", "memcpy", second.data, first.data, T.int64(256)))
    third[i] = second[63 - i] for i in range(64)
    T.evaluate(
        T.call_extern(
            "int32",
            "memcpy",
            T.tvm_access_ptr(T.type_annotation("float32"), fourth.data, 8, 56, 2),
            T.address_of(third[4]),
            T.int64(224),
        )
    )
    fourth[i] = T.float32(i) for i in range(8)
    T.call_packed("tvm_ext.test.negate", fourth)
    y[i] = fourth[i] for i in range(64)

def aliased(x: 64 int32, y: 64 int32):
    a: local.UB 64 int32
    bytes_of_a = T.decl_buffer((256,), "int8", data=a.data, scope="local.UB")
    words_of_a = T.decl_buffer((128,), "int16", data=bytes_of_a.data, scope="local.UB")
    b, c: local.UB 64 int32
    b[i] = x[i] * 3 for i in range(64)
    a[i] = b[63 - i] for i in range(64)
    bytes_of_a[i * 4 + 1] = T.int8(i) for i in range(64)
    c[i] = T.Cast("int32", words_of_a[127 - i]) for i in range(64)
    y[i] = c[i] + b[i] for i in range(64)

def double_buffered(x: 8x64, y: 8x64):
    for k in range(8):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
        b = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 3})
        a[i] = x[k, i] + T.float32(1) for i in range(64)
        b[i] = a[i] * T.float32(3) for i in T.vectorized(64)
        y[k, i] = b[63 - i] * a[i] for i in range(64)

def lent_slots(x: 6x16, y: 6x16):
    for k in range(6):
        a: local.UB 16 float32 {"multi_buffer": 2}
        b: local.UB 16 float32 {"multi_buffer": 3}
        a[i] = x[k, i] + T.float32(1) for i in range(16)
        half_of_a = T.meta_var(T.tvm_access_ptr(T.type_annotation("float32"), a.data, 8, 8, 1))
        half_of_b = T.meta_var(T.tvm_access_ptr(T.type_annotation("float32"), b.data, 8, 8, 2))
        T.evaluate(T.call_extern("int32", "memcpy", b.data, half_of_a, T.int64(32)))
        T.evaluate(T.call_extern("int32", "memcpy", half_of_b, a.data, T.int64(32)))
        y[k, i] = b[15 - i] for i in range(16)

def rounds(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        slots: local.UB 64 float32 {"multi_buffer": 3}
        slots[i] = x[i + n[0] * 64] for i in range(64)
        if n[0] % 2 == 0:
            a, b: local.UB 64
            a[i] = slots[63 - (i + 3) % 64] for i in range(64)
            b[i] = a[63 - i] for i in range(64)
            y[i + n[0] * 64] = b[i] + T.float32(1) for i in range(64)
        else:
            c: local.UB 64
            c[i] = slots[i] + T.float32(1) for i in range(64)
            y[i + n[0] * 64] = c[63 - i] for i in range(64)
        n[0] = n[0] + 1

def elementwise(x: 64, y: 64):
    a, b: local.UB 64
    a[i] = x[i] + T.float32(1) for i in range(64)
    for i in range(8):
        b[i * 8 + j] = a[i * 8 + j] * T.float32(2) for j in range(8)
    y[i] = b[63 - i] for i in range(64)

def in_parallel(x: 4x64, y: 4x64):
    outer: local.UB 64
    outer[i] = x[0, i] for i in range(64)
    for p in T.parallel(4):
        a, b: local.UB 64
        a[i] = x[p, i] + outer[63 - i] for i in range(64)
        b[i] = a[63 - i] for i in range(64)
        y[p, i] = b[i] for i in range(64)

def symbolic(x_handle: T.handle, y_handle: T.handle):
    n = T.int32()
    x = T.match_buffer(x_handle, (n,), "float32")
    y = T.match_buffer(y_handle, (n,), "float32")
    a = T.alloc_buffer((n,), "float32")
    b = T.alloc_buffer((n,), "float32")
    c = T.alloc_buffer((n,), "float32")
    a[i] = x[i] + T.float32(1) for i in range(n)
    b[i] = a[n - 1 - i] for i in range(n)
    c[i] = b[n - 1 - i] for i in range(n)
    y[i] = c[n - 1 - i] for i in range(n)

def constant_indices(x: 8 int32, y: 8 int32):
    T.func_attr({"tirx.noalias": True})
    a: local.UB 8 int32
    b: local.UB 32 int8
    c: local.UB 16 int16
    d: local.UB 4 int64
    a[i] = x[7 - i] + 1 for i in T.unroll(8)
    b[i] = T.Cast("int8", a[7 - i // 4] + i) for i in T.unroll(32)
    c[i] = T.Cast("int16", b[31 - i * 2]) * T.int16(3) for i in T.unroll(16)
    d[i] = T.Cast("int64", c[15 - i * 4]) + T.Cast("int64", c[i]) for i in T.unroll(4)
    y[i] = T.Cast("int32", d[3 - i // 2]) + i for i in T.unroll(8)
""")


@tvm.register_global_func("tvm_ext.test.negate", override=True)
def negate(array: tvm.runtime.Tensor) -> None:
    array.copyfrom(-array.numpy())
