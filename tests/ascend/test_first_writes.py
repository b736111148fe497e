# SPDX-License-Identifier: Apache-2.0
"""Memory that is read before anything can have written it."""

from __future__ import annotations

import pytest
import tvm
from program_text import program
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext import lowering
from tvm_ext.transform import AscendPlanMemory


def check(func: tirx.PrimFunc) -> None:
    mod = lowering.capture(tvm.IRModule({"main": func}), "ascend/910b-llvm")
    AscendPlanMemory()(mod)


guarded = program("""
def guarded(x: 256, y: 256):
    before: local.UB 32
    for t in range(8):
        if t > 0:
            y[t * 32 + i] = before[i] for i in range(32)
        before[i] = x[t * 32 + i] for i in range(32)
""")


selected = program("""
def selected(x: 256, y: 256):
    before: local.UB 32
    for t in range(8):
        y[t * 32 + i] = T.if_then_else(t > 0, before[i], T.float32(0)) for i in range(32)
        before[i] = x[t * 32 + i] for i in range(32)
""")


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


in_one_branch = program("""
def in_one_branch(x: 32, y: 32, n: T.int32):
    a: local.UB 32
    view = T.decl_buffer((32,), "float32", data=a.data, scope="local.UB")
    if n > 0:
        view[i] = x[i] for i in range(32)
    y[i] = a[i] for i in range(32)
""")


@pytest.mark.parametrize("func", [guarded, selected, handed_on, in_one_branch])
def test_what_may_have_been_written(func: tirx.PrimFunc):
    check(func)


unguarded = program("""
def unguarded(x: 256, y: 256):
    a: local.UB 32
    for t in range(8):
        y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)
""")


made_anew = program("""
def made_anew(x: 256, y: 256):
    for t in range(8):
        a: local.UB 32
        if t > 0:
            y[t * 32 + i] = a[i] for i in range(32)
        a[i] = x[t * 32 + i] for i in range(32)
""")


@T.prim_func(s_tir=True)
def never(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    a = T.alloc_buffer((32,), "float32", scope="local.UB")
    for i in range(32):
        y[i] = x[i] + a[i]


adds_to_nothing = program("""
def adds_to_nothing(x: 32, y: 32):
    a: local.UB 32
    a[i] = a[i] + x[i] for i in range(32)
    y[i] = a[i] for i in range(32)
""")


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
