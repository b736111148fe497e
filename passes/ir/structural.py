# SPDX-License-Identifier: Apache-2.0
"""TVM's structural walk, visit and mutation, called without their cost of preparation.

Those of ``tvm_ffi`` look up the types of their
callbacks and inspect their signatures anew at each call, 4 to 20 µs a callback,
which for a small function is more than the walk itself. The functions here do the
same on callbacks whose types were looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from threading import local
from typing import Any, TypeVar

import tvm_ffi
from tvm_ffi import VisitInterrupt, WalkOrder, WalkResult

from passes.ir import tir

structural_equal = tvm_ffi.structural_equal
PREORDER, POSTORDER, SKIP = WalkOrder.PREORDER, WalkOrder.POSTORDER, WalkResult.SKIP
"""Walks that come to a node before, or after, what is inside of it; and what a callback returns to
leave that out."""

_structural_visit = tvm_ffi.get_global_func("ffi.StructuralVisit")
_structural_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_structural_map = tvm_ffi.get_global_func("ffi.StructuralMap")
_structural_mutate = tvm_ffi.get_global_func("ffi.StructuralMutate")

_PREORDER, _POSTORDER = int(WalkOrder.PREORDER), int(WalkOrder.POSTORDER)
_SKIP = int(WalkResult.SKIP)
_NONE = tvm_ffi.convert([])  # The callbacks of a kind that a walk does not have

Root = TypeVar("Root")
Callbacks = list[tuple[Any, Callable[..., Any]]]  # By the class of nodes


@cache
def type_index(node_type: Any) -> int:
    """Return the number by which TVM knows a class of nodes; another process may give another."""
    return int(node_type.__tvm_ffi_type_info__.type_index)


def structural_visit(root: Any, callbacks: Callbacks) -> Any:
    """Visit an IR; the first callback whose type matches owns the descent into a node.

    Callbacks get the node and a ``tvm_ffi.StructuralVisitor``.
    """
    indexed = [(type_index(kind), callback) for kind, callback in callbacks]
    return _structural_visit(root, indexed)


def structural_walk(
    root: Any,
    notes: Sequence[tuple[Any, Callable[[Any], Any]]],
    order: WalkOrder = WalkOrder.POSTORDER,
) -> None:
    """Call back for the nodes of an IR by their classes; the first that matches is called.

    The descent is TVM's own, so that its depth takes nothing from Python's stack. In preorder a
    callback may return `SKIP`, and what is inside of the node is left out.
    """
    _structural_walk(root, [(type_index(kind), note) for kind, note in notes], _NONE, int(order))


_finders = local()  # Threads that plan at once must not find into one list


def nodes_in(root: Any, *kinds: Any) -> list[Any]:
    """Return the nodes of some classes in an IR, each after its children."""
    return node_finder(*kinds)(root)


def outermost_nodes(root: Any, *kinds: Any) -> list[Any]:
    """Return the nodes of some classes in an IR that stand in no other of them, in their order."""
    return node_finder(*kinds, order=_PREORDER)(root)


def node_finder(*kinds: Any, order: int = _POSTORDER) -> Callable[[Any], list[Any]]:
    """Return `nodes_in` of some classes for this thread: its callback is handed to TVM once."""
    finders: dict[Any, Callable[[Any], list[Any]]] = _finders.__dict__
    known = finders.get((kinds, order))
    if known is not None:
        return known
    found: list[Any] = []

    def note(node: Any) -> int:
        found.append(node)
        return _SKIP

    callback = tvm_ffi.convert(note if order == _PREORDER else found.append)
    indexed = tvm_ffi.convert([(type_index(kind), callback) for kind in kinds])

    def find(root: Any) -> list[Any]:
        try:
            _structural_walk(root, indexed, _NONE, order)
            return found[:]
        finally:
            found.clear()

    finders[kinds, order] = find
    return find


def nodes_in_statement(op: tir.Statement, *kinds: Any) -> list[Any]:
    """Return the nodes of some classes, and the statements, that stand in a statement alone."""
    found: list[Any] = []

    def note(node: Any) -> int | None:
        if node.same_as(op):
            return None
        found.append(node)
        return _SKIP

    structural_walk(op, [(kind, note) for kind in (*kinds, tir.Statement)], WalkOrder.PREORDER)
    return found


def has_any(root: Any, *kinds: Any) -> bool:
    """Return whether an IR has a node of some classes; the walk ends at the first."""
    return _structural_walk(root, _stops(kinds), _NONE, _PREORDER) is not None


@cache
def _stops(kinds: Sequence[Any]) -> Any:
    interrupt = VisitInterrupt()
    stop = tvm_ffi.convert(lambda _node: interrupt)
    return tvm_ffi.convert([(type_index(kind), stop) for kind in kinds])


def structural_mutate(root: Root, callbacks: Callbacks) -> Root:
    """Return a changed copy of an IR; the first callback whose type matches makes the new node.

    Callbacks get the node and a ``tvm_ffi.StructuralMutator``. The result is `root` itself when
    nothing changed.
    """
    indexed = [(type_index(kind), callback, False) for kind, callback in callbacks]
    changed: Root = _structural_mutate(root, indexed)
    return changed


def structural_map(
    root: Any,
    callbacks: Sequence[tuple[Any, Callable[[Any], Any]]],
    order: WalkOrder = WalkOrder.PREORDER,
) -> Any:
    """Return a copy of an IR in which callbacks have replaced nodes by their classes.

    In preorder a node is replaced before what is inside of it, and what is inside of the new one is
    next; in postorder it is replaced after that. The descent is TVM's own, so that its depth takes
    nothing from Python's stack.
    """
    indexed = [(type_index(kind), callback) for kind, callback in callbacks]
    return _structural_map(root, indexed, _NONE, int(order))


def outermost_threads(body: Any) -> list[tir.Attribute]:
    """Return the thread extents in a body that stand in no other: kernels, for a GPU."""
    found: list[tir.Attribute] = []

    def note(op: tir.Attribute, visitor: Any) -> None:
        if op.attr_key == "thread_extent":
            found.append(op)
        else:
            visitor.default_visit(op)

    structural_visit(body, [(tir.Attribute, note)])
    return found


def with_body(func: tir.PrimFunc, body: Any) -> tir.PrimFunc:
    """Return a function with another body.

    ``PrimFunc.with_body`` does the same, but its constructor walks the whole body.
    """
    return structural_mutate(func, [(tir.Statement, lambda _stmt, _mutator: body)])


def with_loop_body(loop: tir.Loop, body: Any) -> tir.Loop:
    """Return a loop with another body."""
    parts = (loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding)
    return tir.Loop(*parts, loop.annotations, loop.step)
