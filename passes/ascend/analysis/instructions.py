# SPDX-License-Identifier: Apache-2.0
"""Instructions of an Ascend core: the unit that runs each, and the memories each can write.

Source of the rules: ``PlanMemory.cpp`` of AscendNPU-IR's HIVM dialect, which looks at operations of
that dialect; here they are asked of memories and of the value that a store computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from passes.ir import PREORDER, SKIP, nodes_in, structural_equal, structural_walk, tir
from passes.ir.operators import ABSOLUTE_FLOAT, is_instruction, masked_index, operator_name

FILLS_FROM_GLOBAL = "MTE2"  # The pipe that fills on-chip memory from global memory
STORES_TO_GLOBAL = "MTE3"

_GM, _UB, _L1, _L0C, _REGISTER = "global", "local.UB", "local.L1", "local.L0C", "local"
_CUBE_OPERANDS = ("local.L0A", "local.L0B", "local.BT")
_FROM_L1 = (*_CUBE_OPERANDS, "local.FP")
_NOTHING = ""

_ROUTES = (
    # The scopes that it reads from, those that it writes to, and its pipe. A product that reads
    # L1 itself is an instruction that loads L0A and L0B on its way.
    ((*_CUBE_OPERANDS, _L1, _NOTHING), (_L0C,), "M"),
    ((_GM,), (_UB, _L1, _L0C, *_FROM_L1), FILLS_FROM_GLOBAL),
    ((_L1, _NOTHING), _FROM_L1, "MTE1"),
    ((_UB,), (_GM, _L1), STORES_TO_GLOBAL),
    ((_UB, _NOTHING), (_UB,), "V"),
    ((_NOTHING,), (_L1,), FILLS_FROM_GLOBAL),
)

_ALWAYS = (
    tir.Add,
    tir.Sub,
    tir.Mul,
    tir.Max,
    tir.Min,
    tir.And,
    tir.Or,
    tir.BitwiseAnd,
    tir.BitwiseOr,
)
_WIDE = 64  # Bits of the elements that vectors do no arithmetic on
_ARITHMETIC = (
    tir.Add,
    tir.Sub,
    tir.Mul,
    tir.Div,
    tir.FloorDiv,
    tir.Min,
    tir.Max,
    tir.LShift,
    tir.RShift,
)


def route(reads: Iterable[str], writes: Iterable[str]) -> str | None:
    """Return the pipe that moves or computes from some memories to others, if these decide it.

    That is FIX for what reads L0C and writes another memory, the scalar unit for what writes
    registers or nothing, and else as in `_ROUTES`. Memories are storage scopes; ``global``
    stands for all of that rank. Registers do not count among `reads`, nor does what is written and
    only added to.
    """
    sources, targets = (
        {_GM if scope.startswith(f"{_GM}.") else scope for scope in scopes}
        for scopes in (reads, writes)
    )
    sources = sources - {_REGISTER} or {_NOTHING}
    if targets <= {_REGISTER}:
        return "S"
    if len(targets) != 1:
        return None
    (target,) = targets
    if _L0C in sources and target != _L0C:
        return "FIX"
    pipes = (pipe for read, written, pipe in _ROUTES if target in written and sources <= {*read})
    return next(pipes, None)


def needs_scalar_loop(value: Any) -> bool:
    """Return whether an operator in the value of a store has no vector instruction.

    These are arithmetic and shifts of elements of 64 bits, a comparison of integers other than
    ``==`` and ``!=`` of 32 bits, and the remainder of integers of 32 or 64 bits. Casts, selections
    and indices do not count.
    """
    operators: list[Any] = []
    notes = [(tir.Load, lambda _load: SKIP), (tir.Expr, operators.append)]
    structural_walk(value, notes, PREORDER)
    return any(map(_has_no_instruction, operators))


def _has_no_instruction(node: Any) -> bool:
    if isinstance(node, tir.Call):
        return operator_name(node.op) == ABSOLUTE_FLOAT and node.ty.dtype.bits >= _WIDE
    if not isinstance(node, (tir.Binary, tir.Comparison)):
        return False
    dtype = node.a.ty.dtype
    is_integer = str(dtype).startswith(("int", "uint"))
    if isinstance(node, tir.Comparison):
        return is_integer and not (isinstance(node, (tir.EQ, tir.NE)) and dtype.bits == 32)
    if isinstance(node, (tir.FloorMod, tir.Mod)):
        return bool(dtype.bits >= 32)  # There is none of floating point numbers.
    return isinstance(node, _ARITHMETIC) and dtype.bits >= _WIDE


def may_write_over(store: tir.Store, source: Any, restrict: bool = False) -> bool:
    """Return whether vector instructions can compute a store's value in place of an operand.

    The value must be an operator, or a chain of operators: one operand of each is the next
    operator, and all others are loads or scalars. Only the last one of the chain, which is computed
    first, reads the source. No element is wider than those of its operator's operands: a cast may
    narrow.

    Each operator is an addition, subtraction, product, maximum, minimum, ``and`` or ``or``, and all
    loads have the element's own index; or, unless `restrict`, it is any operator that is computed
    element by element, and no operand is transposed: its index names fewer loop variables, where it
    is not the element's own.
    """
    node = store.value
    while True:
        operands = _operands(node)
        loads = [operand for operand in operands if type(operand) is tir.Load]
        rest = [operand for operand in operands if type(operand) is not tir.Load]
        inner = [operand for operand in rest if _reads(operand)]
        shapes = {_shape(load, store) for load in loads}
        always = isinstance(node, _ALWAYS) and shapes <= {"same"}
        if not always and (restrict or "other" in shapes):
            return False
        sources = [load for load in loads if load.source.same_as(source)]
        bits = node.ty.dtype.bits
        if any(operand.ty.dtype.bits % bits for operand in (*sources, *inner)):
            return False
        if not inner:
            return bool(sources)
        # An instruction must not overwrite operands of a later one.
        if sources or len(inner) > 1:
            return False
        (node,) = inner


def _operands(value: Any) -> list[Any]:
    """Return the operands of an operator; none if the operator is unknown."""
    if isinstance(value, (tir.Binary, tir.Comparison, tir.And, tir.Or)):
        return [value.a, value.b]
    if isinstance(value, (tir.Not, tir.BitwiseNot)):
        return [value.a]
    if isinstance(value, tir.Cast):
        return [value.value]
    if isinstance(value, tir.Select):
        return [value.condition, value.true_value, value.false_value]
    is_known = isinstance(value, tir.Call) and is_instruction(operator_name(value.op))
    return list(value.args) if is_known else []


def _reads(expr: Any) -> bool:
    """Return whether an expression reads memory."""
    nodes = nodes_in(expr, tir.Load, tir.Call)
    return any(type(node) is tir.Load or masked_index(node) is not None for node in nodes)


def _shape(load: tir.Load, store: tir.Store) -> str:
    """Return how an operand's index relates to the one that is written."""
    read, written = load.indices, store.indices
    if structural_equal(read, written):
        return "same"
    named, counted = (
        {var.__chandle__() for index in indices for var in nodes_in(index, tir.Var)}
        for indices in (read, written)
    )
    return "broadcast" if named < counted else "other"
