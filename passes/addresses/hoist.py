# SPDX-License-Identifier: Apache-2.0
"""Moves allocations out of ``while`` loops and branches, where TVM's lowering for a CPU fails.

`LowerTVMBuiltin` takes memory where an allocation stands and returns it at the end of the loop, or
of the function, around it. Out of a ``while`` or an ``if`` that is a place which control can reach
without passing the allocation, and LLVM refuses it: "Instruction does not dominate all uses".
"""

from __future__ import annotations

from typing import Any

from tvm.tirx import AllocBuffer, Evaluate, For, IfThenElse, IntImm, PrimFunc, SeqStmt, While
from tvm.tirx.stmt import AttrStmt

from passes.ir.structural import structural_mutate, structural_visit, type_index, with_body

_ALLOC_BUFFER, _ATTR_STMT = type_index(AllocBuffer), type_index(AttrStmt)
_FOR, _IF, _WHILE = type_index(For), type_index(IfThenElse), type_index(While)


def hoist_allocations(func: PrimFunc) -> PrimFunc:
    """Put allocations in front of the outermost ``while`` or ``if`` around them.

    Those whose size is not constant stay, and so do those in a loop within, or in an attribute's
    body, which may be one iteration's or thread's own. Memory that is made outside of a loop may
    hold what an iteration before has written; a program that reads what it has not written is none.
    """
    return with_body(func, structural_mutate(func.body, [(_IF, _hoist), (_WHILE, _hoist)]))


def _hoist(op: Any, mutator: Any) -> Any:
    """Return a statement with the allocations inside it in front of it."""
    found = _allocations(op)
    if not found:
        return mutator.default_mutate(op)
    handles = {allocation.__chandle__() for allocation in found}

    def take_out(allocation: AllocBuffer, _mutator: Any) -> Any:
        return Evaluate(0) if allocation.__chandle__() in handles else allocation

    inner = structural_mutate(op, [(_ALLOC_BUFFER, take_out)])
    return SeqStmt([*found, mutator.default_mutate(inner)])


def _allocations(op: Any) -> list[AllocBuffer]:
    """Return the allocations of constant size in a statement that no loop within it owns."""
    found: dict[int, AllocBuffer] = {}

    def note(allocation: AllocBuffer, _visitor: Any) -> None:
        if all(isinstance(extent, IntImm) for extent in allocation.buffer.ty.shape):
            found[allocation.__chandle__()] = allocation

    def skip(_op: Any, _visitor: Any) -> None:
        """Leave out what has memory of its own."""

    structural_visit(op, [(_ALLOC_BUFFER, note), (_FOR, skip), (_ATTR_STMT, skip)])
    return list(found.values())
