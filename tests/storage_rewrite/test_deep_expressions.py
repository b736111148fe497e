# SPDX-License-Identifier: Apache-2.0
"""Expressions that nest deeper than Python's stack: TVM joins n tensors by n nested conditions."""

import pytest
import tvm
import tvm_ffi
from tvm import tirx

import tvm_ext

_DEPTH = 700


def _module(scope: str) -> tvm.IRModule:
    """Return a kernel that joins as many values as `_DEPTH`."""
    func = tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def join(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    x = T.alloc_buffer((64,), "float32", scope="{scope}")
    y = T.alloc_buffer((64,), "float32", scope="{scope}")
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


@pytest.mark.parametrize("scope", ["global", "local.UB"])
def test_the_mirrored_pass_gives_what_the_stock_pass_gives(scope: str) -> None:
    """The stock pass walks in C++, whose stack is deeper than a thousand Python frames.

    In a scope of its own, memory is packed and the indices are moved.
    """
    ours = tvm_ext.transform.StorageRewrite()(_module(scope))
    stock = tvm.tirx.transform.StorageRewrite()(_module(scope))
    assert tvm_ffi.structural_equal(ours["join"], stock["join"])


def test_buffers_get_addresses() -> None:
    """The readers of live ranges, pipes and first writes go through all conditions."""
    memory = tvm_ext.MemoryHierarchy((tvm_ext.MemoryScope("global", capacity=512, alignment=32),))
    planned = tvm_ext.transform.PlanAddresses(memory=memory)(_module("global"))
    assert planned["join"].script().count("allocated_addr") == 2
    planned = tvm_ext.transform.AscendPlanMemory(target="ascend/910b")(_module("local.UB"))
    assert planned["join"].script().count("allocated_addr") == 2


def test_an_arena_is_written() -> None:
    """Both buffers begin in one allocation, and the innermost condition reads there."""
    planner = tvm_ext.transform.PlanAddresses("bump", scopes=["local.UB"], form="arena")
    text = planner(_module("local.UB"))["join"].script()
    assert text.count("T.alloc_buffer") == 1
    assert text.count("y[i + 64]") == 2


def test_statements_that_nest_too_deep_are_refused_in_one_line() -> None:
    """Python's stack ends, and the process goes on."""
    func = _module("local.UB")["join"]
    body = func.body
    for _ in range(_DEPTH):
        body = tirx.IfThenElse(tirx.const(1, "bool"), body, None)
    mod = tvm.IRModule({"join": func.with_body(body)})
    with pytest.raises(ValueError, match=r"'join'.*nest"):
        tvm_ext.transform.AscendPlanMemory(target="ascend/910b")(mod)
