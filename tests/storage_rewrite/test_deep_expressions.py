# SPDX-License-Identifier: Apache-2.0
"""Expressions and statements that nest deeper than Python's stack.

TVM joins n tensors by n nested conditions, and an ``elif`` stands in the ``else`` before it.
"""

from collections.abc import Callable

import pytest
import tvm
import tvm_ffi
from tvm import tirx

import tvm_ext

_DEPTH = 700


def _module() -> tvm.IRModule:
    """Return a kernel that joins as many values as `_DEPTH`."""
    func = tvm.script.from_source("""
@T.prim_func(s_tir=True)
def join(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    x = T.alloc_buffer((64,), "float32")
    y = T.alloc_buffer((64,), "float32")
    for i in range(64):
        x[i] = a[i]
    for i in range(64):
        y[i] = x[63 - i]
    for i in range(64):
        b[i] = y[i]
""")
    *before, loop = func.body.seq
    value, (index,) = loop.body.value, loop.body.indices
    for number in range(_DEPTH):
        value = tirx.if_then_else(index > number, value, tirx.const(float(number), "float32"))
    store = tirx.BufferStore(loop.body.buffer, value, [index])
    joined = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, store)
    return tvm.IRModule({"join": func.with_body(tirx.SeqStmt([*before, joined]))})


def _cases() -> tvm.IRModule:
    """Return a kernel that takes one of as many branches as `_DEPTH`, or does what is last."""
    func = _module()["join"]
    *before, last = func.body.seq
    which = tirx.Var("which", "int32")
    for number in range(_DEPTH):
        value = tirx.const(float(number), "float32")
        store = tirx.BufferStore(func.params[1], value, [tirx.const(0, "int32")])
        last = tirx.IfThenElse(tirx.EQ(which, number), store, last)
    body = tirx.SeqStmt([*before, last])
    return tvm.IRModule({"join": tirx.PrimFunc([*func.params, which], body)})


_DEEP = pytest.mark.parametrize("make", [_module, _cases])


@_DEEP
def test_the_mirrored_pass_gives_what_the_stock_pass_gives(
    make: Callable[[], tvm.IRModule],
) -> None:
    """The stock pass walks in C++, whose stack is deeper than a thousand Python frames."""
    ours = tvm_ext.transform.StorageRewrite()(make())
    stock = tvm.tirx.transform.StorageRewrite()(make())
    assert tvm_ffi.structural_equal(ours["join"], stock["join"])


@_DEEP
def test_buffers_get_addresses(make: Callable[[], tvm.IRModule]) -> None:
    """The readers of live ranges go through all conditions."""
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("global", capacity=512, alignment=32),))
    planned = tvm_ext.transform.PlanAddresses(memory=memory)(make())
    assert planned["join"].script().count("allocated_addr") == 2
