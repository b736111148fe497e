# SPDX-License-Identifier: Apache-2.0
"""A function's statements as plain records: what each evaluates, reads, writes and encloses.

One walk makes them, and whoever asks something of the statements goes through the records, which
are in the order of the program. Sequences are taken apart: the statements of one stand in the list
of what encloses it. Expressions are told by what they use: loads, calls, buffers that are handed
on; arithmetic has no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tvm.ir import StringImm, TensorLoad, Var
from tvm.ir.expr import Call as CallExpr
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferStore,
    BufferType,
    DeclBuffer,
    Evaluate,
    FloatImm,
    For,
    IfThenElse,
    IntImm,
    Return,
    Select,
    SeqStmt,
    Stmt,
    While,
)
from tvm.tirx import Let as LetExpr
from tvm.tirx.stmt import AttrStmt

from passes.ir.operators import is_if_then_else
from passes.ir.structural import prepared, structural_visit

_CONSTANTS = (IntImm, FloatImm, StringImm)

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


class Conditional(NamedTuple):
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


class ForLoop(NamedTuple):
    """A ``for``."""

    op: For
    key: int
    bounds: tuple[Records, ...]  # Of where it begins, its extent, and its step if it has one
    body: Records


class WhileLoop(NamedTuple):
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


def _uses_nothing(part: Any) -> bool:
    """Whether a part of a node is a number, text, or a variable that is no buffer."""
    kind = type(part)
    return kind in _CONSTANTS or (kind is Var and type(part.ty) is not BufferType)


class _Reader:
    """Adds a record of each node to the list of what encloses it.

    What is inside of a node is read later, from a list of what there is to do, so that no depth of
    nesting ends the walk: each callback inside of another takes from Python's stack.
    """

    def __init__(self) -> None:
        self._records: list[Any] = []
        self._waiting: list[tuple[Sequence[Any], list[Any]]] = []
        self._callbacks = prepared(
            [
                (TensorLoad, self._visit_load),
                (Stmt, self._visit_stmt),  # One for all: a node is tried against each callback.
                (CallExpr, self._visit_call),
                (LetExpr, self._visit_let),
                (Var, self._visit_var),
                (Select, self._visit_select),
            ]
        )
        # What needs no search for what is inside; most parts are of these.
        self._direct: dict[type, Callable[[Any, Any], None]] = {
            AllocBuffer: self._visit_alloc,
            AssertStmt: self._visit_assert,
            AttrStmt: self._visit_attr,
            Bind: self._visit_value,
            BufferStore: self._visit_store,
            CallExpr: self._visit_call,
            DeclBuffer: self._visit_decl,
            Evaluate: self._visit_value,
            For: self._visit_for,
            IfThenElse: self._visit_if,
            LetExpr: self._visit_let,
            Return: self._visit_value,
            SBlock: _refuse_block,
            SBlockRealize: _refuse_block,
            Select: self._visit_select,
            TensorLoad: self._visit_load,
            Var: self._visit_var,
            While: self._visit_while,
        }

    def read(self, body: Any) -> Records:
        """Return the records of a body."""
        result = self._within(body)
        while self._waiting:
            parts, self._records = self._waiting.pop()
            for part in parts:
                self._read(part)
        return result

    def _read(self, part: Any) -> None:
        if type(part) is SeqStmt:
            for statement in part.seq:
                self._read(statement)
        elif type(part) in self._direct:
            self._direct[type(part)](part, None)
        else:
            structural_visit(part, self._callbacks)

    def _within(self, *parts: Any) -> Records:
        """Return what will have the records of parts of a node."""
        telling = [part for part in parts if not _uses_nothing(part)]
        if not telling:
            return ()
        records: list[Any] = []
        self._waiting.append((telling, records))
        return records

    # Statements

    def _visit_stmt(self, op: Any, visitor: Any) -> None:
        visit = self._direct.get(type(op))
        if visit is not None:
            visit(op, visitor)
        elif type(op) is SeqStmt:
            visitor.default_visit(op)
        else:
            outer, self._records = self._records, []
            visitor.default_visit(op)
            parts, self._records = self._records, outer
            self._records.append(Other(op, parts))

    def _visit_alloc(self, op: AllocBuffer, _visitor: Any) -> None:
        shape = self._within(*op.buffer.ty.shape)
        self._records.append(Alloc(op, op.buffer.__chandle__(), shape))

    def _visit_decl(self, op: DeclBuffer, _visitor: Any) -> None:
        self._records.append(Declare(op, op.buffer.__chandle__(), self._within(op.data)))

    def _visit_store(self, op: BufferStore, _visitor: Any) -> None:
        value, indices = self._within(op.value), self._within(*op.indices)
        self._records.append(Store(op, op.buffer.__chandle__(), value, indices))

    def _visit_value(self, op: Evaluate | Bind | Return, _visitor: Any) -> None:
        self._records.append(Value(op, self._within(op.value)))

    def _visit_assert(self, op: AssertStmt, _visitor: Any) -> None:
        self._records.append(Assert(op, self._within(op.condition)))

    def _visit_for(self, op: For, _visitor: Any) -> None:
        bounds = [bound for bound in (op.min, op.extent, op.step) if bound is not None]
        read = tuple(map(self._within, bounds))
        self._records.append(ForLoop(op, op.__chandle__(), read, self._within(op.body)))

    def _visit_while(self, op: While, _visitor: Any) -> None:
        condition, body = self._within(op.condition), self._within(op.body)
        self._records.append(WhileLoop(op, op.__chandle__(), condition, body))

    def _visit_if(self, op: IfThenElse, _visitor: Any) -> None:
        cases = [case for case in (op.then_case, op.else_case) if case is not None]
        condition, read = self._within(op.condition), tuple(map(self._within, cases))
        self._records.append(Branch(op, op.__chandle__(), condition, read))

    def _visit_attr(self, op: AttrStmt, _visitor: Any) -> None:
        value, body = self._within(op.value), self._within(op.body)
        self._records.append(Attribute(op, op.__chandle__(), value, body))

    # Expressions

    def _visit_load(self, op: TensorLoad, _visitor: Any) -> None:
        self._records.append(Load(op, op.source.__chandle__(), self._within(*op.indices)))

    def _visit_call(self, op: CallExpr, _visitor: Any) -> None:
        if is_if_then_else(op):
            condition, *values = op.args
            self._records.append(Conditional(self._within(condition), self._within(*values)))
        else:
            self._records.append(Call(op, tuple(map(self._within, op.args))))

    def _visit_select(self, op: Select, _visitor: Any) -> None:
        values = self._within(op.true_value, op.false_value)
        self._records.append(Conditional(self._within(op.condition), values))

    def _visit_let(self, op: LetExpr, _visitor: Any) -> None:
        self._records.append(Let(op, self._within(op.value), self._within(op.body)))

    def _visit_var(self, op: Var, _visitor: Any) -> None:
        # Other variables are not told.
        if type(op.ty) is BufferType:
            self._records.append(Name(op, op.__chandle__()))


def _refuse_block(_op: Any, _visitor: Any) -> None:
    raise ValueError(
        "it has blocks; lower it first, as far as TVM does before it runs StorageRewrite: "
        "FlattenBuffer, VectorizeLoop and InjectDoubleBuffer come last"
    )


def parts_of(record: Any) -> tuple[Records, ...]:
    """Return the lists of records inside of a record, in the order of the program."""
    match record:
        case Load():
            return (record.indices,)
        case Call():
            return record.args
        case Store():
            return record.value, record.indices
        case ForLoop():
            return *record.bounds, record.body
        case Branch():
            return record.condition, *record.cases
        case Conditional():
            return record.condition, record.values
        case Let() | Attribute():
            return record.value, record.body
        case WhileLoop():
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


class RecordVisitor:
    """Goes through records in the order of the program.

    A method ``_visit_<kind>``, named after the class of a record, owns the descent into such
    records; where there is none, all that is inside of them is visited.
    """

    def __init__(self) -> None:
        self._visitors: dict[type, Callable[[Any], None]] = {}

    def _visit(self, records: Records) -> None:
        for record in records:
            kind = type(record)
            if kind not in self._visitors:
                name = f"_visit_{kind.__name__.lower()}"
                self._visitors[kind] = getattr(self, name, self._visit_parts)
            self._visitors[kind](record)

    def _visit_parts(self, record: Any) -> None:
        for part in parts_of(record):
            self._visit(part)
