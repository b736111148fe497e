# SPDX-License-Identifier: Apache-2.0
"""Moves allocations into the loop body or the branch that uses them, where they mean the same.

People allocate in front of everything, and a loop then uses the buffers anew in each iteration. An
allocation in front of a loop keeps its contents from one iteration to the next, so its life spans
the loop, unless no iteration reads what an earlier one left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm_ffi import WalkOrder

from passes.ir import (
    Callbacks,
    nodes_in,
    structural_mutate,
    structural_walk,
    with_body,
    with_loop_body,
)
from passes.ir.statements import bounds_of
from passes.prim_func.loop_indices import LoopNest
from passes.prim_func.module_calls import goes_on

_ONE_AFTER_THE_OTHER = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)

Place = tuple[int, int]
"""A body: the handle of its loop or ``if``, and 1 for the ``else``, otherwise 0."""


def sink_allocations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a flat function with allocations moved inwards: itself if there is nothing to move.

    An allocation of constant size, without annotations and without an address, moves into

    - the branch of an ``if`` that alone uses it;
    - the body of a serial loop that alone uses it.

    In a loop, the first statement that uses the buffer must write all of it and read none of it: a
    nest of loops of constant extents around one store, whose index takes each value below the size
    once. The result computes the same.
    """
    finder, sequences = _PlaceFinder(), list[tirx.SeqStmt]()
    structural_walk(func.body, [(tirx.SeqStmt, sequences.append)], WalkOrder.PREORDER)
    sunk: dict[Place, list[tirx.AllocBuffer]] = {}
    moved: set[int] = set()
    for sequence in sequences:
        for alloc in reversed([op for op in sequence.seq if _may_move(op)]):
            place = finder.further_in(sequence, alloc, is_repeated=False)
            if place is not None and alloc.__chandle__() not in moved:
                sunk.setdefault(place, []).insert(0, alloc)
                moved.add(alloc.__chandle__())
    return _write(func, sunk, moved) if moved else func


def _may_move(op: Any) -> bool:
    if not isinstance(op, tirx.AllocBuffer):
        return False
    ty = op.buffer.ty
    is_constant = len(ty.shape) == 1 and isinstance(ty.shape[0], tirx.IntImm)
    return is_constant and not len(op.annotations) and not len(ty.allocated_addr)


class _PlaceFinder:
    """Finds the innermost body in which an allocation may stand."""

    def __init__(self) -> None:
        # By the handle of a body, and that of a variable: the statements in it that mention it.
        self._mentions: dict[int, dict[int, list[Any]]] = {}
        self._goes_on = cache(goes_on)

    def _users(self, body: Any, alloc: tirx.AllocBuffer) -> list[Any]:
        """Return the other statements of a body, or the expression, that use a buffer somehow."""
        key = body.__chandle__()
        if key not in self._mentions:
            mentions = self._mentions[key] = {}
            for op in _statements(body):
                for handle in dict.fromkeys(var.__chandle__() for var in nodes_in(op, Var)):
                    mentions.setdefault(handle, []).append(op)
        users = self._mentions[key].get(alloc.buffer.__chandle__(), [])
        return [op for op in users if not op.same_as(alloc)]

    def further_in(self, body: Any, alloc: tirx.AllocBuffer, is_repeated: bool) -> Place | None:
        """Return the place of an allocation in the one statement of a body that uses it.

        If the body is repeated between the allocation and its uses, an iteration must not read what
        an earlier iteration wrote.
        """
        users = self._users(body, alloc)
        if len(users) != 1:
            return None
        (op,) = users
        if isinstance(op, tirx.IfThenElse):
            cases = [op.then_case, op.else_case]
            uses = [case is not None and bool(self._users(case, alloc)) for case in cases]
            if all(uses) or self._users(op.condition, alloc):
                return None
            number = uses.index(True)
            return self._in_body(cases[number], (op.__chandle__(), number), alloc, is_repeated)
        if isinstance(op, tirx.For) and op.kind in _ONE_AFTER_THE_OTHER:
            is_bound = any(self._users(bound, alloc) for bound in bounds_of(op))
            # An address may still be in use in a later iteration.
            if not is_bound and not self._goes_on(op):
                return self._in_body(op.body, (op.__chandle__(), 0), alloc, True)
        return None

    def _in_body(
        self, body: Any, place: Place, alloc: tirx.AllocBuffer, is_repeated: bool
    ) -> Place | None:
        inner = self.further_in(body, alloc, is_repeated)
        if inner is not None:
            return inner
        first, *_ = self._users(body, alloc)
        return place if not is_repeated or self._writes_all(first, alloc) else None

    def _writes_all(self, op: Any, alloc: tirx.AllocBuffer) -> bool:
        """Whether a statement writes each element of a buffer, and reads none of them."""
        loops = []
        while isinstance(op, tirx.For):
            is_counted = isinstance(op.min, tirx.IntImm) and isinstance(op.extent, tirx.IntImm)
            if op.kind not in _ONE_AFTER_THE_OTHER or not is_counted or op.step is not None:
                return False
            loops.append(op)
            inner = _statements(op.body)
            op = inner[0] if len(inner) == 1 else None
        if not isinstance(op, tirx.BufferStore) or not op.buffer.same_as(alloc.buffer):
            return False
        if self._users(op.value, alloc) or len(op.indices) != 1:
            return False
        size = int(alloc.buffer.ty.shape[0].value)
        return LoopNest(loops).takes_each(op.indices[0], size)


def _write(
    func: tirx.PrimFunc, sunk: dict[Place, list[tirx.AllocBuffer]], moved: set[int]
) -> tirx.PrimFunc:
    """Take allocations from where they stand, and put them at the beginning of their places."""

    def begun(op: Any, number: int, body: Any) -> Any:
        parts = [*sunk.get((op.__chandle__(), number), ()), *_statements(body)]
        return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]

    def rewrite_for(op: tirx.For, mutator: Any) -> Any:
        new = mutator.default_mutate(op)
        return with_loop_body(new, begun(op, 0, new.body))

    def rewrite_if(op: tirx.IfThenElse, mutator: Any) -> Any:
        new = mutator.default_mutate(op)
        other = None if new.else_case is None else begun(op, 1, new.else_case)
        return tirx.IfThenElse(new.condition, begun(op, 0, new.then_case), other)

    def rewrite_sequence(op: tirx.SeqStmt, mutator: Any) -> Any:
        parts = [mutator.mutate(part) for part in op.seq if part.__chandle__() not in moved]
        return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]

    rewrites: Callbacks = [
        (tirx.For, rewrite_for),
        (tirx.IfThenElse, rewrite_if),
        (tirx.SeqStmt, rewrite_sequence),
    ]
    return with_body(func, structural_mutate(func.body, rewrites))


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
