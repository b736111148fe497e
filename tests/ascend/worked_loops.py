# SPDX-License-Identifier: Apache-2.0
"""Worked cases of AscendNPU-IR's PlanMemory with loops, as kernels; see `worked_kernels`.

A number follows the name of a case where another one has the same name.
"""

from __future__ import annotations

from tvm.script import tirx as T
from worked_kernels import MANY, load, multiply, store, ub, vadd, vector, vreduce

HALF = T.Buffer((MANY,), "float16")
FLOAT = T.Buffer((MANY,), "float32")
BYTE = T.Buffer((MANY,), "int8")
COUNT = T.Buffer((1,), "int32")


@T.prim_func(s_tir=True)
def test_multi_buffer_loadstore_not_inplace(x: HALF, y: HALF):
    for _t in range(8):
        alloc1 = ub(4096, slots=2)
        alloc3 = ub(4096, slots=2)
        alloc5 = ub(4096, slots=2)
        alloc7 = ub(4096, slots=2)
        load(alloc1, x)
        vadd(alloc3, alloc1, alloc1)
        store(y, alloc3)
        load(alloc5, x)
        vadd(alloc7, alloc5, alloc5)
        store(y, alloc7)


@T.prim_func(s_tir=True)
def test_infer_not_inplace_loadstore_under_loop(x: HALF, y: HALF):
    for _t in range(8):
        alloc_0 = ub(16, slots=2)
        alloc_1 = ub(16)
        alloc_2 = ub(16, slots=2)
        alloc_3 = ub(16, slots=2)
        load(alloc_0, x)
        load(alloc_2, x)
        vadd(alloc_1, alloc_0, alloc_0)
        vadd(alloc_3, alloc_1, alloc_2)
        store(y, alloc_3)


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


@T.prim_func(s_tir=True)
def test_inplace_single_and_db(x: HALF, y: HALF):
    for _t in range(8):
        src_ub = ub(16, slots=2)
        dst_ub = ub(16)
        load(src_ub, x)
        vadd(dst_ub, src_ub, src_ub)
        store(y, dst_ub)


@T.prim_func(s_tir=True)
def test_inplace_single_and_mb(x: HALF, y: HALF):
    for _t in range(8):
        src_ub = ub(16, slots=4)
        dst_ub = ub(16)
        load(src_ub, x)
        vadd(dst_ub, src_ub, src_ub)
        store(y, dst_ub)


@T.prim_func(s_tir=True)
def test_mem_level1_single_buffer_reuse(x: FLOAT, y: FLOAT):
    for _t in range(8):
        src1_ub = ub(6144, "float32", 4)
        src2_ub = ub(6144, "float32")
        dst1_ub = ub(6144, "float32", 4)
        dst2_ub = ub(6144, "float32")
        load(src1_ub, x)
        vadd(dst1_ub, src1_ub, src1_ub)
        store(y, dst1_ub)
        load(src2_ub, x)
        vadd(dst2_ub, src2_ub, src2_ub)
        store(y, dst2_ub)


@T.prim_func(s_tir=True)
def test_mem_level0_less_multi_buffers_reuse(x: FLOAT, y: FLOAT):
    for _t in range(8):
        src1_ub = ub(5120, "float32", 4)
        src2_ub = ub(5120, "float32", 2)
        dst1_ub = ub(5120, "float32", 4)
        dst2_ub = ub(5120, "float32", 2)
        load(src1_ub, x)
        vadd(dst1_ub, src1_ub, src1_ub)
        store(y, dst1_ub)
        load(src2_ub, x)
        vadd(dst2_ub, src2_ub, src2_ub)
        store(y, dst2_ub)


@T.prim_func(s_tir=True)
def equal_multi_buffers(x: FLOAT, y: FLOAT):
    for _t in range(8):
        src1 = ub(5120, "float32", 4)
        src2 = ub(5120, "float32", 4)
        dst1 = ub(5120, "float32", 4)
        dst2 = ub(5120, "float32", 4)
        load(src1, x)
        vadd(dst1, src1, src1)
        store(y, dst1)
        load(src2, x)
        vadd(dst2, src2, src2)
        store(y, dst2)


@T.prim_func(s_tir=True)
def doubles_that_may_touch(x: FLOAT, y: FLOAT):
    for _t in range(8):
        load_ = ub(24576, "float32", 2)
        store_ = ub(24576, "float32", 2)
        load(load_, x)
        vadd(store_, load_, load_)
        store(y, store_)


@T.prim_func(s_tir=True)
def across_a_loop(x: HALF, y: HALF):
    a = ub(49152)
    d = ub(49152)
    load(a, x)
    store(y, a)
    for _t in range(8):
        b = ub(49152)
        c = ub(49152)
        load(b, x)
        store(y, b)
        load(c, x)
        store(y, c)
    load(d, x)
    store(y, d)


@T.prim_func(s_tir=True)
def back_twice(x: FLOAT, y: FLOAT):
    for _t in range(8):
        load_ub = ub(13864, "float32", 2)
        mid0 = ub(13864, "float32")
        mid1 = ub(13000, "float32")
        store_ub = ub(14400, "float32", 2)
        load(load_ub, x)
        vector(mid0, T.fabs, load_ub)
        vreduce(mid1, mid0)
        vreduce(store_ub, mid1)
        store(y, store_ub)


@T.prim_func(s_tir=True)
def test_unique_memory_with_multi_buffer(x: HALF, y: HALF):
    for _t in range(8):
        alloc = ub(32768, slots=2, mem_unique=True)
        alloc_0 = ub(32768)
        load(alloc, x)
        store(y, alloc)
        load(alloc_0, x)
        store(y, alloc_0)


@T.prim_func(s_tir=True)
def test_preload_local_buffer_lifetime_is_per_enclosing_loop_77(x: BYTE, y: BYTE):
    for _t in range(8):
        buf0 = ub(81920, "int8", 2, preload_local_buffer=True)
        load(buf0, x)
        store(y, buf0)
    for _t in range(8):
        buf1 = ub(81920, "int8", 2, preload_local_buffer=True)
        load(buf1, x)
        store(y, buf1)


@T.prim_func(s_tir=True)
def test_preload_local_buffer_lifetime_is_per_enclosing_loop_105(x: BYTE, y: BYTE):
    for _t in range(8):
        buf0 = ub(81920, "int8", 2, preload_local_buffer=True)
        load(buf0, x)
        store(y, buf0)
    for _t in range(8):
        buf1 = ub(40960, "int8", 4, preload_local_buffer=True)
        load(buf1, x)
        store(y, buf1)


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
def workspace_of_a_loop(x: T.Buffer((MANY,), "float32"), y: T.Buffer((MANY,), "float32")):
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
