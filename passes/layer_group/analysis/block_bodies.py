# SPDX-License-Identifier: Apache-2.0
"""What the body of a block does for one element, in the order in which it does it.

These are the rules for statements and expressions. A group computes each element of a block's
result on its own, in an order of its own, on windows of the buffers. That is the same where

- a body is made of stores, conditions and bindings, and every store is to the element's own place;
- each element is stored in all cases, and read again only at its own place and behind a store;
- expressions are plain arithmetic on elements, and call nothing that has effects, keeps a state
  or is given an address, from which it could read on;
- each variable is the block's own, and what a block does first knows no variable that it sums over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm.ir import PrimType, StringImm, TensorLoad, Var
from tvm.ir.expr import Call, Expr
from tvm.ir.prim.expr import BinaryOpExpr, BitwiseNot, CmpExpr, LogicalExpr
from tvm.s_tir import SBlock
from tvm.tirx import (
    Bind,
    BufferStore,
    Cast,
    FloatImm,
    IfThenElse,
    IntImm,
    Not,
    Select,
    SeqStmt,
    Stmt,
)
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import WalkOrder

from passes.ir import structural_visit, structural_walk
from passes.ir.operators import is_if_then_else, is_pure

_PLAIN = (
    *(BinaryOpExpr, CmpExpr, LogicalExpr, Not, BitwiseNot),
    *(Cast, Select, IntImm, FloatImm, StringImm),
)
"""Expressions beside variables, loads and calls."""


class NotSliceableError(ValueError):
    """A kernel that is not a row of plain loop nests; the message says what is in the way."""


UNFORESEEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What is raised where a kernel is none that can be cut, or none that anybody thought of.

`NotSliceableError` is a ValueError; TVM raises a TypeError or a ValueError for an expression that
it refuses, and else RuntimeErrors, schedules too; a node of a class that nobody thought of lacks an
attribute. None of them may end a build.
"""


@dataclass(frozen=True, eq=False)
class ElementLoad:
    """One load."""

    buffer: int  # The number of the buffer in its kernel
    indices: tuple[Any, ...]  # In the stage's variables
    guards: tuple[Any, ...]  # The load is executed only where all of these are true
    behind_store: bool  # Whether the block may have stored something for the same element before


def variables_in(expr: Any) -> dict[int, Var]:
    """Return the variables of an expression by their handles."""
    return {var.__chandle__(): var for var in undefined_vars(expr)}


def stores_of(name: str, block: SBlock) -> list[BufferStore]:
    """Return the stores of a block, those of its body first.

    Raises NotSliceableError when a statement is none of those that a body may be made of.
    """
    found: list[Any] = []
    for root in (block.body, block.init):
        if root is not None:
            structural_walk(root, [(Stmt, found.append)], WalkOrder.PREORDER)
    for stmt in found:
        if not isinstance(stmt, (BufferStore, SeqStmt, IfThenElse, Bind)):
            raise NotSliceableError(f"block {name!r} holds a {type(stmt).__name__}")
    stores = [stmt for stmt in found if isinstance(stmt, BufferStore)]
    if not stores:
        raise NotSliceableError(f"block {name!r} writes nothing")
    return stores


def at_place(indices: Sequence[Any], spatial: Sequence[Var], extents: Sequence[int]) -> bool:
    """Whether indices are an element's own: the variable of each axis with more than one."""
    return len(indices) == len(spatial) and all(
        index.same_as(var) or extent == 1
        for index, var, extent in zip(indices, spatial, extents, strict=True)
    )


@dataclass(eq=False)
class BodyReader:
    """Reads a block's initial statement, if it has one, and then its body."""

    name: str  # The block's
    number: Mapping[int, int]  # The number of each buffer in its kernel, by handle
    writes: Collection[int]  # The buffers that the block writes
    # The variable and the extent of each axis of those.
    spatial: Sequence[Var]
    extents: Sequence[int]
    reads: list[ElementLoad] = field(
        default_factory=list
    )  # What it reads of other buffers, in order
    _guards: list[Any] = field(default_factory=list)
    _stored: frozenset[int] = frozenset()  # In all cases, so far.
    _behind_store: bool = False

    def read(self, block: SBlock) -> None:
        """Read all of a block; NotSliceableError where a rule is broken."""
        variables = {item.var.__chandle__() for item in block.iter_vars}
        if block.init is not None:
            own = {var.__chandle__() for var in self.spatial}
            self._statement(block.init, variables & own)
        self._statement(block.body, variables)
        if not self._stored.issuperset(self.writes):
            raise NotSliceableError(f"block {self.name!r} does not write all of its elements")

    def _statement(self, stmt: Any, variables: set[int]) -> None:
        """Read a statement; `variables` are those that it knows, and grow by its bindings."""
        if isinstance(stmt, SeqStmt):
            for part in stmt.seq:
                self._statement(part, variables)
        elif isinstance(stmt, Bind):
            self._expression(stmt.value, variables)
            variables.add(stmt.var.__chandle__())
        elif isinstance(stmt, IfThenElse):
            self._branches(stmt, variables)
        else:
            self._expression(stmt.value, variables)
            self._stored |= {self.number[stmt.buffer.__chandle__()]}
            self._behind_store = True

    def _branches(self, stmt: IfThenElse, variables: set[int]) -> None:
        self._expression(stmt.condition, variables)
        before = self._stored
        after = []
        for guard, case in (
            (stmt.condition, stmt.then_case),
            (Not(stmt.condition), stmt.else_case),
        ):
            self._stored = before
            if case is not None:
                self._guards.append(guard)
                self._statement(case, set(variables))
                self._guards.pop()
            after.append(self._stored)
        self._stored = after[0] & after[1]

    def _expression(self, expr: Any, variables: Collection[int]) -> None:
        broken: list[str] = []  # An error in a callback would lose its type on its way out.

        def on_load(load: TensorLoad, visitor: Any) -> None:
            broken.extend(self._load(load))
            visitor.visit(load.indices)

        def on_call(call: Call, visitor: Any) -> None:
            broken.extend(_broken_by_call(call))
            if not is_if_then_else(call):
                for argument in call.args:
                    visitor.visit(argument)
                return
            condition, then, otherwise = call.args
            visitor.visit(condition)
            for guard, case in ((condition, then), (Not(condition), otherwise)):
                self._guards.append(guard)
                visitor.visit(case)
                self._guards.pop()

        def on_var(var: Var, _visitor: Any) -> None:
            if var.__chandle__() in self.number:
                broken.append(f"uses {var.name!r} otherwise than by its elements")
            elif var.__chandle__() not in variables:
                broken.append(f"uses {var.name!r}, which is not its own")

        def on_other(other: Expr, visitor: Any) -> None:
            if not isinstance(other, _PLAIN):
                broken.append(f"holds a {type(other).__name__}")
            visitor.default_visit(other)

        callbacks = [
            (TensorLoad, on_load),
            (Call, on_call),
            (Var, on_var),
            (Expr, on_other),
        ]
        structural_visit(expr, callbacks)
        if broken:
            raise NotSliceableError(f"block {self.name!r} {broken[0]}")

    def _load(self, load: TensorLoad) -> list[str]:
        """Take a load down; return what is wrong with it."""
        buffer = self.number[load.source.__chandle__()]
        if buffer not in self.writes:
            access = ElementLoad(
                buffer, tuple(load.indices), tuple(self._guards), self._behind_store
            )
            self.reads.append(access)
        elif not at_place(load.indices, self.spatial, self.extents):
            return [f"reads its own result {load.source.name!r} at another place"]
        elif buffer not in self._stored:
            return [f"reads its own result {load.source.name!r} before it is written"]
        return []


def _broken_by_call(call: Call) -> list[str]:
    operator = str(getattr(call.op, "name", call.op))
    if not is_pure(call):
        return [f"calls {operator!r}, which is not known to be pure"]
    if not isinstance(call.ty, PrimType):
        return [f"takes an address by {operator!r}"]
    return []
