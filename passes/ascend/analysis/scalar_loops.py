# SPDX-License-Identifier: Apache-2.0
"""Operators that an Ascend core runs in a loop of its scalar unit, as vectors have none for them.

Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect, which asks each operation whether it
will be lowered to a scalar loop. Casts and selections never are.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.ir.prim import (
    EQ,
    NE,
    Add,
    BinaryOpExpr,
    CmpExpr,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    LShift,
    Max,
    Min,
    Mod,
    Mul,
    RShift,
    Sub,
)

from passes.ir.operators import ABSOLUTE_FLOAT, operator_name
from passes.ir.structural import structural_visit, type_index

_TENSOR_LOAD = type_index(TensorLoad)
_EXPR = type_index(Expr)

_WIDE = 64
"""Bits of the elements that vectors do no arithmetic on."""
_ARITHMETIC = (Add, Sub, Mul, Div, FloorDiv, Min, Max, LShift, RShift)


def needs_scalar_loop(value: Any) -> bool:
    """Whether an operator in the value of a store has no vector instruction.

    These are arithmetic and shifts of elements of 64 bits, a comparison of integers other than
    ``==`` and ``!=`` of 32 bits, and the remainder of integers of 32 or 64 bits. Indices do not
    count.
    """
    found: list[Any] = []

    def visit(node: Any, visitor: Any) -> None:
        if _has_no_instruction(node):
            found.append(node)
        visitor.default_visit(node)

    def leave_out(_load: Any, _visitor: Any) -> None:
        """Skip the index of a load."""

    structural_visit(value, [(_TENSOR_LOAD, leave_out), (_EXPR, visit)])
    return bool(found)


def _has_no_instruction(node: Any) -> bool:
    if isinstance(node, Call):
        return operator_name(node.op) == ABSOLUTE_FLOAT and _bits(node) >= _WIDE
    if not isinstance(node, (BinaryOpExpr, CmpExpr)):
        return False
    bits = _bits(node.a)
    is_integer = str(node.a.ty.dtype).startswith(("int", "uint"))
    if isinstance(node, CmpExpr):
        return is_integer and not (isinstance(node, (EQ, NE)) and bits == 32)
    if isinstance(node, (FloorMod, Mod)):
        return is_integer and bits >= 32
    return isinstance(node, _ARITHMETIC) and bits >= _WIDE


def _bits(expr: Any) -> int:
    return int(expr.ty.dtype.bits)
