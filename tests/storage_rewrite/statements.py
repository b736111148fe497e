# SPDX-License-Identifier: Apache-2.0
"""Statements to make small functions of, and how what comes out is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PrimType
from tvm.target import Target
from tvm.tirx import (
    AllocBuffer,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IterVar,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt

from passes.storage_rewrite.transform import StorageRewrite

N = 64


def buffer(
    name: str, extent: Any = N, dtype: str = "float32", scope: str = "global", **options: Any
) -> Any:
    shape = extent if isinstance(extent, list) else [extent]
    return tirx.decl_buffer(shape, dtype, name, scope=scope, layout=None, **options)


def zero(dtype: str = "float32") -> Any:
    return tirx.const(0, dtype)


def loop(
    body: Callable[[Any], Any], kind: ForKind = ForKind.SERIAL, extent: Any = 8, name: str = "i"
) -> Any:
    var = Var(name, PrimType("int32"))
    return For(var, tirx.IntImm("int32", 0), extent, kind, body(var))


def fill(target: Any, index: Any = None) -> Any:
    """Write a buffer, in a loop or at one index."""
    value = tirx.const(1, str(target.ty.dtype.dtype.with_lanes(1)))
    lanes = target.ty.dtype.dtype.lanes
    if lanes < 0:
        value = tirx.Broadcast(value, tirx.vscale() * -lanes)
    elif lanes > 1:
        value = tirx.Broadcast(value, lanes)
    if index is not None:
        return BufferStore(target, value, [index])
    return loop(lambda i: BufferStore(target, value, [i]))


def copy(target: Any, source: Any, shift: int = 0) -> Any:
    """``target[i] = f(source[i + shift])``, in a loop."""

    def body(i: Any) -> Any:
        value = BufferLoad(source, [i + shift if shift else i])
        if source.ty.dtype.dtype != target.ty.dtype.dtype:
            value = tirx.Cast(target.ty.dtype, value)
        return BufferStore(target, value, [i])

    return loop(body)


def use(*args: Any) -> Any:
    return Evaluate(tirx.call_extern("int32", "use", *args))


def thread(body: Any, key: str = "thread_extent", tag: str = "threadIdx.x") -> Any:
    axis = IterVar(None, Var("t", PrimType("int32")), IterVar.ThreadIndex, tag)
    return AttrStmt(axis, key, tirx.IntImm("int32", 4), body)


def module(*stmts: Any, params: tuple[Any, ...] = (), target: str | None = None) -> tvm.IRModule:
    body = stmts[0] if len(stmts) == 1 else SeqStmt(list(stmts))
    func = tirx.PrimFunc(list(params), body).with_attr("global_symbol", "main")
    return tvm.IRModule(
        {"main": func if target is None else func.with_attr("target", Target(target))}
    )


def assert_same(actual: tvm.IRModule, expected: tvm.IRModule, said: Callable[[], str]) -> None:
    """Compare what the mirrored pass gives with what the stock pass does; say of what."""
    if not tvm_ffi.structural_equal(actual, expected, map_free_vars=True):
        print(said())
        tvm.ir.assert_structural_equal(actual, expected, map_free_vars=True)
        raise AssertionError("not equal, at a place that TVM does not name")


def like_stock(mod: tvm.IRModule, config: Mapping[str, Any], name: str = "") -> tvm.IRModule:
    """Run both passes, compare, and return the result."""
    with tvm.transform.PassContext(config=dict(config)):
        expected = tirx.transform.StorageRewrite()(mod)
        actual = StorageRewrite()(mod)
    assert_same(actual, expected, lambda: f"{name}, config = {config}\n{mod.script()}")
    return actual


def rewrite(mod: tvm.IRModule, **config: Any) -> Any:
    """Run both passes, compare, and return the body of the result."""
    return like_stock(mod, {f"tirx.{key}": value for key, value in config.items()})["main"].body


def found(body: Any, kind: Any) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(body, (kind, nodes.append))
    return nodes


def allocs(body: Any) -> list[str]:
    """Describe the allocations: name, elements and type."""
    return [describe(stmt.buffer) for stmt in found(body, AllocBuffer)]


def describe(target: Any) -> str:
    extents = ",".join(str(extent) for extent in target.ty.shape)
    return f"{target.name}[{extents}] {target.ty.dtype.dtype}"


def memory_of(body: Any) -> dict[str, str]:
    """Return the name of the allocation behind each alias, by the name in the input."""
    sources = {stmt.buffer.name: stmt.data.args[0] for stmt in found(body, DeclBuffer)}
    return {name: source.name for name, source in sources.items() if isinstance(source, Var)}
