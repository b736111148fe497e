# SPDX-License-Identifier: Apache-2.0
"""Each access to the allocations of a function: what it reads and writes, and what is around it.

One walk lists the loads, the stores and the addresses that are handed on, by allocation and in
program order. Whether an access happens in each round of a loop, or only where a condition holds,
is told by its enclosures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call

from passes.ir.linear_access import LinearAccess
from passes.ir.operators import (
    JUMPS,
    buffer_data_var,
    is_address_of,
    is_tvm_access_ptr,
    masked_index,
    operator_name,
    written_operands,
)
from passes.ir.statements import NodeVisitor, is_choice, nodes_of, parts_of

_READ, _WRITE = 1, 2  # The bits of what a pointer is for


@dataclass(frozen=True, eq=False, slots=True)
class Enclosure:
    """One part of a loop, a branch, an attribute or a choice, around an access.

    Of a branch and of a choice, part 1 is evaluated where the condition holds, and part 2 where it
    does not.
    """

    op: Any
    part: int
    number: int  # Counts visits of nodes: one object may stand in several places


Enclosures = tuple[Enclosure, ...]
"""The enclosures of something, outermost first."""


@dataclass(frozen=True, eq=False, slots=True)
class MemoryAccess:
    """One access to an allocation; one that may read and write reads first."""

    buffer: Var  # The name by which it is accessed
    reads: bool
    writes: bool
    # The index of its first element, which may be a vector; None where any may be accessed.
    index: Any
    extent: Any  # How many elements it accesses from there on; None for one
    bits: int  # Of one element
    around: Enclosures
    is_whole: bool = True  # Whether a write is of all elements that it names


@dataclass(frozen=True, eq=False)
class AllocationAccesses:
    """The accesses to one allocation in program order."""

    around: Enclosures  # Of the allocation
    accesses: tuple[MemoryAccess, ...]


@dataclass(frozen=True, eq=False)
class FunctionAccesses:
    """What the statements of a function do with its allocations."""

    # By index in `LinearAccess.allocs`; None for allocations that stand in several places.
    of: tuple[AllocationAccesses | None, ...]
    # What variables are bound to, and in which enclosures, by the handle of the variable.
    values: dict[int, Any]
    bound_in: dict[int, Enclosures]
    jumps: frozenset[int]  # The numbers of the enclosures in which control may leave a statement


def find_accesses(access: LinearAccess) -> FunctionAccesses:
    """List the accesses to each allocation of a function, by its own and by its other names."""
    return _AccessWalk(access).find()


class _AccessWalk(NodeVisitor):
    def __init__(self, access: LinearAccess) -> None:
        self._access = access
        self._found: list[list[MemoryAccess]] = [[] for _ in access.allocs]
        self._made: dict[int, list[Enclosures]] = {}
        self._values: dict[int, Any] = {}
        self._bound_in: dict[int, Enclosures] = {}
        self._jumps: set[int] = set()
        self._around: Enclosures = ()
        self._visits = 0

    def find(self) -> FunctionAccesses:
        self._visit(nodes_of(self._access.body))
        of = tuple(
            AllocationAccesses(made[0], tuple(found))
            if len(made := self._made.get(index, [])) == 1
            else None
            for index, found in enumerate(self._found)
        )
        return FunctionAccesses(of, self._values, self._bound_in, frozenset(self._jumps))

    def _root(self, buffer: Any) -> int:
        entry = None if buffer is None else self._access.buffers.get(buffer.__chandle__())
        return -1 if entry is None else entry.root

    def _visit_parts_of(self, op: Any, plain: int = 1) -> None:
        """Visit the parts of a node, of which all but the first are enclosed by it."""
        outer, number = self._around, self._visits
        self._visits += 1
        for part, nodes in enumerate(parts_of(op)):
            if part >= plain:
                self._around = (*outer, Enclosure(op, part, number))
            self._visit(nodes)
        self._around = outer

    _visit_attrstmt = _visit_ifthenelse = _visit_parts_of

    def _visit_for(self, op: tirx.For) -> None:
        self._visit_parts_of(op, 3)

    def _visit_while(self, op: tirx.While) -> None:
        self._visit_parts_of(op, 0)

    def _visit_choice(self, op: Any) -> None:
        # Without recursion: they nest as deep as a concatenation has tensors.
        outer = self._around
        waiting = [(op, outer)]
        while waiting:
            node, self._around = waiting.pop()
            if not is_choice(node):
                self._visit([node])
                continue
            number = self._visits
            self._visits += 1
            parts = [
                (inner, (*self._around, Enclosure(node, part, number)) if part else self._around)
                for part, nodes in enumerate(parts_of(node))
                for inner in nodes
            ]
            waiting += reversed(parts)
        self._around = outer

    # Definitions

    def _visit_allocbuffer(self, op: tirx.AllocBuffer) -> None:
        self._made.setdefault(self._root(op.buffer), []).append(self._around)
        self._visit_parts(op)

    def _visit_declbuffer(self, op: tirx.DeclBuffer) -> None:
        source = buffer_data_var(op.data)
        if source is None or not tirx.is_buffer_var(source):
            self._visit_parts(op)

    def _visit_bind(self, op: tirx.Bind | tirx.Let) -> None:
        key = op.var.__chandle__()
        self._values[key], self._bound_in[key] = op.value, self._around
        self._visit_parts(op)

    _visit_let = _visit_bind

    # Accesses

    def _note(self, buffer: Any, mask: int, index: Any, extent: Any = None, **said: Any) -> None:
        root = self._root(buffer)
        if root < 0:
            return
        dtype = said.pop("dtype", buffer.ty.dtype.dtype)
        reads, writes = bool(mask & _READ), bool(mask & _WRITE)
        bits = dtype.bits * max(dtype.lanes, 1)
        self._found[root].append(
            MemoryAccess(buffer, reads, writes, index, extent, bits, self._around, **said)
        )

    def _visit_tensorload(self, op: TensorLoad) -> None:
        self._visit_parts(op)
        self._note(op.source, _READ, _flat(op.indices))

    def _visit_bufferstore(self, op: tirx.BufferStore) -> None:
        self._visit_parts(op)
        self._note(op.buffer, _WRITE, _flat(op.indices))

    def _visit_var(self, buffer: Var) -> None:
        """Note a buffer that is handed on as a whole, so that any element may be accessed."""
        self._note(buffer, _READ | _WRITE, None, is_whole=False)

    def _visit_call(self, op: Call) -> None:
        if operator_name(op.op) in JUMPS:
            self._jumps.update(enclosure.number for enclosure in self._around)
        for operand in written_operands(op):
            self._visit_var(operand.source)
        at = masked_index(op)
        if at is not None:
            self._visit([node for part in parts_of(op)[1:] for node in part])
            mask = _READ if at == 1 else _WRITE
            self._note(op.args[0], mask, op.args[at], is_whole=False)
        elif is_address_of(op) and type(op.args[0]) is TensorLoad:
            self._visit_parts_of_address(op.args[0])
        elif is_tvm_access_ptr(op) and isinstance(op.args[4], tirx.IntImm):
            self._note_pointer(op)
        else:
            self._visit_parts(op)

    def _visit_parts_of_address(self, element: TensorLoad) -> None:
        self._visit_parts(element)
        self._visit_var(element.source)

    def _note_pointer(self, op: Call) -> None:
        dtype, data, offset, extent, mask = op.args
        source = buffer_data_var(data)
        if source is None:
            self._visit_parts(op)
            return
        self._visit([*nodes_of(offset), *nodes_of(extent)])
        # A mask of neither says nothing.
        said = mask.value & (_READ | _WRITE) or _READ | _WRITE
        self._note(source, said, offset, extent, dtype=dtype.ty.dtype)


def _flat(indices: Any) -> Any:
    """Return the one index of an access to flat memory; None where there are others."""
    return indices[0] if len(indices) == 1 else None
