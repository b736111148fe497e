# SPDX-License-Identifier: Apache-2.0
"""Worked cases of AscendNPU-IR's PlanMemory as kernels that `case_kernels` cannot make.

They have the names of their cases. What a loop of the original carries is one buffer here.
"""

from __future__ import annotations

from case_kernels import MANY
from tvm.script import tirx as T

HALF = T.Buffer((MANY,), "float16")
FLOAT = T.Buffer((MANY,), "float32")
SHORT = T.Buffer((MANY,), "int16")
COUNT = T.Buffer((1,), "int32")


def ub(size, dtype="float16", slots=1, **annotations):
    """Allocate a buffer of so many elements in UB."""
    if slots > 1:
        annotations["multi_buffer"] = slots
    return T.alloc_buffer((size,), dtype, scope="local.UB", annotations=annotations)


def l0c(size, slots=1):
    """Allocate an accumulator of the cube unit, of so many elements."""
    annotations = {"multi_buffer": slots} if slots > 1 else {}
    return T.alloc_buffer((size,), "float32", scope="local.L0C", annotations=annotations)


@T.inline
def load(to, x):
    """Copy from an argument."""
    for i in range(to.shape[0]):
        to[i] = x[i]


@T.inline
def store(y, source):
    """Copy to an argument."""
    for i in range(source.shape[0]):
        y[i] = source[i]


@T.inline
def vadd(to, a, b):
    """Add element by element."""
    for i in range(to.shape[0]):
        to[i] = a[i] + b[i]


@T.inline
def multiply(to, a, b):
    """Multiply what stands in L1, with the sum over two elements."""
    for i in range(to.shape[0]):
        to[i] = T.float32(0)
        for k in range(2):
            to[i] = to[i] + a[(i + k) % 1024] * b[k]


# Straight code


@T.prim_func(s_tir=True)
def test_plan_memory_expand_shape(x: HALF, y: HALF):
    alloc1 = ub(4096)
    alloc3 = ub(4096)
    alloc5 = ub(4096)
    load(alloc1, x)
    load(alloc3, x)
    vadd(alloc5, alloc1, alloc3)
    expanded = T.decl_buffer((2, 8, 256), "float16", data=alloc5.data, scope="local.UB")
    for i, j, k in T.grid(2, 8, 256):
        y[i * 2048 + j * 256 + k] = expanded[i, j, k]


@T.prim_func(s_tir=True)
def test_plan_memory_memref_reshape(x: SHORT, y: SHORT):
    alloc = ub(16, "int16")
    load(alloc, x)
    reshaped = T.decl_buffer((2, 2, 4), "int16", data=alloc.data, scope="local.UB")
    for i, j, k in T.grid(2, 2, 4):
        y[i * 8 + j * 4 + k] = reshaped[i, j, k]


@T.prim_func(s_tir=True)
def test_mem_enough(x: FLOAT, y: FLOAT):
    b1 = ub(1, "float32")
    alloc_9 = ub(1, "float32")
    alloc_10 = ub(1, "float32")
    alloc_11 = ub(1, "float32")
    alloc_12 = ub(1, "float32")
    b1[0] = x[0]
    alloc_9[0] = b1[0] + T.float32(1)
    alloc_10[0] = alloc_9[0] * T.float32(3)
    alloc_11[0] = alloc_10[0] + T.float32(2)
    alloc_12[0] = T.float32(5)
    alloc_12[0] = alloc_12[0] + alloc_11[0]
    y[0] = alloc_12[0]


@T.prim_func(s_tir=True)
def invalid_alloc_for_mix(x: HALF, y: HALF):
    alloc = ub(61440)
    alloc_0 = ub(61440)
    load(alloc, x)
    load(alloc_0, x)
    y[0] = alloc[3] + alloc_0[5]


@T.prim_func(s_tir=True)
def test_mem_specalloc_max(
    x: T.Buffer((MANY,), "int64"), z: T.Buffer((MANY,), "int32"), y: T.Buffer((MANY,), "int32")
):
    alloc = ub(16384, "int64")
    alloc_0 = ub(16384, "int32")
    alloc_2 = ub(16384, "int32")
    alloc_3 = ub(16384, "int32")
    load(alloc, x)
    # There, a temporary keeps the cast out of place; here, the order of its elements does.
    for i in range(16384):
        alloc_0[i] = T.cast(alloc[16383 - i], "int32")
    load(alloc_2, z)
    vadd(alloc_3, alloc_0, alloc_2)
    store(y, alloc_3)


@T.prim_func(s_tir=True)
def test_vabs_offset_unequal_not_inplace(x: HALF, y: HALF):
    alloc = ub(4096)
    alloc_1 = ub(4096)
    load(alloc, x)
    for i, j, k in T.grid(7, 13, 13):
        alloc_1[i * 512 + j * 32 + k * 2 + 614] = T.fabs(alloc[i * 512 + j * 32 + k * 2 + 36])
    for i, j, k in T.grid(7, 13, 13):
        y[i * 169 + j * 13 + k] = alloc_1[i * 512 + j * 32 + k * 2 + 614]


# Broadcast operands


@T.prim_func(s_tir=True)
def test_vmul_dyn_same_2d_shape_inplace_one(x: SHORT, y: SHORT):
    alloc = ub(256, "int16")
    alloc_0 = ub(4096, "int16")
    alloc_1 = ub(4096, "int16")
    load(alloc, x)
    load(alloc_0, x)
    for i, j in T.grid(256, 16):
        alloc_1[i * 16 + j] = alloc[i] * alloc_0[i * 16 + j]
    store(y, alloc_1)


# Branches


@T.prim_func(s_tir=True)
def test_unique_memory_if_reuse(x: HALF, y: HALF):
    alloc = ub(4096, mem_unique=True)
    alloc_0 = ub(4096)
    load(alloc, x)
    load(alloc_0, x)
    if x[0] > T.float16(3):
        alloc_1 = ub(4096)
        vadd(alloc_1, alloc, alloc_0)
        store(y, alloc_1)
    else:
        store(y, alloc)


# Loops


@T.prim_func(s_tir=True)
def test_plan_memory_for_result(x: HALF, y: HALF):
    b0 = ub(4096)
    b1 = ub(4096)
    b4 = ub(4096)
    b2 = ub(4096)
    load(b0, x)
    load(b1, x)
    load(b4, x)
    vadd(b2, b0, b1)
    for _t in range(8):
        vadd(b4, b0, b4)
    store(y, b2)
    store(y, b4)


@T.prim_func(s_tir=True)
def test_plan_memory_subview_in_loop(x: HALF, y: HALF):
    for _t in range(8):
        alloc_0 = ub(4096, slots=2)
        alloc_1 = ub(4096, slots=2)
        alloc_2 = ub(4096, slots=2)
        load(alloc_0, x)
        load(alloc_1, x)
        vadd(alloc_2, alloc_0, alloc_1)
        for i, j in T.grid(16, 32):
            y[i * 32 + j] = alloc_2[i * 256 + j]


# Loops of unknown length


@T.prim_func(s_tir=True)
def test_scfwhileop(
    x: FLOAT,
    arg1: T.Buffer((16,), "float32", scope="local.UB"),
    n: COUNT,
    y: FLOAT,
):
    alloc_1 = ub(16, "float32")
    while n[0] > 0:
        alloc_0 = ub(16, "float32")
        load(alloc_0, x)
        vadd(alloc_1, alloc_0, arg1)
        n[0] = n[0] - 1
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def move_pointer_casts_to_before_region_front(x: FLOAT, n: COUNT, y: FLOAT):
    while n[0] > 0:
        tmp = ub(8, "float32", 2)
        load(tmp, x)
        store(y, tmp)
        n[0] = n[0] - 1


@T.prim_func(s_tir=True)
def test_dowhile_yield_inplace(x: FLOAT, n: COUNT, y: FLOAT):
    alloc = ub(16, "float32")
    load(alloc, x)
    while n[0] > 0:
        alloc_0 = ub(16, "float32")
        alloc_1 = ub(16, "float32")
        alloc_2 = ub(16, "float32")
        load(alloc_0, x)
        load(alloc_1, x)
        vadd(alloc_2, alloc, alloc_1)
        vadd(alloc, alloc_0, alloc_2)
        n[0] = n[0] - 1
    store(y, alloc)


@T.prim_func(s_tir=True)
def workspace_of_a_loop(x: FLOAT, y: FLOAT):
    carried = T.alloc_buffer((16384,), "float32", scope="global.workspace")
    product = T.alloc_buffer((16384,), "float32", scope="local.L0C")
    left = T.alloc_buffer((1024,), "float32", scope="local.L1")
    load(left, x)
    multiply(product, left, left)
    store(carried, product)
    for t in range(2):
        tile = ub(16384, "float32")
        for i in range(16384):
            tile[i] = x[i + t]
        store(carried, tile)
    back = ub(16384, "float32")
    load(back, carried)
    store(y, back)


@T.prim_func(s_tir=True)
def unwritten_workspace(x: T.Buffer((MANY,), "int32"), y: T.Buffer((MANY,), "int32")):
    unwritten = T.alloc_buffer((1,), "int32", scope="global.workspace")
    y[0] = unwritten[0] + x[0]


# The cube unit


@T.prim_func(s_tir=True)
def two_loops_through_l0c(x: FLOAT, y: FLOAT):
    left = T.alloc_buffer((1024,), "float32", scope="local.L1")
    load(left, x)
    for _t in range(8):
        a = l0c(8192, 2)
        b = l0c(8192, 2)
        multiply(a, left, left)
        store(y, a)
        multiply(b, left, left)
        store(y, b)
    for _t in range(8):
        c = l0c(8192, 2)
        d = l0c(8192, 2)
        multiply(c, left, left)
        store(y, c)
        multiply(d, left, left)
        store(y, d)


@T.prim_func(s_tir=True)
def single_over_slots_in_l0c(x: FLOAT, y: FLOAT):
    left = T.alloc_buffer((1024,), "float32", scope="local.L1")
    load(left, x)
    for _t in range(8):
        a = l0c(12288, 2)
        b = l0c(12288, 2)
        c = l0c(12288)
        multiply(a, left, left)
        store(y, a)
        multiply(b, left, left)
        store(y, b)
        multiply(c, left, left)
        store(y, c)
