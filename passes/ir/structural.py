# SPDX-License-Identifier: Apache-2.0
"""TVM's structural visit and mutation, called without their cost of preparation.

``tvm_ffi.structural_visit`` and ``structural_mutate`` look up the types of their
callbacks and inspect their signatures anew at each call, 4 to 20 µs a callback,
which for a small function is more than the walk itself. The functions here do the
same on callbacks whose types were looked up once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm_ffi
from tvm.tirx import PrimFunc, Stmt

_structural_visit = tvm_ffi.get_global_func("ffi.StructuralVisit")
_structural_mutate = tvm_ffi.get_global_func("ffi.StructuralMutate")

Callback = Callable[[Any, Any], Any]


def type_index(node_type: Any) -> int:
    """Return the number by which TVM knows a class of nodes; another process may give another."""
    return int(node_type.__tvm_ffi_type_info__.type_index)


_STMT = type_index(Stmt)


def structural_visit(root: Any, callbacks: list[tuple[int, Callback]]) -> Any:
    """Visit an IR; the first callback whose type matches owns the descent into a node.

    Callbacks stand by their `type_index`, and get the node and a ``tvm_ffi.StructuralVisitor``.
    """
    return _structural_visit(root, callbacks)


def structural_mutate(root: Any, callbacks: list[tuple[int, Callback]]) -> Any:
    """Return a changed copy of an IR; the first callback whose type matches makes the new node.

    Callbacks stand by their `type_index`, and get the node and a ``tvm_ffi.StructuralMutator``. The
    result is `root` itself when nothing changed.
    """
    return _structural_mutate(root, [(index, callback, False) for index, callback in callbacks])


def with_body(func: PrimFunc, body: Any) -> PrimFunc:
    """Return a function with another body.

    ``PrimFunc.with_body`` does the same, but its constructor walks the whole body.
    """
    return structural_mutate(func, [(_STMT, lambda _stmt, _mutator: body)])


def on_a_fresh_stack(step: Callable[[], Any]) -> Any:
    """Do a step on a thread of its own and wait for it.

    TVM's walks end the process where a callback is at Python's limit of recursion, or at the end
    of its thread's stack. A callback that descends can go on here after some hundred levels.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(step).result()
