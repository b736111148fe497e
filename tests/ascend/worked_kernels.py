# SPDX-License-Identifier: Apache-2.0
"""Worked cases of AscendNPU-IR's PlanMemory as kernels, under the names that they have there.

A load copies global memory to UB, a store copies back, and a vector instruction is a loop nest.
Buffers have one dimension, since that is what the planner sees. What a loop of the original carries
is one buffer here. The buffers that some instructions need beside their result are left out, as
they exist only once instructions are chosen.
"""

from __future__ import annotations

from tvm.script import tirx as T

MANY = 1 << 17
"""Elements of an argument; no case reads or writes more of it."""


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
def vector(to, operator, *operands):
    """Compute element by element."""
    for i in range(to.shape[0]):
        to[i] = operator(*[operand[i] for operand in operands])


@T.inline
def vadd(to, a, b):
    """Add element by element."""
    for i in range(to.shape[0]):
        to[i] = a[i] + b[i]


@T.inline
def vcast(to, source):
    """Convert each element to the type of the result."""
    for i in range(to.shape[0]):
        to[i] = T.cast(source[i], to.dtype)


@T.inline
def vreduce(to, source):
    """Take the maximum of two elements, as a reduction."""
    for i in range(to.shape[0]):
        to[i] = T.float32(-7)
        for k in range(2):
            to[i] = T.max(to[i], source[(i + k) % source.shape[0]])


@T.inline
def multiply(to, a, b):
    """Multiply what stands in L1, with the sum over two elements."""
    for i in range(to.shape[0]):
        to[i] = T.float32(0)
        for k in range(2):
            to[i] = to[i] + a[(i + k) % 1024] * b[k]


# Straight code


@T.prim_func(s_tir=True)
def test_mem_allocate_basic(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
    copy_in_ub = ub(4096)
    dst1 = ub(4096)
    dst2 = ub(4096)
    copy_out_ub = ub(4096)
    load(copy_in_ub, x)
    vadd(dst1, copy_in_ub, copy_in_ub)
    vadd(dst2, dst1, dst1)
    vadd(copy_out_ub, dst2, dst2)
    store(y, copy_out_ub)


@T.prim_func(s_tir=True)
def vcast_inplace_2d_small_to_large_invalid(
    x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float32")
):
    arg0_ub = ub(256)
    vcast_res_ub = ub(256, "float32")
    load(arg0_ub, x)
    vcast(vcast_res_ub, arg0_ub)
    store(y, vcast_res_ub)


@T.prim_func(s_tir=True)
def vcast_inplace_2d_large_to_small_invalid(
    x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float16")
):
    arg0_ub = ub(256, "float32")
    vcast_res_ub = ub(256)
    load(arg0_ub, x)
    vcast(vcast_res_ub, arg0_ub)
    store(y, vcast_res_ub)


@T.prim_func(s_tir=True)
def vcast_inplace_1d_equal_valid(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "int16")):
    arg0_ub = ub(1024)
    vcast_res_ub = ub(1024, "int16")
    load(arg0_ub, x)
    vcast(vcast_res_ub, arg0_ub)
    store(y, vcast_res_ub)


@T.prim_func(s_tir=True)
def test_one_mem_not_enough(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float16")):
    arg0_ub = ub(80000, "float32")
    vcast_res_ub = ub(80000)
    load(arg0_ub, x)
    vcast(vcast_res_ub, arg0_ub)
    store(y, vcast_res_ub)


@T.prim_func(s_tir=True)
def test_plan_memory_expand_shape(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
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
def test_mem_plan_pipe_opt(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
    b0 = ub(4096)
    b1 = ub(4096)
    b2 = ub(4096)
    load(b0, x)
    store(y, b0)
    load(b1, x)
    store(y, b1)
    load(b2, x)
    store(y, b2)


@T.prim_func(s_tir=True)
def test_plan_memory_memref_reshape(x: T.Buffer((MANY,), "int16"), y: T.Buffer((MANY,), "int16")):
    alloc = ub(16, "int16")
    load(alloc, x)
    reshaped = T.decl_buffer((2, 2, 4), "int16", data=alloc.data, scope="local.UB")
    for i, j, k in T.grid(2, 2, 4):
        y[i * 8 + j * 4 + k] = reshaped[i, j, k]


@T.prim_func(s_tir=True)
def test_mem_enough(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")):
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
def test_reuse_dma_buffer_warning(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
    alloc = ub(65536)
    alloc_0 = ub(65536)
    load(alloc, x)
    store(y, alloc)
    load(alloc_0, x)
    store(y, alloc_0)


@T.prim_func(s_tir=True)
def invalid_alloc_for_mix(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
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
def test_vabs_offset_unequal_not_inplace(
    x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")
):
    alloc = ub(4096)
    alloc_1 = ub(4096)
    load(alloc, x)
    for i, j, k in T.grid(7, 13, 13):
        alloc_1[i * 512 + j * 32 + k * 2 + 614] = T.fabs(alloc[i * 512 + j * 32 + k * 2 + 36])
    for i, j, k in T.grid(7, 13, 13):
        y[i * 169 + j * 13 + k] = alloc_1[i * 512 + j * 32 + k * 2 + 614]


# Broadcast operands


@T.prim_func(s_tir=True)
def test_vsub_inline_broadcast_inplace(
    x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")
):
    alloc = ub(8192, "float32")
    alloc_0 = ub(64, "float32")
    alloc_1 = ub(8192, "float32")
    load(alloc, x)
    load(alloc_0, x)
    for i, j in T.grid(64, 128):
        alloc_1[i * 128 + j] = alloc[i * 128 + j] - alloc_0[i]
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def test_vsub_inline_brc_inplace_dim0(
    x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")
):
    alloc = ub(8192, "float32")
    alloc_0 = ub(128, "float32")
    alloc_1 = ub(8192, "float32")
    load(alloc, x)
    load(alloc_0, x)
    for i, j in T.grid(64, 128):
        alloc_1[i * 128 + j] = alloc[i * 128 + j] - alloc_0[j]
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def test_vmul_inline_broadcast_inplace(
    x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")
):
    alloc = ub(32768, "float32")
    alloc_0 = ub(512, "float32")
    alloc_1 = ub(32768, "float32")
    load(alloc, x)
    load(alloc_0, x)
    for i, j, k in T.grid(4, 64, 128):
        alloc_1[i * 8192 + j * 128 + k] = alloc[i * 8192 + j * 128 + k] * alloc_0[i * 128 + k]
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def test_vdiv_inline_brc_inplace(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")):
    alloc = ub(8192, "float32")
    alloc_0 = ub(64, "float32")
    alloc_1 = ub(8192, "float32")
    load(alloc, x)
    load(alloc_0, x)
    for i, j in T.grid(64, 128):
        alloc_1[i * 128 + j] = alloc[i * 128 + j] / alloc_0[i]
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def test_vdiv_tempbuffer_samesize_inplace_diff(
    x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")
):
    alloc = ub(16, "float32")
    alloc_1 = ub(16, "float32")
    load(alloc, x)
    vector(alloc_1, lambda a: a / T.float32(3), alloc)
    store(y, alloc_1)


@T.prim_func(s_tir=True)
def test_vmul_dyn_same_2d_shape_inplace_one(
    x: T.Buffer((MANY,), "int16"), y: T.Buffer((MANY,), "int16")
):
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
def test_if_else(
    x: T.Buffer((MANY,), "int32"),
    f: T.Buffer((MANY,), "float32"),
    y: T.Buffer((MANY,), "int64"),
):
    alloc_0 = ub(11520, "int32")
    alloc_1 = ub(11520, "int32")
    alloc_2 = ub(11520, "int32")
    load(alloc_0, x)
    load(alloc_1, x)
    vector(alloc_2, lambda a, b: a & b, alloc_0, alloc_1)
    if x[0] > 3:
        alloc_3 = ub(11520, "int64")
        vcast(alloc_3, alloc_2)
        store(y, alloc_3)
    else:
        alloc_4 = ub(11520, "float32")
        alloc_5 = ub(11520, "float32")
        alloc_6 = ub(11520, "int64")
        load(alloc_4, f)
        vector(alloc_5, lambda a: a * T.float32(2), alloc_4)
        vcast(alloc_6, alloc_2)
        store(y, alloc_6)


@T.prim_func(s_tir=True)
def test_unique_memory_if_reuse(x: T.Buffer((MANY,), "float16"), y: T.Buffer((MANY,), "float16")):
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


# The cube unit


@T.prim_func(s_tir=True)
def two_loops_through_l0c(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")):
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
def single_over_slots_in_l0c(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")):
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
