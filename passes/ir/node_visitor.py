# SPDX-License-Identifier: Apache-2.0
"""Which statements and expressions of TVM's we tell apart, and the visit that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    Let,
    Return,
    SeqStmt,
    Stmt,
    TilePrimitiveCall,
    While,
)
from tvm.tirx.stmt import AttrStmt

from passes.ir.structural import Callback, type_index

_STMT, _CALL, _LET = type_index(Stmt), type_index(Call), type_index(Let)
_TENSOR_LOAD = type_index(TensorLoad)


class NodeVisitor:
    """Visits the body of a function; each node's method owns the descent into it.

    A method gets the node and TVM's visitor, whose ``visit`` descends into a part. ValueError is
    raised where a function has blocks.
    """

    def __init__(self) -> None:
        self.methods: dict[type, Callable[[Any, Any], None]] = {
            AllocBuffer: self._visit_alloc,
            AssertStmt: self._visit_assert,
            AttrStmt: self._visit_attr,
            Bind: self._visit_bind,
            BufferStore: self._visit_store,
            DeclBuffer: self._visit_decl,
            Evaluate: self._visit_value,
            For: self._visit_for,
            IfThenElse: self._visit_if,
            Return: self._visit_value,
            SBlock: _refuse_block,
            SBlockRealize: _refuse_block,
            TilePrimitiveCall: self._visit_tile_primitive,
            While: self._visit_while,
        }

    def callbacks(self, *others: tuple[int, Callback]) -> list[tuple[int, Callback]]:
        """Return what to give to `structural_visit`, with `others` behind it."""
        return [
            (_TENSOR_LOAD, self._visit_load),
            (_STMT, self._visit_stmt),
            (_CALL, self._visit_call),
            (_LET, self._visit_let),
            *others,
        ]

    def _visit_stmt(self, op: Any, visitor: Any) -> None:
        # One callback for all statements: a node that matches none is tried against each.
        visit = self.methods.get(type(op))
        if visit is not None:
            visit(op, visitor)
        elif type(op) is SeqStmt:
            visitor.default_visit(op)
        else:
            self._visit_other(op, visitor)

    def _visit_other(self, op: Any, visitor: Any) -> None:
        """Visit a statement that has no method of its own."""
        visitor.default_visit(op)

    # What each reading has to say.

    _visit_alloc: Callable[[AllocBuffer, Any], None]
    _visit_assert: Callable[[AssertStmt, Any], None]
    _visit_attr: Callable[[AttrStmt, Any], None]
    _visit_bind: Callable[[Bind, Any], None]
    _visit_call: Callable[[Call, Any], None]
    _visit_decl: Callable[[DeclBuffer, Any], None]
    _visit_for: Callable[[For, Any], None]
    _visit_if: Callable[[IfThenElse, Any], None]
    _visit_let: Callable[[Let, Any], None]
    _visit_load: Callable[[TensorLoad, Any], None]
    _visit_store: Callable[[BufferStore, Any], None]
    _visit_tile_primitive: Callable[[TilePrimitiveCall, Any], None]
    _visit_value: Callable[[Any, Any], None]
    _visit_while: Callable[[While, Any], None]


def _refuse_block(_op: Any, _visitor: Any) -> None:
    raise ValueError(
        "it has blocks; lower it first, as far as TVM does before it runs StorageRewrite: "
        "FlattenBuffer, VectorizeLoop and InjectDoubleBuffer come last"
    )
