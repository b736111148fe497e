# SPDX-License-Identifier: Apache-2.0
"""Expressions and statements that nest deeper than Python's stack.

TVM joins n tensors by n nested conditions, and an ``elif`` stands in the ``else`` before it.
"""

from collections.abc import Callable
from functools import partial

import pytest
import tvm
import tvm_ffi
from program_text import program
from tvm import tirx

import tvm_ext
from passes.pass_errors import error_context

_DEPTH = 700


def _module(scope: str) -> tvm.IRModule:
    """Return a kernel that joins as many values as `_DEPTH`."""
    func = program(f"""
    def join(a: 64, b: 64):
        x, y: {scope} 64
        x[i] = a[i] for i in range(64)
        y[i] = x[63 - i] for i in range(64)
        b[i] = y[i] for i in range(64)
    """)
    *before, loop = func.body.seq
    value, (index,) = loop.body.value, loop.body.indices
    for number in range(_DEPTH):
        value = tirx.if_then_else(index > number, value, tirx.const(float(number), "float32"))
    store = tirx.BufferStore(loop.body.buffer, value, [index])
    joined = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, store)
    return tvm.IRModule({"join": func.with_body(tirx.SeqStmt([*before, joined]))})


def _joined() -> tvm.IRModule:
    return _module("global")


def _cases() -> tvm.IRModule:
    """Return a kernel that takes one of as many branches as `_DEPTH`, or does what is last."""
    func = _joined()["join"]
    *before, last = func.body.seq
    which = tirx.Var("which", "int32")
    for number in range(_DEPTH):
        value = tirx.const(float(number), "float32")
        store = tirx.BufferStore(func.params[1], value, [tirx.const(0, "int32")])
        last = tirx.IfThenElse(tirx.EQ(which, number), store, last)
    body = tirx.SeqStmt([*before, last])
    return tvm.IRModule({"join": tirx.PrimFunc([*func.params, which], body)})


@pytest.mark.parametrize("make", [_joined, partial(_module, "local.UB"), _cases])
def test_the_mirrored_pass_gives_what_the_stock_pass_gives(
    make: Callable[[], tvm.IRModule],
) -> None:
    """The stock pass walks in C++, whose stack is deeper than a thousand Python frames.

    In a scope of its own, memory is packed and the indices are moved.
    """
    ours = tvm_ext.transform.StorageRewrite()(make())
    stock = tvm.tirx.transform.StorageRewrite()(make())
    assert tvm_ffi.structural_equal(ours["join"], stock["join"])


def _nested() -> tvm.IRModule:
    """Return a kernel whose statements nest so deep."""
    func = _module("local.UB")["join"]
    body = func.body
    for _ in range(_DEPTH):
        body = tirx.IfThenElse(tirx.const(1, "bool"), body, None)
    return tvm.IRModule({"join": func.with_body(body)})


_MEMORY = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("global", capacity=512, alignment=32),))
_ADDRESSES = partial(tvm_ext.transform.PlanAddresses, memory=_MEMORY)
_ASCEND = partial(tvm_ext.transform.AscendPlanMemory, target="ascend/910b")


@pytest.mark.parametrize(
    ("plan", "make"),
    [
        (_ADDRESSES, _joined),
        (_ADDRESSES, _cases),
        (_ASCEND, partial(_module, "local.UB")),
        (_ASCEND, _nested),
    ],
)
def test_buffers_get_addresses(
    plan: Callable[[], tvm.transform.Pass], make: Callable[[], tvm.IRModule]
) -> None:
    """The readers of live ranges, of pipes and of first writes go through all conditions."""
    assert plan()(make())["join"].script().count("allocated_addr") == 2


def test_an_arena_is_written() -> None:
    """Both buffers begin in one allocation, and the innermost condition reads there."""
    planner = tvm_ext.transform.PlanAddresses("bump", scopes=["local.UB"], form="arena")
    text = planner(_module("local.UB"))["join"].script()
    assert text.count("T.alloc_buffer") == 1
    assert text.count("y[i + 64]") == 2


def test_what_nests_deeper_is_refused_in_one_line() -> None:
    """Python's stack ends, and the process goes on."""

    def deeper(level: int) -> int:
        return deeper(level + 1)

    with (
        pytest.raises(ValueError, match=r"MyPass: function 'join': .*nest"),
        error_context("MyPass", "join"),
    ):
        deeper(0)
