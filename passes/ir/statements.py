# SPDX-License-Identifier: Apache-2.0
"""Children of a TIR node: statements, loads, calls, and the buffers that it names.

Sequences are taken apart, and arithmetic is left out: in ``A[i] = B[i] + f(C[j])`` stand the load
of ``B`` and the call of ``f``, in which the load of ``C`` stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import NoneType
from typing import Any, ClassVar

from passes.ir import tir
from passes.ir.buffers import items
from passes.ir.operators import is_if_then_else
from passes.ir.structural import nodes_in_statement, outermost_nodes
from passes.ir.tir import BufferType, Call, Expr, Let, Load, PrimType, Select, Statement, Store, Var

PARALLEL_REGION = "pragma_parallel_launch_point"
"""The attribute of statements that each thread of a CPU runs, with memory of its own."""

_CONSTANTS = frozenset({tir.IntConstant, tir.FloatConstant, tir.StringConstant, NoneType})
_IN_NUMBERS = (Load, Call, Let, Select)  # The nodes that a number may be made of
_CHOICES = frozenset({Call, Select})  # The classes of what `is_choice` may tell

_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    tir.Allocation: lambda op: (op.buffer.ty.shape,),
    tir.Assertion: lambda op: (op.condition,),
    tir.Attribute: lambda op: (op.value, op.body),
    tir.Binding: lambda op: (op.value,),
    Store: lambda op: (op.value, op.indices),
    Call: lambda op: items(op.args),
    tir.Declaration: lambda op: (op.data,),
    tir.Evaluation: lambda op: (op.value,),
    tir.Loop: lambda op: (op.min, op.extent, op.step, op.body),
    tir.If: lambda op: (op.condition, op.then_case, op.else_case),
    Let: lambda op: (op.value, op.body),
    tir.Return: lambda op: (op.value,),
    Select: lambda op: (op.condition, op.true_value, op.false_value),
    Load: lambda op: (op.indices,),
    Var: lambda _op: (),
    tir.While: lambda op: (op.condition, op.body),
}
_NAMES = {
    name: kind for name, kind in vars(tir).items() if isinstance(kind, type) and kind in _PARTS
}
_STATEMENTS = frozenset(kind for kind in _PARTS if issubclass(kind, Statement))


_is_a: Callable[[Any, type], bool] = cache(issubclass)  # TVM's classes take long to answer


def nodes_of(part: Any) -> list[Any]:
    """Return the outermost nodes in a part of a node: a statement, an expression or several.

    They are in the order of the program. A variable is among them if it is a buffer, which stands
    there as a whole: its address is handed on.
    """
    kind = type(part)
    if kind is Var:
        return [part] if type(part.ty) is BufferType else []
    if kind in _PARTS:
        return [part]
    if kind in _CONSTANTS:
        return []
    if kind is tir.Sequence:
        return [node for inner in items(part.seq) for node in nodes_of(inner)]
    if _is_a(kind, Statement):
        return [part]
    # An array is of indices or extents.
    if not _is_a(kind, Expr) or type(part.ty) is PrimType:
        # Arithmetic is of numbers: a buffer as a whole stands in none.
        return outermost_nodes(part, *_IN_NUMBERS)
    found = outermost_nodes(part, *_IN_NUMBERS, Var)
    return [node for inner in found for node in nodes_of(inner)]


def parts_of(op: Any) -> list[list[Any]]:
    """Return what stands in each part of a node, in the order of the program.

    The parts are what the node evaluates and then what it encloses: of a loop the bounds and the
    body, of an ``if`` the condition and both cases, of a store the value and the indices.
    """
    return [nodes_of(part) for part in _PARTS.get(type(op), _unknown_parts)(op)]


def _unknown_parts(op: Any) -> list[Any]:
    return nodes_in_statement(op, *_IN_NUMBERS, Var)


def is_choice(op: Any) -> bool:
    """Return whether an expression selects one of two values by its first part, a condition."""
    return type(op) is Select or is_if_then_else(op)


def begins_threads(op: Any) -> bool:
    """Return whether a statement begins threads of a block: they have its memory at once.

    An extent without the tag of a thread may be of any.
    """
    if not isinstance(op, tir.Attribute) or op.attr_key not in ("thread_extent", "virtual_thread"):
        return False
    return not str(getattr(op.node, "thread_tag", "")).startswith(("blockIdx.", "clusterCtaIdx."))


class NodeVisitor:
    """Goes through nodes in the order of the program.

    A method ``_visit_<name>``, after the name of a node in `tir`, owns the descent into such nodes,
    and ``_visit_other`` that into unknown statements. Where there is none, and in choices, all that
    stands in a node is visited.
    """

    _visitors: ClassVar[dict[type, Callable[[Any, Any], None]]]

    def __init_subclass__(cls) -> None:
        named = {kind: f"_visit_{name.lower()}" for name, kind in _NAMES.items()}
        cls._visitors = {kind: getattr(cls, name, cls._visit_parts) for kind, name in named.items()}

    def _visit(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            kind = type(node)
            if kind in _CHOICES and is_choice(node):
                self._visit_choice(node)
            elif kind in _PARTS:
                self._visitors[kind](self, node)
            else:
                self._visit_other(node)

    def _visit_choice(self, op: Any) -> None:
        # Without recursion: they nest as deep as a concatenation has tensors.
        waiting = [op]
        while waiting:
            node = waiting.pop()
            if is_choice(node):
                waiting += reversed([inner for part in parts_of(node) for inner in part])
            else:
                self._visit([node])

    def _visit_other(self, op: Any) -> None:
        self._visit_parts(op)

    def _visit_parts(self, op: Any) -> None:
        for part in _PARTS.get(type(op), _unknown_parts)(op):
            if type(part) not in _CONSTANTS:
                self._visit_part(part)

    def _visit_part(self, part: Any) -> None:
        """Visit `nodes_of` a part."""
        kind = type(part)
        if kind in _STATEMENTS:  # As `nodes_of` would find, at a fraction of the time
            self._visitors[kind](self, part)
        elif kind is tir.Sequence:
            for inner in items(part.seq):
                self._visit_part(inner)
        else:
            self._visit(nodes_of(part))
