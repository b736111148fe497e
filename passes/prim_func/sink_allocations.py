# SPDX-License-Identifier: Apache-2.0
"""Moves allocations into the loop body or the branch that uses them, where they mean the same.

People allocate in front of everything, and a loop then uses the buffers anew in each iteration. An
allocation in front of a loop keeps its contents from one iteration to the next, so its life spans
the loop, unless no iteration reads what an earlier one left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from passes.ir import nodes_in
from passes.prim_func.loop_indices import LoopNest
from passes.prim_func.module_calls import goes_on

_ONE_AFTER_THE_OTHER = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)


def sink_allocations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a flat function with allocations moved inwards: itself if there is nothing to move.

    An allocation of constant size, without annotations and without an address, moves into

    - the branch of an ``if`` that alone uses it;
    - the body of a serial loop that alone uses it.

    In a loop, the first statement that uses the buffer must write all of it and read none of it: a
    nest of loops of constant extents around one store, whose index takes each value below the size
    once. The result computes the same.
    """
    body = _Sinker()(func.body)
    return func if body.same_as(func.body) else func.with_body(body)


@dataclass(frozen=True, eq=False)
class _Contents:
    """What a statement or expression mentions."""

    op: Any  # The statement or expression itself, kept so that its handle is not used again
    variables: frozenset[int]  # The handles of all variables in it
    keeps_pointers: bool  # Whether an address may still be in use in a later iteration


def _contents_of(op: Any) -> _Contents:
    variables = frozenset(var.__chandle__() for var in nodes_in(op, Var))
    return _Contents(op, variables, goes_on(op))


class _Sinker:
    """Moves allocations inwards, list of statements by list of statements, outer ones first."""

    def __init__(self) -> None:
        self._known: dict[int, _Contents] = {}

    def __call__(self, body: Any) -> Any:
        return tvm_ffi.structural_mutate(body, (tirx.SeqStmt, self._sink))

    def _sink(self, op: tirx.SeqStmt, mutator: Any) -> Any:
        old = list(op.seq)
        allocs = [op for op in old if isinstance(op, tirx.AllocBuffer) and _may_move(op)]
        statements, left = self._handed_down(old, allocs, is_repeated=False)
        moved = {a.__chandle__() for a in allocs} - {a.__chandle__() for a in left}
        new = [mutator.mutate(one) for one in statements if one.__chandle__() not in moved]
        if len(new) == len(old) and all(a.same_as(b) for a, b in zip(new, old, strict=True)):
            return op
        return new[0] if len(new) == 1 else tirx.SeqStmt(new)

    def _handed_down(
        self, statements: list[Any], allocs: Sequence[tirx.AllocBuffer], is_repeated: bool
    ) -> tuple[list[Any], list[tirx.AllocBuffer]]:
        """Place allocations in the statements that alone use them.

        Return the statements with the allocations in them, and those that have no place in any.
        """
        users = self._users(statements, allocs)
        into: dict[int, list[tirx.AllocBuffer]] = {}
        for alloc, used_in in zip(allocs, users, strict=True):
            if len(used_in) == 1:
                into.setdefault(used_in[0], []).append(alloc)
        placed: set[int] = set()
        statements = list(statements)
        for at, group in into.items():
            statements[at], left = self._with_allocations(statements[at], group, is_repeated)
            placed |= {a.__chandle__() for a in group} - {a.__chandle__() for a in left}
        return statements, [alloc for alloc in allocs if alloc.__chandle__() not in placed]

    def _users(self, statements: list[Any], allocs: Sequence[tirx.AllocBuffer]) -> list[list[int]]:
        """Return for each allocation which statements use it, other than itself."""
        found: dict[int, list[int]] = {alloc.buffer.__chandle__(): [] for alloc in allocs}
        own = {alloc.__chandle__() for alloc in allocs}
        for at, op in enumerate(statements):
            if op.__chandle__() not in own:
                # In any order: each list gets one entry a statement.
                for handle in found.keys() & self._contents(op).variables:
                    found[handle].append(at)
        return list(found.values())

    def _contents(self, op: Any) -> _Contents:
        handle = op.__chandle__()
        if handle not in self._known:
            self._known[handle] = _contents_of(op)
        return self._known[handle]

    def _mentions(self, op: Any, alloc: tirx.AllocBuffer) -> bool:
        """Whether a statement or expression uses a buffer, by whatever way."""
        return alloc.buffer.__chandle__() in self._contents(op).variables

    def _with_allocations(
        self, op: Any, allocs: Sequence[tirx.AllocBuffer], is_repeated: bool
    ) -> tuple[Any, list[tirx.AllocBuffer]]:
        """Return a statement with allocations in its body, and those that may not go there.

        If the statement is repeated between the allocation and its uses, an iteration must not read
        what an earlier iteration wrote.
        """
        if isinstance(op, tirx.IfThenElse):
            return self._branches_with_allocations(op, allocs, is_repeated)
        if not isinstance(op, tirx.For) or op.kind not in _ONE_AFTER_THE_OTHER:
            return op, list(allocs)
        bounds = [part for part in (op.min, op.extent, op.step) if part is not None]
        may_go: list[tirx.AllocBuffer] = []
        left: list[tirx.AllocBuffer] = []
        for alloc in allocs:
            in_bounds = any(self._mentions(part, alloc) for part in bounds)
            may_not = in_bounds or self._contents(op).keeps_pointers
            (left if may_not else may_go).append(alloc)
        body, more = self._body_with_allocations(op.body, may_go, is_repeated=True)
        if not body.same_as(op.body):
            parts = (op.loop_var, op.min, op.extent, op.kind, body, op.thread_binding)
            op = tirx.For(*parts, op.annotations, step=op.step)
        return op, left + more

    def _branches_with_allocations(
        self, op: tirx.IfThenElse, allocs: Sequence[tirx.AllocBuffer], is_repeated: bool
    ) -> tuple[Any, list[tirx.AllocBuffer]]:
        branches = [op.then_case, op.else_case]
        into: list[list[tirx.AllocBuffer]] = [[], []]
        left = []
        for alloc in allocs:
            uses = [case is not None and self._mentions(case, alloc) for case in branches]
            if self._mentions(op.condition, alloc) or all(uses):
                left.append(alloc)
            else:
                into[uses.index(True)].append(alloc)
        for at, group in enumerate(into):
            if group:
                branches[at], more = self._body_with_allocations(branches[at], group, is_repeated)
                left += more
        if len(left) < len(allocs):
            op = tirx.IfThenElse(op.condition, *branches)
        return op, left

    def _body_with_allocations(
        self, body: Any, allocs: Sequence[tirx.AllocBuffer], is_repeated: bool
    ) -> tuple[Any, list[tirx.AllocBuffer]]:
        """Place allocations in a body: further in, or in front of it."""
        statements = _statements(body)
        inner, rest = self._handed_down(statements, allocs, is_repeated)
        here: list[tirx.AllocBuffer] = []
        left: list[tirx.AllocBuffer] = []
        for alloc, used_in in zip(rest, self._users(statements, rest), strict=True):
            may = not is_repeated or self._writes_all(statements[used_in[0]], alloc)
            (here if may else left).append(alloc)
        if len(left) == len(allocs):
            return body, left
        inner = [*here, *inner]
        return (tirx.SeqStmt(inner) if len(inner) > 1 else inner[0]), left

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
        if self._mentions(op.value, alloc) or len(op.indices) != 1:
            return False
        size = int(alloc.buffer.ty.shape[0].value)
        loops = [loop for loop in loops if loop.extent.value != 1 or loop.min.value != 0]
        return LoopNest(loops, ((), ()), ()).takes_each(op.indices[0], size)


def _may_move(alloc: tirx.AllocBuffer) -> bool:
    ty = alloc.buffer.ty
    is_constant = len(ty.shape) == 1 and isinstance(ty.shape[0], tirx.IntImm)
    return is_constant and not len(alloc.annotations) and not len(ty.allocated_addr)


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
