# SPDX-License-Identifier: Apache-2.0
"""A function's statements as plain records: what each evaluates, reads, writes and encloses.

One walk makes them, and whoever asks something of the statements goes through the records, which
are in the order of the program. Sequences are taken apart: the statements of one stand in the list
of what encloses it. Expressions are told by what they use: loads, calls, buffers that are handed
on; arithmetic has no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from tvm import tirx
from tvm.ir import Expr, PrimType, StringImm, TensorLoad, Var
from tvm.ir.expr import Call as CallExpr
from tvm.tirx.stmt import AttrStmt

from passes.ir.buffers import items
from passes.ir.operators import is_if_then_else
from passes.ir.structural import OutermostNodes, nodes_in_statement

_CONSTANTS = frozenset({tirx.IntImm, tirx.FloatImm, StringImm})
_IN_NUMBERS = (TensorLoad, CallExpr, tirx.Let, tirx.Select)

Records = Sequence[Any]  # Records in the order of the program

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
    values: tuple[Records, ...]


class Let(NamedTuple):
    """A variable has a value within an expression."""

    op: tirx.Let
    value: Records
    body: Records


# Statements without a body


class Alloc(NamedTuple):
    """Memory is allocated."""

    op: tirx.AllocBuffer
    key: int
    buffer: Var
    extents: list[Any]  # The numbers and expressions of its shape
    shape: Records  # What they use


class Declare(NamedTuple):
    """A buffer is declared on memory that is there."""

    op: tirx.DeclBuffer
    key: int
    data: Records


class Store(NamedTuple):
    """An element of a buffer is written."""

    op: tirx.BufferStore
    key: int  # Of the buffer
    value: Records
    indices: Records


class Value(NamedTuple):
    """A value is evaluated, bound to a variable, or returned."""

    op: tirx.Evaluate | tirx.Bind | tirx.Return
    value: Records


class Assert(NamedTuple):
    """A condition is asserted."""

    op: tirx.AssertStmt
    key: int
    condition: Records


class Other(NamedTuple):
    """Any other statement; if it holds statements, they stand among what it uses."""

    op: Any
    parts: Records


# Statements with a body


class ForLoop(NamedTuple):
    """A ``for``."""

    op: tirx.For
    key: int
    bounds: tuple[Records, ...]  # Of where it begins, its extent, and its step if it has one
    body: Records


class WhileLoop(NamedTuple):
    """A ``while``."""

    op: tirx.While
    key: int
    condition: Records
    body: Records


class Branch(NamedTuple):
    """An ``if``."""

    op: tirx.IfThenElse
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
    """Read the statements of a function's body, as it stands after `FlattenBuffer`."""
    return _Reader().read(body)


class _Reader:
    """Adds a record of each node to the list of what encloses it.

    What is inside of a node is read later, from a list of what there is to do, so that no depth of
    nesting ends the walk: each callback inside of another takes from Python's stack.
    """

    def __init__(self) -> None:
        self._records: list[Any] = []
        self._waiting: list[tuple[Sequence[Any], list[Any]]] = []
        # Arithmetic is of numbers: a buffer as a whole stands in none.
        self._in_numbers = OutermostNodes(*_IN_NUMBERS)
        self._anything = OutermostNodes(*_IN_NUMBERS, Var)

    def read(self, body: Any) -> Records:
        """Return the records of a body."""
        result = self._within(body)
        while self._waiting:
            nodes, self._records = self._waiting.pop()
            self._read(nodes)
        return result

    def _read(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            _VISITORS.get(type(node), _Reader._visit_other)(self, node)

    def _later(self, nodes: Sequence[Any]) -> Records:
        """Return what will have the records of nodes."""
        if not nodes:
            return ()
        records: list[Any] = []
        self._waiting.append((nodes, records))
        return records

    def _within(self, part: Any) -> Records:
        """Return what will have the records of a part of a node."""
        kind = type(part)
        if kind in _CONSTANTS or (kind is Var and type(part.ty) is not tirx.BufferType):
            return ()
        if kind in _VISITORS or isinstance(part, tirx.Stmt):
            return self._later((part,))
        is_number = isinstance(part, Expr) and type(part.ty) is PrimType
        return self._later((self._in_numbers if is_number else self._anything)(part))

    def _within_numbers(self, part: Any) -> Records:
        """Return what will have the records of a number, or of an array of numbers."""
        kind = type(part)
        if kind in _CONSTANTS or kind is Var:
            return ()
        if kind in _VISITORS:
            return self._later((part,))
        return self._later(self._in_numbers(part))

    # Statements

    def _visit_seq(self, op: tirx.SeqStmt) -> None:
        self._read(items(op.seq))

    def _visit_alloc(self, op: tirx.AllocBuffer) -> None:
        buffer = op.buffer
        shape = buffer.ty.shape
        extents = items(shape)
        is_constant = all(type(extent) is tirx.IntImm for extent in extents)
        used = () if is_constant else self._within_numbers(shape)
        self._records.append(Alloc(op, buffer.__chandle__(), buffer, extents, used))

    def _visit_decl(self, op: tirx.DeclBuffer) -> None:
        self._records.append(Declare(op, op.buffer.__chandle__(), self._within(op.data)))

    def _visit_store(self, op: tirx.BufferStore) -> None:
        value, indices = self._within_numbers(op.value), self._within_numbers(op.indices)
        self._records.append(Store(op, op.buffer.__chandle__(), value, indices))

    def _visit_value(self, op: tirx.Evaluate | tirx.Bind | tirx.Return) -> None:
        self._records.append(Value(op, self._within(op.value)))

    def _visit_assert(self, op: tirx.AssertStmt) -> None:
        self._records.append(Assert(op, op.__chandle__(), self._within_numbers(op.condition)))

    def _visit_for(self, op: tirx.For) -> None:
        bounds = [bound for bound in (op.min, op.extent, op.step) if bound is not None]
        read = tuple(map(self._within_numbers, bounds))
        self._records.append(ForLoop(op, op.__chandle__(), read, self._within(op.body)))

    def _visit_while(self, op: tirx.While) -> None:
        condition, body = self._within_numbers(op.condition), self._within(op.body)
        self._records.append(WhileLoop(op, op.__chandle__(), condition, body))

    def _visit_if(self, op: tirx.IfThenElse) -> None:
        cases = [case for case in (op.then_case, op.else_case) if case is not None]
        condition, read = self._within_numbers(op.condition), tuple(map(self._within, cases))
        self._records.append(Branch(op, op.__chandle__(), condition, read))

    def _visit_attr(self, op: AttrStmt) -> None:
        value, body = self._within(op.value), self._within(op.body)
        self._records.append(Attribute(op, op.__chandle__(), value, body))

    def _visit_other(self, op: Any) -> None:
        self._records.append(Other(op, self._later(nodes_in_statement(op, *_IN_NUMBERS, Var))))

    # Expressions

    def _visit_load(self, op: TensorLoad) -> None:
        indices = self._within_numbers(op.indices)
        self._records.append(Load(op, op.source.__chandle__(), indices))

    def _visit_call(self, op: CallExpr) -> None:
        if is_if_then_else(op):
            condition, *values = items(op.args)
            within = tuple(map(self._within, values))
            self._records.append(Conditional(self._within(condition), within))
        else:
            self._records.append(Call(op, tuple(map(self._within, items(op.args)))))

    def _visit_select(self, op: tirx.Select) -> None:
        values = tuple(map(self._within_numbers, (op.true_value, op.false_value)))
        self._records.append(Conditional(self._within_numbers(op.condition), values))

    def _visit_let(self, op: tirx.Let) -> None:
        self._records.append(Let(op, self._within(op.value), self._within(op.body)))

    def _visit_var(self, op: Var) -> None:
        # Other variables are not told.
        if type(op.ty) is tirx.BufferType:
            self._records.append(Name(op, op.__chandle__()))


_VISITORS: dict[type, Callable[[_Reader, Any], None]] = {
    tirx.AllocBuffer: _Reader._visit_alloc,
    tirx.AssertStmt: _Reader._visit_assert,
    AttrStmt: _Reader._visit_attr,
    tirx.Bind: _Reader._visit_value,
    tirx.BufferStore: _Reader._visit_store,
    CallExpr: _Reader._visit_call,
    tirx.DeclBuffer: _Reader._visit_decl,
    tirx.Evaluate: _Reader._visit_value,
    tirx.For: _Reader._visit_for,
    tirx.IfThenElse: _Reader._visit_if,
    tirx.Let: _Reader._visit_let,
    tirx.Return: _Reader._visit_value,
    tirx.Select: _Reader._visit_select,
    tirx.SeqStmt: _Reader._visit_seq,
    TensorLoad: _Reader._visit_load,
    Var: _Reader._visit_var,
    tirx.While: _Reader._visit_while,
}

_PARTS: dict[type, Callable[[Any], tuple[Records, ...]]] = {
    Alloc: lambda alloc: (alloc.shape,),
    Assert: lambda check: (check.condition,),
    Attribute: lambda attribute: (attribute.value, attribute.body),
    Branch: lambda branch: (branch.condition, *branch.cases),
    Call: lambda call: call.args,
    Conditional: lambda choice: (choice.condition, *choice.values),
    Declare: lambda declare: (declare.data,),
    ForLoop: lambda loop: (*loop.bounds, loop.body),
    Let: lambda let: (let.value, let.body),
    Load: lambda load: (load.indices,),
    Name: lambda _name: (),
    Other: lambda other: (other.parts,),
    Store: lambda store: (store.value, store.indices),
    Value: lambda value: (value.value,),
    WhileLoop: lambda loop: (loop.condition, loop.body),
}


def parts_of(record: Any) -> tuple[Records, ...]:
    """Return the lists of records inside of a record, in the order of the program."""
    return _PARTS[type(record)](record)


def post_order(records: Records) -> Iterator[Any]:
    """Yield records, each behind what is inside of it."""
    # What there is to do, the first at the end; without recursion, as conditions nest deep.
    waiting = [(record, False) for record in reversed(records)]
    while waiting:
        record, is_done = waiting.pop()
        if is_done:
            yield record
            continue
        waiting.append((record, True))
        for part in reversed(parts_of(record)):
            waiting += [(inner, False) for inner in reversed(part)]


class RecordVisitor:
    """Goes through records in the order of the program.

    A method ``_visit_<kind>``, named after the class of a record, owns the descent into such
    records; where there is none, all that is inside of them is visited.
    """

    _visitors: ClassVar[dict[type, Callable[[Any, Any], None]]]

    def __init_subclass__(cls) -> None:
        cls._visitors = {
            kind: getattr(cls, f"_visit_{kind.__name__.lower()}", cls._visit_parts)
            for kind in _PARTS
        }

    def _visit(self, records: Records) -> None:
        visitors = self._visitors
        for record in records:
            visitors[type(record)](self, record)

    def _visit_parts(self, record: Any) -> None:
        for part in parts_of(record):
            if part:
                self._visit(part)

    def _visit_conditional(self, choice: Conditional) -> None:
        # Without recursion: they nest as deep as a concatenation has tensors.
        waiting = _inside(choice)
        while waiting:
            record = waiting.pop()
            if type(record) is Conditional:
                waiting += _inside(record)
            else:
                self._visit((record,))


def _inside(choice: Conditional) -> list[Any]:
    """Return what is inside of a choice, the first at the end."""
    return [record for part in parts_of(choice) for record in part][::-1]
