"""From a function that holds a whole graph to its ops: each statement of its body is one.

`te.create_prim_func` makes such functions of a graph of tensor expressions. Lowered, their body is
a list: allocations, and a statement for each step of the graph. What an op reads and makes is
counted here from the statements alone, not from live ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tvm.ir import PrimType, Var
from tvm.ir.expr import Call
from tvm.tirx import AllocBuffer, Bind, BufferStore, DeclBuffer, PrimFunc, SeqStmt, is_buffer_var
from tvm_ffi import structural_walk

from passes.analysis.tir.function_problems import AttachedProblem, FunctionProblems
from passes.analysis.tir.problems import unique_name
from passes.ir.buffers import buffer_data_var, constant_shape, element_type, is_address_of
from passes.planning.sophgo.op_sequence import Op, OpSequence, Value

SCOPE = "global"
"""The storage scope whose allocations are the values of a graph."""


@dataclass(frozen=True, eq=False)
class OpGraph:
    """The ops of a function.

    Attributes
    ----------
    sequence : OpSequence
        The parameters come first, as the results of an op of kind ``func``; those that are weights
        as the results of one of kind ``weight``. Their sizes are zero where they are symbolic. An
        op is called after the first buffer that it writes. One of kind ``drop`` stands behind an
        op some of whose results are never touched again. Each value that is placed has the name
        and size of its buffer in the function's problem.
    left_out : tuple of str
        One line for each allocation in ``global`` that is no value of the graph: which and why.
    """

    sequence: OpSequence
    left_out: tuple[str, ...]


def read_op_graph(
    func: PrimFunc, found: FunctionProblems, name: str = "main", num_input: int | None = None
) -> OpGraph:
    """Read the ops of a function off the statements of its body.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat, as `find_problems` takes it.
    found : FunctionProblems
        What `find_problems` says of it: which allocations are planned, and how large they are.
    name : str
        The function's, for messages.
    num_input : int, optional
        How many parameters at the beginning are inputs: of the others, those that nothing writes
        are weights. By default none is.

    Returns
    -------
    OpGraph
        A value begins with the first statement that touches it, which makes it, and is read by
        all others that do.
    """
    statements = list(_flat(func.body))
    values, left_out = _values(statements, found)
    reader = _Reader(func, values)
    for statement in statements:
        reader.read(statement)
    return OpGraph(OpSequence(tuple(reader.ops(num_input)), name), tuple(left_out))


def _flat(body: Any) -> Iterator[Any]:
    """Yield the statements of the body, sequences within sequences too."""
    if isinstance(body, SeqStmt):
        for statement in body.seq:
            yield from _flat(statement)
    else:
        yield body


def _values(
    statements: Iterable[Any], found: FunctionProblems
) -> tuple[dict[int, Value], list[str]]:
    """Return the values of the graph by the handles of their buffers, and what is none."""
    at_root = {s.buffer.__chandle__() for s in statements if isinstance(s, AllocBuffer)}
    values: dict[int, Value] = {}
    left_out = [str(note) for note in found.left_alone if note.scope == SCOPE]
    for attached in found.problems:
        if attached.problem.memory.name != SCOPE:
            continue
        for buffer, handle, escape in _planned(attached, found):
            where = f"buffer {buffer.name!r} in {SCOPE}"
            if handle not in at_root:
                left_out.append(f"{where}: it is allocated inside of an op")
            elif buffer.pinned is not None:
                left_out.append(f"{where}: its address is given")
            elif escape is not None:
                left_out.append(
                    f"{where}: {escape} keeps its address, so nothing says when it ends"
                )
            else:
                values[handle] = Value(buffer.name, buffer.size, buffer.alignment)
    return values, left_out


def _planned(attached: AttachedProblem, found: FunctionProblems) -> Iterator[tuple[Any, int, Any]]:
    for buffer in attached.problem.buffers:
        allocation = attached.allocations[buffer.name]
        handle = allocation.statement.buffer.__chandle__()
        yield buffer, handle, found.uses[allocation.index].escape


class _Reader:
    """Reads statements in order, and knows what each variable stands for."""

    def __init__(self, func: PrimFunc, values: dict[int, Value]) -> None:
        names = {value.name for value in values.values()}
        self._values = {value.name: value for value in values.values()}
        self._order = {name: index for index, name in enumerate(self._values)}
        self._made: list[tuple[str, list[str], list[str]]] = []
        self._born: set[str] = set()
        self._written: set[str] = set()
        # The names of the values, by the handle of each variable that leads to them.
        self._of: dict[int, list[str]] = {key: [value.name] for key, value in values.items()}
        self._parameters: list[tuple[int, Value]] = []
        for index, param in enumerate(func.params):
            if is_buffer_var(param):
                shown = unique_name(param.name, names)
                self._parameters.append((index, Value(shown, _bytes_of(param))))
                self._of[param.__chandle__()] = [shown]
                self._born.add(shown)

    def read(self, statement: Any) -> None:
        """Note what a statement touches; one that only declares is no op."""
        if isinstance(statement, AllocBuffer):
            return
        touched = self._touched(statement)
        if isinstance(statement, DeclBuffer):
            self._of[statement.buffer.__chandle__()] = touched
            return
        if isinstance(statement, Bind) and not isinstance(statement.var.ty, PrimType):
            self._of[statement.var.__chandle__()] = touched  # An address, by another name.
        written = self._writes(statement)
        self._written.update(written)
        if touched:
            results = sorted(set(touched) - self._born, key=self._order.__getitem__)
            operands = [name for name in touched if name in self._born]
            self._born.update(results)
            name = written[0] if written else type(statement).__name__
            self._made.append((name, operands, results))

    def ops(self, num_input: int | None) -> Iterator[Op]:
        """Yield the ops that were read."""
        weights = [
            value
            for index, value in self._parameters
            if num_input is not None and index >= num_input and value.name not in self._written
        ]
        others = [value for _, value in self._parameters if value not in weights]
        yield Op("parameters", "func", (), tuple(others))
        if weights:
            yield Op("weights", "weight", (), tuple(weights))
        read = {name for _, operands, _ in self._made for name in operands}
        for name, operands, results in self._made:
            yield Op(name, "op", tuple(operands), tuple(self._values[result] for result in results))
            unread = tuple(result for result in results if result not in read)
            if unread:
                yield Op(name, "drop", unread)

    def _touched(self, statement: Any) -> list[str]:
        """Return the values that a statement touches, each once, in order."""
        found: dict[str, None] = {}

        def note(var: Var) -> None:
            found.update(dict.fromkeys(self._of.get(var.__chandle__(), ())))

        structural_walk(statement, (Var, note))
        return list(found)

    def _writes(self, statement: Any) -> list[str]:
        """Return the values that a statement writes, or hands to a call that may write them."""
        inner: dict[int, list[str]] = {}
        written: dict[str, None] = {}

        def note(var: Any) -> None:
            key = var.__chandle__()
            written.update(dict.fromkeys(inner.get(key) or self._of.get(key) or []))

        def note_alias(alias: DeclBuffer) -> None:
            inner[alias.buffer.__chandle__()] = self._touched(alias)

        def note_call(call: Call) -> None:
            if is_address_of(call):
                note(call.args[0].source)
            for argument in call.args:
                var = buffer_data_var(argument)
                if var is not None:
                    note(var)

        structural_walk(
            statement,
            [
                (DeclBuffer, note_alias),
                (BufferStore, lambda store: note(store.buffer)),
                (Call, note_call),
            ],
        )
        return list(written)


def _bytes_of(param: Var) -> int:
    """Return the bytes of a parameter, or zero if its shape is symbolic."""
    extents = constant_shape(param.ty.shape)
    if extents is None:
        return 0
    count = math.prod(extent for extent, _ in extents)
    return -(-count * element_type(param.ty.dtype).nbits // 8)
