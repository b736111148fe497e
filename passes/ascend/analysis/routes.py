# SPDX-License-Identifier: Apache-2.0
"""Which unit of an Ascend core an instruction runs on, by the memories that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
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
from tvm_ffi import WalkOrder, WalkResult

from passes.ir import structural_walk
from passes.ir.operators import ABSOLUTE_FLOAT, operator_name

FILLS_FROM_GLOBAL = "MTE2"  # The pipe that fills on-chip memory from global memory
STORES_TO_GLOBAL = "MTE3"

_GM, _UB, _L1, _L0C, _REGISTER = "global", "local.UB", "local.L1", "local.L0C", "local"
_CUBE_OPERANDS = ("local.L0A", "local.L0B", "local.BT")
_FROM_L1 = (*_CUBE_OPERANDS, "local.FP")

_WIDE = 64  # Bits of the elements that vectors do no arithmetic on
_ARITHMETIC = (Add, Sub, Mul, Div, FloorDiv, Min, Max, LShift, RShift)


def route(reads: Iterable[str], writes: Iterable[str]) -> str | None:
    """Return the pipe that moves or computes from some memories to others, if these decide it.

    ================================= ==================== ====
    reads                             writes               pipe
    ================================= ==================== ====
    L0A, L0B, BT, L1; or nothing      L0C                  M
    L0C, with or without others       all but L0C          FIX
    global                            on chip              MTE2
    L1                                L0A, L0B, BT, FP     MTE1
    UB                                global, L1           MTE3
    UB; or nothing                    UB                   V
    nothing                           L1                   MTE2
    nothing                           L0A, L0B, BT, FP     MTE1
    any                               a register           S
    any                               nothing              S
    any other                                              none
    ================================= ==================== ====

    A product that reads L1 itself is an instruction that loads L0A and L0B on its way. Memories are
    storage scopes, of which ``global`` stands for all of that rank. Registers do not count among
    `reads`, nor does what is written and only added to.
    """
    sources, targets = (
        {_GM if scope.startswith(f"{_GM}.") else scope for scope in scopes}
        for scopes in (reads, writes)
    )
    sources -= {_REGISTER}
    if targets <= {_REGISTER}:
        return "S"
    if len(targets) != 1:
        return None
    (target,) = targets
    if target == _L0C and sources <= {*_CUBE_OPERANDS, _L1}:
        return "M"
    if _L0C in sources and target != _L0C:
        return "FIX"
    if target in (_UB, _L1, _L0C, *_FROM_L1) and sources == {_GM}:
        return FILLS_FROM_GLOBAL
    if target in _FROM_L1 and sources <= {_L1}:
        return "MTE1"
    if target in (_GM, _L1) and sources == {_UB}:
        return STORES_TO_GLOBAL
    if target == _UB and sources <= {_UB}:
        return "V"
    return FILLS_FROM_GLOBAL if target == _L1 and not sources else None


def needs_scalar_loop(value: Any) -> bool:
    """Whether an operator in the value of a store has no vector instruction.

    Source: AscendNPU-IR, ``PlanMemory.cpp`` of the HIVM dialect, which asks each operation whether
    it will be lowered to a loop of the scalar unit. Casts and selections never are.

    These are arithmetic and shifts of elements of 64 bits, a comparison of integers other than
    ``==`` and ``!=`` of 32 bits, and the remainder of integers of 32 or 64 bits. Indices do not
    count.
    """
    operators: list[Any] = []
    notes = [(TensorLoad, lambda _load: WalkResult.SKIP), (Expr, operators.append)]
    structural_walk(value, notes, WalkOrder.PREORDER)
    return any(map(_has_no_instruction, operators))


def _has_no_instruction(node: Any) -> bool:
    if isinstance(node, Call):
        return operator_name(node.op) == ABSOLUTE_FLOAT and node.ty.dtype.bits >= _WIDE
    if not isinstance(node, (BinaryOpExpr, CmpExpr)):
        return False
    dtype = node.a.ty.dtype
    is_integer = str(dtype).startswith(("int", "uint"))
    if isinstance(node, CmpExpr):
        return is_integer and not (isinstance(node, (EQ, NE)) and dtype.bits == 32)
    if isinstance(node, (FloorMod, Mod)):
        return is_integer and dtype.bits >= 32
    return isinstance(node, _ARITHMETIC) and dtype.bits >= _WIDE
