# SPDX-License-Identifier: Apache-2.0
"""Pieces of TIR that generated programs are made of."""

from typing import Any

from tvm import tirx
from tvm.ir import Call, Op, PrimType
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, Cast, For, ForKind, SeqStmt, While


def loop(var: Any, extent: int, body: Any, first: int = 0, step: int | None = None) -> Any:
    first, extent, step = (
        None if part is None else tirx.const(part, str(var.ty.dtype))
        for part in (first, extent, step)
    )
    return For(var, first, extent, ForKind.SERIAL, body, step=step)


def cast(value: Any, dtype: str) -> Any:
    return value if str(value.ty.dtype) == dtype else Cast(PrimType(dtype), value)


def sequence(stmts: list[Any]) -> Any:
    flat = [s for stmt in stmts for s in (stmt.seq if isinstance(stmt, SeqStmt) else [stmt])]
    return flat[0] if len(flat) == 1 else SeqStmt(flat)


def twice_round(count: Any, body: list[Any]) -> list[Any]:
    """Return a while loop that goes twice round, and in front of it the buffer where it counts."""
    zero = tirx.const(0)
    goes_on = BufferLoad(count, [zero]) < 2
    step = BufferStore(count, BufferLoad(count, [zero]) + 1, [zero])
    first = [AllocBuffer(count), BufferStore(count, zero, [zero])]
    return [*first, While(goes_on, sequence([*body, step]))]


def call(name: str, *args: Any) -> Any:
    """Return a call of an operator; numbers are of `int32`."""
    made = [tirx.const(arg) if isinstance(arg, int) else arg for arg in args]
    return Call(Op.get(name), made, ret_ty=PrimType("int32"))
