# SPDX-License-Identifier: Apache-2.0
"""The loads and stores in a statement, in the order of the program, and what stands around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    Return,
    SeqStmt,
    Stmt,
)

from passes.ir.structural import structural_visit, type_index

_STMT, _TENSOR_LOAD = type_index(Stmt), type_index(TensorLoad)

_WITHOUT_BODY = (AllocBuffer, AssertStmt, Bind, DeclBuffer, Evaluate, Return, SeqStmt)
"""Statements that are not around what stands in them: leaves, and a sequence."""


@dataclass(frozen=True, eq=False)
class StatementAccess:
    """One load or store."""

    number: int  # Its place in the order of the program; a store comes after the loads of its value
    buffer: int  # The handle of the buffer variable
    indices: Any  # Which element
    is_store: bool  # Whether it is a store
    # The statements with a body that enclose it, outermost first, with the number of the branch
    # that it stands in: 1 in an ``else``, and else 0.
    path: tuple[tuple[Any, int], ...]


def accesses_of(stmt: Any) -> list[StatementAccess]:
    """List the loads and stores in a statement, in the order of the program.

    What the bounds of a loop read is listed in front of the loop and behind its body.

    Parameters
    ----------
    stmt : tvm.tirx.Stmt
        The statement; it counts as around what stands in it, unless it is a store.
    """
    walk = _Walk()
    structural_visit(stmt, [(_STMT, walk.visit_stmt), (_TENSOR_LOAD, walk.visit_load)])
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found: list[StatementAccess] = []
        self._path: list[tuple[Any, int]] = []

    def visit_stmt(self, op: Any, visitor: Any) -> None:
        if isinstance(op, BufferStore):
            visitor.visit(op.value)
            visitor.visit(op.indices)
            self._note(op.buffer, op.indices, is_store=True)
        elif isinstance(op, For):
            bounds = [bound for bound in (op.min, op.extent, op.step) if bound is not None]
            for bound in bounds:
                visitor.visit(bound)
            # Behind an iteration, too: C asks for the extent then, and each task of a parallel
            # loop evaluates all of them.
            self._within(op, 0, [op.body, *bounds], visitor)
        elif isinstance(op, IfThenElse):
            visitor.visit(op.condition)
            self._within(op, 0, [op.then_case], visitor)
            if op.else_case is not None:
                self._within(op, 1, [op.else_case], visitor)
        elif isinstance(op, _WITHOUT_BODY):
            visitor.default_visit(op)
        else:
            self._path.append((op, 0))
            visitor.default_visit(op)
            self._path.pop()

    def visit_load(self, op: TensorLoad, visitor: Any) -> None:
        visitor.visit(op.indices)
        self._note(op.source, op.indices, is_store=False)

    def _within(self, op: Any, branch: int, parts: Sequence[Any], visitor: Any) -> None:
        self._path.append((op, branch))
        for part in parts:
            visitor.visit(part)
        self._path.pop()

    def _note(self, buffer: Any, indices: Any, is_store: bool) -> None:
        number, key = len(self.found), buffer.__chandle__()
        self.found.append(StatementAccess(number, key, indices, is_store, tuple(self._path)))
