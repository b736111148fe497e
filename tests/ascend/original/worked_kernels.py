# SPDX-License-Identifier: Apache-2.0
"""Worked cases of AscendNPU-IR's PlanMemory as kernels that `case_kernels` cannot make.

They have the names of their cases. What a loop of the original carries is one buffer here.
"""

from __future__ import annotations

import re

from case_kernels import MANY
from program_text import programs

_HALVES, _FLOATS = (f"x: {MANY} {dtype}, y: {MANY} {dtype}" for dtype in ("float16", "float32"))
_SHORTS, _INTS = (f"x: {MANY} {dtype}, y: {MANY} {dtype}" for dtype in ("int16", "int32"))


def _products(text: str) -> str:
    """Write out `a = left * left of N`, the multiplication of what stands in L1."""
    return re.sub(
        r"( *)(\w+) = (\w+) \* \3 of (\d+)",
        r"\1for i in range(\4):\n\1    \2[i] = T.float32(0)\n\1    for k in range(2):\n"
        r"\1        \2[i] = \2[i] + \3[(i + k) % 1024] * \3[k]",
        text,
    )


KERNELS = programs(f"""
def test_plan_memory_expand_shape({_HALVES}):
    alloc1, alloc3, alloc5: local.UB 4096 float16
    alloc1[i] = x[i] for i in range(4096)
    alloc3[i] = x[i] for i in range(4096)
    alloc5[i] = alloc1[i] + alloc3[i] for i in range(4096)
    expanded = T.decl_buffer((2, 8, 256), "float16", data=alloc5.data, scope="local.UB")
    y[i * 2048 + j * 256 + k] = expanded[i, j, k] for i, j, k in T.grid(2, 8, 256)

def test_plan_memory_memref_reshape({_SHORTS}):
    alloc: local.UB 16 int16
    alloc[i] = x[i] for i in range(16)
    reshaped = T.decl_buffer((2, 2, 4), "int16", data=alloc.data, scope="local.UB")
    y[i * 8 + j * 4 + k] = reshaped[i, j, k] for i, j, k in T.grid(2, 2, 4)

def test_mem_enough({_FLOATS}):
    b1, alloc_9, alloc_10, alloc_11, alloc_12: local.UB 1
    b1[0] = x[0]
    alloc_9[0] = b1[0] + T.float32(1)
    alloc_10[0] = alloc_9[0] * T.float32(3)
    alloc_11[0] = alloc_10[0] + T.float32(2)
    alloc_12[0] = T.float32(5)
    alloc_12[0] = alloc_12[0] + alloc_11[0]
    y[0] = alloc_12[0]

def invalid_alloc_for_mix({_HALVES}):
    alloc, alloc_0: local.UB 61440 float16
    alloc[i] = x[i] for i in range(61440)
    alloc_0[i] = x[i] for i in range(61440)
    y[0] = alloc[3] + alloc_0[5]

def test_mem_specalloc_max(x: {MANY} int64, z: {MANY} int32, y: {MANY} int32):
    alloc: local.UB 16384 int64
    alloc_0, alloc_2, alloc_3: local.UB 16384 int32
    alloc[i] = x[i] for i in range(16384)
    # There, a temporary keeps the cast out of place; here, the order of its elements does.
    alloc_0[i] = T.cast(alloc[16383 - i], "int32") for i in range(16384)
    alloc_2[i] = z[i] for i in range(16384)
    alloc_3[i] = alloc_0[i] + alloc_2[i] for i in range(16384)
    y[i] = alloc_3[i] for i in range(16384)

def test_vabs_offset_unequal_not_inplace({_HALVES}):
    alloc, alloc_1: local.UB 4096 float16
    alloc[i] = x[i] for i in range(4096)
    for i, j, k in T.grid(7, 13, 13):
        alloc_1[i * 512 + j * 32 + k * 2 + 614] = T.fabs(alloc[i * 512 + j * 32 + k * 2 + 36])
    for i, j, k in T.grid(7, 13, 13):
        y[i * 169 + j * 13 + k] = alloc_1[i * 512 + j * 32 + k * 2 + 614]

def test_vmul_dyn_same_2d_shape_inplace_one({_SHORTS}):
    alloc: local.UB 256 int16
    alloc_0, alloc_1: local.UB 4096 int16
    alloc[i] = x[i] for i in range(256)
    alloc_0[i] = x[i] for i in range(4096)
    alloc_1[i * 16 + j] = alloc[i] * alloc_0[i * 16 + j] for i, j in T.grid(256, 16)
    y[i] = alloc_1[i] for i in range(4096)

def test_unique_memory_if_reuse({_HALVES}):
    alloc: local.UB 4096 float16 {{"mem_unique": True}}
    alloc_0: local.UB 4096 float16
    alloc[i] = x[i] for i in range(4096)
    alloc_0[i] = x[i] for i in range(4096)
    if x[0] > T.float16(3):
        alloc_1: local.UB 4096 float16
        alloc_1[i] = alloc[i] + alloc_0[i] for i in range(4096)
        y[i] = alloc_1[i] for i in range(4096)
    else:
        y[i] = alloc[i] for i in range(4096)

def test_plan_memory_for_result({_HALVES}):
    b0, b1, b4, b2: local.UB 4096 float16
    b0[i] = x[i] for i in range(4096)
    b1[i] = x[i] for i in range(4096)
    b4[i] = x[i] for i in range(4096)
    b2[i] = b0[i] + b1[i] for i in range(4096)
    for _t in range(8):
        b4[i] = b0[i] + b4[i] for i in range(4096)
    y[i] = b2[i] for i in range(4096)
    y[i] = b4[i] for i in range(4096)

def test_plan_memory_subview_in_loop({_HALVES}):
    for _t in range(8):
        alloc_0, alloc_1, alloc_2: local.UB 4096 float16 {{"multi_buffer": 2}}
        alloc_0[i] = x[i] for i in range(4096)
        alloc_1[i] = x[i] for i in range(4096)
        alloc_2[i] = alloc_0[i] + alloc_1[i] for i in range(4096)
        y[i * 32 + j] = alloc_2[i * 256 + j] for i, j in T.grid(16, 32)

def test_infer_plan_memory_if_yield({_HALVES}):
    alloc1, alloc5, alloc9, alloc10, result: local.UB 4096 float16
    alloc1[i] = x[i] for i in range(4096)
    alloc5[i] = x[i] for i in range(4096)
    alloc9[i] = x[i] for i in range(4096)
    alloc10[i] = x[i] for i in range(4096)
    if x[0] > T.float16(3):
        result[i] = alloc1[i] + alloc9[i] for i in range(4096)
    else:
        result[i] = alloc5[i] + alloc10[i] for i in range(4096)
    y[i] = result[i] for i in range(4096)

def in_place_of_the_result_of_an_if({_HALVES}):
    given, result, last: local.UB 4096 float16
    given[i] = x[i] for i in range(4096)
    if x[0] > T.float16(3):
        result[i] = given[i] + given[i] for i in range(4096)
    else:
        for _t in range(2):
            if x[1] > T.float16(3):
                result[i] = given[i] * given[i] for i in range(4096)
            else:
                result[i] = given[i] for i in range(4096)
    last[i] = result[i] + result[i] for i in range(4096)
    y[i] = last[i] for i in range(4096)

def scratch_of_the_branches_of_an_if({_HALVES}):
    given, scratch: local.UB 4096 float16
    given[i] = x[i] for i in range(4096)
    if x[0] > T.float16(3):
        scratch[i] = given[i] + given[i] for i in range(4096)
        y[i] = scratch[i] for i in range(4096)
    else:
        scratch[i] = given[i] * given[i] for i in range(4096)
        y[i] = scratch[i] for i in range(4096)

def test_scfwhileop(x: {MANY}, p: T.handle, n: 1 int32, y: {MANY}):
    arg1 = T.match_buffer(p, (16,), "float32", scope="local.UB")
    alloc_1: local.UB 16
    while n[0] > 0:
        alloc_0: local.UB 16
        alloc_0[i] = x[i] for i in range(16)
        alloc_1[i] = alloc_0[i] + arg1[i] for i in range(16)
        n[0] = n[0] - 1
    y[i] = alloc_1[i] for i in range(16)

def move_pointer_casts_to_before_region_front(x: {MANY}, n: 1 int32, y: {MANY}):
    while n[0] > 0:
        tmp: local.UB 8 float32 {{"multi_buffer": 2}}
        tmp[i] = x[i] for i in range(8)
        y[i] = tmp[i] for i in range(8)
        n[0] = n[0] - 1

def test_dowhile_yield_inplace(x: {MANY}, n: 1 int32, y: {MANY}):
    alloc: local.UB 16
    alloc[i] = x[i] for i in range(16)
    while n[0] > 0:
        alloc_0, alloc_1, alloc_2: local.UB 16
        alloc_0[i] = x[i] for i in range(16)
        alloc_1[i] = x[i] for i in range(16)
        alloc_2[i] = alloc[i] + alloc_1[i] for i in range(16)
        alloc[i] = alloc_0[i] + alloc_2[i] for i in range(16)
        n[0] = n[0] - 1
    y[i] = alloc[i] for i in range(16)
""") | programs(
    _products(f"""
def workspace_of_a_loop({_FLOATS}):
    carried: global.workspace 16384
    product: local.L0C 16384
    left: local.L1 1024
    left[i] = x[i] for i in range(1024)
    product = left * left of 16384
    carried[i] = product[i] for i in range(16384)
    for t in range(2):
        tile: local.UB 16384
        tile[i] = x[i + t] for i in range(16384)
        carried[i] = tile[i] for i in range(16384)
    back: local.UB 16384
    back[i] = carried[i] for i in range(16384)
    y[i] = back[i] for i in range(16384)

def unwritten_workspace({_INTS}):
    unwritten: global.workspace 1 int32
    y[0] = unwritten[0] + x[0]

def two_loops_through_l0c({_FLOATS}):
    left: local.L1 1024
    left[i] = x[i] for i in range(1024)
    for _t in range(8):
        a, b: local.L0C 8192 float32 {{"multi_buffer": 2}}
        a = left * left of 8192
        y[i] = a[i] for i in range(8192)
        b = left * left of 8192
        y[i] = b[i] for i in range(8192)
    for _t in range(8):
        c, d: local.L0C 8192 float32 {{"multi_buffer": 2}}
        c = left * left of 8192
        y[i] = c[i] for i in range(8192)
        d = left * left of 8192
        y[i] = d[i] for i in range(8192)

def single_over_slots_in_l0c({_FLOATS}):
    left: local.L1 1024
    left[i] = x[i] for i in range(1024)
    for _t in range(8):
        a, b: local.L0C 12288 float32 {{"multi_buffer": 2}}
        c: local.L0C 12288
        a = left * left of 12288
        y[i] = a[i] for i in range(12288)
        b = left * left of 12288
        y[i] = b[i] for i in range(12288)
        c = left * left of 12288
        y[i] = c[i] for i in range(12288)
""")
)
