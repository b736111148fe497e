# SPDX-License-Identifier: Apache-2.0
"""Expressions that have one value for all threads of a block.

A barrier counts only where all threads come by equally often, so what decides over the statements
around it must not differ between them. A value differs if it is made from the number of a thread, a
register that differs, or a call that is not known. A value read from memory that threads share, at
an index that does not differ, is the same for all: the program itself has no races.
"""

from __future__ import annotations

from typing import Any

from passes.ir import tir
from passes.ir.accesses import FunctionAccesses, MemoryAccess
from passes.ir.linear_access import LinearAccess
from passes.ir.operators import (
    THREAD_INVARIANT,
    buffer_data_var,
    is_same_for_all_threads,
    operator_name,
)
from passes.ir.statements import begins_threads
from passes.ir.structural import nodes_in
from target_hw.storage_scope import parse_storage_scope


class Uniformity:
    """Knows what differs between the threads of a block, in one kernel."""

    def __init__(
        self, kernel: tir.Attribute, access: LinearAccess, found: FunctionAccesses
    ) -> None:
        self._access = access
        self._differ: set[int] = set()
        bindings: list[tir.Binding] = []
        for op in nodes_in(kernel, tir.Attribute, tir.Binding, tir.Declaration):
            if isinstance(op, tir.Binding):
                bindings.append(op)
            elif isinstance(op, tir.Declaration):
                if not tir.is_buffer(buffer_data_var(op.data)):
                    self._mark(op.buffer)  # It may be a register whose address was taken.
            elif begins_threads(op) and tir.constant(op.value) != 1:
                self._mark(op.node.var)
        stores: list[MemoryAccess] = []
        for each in (each for accesses in found.by_statement.values() for each in accesses):
            if each.writes and self._is_of_one_thread(each.buffer, found):
                if each.is_address:
                    self._mark(each.buffer)  # A callee that is given its address may write it.
                elif any(around.op.same_as(kernel) for around in each.around):
                    stores.append(each)
        count = -1
        while count < len(self._differ):  # A loop's body is read before what its end stores.
            count = len(self._differ)
            for op in bindings:
                if not self.is_uniform(op.value):
                    self._mark(op.var)
            for each in stores:
                is_met = all(self.is_entered_together(around.op) for around in each.around)
                if not (is_met and self.is_uniform(each.op.value, *each.op.indices)):
                    self._mark(each.buffer)

    def is_uniform(self, *exprs: Any) -> bool:
        """Return whether expressions have one value for all threads; None counts as such."""
        return all(expr is None or self._is_uniform(expr) for expr in exprs)

    def loops_alike(self, op: tir.Loop) -> bool:
        """Return whether threads that reach a loop together take its iterations together."""
        return self.is_uniform(op.min, op.extent, op.step)

    def is_entered_together(self, op: Any) -> bool:
        """Return whether threads that reach a statement together go through its body together."""
        if isinstance(op, tir.Loop):
            return self.loops_alike(op)
        return not isinstance(op, (tir.If, tir.While)) or self.is_uniform(op.condition)

    def _is_uniform(self, expr: Any) -> bool:
        if type(expr) is tir.Call and operator_name(expr.op) == THREAD_INVARIANT:
            return True
        names = (operator_name(call.op) for call in nodes_in(expr, tir.Call))
        differs = any(self._key(var) in self._differ for var in nodes_in(expr, tir.Var))
        return not differs and all(map(is_same_for_all_threads, names))

    def _key(self, var: tir.Var) -> int:
        """Return the handle of a variable, or of the memory that a buffer is another name of."""
        known = self._access.buffers.get(var.__chandle__())
        if known is not None and known.root >= 0:
            return self._access.alloc_keys[known.root]
        return int(var.__chandle__())

    def _mark(self, var: tir.Var) -> None:
        self._differ.add(self._key(var))

    def _is_of_one_thread(self, buffer: tir.Var, found: FunctionAccesses) -> bool:
        rank = parse_storage_scope(str(buffer.ty.storage_scope)).rank
        known = self._access.buffers.get(buffer.__chandle__())
        # An allocation of a kernel in global memory is an array of each thread.
        is_outside = known is None or known.root < 0 or found.of[known.root].owner is None
        return rank != "shared" and not (rank == "global" and is_outside)
