# SPDX-License-Identifier: Apache-2.0
"""The nodes of TIR by our names: the one module that says which classes of TVM they are.

The stub beside this file has the fields of each, for type checkers. A program gets TVM's own
classes, so nothing is wrapped and nothing is slower. What a node evaluates and encloses is in
`statements`, what an operator does in `operators`, and what is read off a buffer in `buffers`.
"""

from __future__ import annotations

from collections import abc
from typing import Any

from tvm import ir, s_tir, sym, tirx
from tvm.ir import prim

# Types
Type, PrimType, PointerType, BufferType = ir.Type, ir.PrimType, ir.PointerType, tirx.BufferType

# Expressions
Expr, Var, GlobalVar, Call = ir.Expr, ir.Var, ir.GlobalVar, ir.Call
Load = ir.TensorLoad
Let, Select, Cast = tirx.Let, tirx.Select, tirx.Cast
Ramp, Broadcast, Shuffle = tirx.Ramp, tirx.Broadcast, tirx.Shuffle
Region, Range = ir.TensorRegion, ir.Range
IntConstant, FloatConstant, StringConstant = tirx.IntImm, tirx.FloatImm, ir.StringImm

# Arithmetic: of two operands, comparisons among them, and of truth values
Binary, Comparison = prim.BinaryOpExpr, prim.CmpExpr
Add, Sub, Mul, Div, Mod = prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod
FloorDiv, FloorMod, Min, Max = prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max
EQ, NE, LT, LE, GT, GE = prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE
Logical, And, Or, Not = prim.LogicalExpr, prim.And, prim.Or, prim.Not
BitwiseAnd, BitwiseOr = prim.BitwiseAnd, prim.BitwiseOr
BitwiseNot, LShift, RShift = prim.BitwiseNot, prim.LShift, prim.RShift
floordiv, floormod, truncdiv = tirx.floordiv, tirx.floormod, tirx.truncdiv
indexdiv, indexmod, least, most = tirx.indexdiv, tirx.indexmod, tirx.min, tirx.max

# TVM's analyses of arithmetic
Analyzer, detect_linear_equation = sym.Analyzer, sym.detect_linear_equation
expr_deep_equal, undefined_vars = prim.expr_deep_equal, tirx.analysis.undefined_vars

# Statements
Statement, Sequence = tirx.Stmt, tirx.SeqStmt
Allocation, Declaration, Binding = tirx.AllocBuffer, tirx.DeclBuffer, tirx.Bind
Store, Evaluation, Return, Assertion = (
    tirx.BufferStore,
    tirx.Evaluate,
    tirx.Return,
    tirx.AssertStmt,
)
Loop, While, LoopKind = tirx.For, tirx.While, tirx.ForKind
If, Attribute = tirx.IfThenElse, tirx.AttrStmt
TilePrimitive, ThreadAxis = tirx.TilePrimitiveCall, tirx.IterVar
Block, BlockRealize, MatchedRegion = s_tir.SBlock, s_tir.SBlockRealize, s_tir.MatchBufferRegion

PrimFunc = tirx.PrimFunc


def constant(expr: Any) -> int | None:
    """Return the value of a whole number that is known at compile time; None for others."""
    return int(expr.value) if type(expr) is IntConstant else None


def is_buffer(expr: Any) -> bool:
    """Return whether an expression is a variable that names a buffer, not a number or a pointer."""
    return type(expr) is Var and type(expr.ty) is BufferType


def new_buffer(
    shape: abc.Sequence[Any], dtype: Any, name: str, *, layout: Any = None, **ty: Any
) -> Var:
    """Return a new buffer; `ty` are other fields of its type, such as `scope`."""
    return tirx.decl_buffer(shape, dtype, name, layout=layout, **ty)


def new_load(buffer: Var, indices: abc.Sequence[Any]) -> Load:
    """Return a read of a buffer."""
    return tirx.BufferLoad(buffer, indices)
