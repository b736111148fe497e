# SPDX-License-Identifier: Apache-2.0
"""Expressions that have one value for all threads of a block.

A barrier counts only where all threads come by equally often, so what decides over the statements
around it must not differ between them. A value differs if it is made from the number of a thread, a
register that differs, or a call that is not known. A value read from memory that threads share, at
an index that does not differ, is the same for all: the program itself has no races.
"""

from __future__ import annotations

from typing import Any

from passes.ir import LinearAccess, nodes_in, tir
from passes.ir.operators import (
    THREAD_INVARIANT,
    buffer_data_var,
    is_same_for_all_threads,
    operator_name,
    written_operands,
)
from passes.ir.statements import nodes_of
from target_hw.storage_scope import parse_storage_scope


class Uniformity:
    """Knows what differs between the threads of a block, in one kernel."""

    def __init__(self, kernel: tir.Attribute, access: LinearAccess) -> None:
        self._access = access
        # A callee that is given the address of a register may write it.
        self._differ = {
            access.alloc_keys[at]
            for at in access.escaped
            if _is_of_one_thread(access.alloc_stmts[at].buffer)
        }
        for call in nodes_in(kernel, tir.Call):
            for operand in written_operands(call):
                if _is_of_one_thread(operand.source):
                    self._mark(operand.source)
        count = -1
        while count < len(self._differ):  # A loop's body is read before what its end stores.
            count = len(self._differ)
            self._visit(kernel, True)

    def is_uniform(self, *exprs: Any) -> bool:
        """Return whether expressions have one value for all threads; None counts as such."""
        return all(expr is None or self._is_uniform(expr) for expr in exprs)

    def _is_uniform(self, expr: Any) -> bool:
        if type(expr) is tir.Call and operator_name(expr.op) == THREAD_INVARIANT:
            return True
        names = (operator_name(call.op) for call in nodes_in(expr, tir.Call))
        differs = any(self._key(var) in self._differ for var in nodes_in(expr, tir.Var))
        return not differs and all(map(is_same_for_all_threads, names))

    def _key(self, var: tir.Var) -> int:
        """Return the handle of a variable, or of the memory that a buffer is another name of."""
        key = int(var.__chandle__())
        known = self._access.buffers.get(key)
        if known is not None and known.root >= 0:
            return self._access.alloc_keys[known.root]
        return key

    def _mark(self, var: tir.Var) -> None:
        self._differ.add(self._key(var))

    def _visit(self, body: Any, here: bool) -> None:
        """Visit statements; `here` says whether all threads come by them together."""
        for op in nodes_of(body):
            if isinstance(op, tir.Attribute):
                if op.attr_key == "thread_extent" and is_thread(op):
                    self._mark(op.node.var)
                self._visit(op.body, here)
            elif isinstance(op, tir.Loop):
                inside = here and self.loops_alike(op)
                if not inside:
                    self._mark(op.loop_var)
                self._visit(op.body, inside)
            elif isinstance(op, tir.While):
                self._visit(op.body, here and self.is_uniform(op.condition))
            elif isinstance(op, tir.If):
                inside = here and self.is_uniform(op.condition)
                self._visit(op.then_case, inside)
                self._visit(op.else_case, inside)
            elif isinstance(op, tir.Binding):
                if not self.is_uniform(op.value):
                    self._mark(op.var)
            elif isinstance(op, tir.Declaration):
                if not tir.is_buffer(buffer_data_var(op.data)):
                    self._mark(op.buffer)  # It may be a register whose address was taken.
            elif isinstance(op, tir.Store):
                is_alike = here and self.is_uniform(op.value, *op.indices)
                if _is_of_one_thread(op.buffer) and not is_alike:
                    self._mark(op.buffer)

    def loops_alike(self, op: tir.Loop) -> bool:
        """Return whether threads that reach a loop together take its iterations together."""
        return self.is_uniform(op.min, op.extent, op.step)


def is_thread(op: tir.Attribute) -> bool:
    """Return whether an attribute begins more than one thread of a block along an axis."""
    is_one = isinstance(op.value, tir.IntConstant) and op.value.value == 1
    tag = str(getattr(op.node, "thread_tag", ""))
    return not is_one and not tag.startswith(("blockIdx.", "clusterCtaIdx."))


def _is_of_one_thread(buffer: tir.Var) -> bool:
    return parse_storage_scope(str(buffer.ty.storage_scope)).rank not in ("global", "shared")
