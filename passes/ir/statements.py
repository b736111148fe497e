# SPDX-License-Identifier: Apache-2.0
"""A function's statements as plain records: what each evaluates, reads, writes and encloses.

One walk makes them, and whoever asks something of the statements goes through the records, which
are in the order of the program. Sequences are taken apart: the statements of one stand in the list
of what encloses it. Expressions are told by what they use: loads, calls, buffers that are handed
on; arithmetic has no record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call as CallExpr
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferStore,
    BufferType,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    Return,
    Select,
    TilePrimitiveCall,
    While,
)
from tvm.tirx import Let as LetExpr
from tvm.tirx.stmt import AttrStmt

from passes.ir.node_visitor import NodeVisitor
from passes.ir.operators import is_if_then_else
from passes.ir.structural import type_index

_VAR, _SELECT = type_index(Var), type_index(Select)

Records = Sequence[Any]
"""Records in the order of the program."""

# Handles are those of TVM's nodes; `key` is that of a buffer variable, or of a statement.


# What an expression uses


class Load(NamedTuple):
    """An element of a buffer is read."""

    op: TensorLoad
    key: int
    indices: Records


class Call(NamedTuple):
    """An operator or a function is called."""

    op: CallExpr
    args: tuple[Records, ...]  # What each of its arguments uses


class Name(NamedTuple):
    """A buffer is an operand as a whole: its address is handed on."""

    buffer: Var
    key: int


class Choice(NamedTuple):
    """One of two values is evaluated, or both are and one is taken."""

    condition: Records  # Evaluated in any case
    values: Records


class Let(NamedTuple):
    """A variable has a value within an expression."""

    op: LetExpr
    value: Records
    body: Records


# Statements without a body


class Alloc(NamedTuple):
    """Memory is allocated."""

    op: AllocBuffer
    key: int
    shape: Records


class Declare(NamedTuple):
    """A buffer is declared on memory that is there."""

    op: DeclBuffer
    key: int
    data: Records


class Store(NamedTuple):
    """An element of a buffer is written."""

    op: BufferStore
    key: int  # Of the buffer
    value: Records
    indices: Records


class Value(NamedTuple):
    """A value is evaluated, bound to a variable, or returned."""

    op: Evaluate | Bind | Return
    value: Records


class Assert(NamedTuple):
    """A condition is asserted."""

    op: AssertStmt
    condition: Records


class Other(NamedTuple):
    """Any other statement; if it holds statements, they stand among what it uses."""

    op: Any
    parts: Records


# Statements with a body


class Loop(NamedTuple):
    """A ``for``."""

    op: For
    key: int
    bounds: tuple[Records, ...]  # Of where it begins, its extent, and its step if it has one
    body: Records


class Repeat(NamedTuple):
    """A ``while``."""

    op: While
    key: int
    condition: Records
    body: Records


class Branch(NamedTuple):
    """An ``if``."""

    op: IfThenElse
    key: int
    condition: Records
    cases: tuple[Records, ...]  # The second is the ``else``, if there is one


class Attribute(NamedTuple):
    """An attribute, and the body that it holds for."""

    op: AttrStmt
    key: int
    value: Records
    body: Records


def read_statements(body: Any) -> Records:
    """Read the statements of a function's body; ValueError where it has blocks."""
    return _Reader().read(body)


class _Reader(NodeVisitor):
    """Adds a record of each node to the list of what encloses it."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[Any] = []

    def read(self, body: Any) -> Records:
        """Return the records of a body."""
        self.visit_body(body, (_VAR, self._visit_var), (_SELECT, self._visit_select))
        return tuple(self._records)

    def _within(self, part: Any, visitor: Any) -> Records:
        """Return the records of a part of a node."""
        outer, self._records = self._records, []
        visitor.visit(part)
        inner, self._records = self._records, outer
        return tuple(inner)

    # Statements

    def _visit_alloc(self, op: AllocBuffer, visitor: Any) -> None:
        shape = self._within(op.buffer.ty.shape, visitor)
        self._records.append(Alloc(op, op.buffer.__chandle__(), shape))

    def _visit_decl(self, op: DeclBuffer, visitor: Any) -> None:
        data = self._within(op.data, visitor)
        self._records.append(Declare(op, op.buffer.__chandle__(), data))

    def _visit_store(self, op: BufferStore, visitor: Any) -> None:
        value, indices = self._within(op.value, visitor), self._within(op.indices, visitor)
        self._records.append(Store(op, op.buffer.__chandle__(), value, indices))

    def _visit_value(self, op: Evaluate | Bind | Return, visitor: Any) -> None:
        self._records.append(Value(op, self._within(op.value, visitor)))

    _visit_bind = _visit_value

    def _visit_assert(self, op: AssertStmt, visitor: Any) -> None:
        self._records.append(Assert(op, self._within(op.condition, visitor)))

    def _visit_other(self, op: Any, visitor: Any) -> None:
        outer, self._records = self._records, []
        visitor.default_visit(op)
        parts, self._records = self._records, outer
        self._records.append(Other(op, tuple(parts)))

    def _visit_tile_primitive(self, op: TilePrimitiveCall, visitor: Any) -> None:
        self._visit_other(op, visitor)

    def _visit_for(self, op: For, visitor: Any) -> None:
        bounds = [bound for bound in (op.min, op.extent, op.step) if bound is not None]
        read = tuple(self._within(bound, visitor) for bound in bounds)
        self._records.append(Loop(op, op.__chandle__(), read, self._within(op.body, visitor)))

    def _visit_while(self, op: While, visitor: Any) -> None:
        condition = self._within(op.condition, visitor)
        body = self._within(op.body, visitor)
        self._records.append(Repeat(op, op.__chandle__(), condition, body))

    def _visit_if(self, op: IfThenElse, visitor: Any) -> None:
        condition = self._within(op.condition, visitor)
        cases = [case for case in (op.then_case, op.else_case) if case is not None]
        read = tuple(self._within(case, visitor) for case in cases)
        self._records.append(Branch(op, op.__chandle__(), condition, read))

    def _visit_attr(self, op: AttrStmt, visitor: Any) -> None:
        value, body = self._within(op.value, visitor), self._within(op.body, visitor)
        self._records.append(Attribute(op, op.__chandle__(), value, body))

    # Expressions

    def _visit_load(self, op: TensorLoad, visitor: Any) -> None:
        indices = self._within(op.indices, visitor)
        self._records.append(Load(op, op.source.__chandle__(), indices))

    def _visit_call(self, op: CallExpr, visitor: Any) -> None:
        if is_if_then_else(op):
            self._choose(list(op.args), visitor)
        else:
            args = tuple(self._within(arg, visitor) for arg in op.args)
            self._records.append(Call(op, args))

    def _visit_select(self, op: Select, visitor: Any) -> None:
        """Add a choice between values."""
        self._choose([op.condition, op.true_value, op.false_value], visitor)

    def _choose(self, parts: list[Any], visitor: Any) -> None:
        condition, *values = (self._within(part, visitor) for part in parts)
        self._records.append(Choice(condition, tuple(use for uses in values for use in uses)))

    def _visit_let(self, op: LetExpr, visitor: Any) -> None:
        value, body = self._within(op.value, visitor), self._within(op.body, visitor)
        self._records.append(Let(op, value, body))

    def _visit_var(self, op: Var, _visitor: Any) -> None:
        """Add a buffer that is an operand; other variables are not told."""
        if type(op.ty) is BufferType:
            self._records.append(Name(op, op.__chandle__()))


def parts_of(record: Any) -> tuple[Records, ...]:
    """Return the lists of records inside of a record, in the order of the program."""
    match record:
        case Load():
            return (record.indices,)
        case Call():
            return record.args
        case Store():
            return record.value, record.indices
        case Loop():
            return *record.bounds, record.body
        case Branch():
            return record.condition, *record.cases
        case Choice():
            return record.condition, record.values
        case Let() | Attribute():
            return record.value, record.body
        case Repeat():
            return record.condition, record.body
        case Alloc():
            return (record.shape,)
        case Declare():
            return (record.data,)
        case Value():
            return (record.value,)
        case Assert():
            return (record.condition,)
        case Other():
            return (record.parts,)
    return ()


def post_order(records: Records) -> Iterator[Any]:
    """Yield records, each behind what is inside of it."""
    for record in records:
        for part in parts_of(record):
            yield from post_order(part)
        yield record
