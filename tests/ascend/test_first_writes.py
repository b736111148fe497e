# SPDX-License-Identifier: Apache-2.0
"""Memory that is read before anything can have written it."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory


def check(func: tirx.PrimFunc) -> None:
    mod = lowering.capture(tvm.IRModule({"main": func}), "ascend/910b-llvm")
    AscendPlanMemory()(mod)


@T.prim_func(s_tir=True)
def guarded(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    before = T.alloc_buffer((32,), "float32", scope="local.UB")
    for t in range(8):
        if t > 0:
            for i in range(32):
                y[t * 32 + i] = before[i]
        for i in range(32):
            before[i] = x[t * 32 + i]


@T.prim_func(s_tir=True)
def selected(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    before = T.alloc_buffer((32,), "float32", scope="local.UB")
    for t in range(8):
        for i in range(32):
            y[t * 32 + i] = T.if_then_else(t > 0, before[i], T.float32(0))
        for i in range(32):
            before[i] = x[t * 32 + i]


@T.prim_func(s_tir=True)
def handed_on(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    b = T.alloc_buffer((32,), "float32", scope="local.UB")
    c = T.alloc_buffer((32,), "float32", scope="local.UB")
    T.evaluate(
        T.call_extern(
            "int32", "fill", T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 32, 2)
        )
    )
    T.evaluate(T.call_extern("int32", "fill", b.data))
    T.evaluate(T.call_extern("int32", "fill", T.address_of(c[0])))
    for i in range(32):
        y[i] = a[i] + b[i] + c[i]


@T.prim_func(s_tir=True)
def in_one_branch(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32"), n: T.int32):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    view = T.decl_buffer((32,), "float32", data=a.data, scope="local.UB")
    if n > 0:
        for i in range(32):
            view[i] = x[i]
    for i in range(32):
        y[i] = a[i]


@pytest.mark.parametrize("func", [guarded, selected, handed_on, in_one_branch])
def test_what_may_have_been_written(func: tirx.PrimFunc):
    check(func)


@T.prim_func(s_tir=True)
def unguarded(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    for t in range(8):
        for i in range(32):
            y[t * 32 + i] = a[i]
        for i in range(32):
            a[i] = x[t * 32 + i]


@T.prim_func(s_tir=True)
def made_anew(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    for t in range(8):
        a = T.alloc_buffer((32,), "float32", scope="local.UB")
        if t > 0:
            for i in range(32):
                y[t * 32 + i] = a[i]
        for i in range(32):
            a[i] = x[t * 32 + i]


@T.prim_func(s_tir=True)
def never(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    for i in range(32):
        y[i] = x[i] + a[i]


@T.prim_func(s_tir=True)
def adds_to_nothing(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    for i in range(32):
        a[i] = a[i] + x[i]
    for i in range(32):
        y[i] = a[i]


@T.prim_func(s_tir=True)
def lent_to_read(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    T.evaluate(
        T.call_extern(
            "int32", "show", T.tvm_access_ptr(T.type_annotation("float32"), a.data, 0, 32, 1)
        )
    )
    for i in range(32):
        a[i] = x[i]


@T.prim_func(s_tir=True)
def in_an_index(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "int32", scope="local.UB")
    for i in range(32):
        y[a[i]] = x[i]


@pytest.mark.parametrize(
    "func", [unguarded, made_anew, never, adds_to_nothing, lent_to_read, in_an_index]
)
def test_what_cannot_have_been_written(func: tirx.PrimFunc):
    message = r"function 'main': buffer 'a' in local\.UB: error: read before first write$"
    with pytest.raises(ValueError, match=message):
        check(func)
