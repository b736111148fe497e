# SPDX-License-Identifier: Apache-2.0
"""Whether memory is written before it is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm.ir import TensorLoad

from passes.ascend.analysis.computations import WRITES, access_mask
from passes.ir import LinearAccess
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr, masked_index
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
    RecordVisitor,
    Store,
    WhileLoop,
)
from passes.prim_func import AllocationUses


def check_first_writes(
    access: LinearAccess, uses: Sequence[AllocationUses], planned: Collection[int]
) -> None:
    """Refuse a function that reads one of the planned allocations before anything has written it.

    A read under a condition in a loop that writes the memory later counts as a read of what an
    earlier iteration wrote, where the allocation is outside of the loop. Memory whose address is
    handed on counts as written. ValueError names the buffer and its scope.
    """
    _Walk(access, uses, planned).check()


class _Walk(RecordVisitor):
    def __init__(
        self, access: LinearAccess, uses: Sequence[AllocationUses], planned: Collection[int]
    ) -> None:
        self._access, self._uses = access, uses
        self._unwritten = set(planned)
        self._loops: list[int] = []
        self._made_in: dict[int, int] = {}  # The number of loops around an allocation.
        self._conditions = 0

    def check(self) -> None:
        self._visit(self._access.statements)

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

    def _visit_declare(self, _declare: Declare) -> None:
        """Give memory another name."""

    def _visit_store(self, store: Store) -> None:
        self._visit_parts(store)
        self._write(store.key)

    def _visit_forloop(self, loop: ForLoop) -> None:
        for bound in loop.bounds:
            self._visit(bound)
        self._visit_repeated(loop, loop.body)

    def _visit_whileloop(self, loop: WhileLoop) -> None:
        self._visit_repeated(loop, loop.condition, loop.body)

    def _visit_repeated(self, loop: ForLoop | WhileLoop, *parts: Records) -> None:
        self._loops.append(loop.key)
        for part in parts:
            self._visit(part)
        self._loops.pop()

    def _visit_branch(self, branch: Branch) -> None:
        self._visit(branch.condition)
        self._conditions += 1
        for case in branch.cases:
            self._visit(case)
        self._conditions -= 1

    # Expressions

    def _visit_load(self, load: Load) -> None:
        self._visit(load.indices)
        self._read(load.key)

    def _visit_call(self, call: Call) -> None:
        op = call.op
        if is_address_of(op) and isinstance(op.args[0], TensorLoad):
            (load,) = call.args[0]
            self._visit(load.indices)
            self._write(load.key)
        elif is_tvm_access_ptr(op):
            buffer = buffer_data_var(op.args[1])
            if buffer is not None:
                (self._write if access_mask(op) & WRITES else self._read)(buffer.__chandle__())
            self._visit(call.args[2])
        elif masked_index(op) is not None:
            for arg in call.args[1:]:
                self._visit(arg)
            (self._read if masked_index(op) == 1 else self._write)(op.args[0].__chandle__())
        else:
            for arg in call.args:
                self._visit(arg)

    def _visit_conditional(self, choice: Conditional) -> None:
        self._visit(choice.condition)
        self._conditions += 1
        super()._visit_conditional(choice._replace(condition=()))
        self._conditions -= 1

    def _visit_name(self, name: Name) -> None:
        # Stores and loads do not come here: the address is handed on.
        self._write(name.key)
