"""Pieces of TIR that generated programs are made of."""

from typing import Any

from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import Cast, For, ForKind, SeqStmt


def loop(var: Any, extent: int, body: Any, first: int = 0) -> Any:
    return For(var, tirx.const(first), tirx.const(extent), ForKind.SERIAL, body)


def cast(value: Any, dtype: str) -> Any:
    return value if str(value.ty.dtype) == dtype else Cast(PrimType(dtype), value)


def sequence(stmts: list[Any]) -> Any:
    flat = [s for stmt in stmts for s in (stmt.seq if isinstance(stmt, SeqStmt) else [stmt])]
    return flat[0] if len(flat) == 1 else SeqStmt(flat)
