# SPDX-License-Identifier: Apache-2.0
"""Whether memory is written before it is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import (
    AllocBuffer,
    BufferStore,
    DeclBuffer,
    For,
    IfThenElse,
    Select,
    While,
)

from passes.ir.buffers import buffer_data_var, is_address_of, is_tvm_access_ptr
from passes.ir.linear_access import LinearAccess
from passes.ir.structural import structural_visit, type_index
from passes.prim_func.memory_uses import AllocationUses

_CONDITIONAL = "prim.if_then_else"
_WRITES = 2  # The bit of a pointer's access mask.


def check_first_writes(
    body: Any, access: LinearAccess, uses: Sequence[AllocationUses], planned: Collection[int]
) -> None:
    """Refuse a function that reads memory before anything can have written it.

    A read under a condition in a loop that writes the memory later counts as a read of what an
    earlier iteration wrote, where the allocation is outside of the loop. Memory whose address is
    handed on counts as written.

    Parameters
    ----------
    body : tvm.tirx.Stmt
        Of the function.
    access, uses
        What is known of it.
    planned : collection of int
        The allocations to look at, by index.

    Raises
    ------
    ValueError
        The message names the buffer and its scope.
    """
    _Walk(access, uses, planned)(body)


class _Walk:
    def __init__(
        self, access: LinearAccess, uses: Sequence[AllocationUses], planned: Collection[int]
    ) -> None:
        self._access, self._uses = access, uses
        self._unwritten = set(planned)
        self._loops: list[int] = []
        self._made_in: dict[int, int] = {}  # The number of loops around an allocation.
        self._conditions = 0

    def __call__(self, body: Any) -> None:
        structural_visit(
            body,
            [
                (type_index(AllocBuffer), self._visit_alloc),
                (type_index(BufferStore), self._visit_store),
                (type_index(DeclBuffer), lambda _op, _visitor: None),
                (type_index(For), self._visit_for),
                (type_index(IfThenElse), self._visit_if),
                (type_index(While), self._visit_while),
                (type_index(TensorLoad), self._visit_load),
                (type_index(Select), self._visit_select),
                (type_index(Call), self._visit_call),
                (type_index(Var), self._visit_var),
            ],
        )

    def _index(self, buffer: Any) -> int | None:
        """Return the allocation behind a name, if nothing has written it yet."""
        entry = self._access.buffers.get(buffer.__chandle__())
        return entry.root if entry is not None and entry.root in self._unwritten else None

    def _write(self, buffer: Any) -> None:
        index = self._index(buffer)
        if index is not None:
            self._unwritten.discard(index)

    def _read(self, buffer: Any) -> None:
        index = self._index(buffer)
        if index is None or (self._conditions and self._is_carried(index)):
            return
        alloc = self._access.allocs[index]
        raise ValueError(f"buffer {alloc.name!r} in {alloc.scope}: error: read before first write")

    def _is_carried(self, index: int) -> bool:
        """Whether a loop around this place, and not around the allocation, writes the memory."""
        uses, loops = self._uses[index], set(self._loops[self._made_in[index] :])
        arounds = [*(site.around for site in uses.stores), *uses.handed_on]
        return any(op.__chandle__() in loops for around in arounds for op in around)

    # Statements

    def _visit_alloc(self, op: AllocBuffer, _visitor: Any) -> None:
        entry = self._access.buffers[op.buffer.__chandle__()]
        self._made_in[entry.root] = len(self._loops)

    def _visit_store(self, op: BufferStore, visitor: Any) -> None:
        visitor.visit(op.value)
        visitor.visit(op.indices)
        self._write(op.buffer)

    def _visit_for(self, op: For, visitor: Any) -> None:
        visitor.visit(op.min)
        visitor.visit(op.extent)
        self._loops.append(op.__chandle__())
        visitor.visit(op.body)
        self._loops.pop()

    def _visit_while(self, op: While, visitor: Any) -> None:
        self._loops.append(op.__chandle__())
        visitor.visit(op.condition)
        visitor.visit(op.body)
        self._loops.pop()

    def _visit_if(self, op: IfThenElse, visitor: Any) -> None:
        visitor.visit(op.condition)
        self._under_condition(visitor, op.then_case, op.else_case)

    # Expressions

    def _visit_load(self, op: TensorLoad, visitor: Any) -> None:
        visitor.visit(op.indices)
        self._read(op.source)

    def _visit_select(self, op: Select, visitor: Any) -> None:
        visitor.visit(op.condition)
        self._under_condition(visitor, op.true_value, op.false_value)

    def _visit_call(self, op: Call, visitor: Any) -> None:
        if str(getattr(op.op, "name", "")) == _CONDITIONAL:
            visitor.visit(op.args[0])
            self._under_condition(visitor, *op.args[1:])
        elif is_address_of(op) and isinstance(op.args[0], TensorLoad):
            visitor.visit(op.args[0].indices)
            self._write(op.args[0].source)
        elif is_tvm_access_ptr(op):
            buffer = buffer_data_var(op.args[1])
            if buffer is not None and not int(op.args[4].value) & _WRITES:
                self._read(buffer)
            elif buffer is not None:
                self._write(buffer)
            visitor.visit(op.args[2])
        else:
            visitor.default_visit(op)

    def _visit_var(self, op: Var, _visitor: Any) -> None:
        # Stores and loads do not come here: the address is handed on.
        self._write(op)

    def _under_condition(self, visitor: Any, *parts: Any) -> None:
        self._conditions += 1
        for part in parts:
            if part is not None:
                visitor.visit(part)
        self._conditions -= 1
