# SPDX-License-Identifier: Apache-2.0
"""Whether memory is written before it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tvm.ir import TensorLoad

from passes.ir.linear_access import LinearAccess
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr
from passes.ir.statements import (
    Alloc,
    Branch,
    Call,
    Conditional,
    Declare,
    ForLoop,
    Load,
    Name,
    Records,
    Store,
    WhileLoop,
    parts_of,
)
from passes.prim_func.memory_uses import AllocationUses

_WRITES = 2  # The bit of a pointer's access mask.


def check_first_writes(
    statements: Records,
    access: LinearAccess,
    uses: Sequence[AllocationUses],
    planned: Collection[int],
) -> None:
    """Refuse a function that reads one of the planned allocations before anything has written it.

    A read under a condition in a loop that writes the memory later counts as a read of what an
    earlier iteration wrote, where the allocation is outside of the loop. Memory whose address is
    handed on counts as written. ValueError names the buffer and its scope.
    """
    _Walk(access, uses, planned).visit(statements)


class _Walk:
    def __init__(
        self, access: LinearAccess, uses: Sequence[AllocationUses], planned: Collection[int]
    ) -> None:
        self._access, self._uses = access, uses
        self._unwritten = set(planned)
        self._loops: list[int] = []
        self._made_in: dict[int, int] = {}  # The number of loops around an allocation.
        self._conditions = 0
        self._visitors: dict[type, Callable[[Any], None]] = {
            Alloc: self._visit_alloc,
            Branch: self._visit_choice,
            Call: self._visit_call,
            Conditional: self._visit_choice,
            Declare: lambda _declare: None,
            Load: self._visit_load,
            ForLoop: lambda loop: self._visit_loop(loop, loop.bounds, (loop.body,)),
            # Stores and loads do not come here: the address is handed on.
            Name: lambda name: self._write(name.key),
            WhileLoop: lambda loop: self._visit_loop(loop, (), parts_of(loop)),
            Store: self._visit_store,
        }

    def visit(self, records: Records) -> None:
        """Go through records in the order of the program."""
        for record in records:
            self._visitors.get(type(record), self._visit_parts)(record)

    def _visit_parts(self, record: Any) -> None:
        for part in parts_of(record):
            self.visit(part)

    def _write(self, key: int) -> None:
        entry = self._access.buffers.get(key)
        if entry is not None:
            self._unwritten.discard(entry.root)

    def _read(self, key: int) -> None:
        entry = self._access.buffers.get(key)
        if entry is None or entry.root not in self._unwritten:
            return
        if self._conditions and self._is_carried(entry.root):
            return
        alloc = self._access.allocs[entry.root]
        raise ValueError(f"buffer {alloc.name!r} in {alloc.scope}: error: read before first write")

    def _is_carried(self, index: int) -> bool:
        """Whether a loop around this place, and not around the allocation, writes the memory."""
        uses, loops = self._uses[index], set(self._loops[self._made_in[index] :])
        arounds = [*(site.around for site in uses.stores), *uses.handed_on]
        return any(record.key in loops for around in arounds for record in around)

    # Statements

    def _visit_alloc(self, alloc: Alloc) -> None:
        self._made_in[self._access.buffers[alloc.key].root] = len(self._loops)

    def _visit_store(self, store: Store) -> None:
        self._visit_parts(store)
        self._write(store.key)

    def _visit_loop(
        self, loop: ForLoop | WhileLoop, before: Sequence[Records], repeated: Sequence[Records]
    ) -> None:
        for part in before:
            self.visit(part)
        self._loops.append(loop.key)
        for part in repeated:
            self.visit(part)
        self._loops.pop()

    # Expressions

    def _visit_load(self, load: Load) -> None:
        self.visit(load.indices)
        self._read(load.key)

    def _visit_call(self, call: Call) -> None:
        op = call.op
        if is_address_of(op) and isinstance(op.args[0], TensorLoad):
            (load,) = call.args[0]
            self.visit(load.indices)
            self._write(load.key)
        elif is_tvm_access_ptr(op):
            buffer = buffer_data_var(op.args[1])
            if buffer is not None and not int(op.args[4].value) & _WRITES:
                self._read(buffer.__chandle__())
            elif buffer is not None:
                self._write(buffer.__chandle__())
            self.visit(call.args[2])
        else:
            for arg in call.args:
                self.visit(arg)

    def _visit_choice(self, choice: Branch | Conditional) -> None:
        condition, *cases = parts_of(choice)
        self.visit(condition)
        self._conditions += 1
        for case in cases:
            self.visit(case)
        self._conditions -= 1
