# SPDX-License-Identifier: Apache-2.0
"""How each allocation's memory is used: through which names, as which types, by which threads.

The linear access sequence says *when* memory is touched. This module finds which pointers to it are
kept beyond the statement that makes them, and where stores write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx.stmt import AttrStmt

from passes.ir import LinearAccess, does_not_wrap, items
from passes.ir.operators import (
    STORES,
    buffer_data_var,
    is_address_of,
    is_tvm_access_ptr,
    masked_index,
    operator_name,
    written_operands,
)
from passes.ir.statements import NodeVisitor, nodes_of, parts_of
from passes.prim_func.carried_values import carrying_loops
from passes.prim_func.module_calls import ASYNCHRONOUS_SCOPES, is_done_on_return

DEFAULT_ALIGNMENT = 64
"""Default alignment in bytes, for a memory that no target describes.

TVM's runtime gives every allocation this alignment (``kAllocAlignment``), and extern code may
count on it.
"""

VECTOR_ALIGNMENT = 64
"""The most alignment in bytes that a wide access asks for: that of a cache line."""

_PARALLEL_LOOP, _THREAD_LOOP = int(tirx.ForKind.PARALLEL), int(tirx.ForKind.THREAD_BINDING)
_PARALLEL_REGION = "pragma_parallel_launch_point"
"""The attribute of statements that each thread of a CPU runs, with memory of its own."""

_LEND = (tirx.AssertStmt, tirx.Evaluate, tirx.For, tirx.IfThenElse, tirx.While)
"""Statements that lend an address for the time that they take; others may keep it."""

_READ_OR_WRITE = (1, 2, 3)  # Masks of `tvm_access_ptr` that say what is done at the address

Around = tuple[Any, ...]
"""The statements with a body that enclose something, outermost first."""


@dataclass(frozen=True, eq=False)
class StoreSite:
    """One place where memory is written by a plain store."""

    store: tirx.BufferStore
    around: Around


@dataclass(eq=False, slots=True)
class AllocationUses:
    """One allocation of a function, and how its memory is used."""

    index: int  # In ``access.allocs``
    statement: tirx.AllocBuffer
    count: int = 0  # In how many places of the body its statement stands
    # The handle of the innermost parallel loop, parallel region or thread extent around it: each
    # iteration or thread has memory of its own. None for the whole function.
    owner: int | None = None
    # Whether its owner has several threads that run at the same time on this memory. A block of one
    # thread has memory of its own.
    by_threads: bool = False
    # The innermost loop around it, whose iterations take turns with its slots.
    loop: tirx.For | tirx.While | None = None
    # The outermost loop around it that may carry a value in it from one round to the next.
    carrying: tirx.For | tirx.While | None = None
    # The element types by which indices count: those of its names and of pointers into it.
    dtypes: dict[Any, None] = field(default_factory=dict)
    accessed: dict[Any, None] = field(default_factory=dict)  # The types of its loads and stores
    # The types of its indices, and of the offsets of pointers into it.
    indexed: dict[Any, None] = field(default_factory=dict)
    # Its other names: buffers declared on its memory.
    aliases: list[Var] = field(default_factory=list)
    stores: list[StoreSite] = field(default_factory=list)  # Where it is written by a store
    # Where its address is handed on, so that not all accesses are seen.
    handed_on: list[Around] = field(default_factory=list)
    # Whether its address is handed on other than by `tvm_access_ptr`, which says what is read and
    # written there.
    is_hidden: bool = False
    # Whether something may keep its address beyond a statement, or go on reading or writing it.
    escapes: bool = False

    def alignment(self, growth: Callable[[Any], int] = lambda _dtype: 1) -> int:
        """Return the bytes that an offset of its memory is a multiple of.

        `growth` says how many times as wide as declared the elements of a type are.
        """
        alignment = asked_alignment(self.statement.buffer) or 1
        for dtype in self.dtypes:
            nbytes = -(-dtype.bits * growth(dtype) * dtype.lanes // 8)
            alignment = math.lcm(alignment, max(1, nbytes))
        for dtype in self.accessed:
            width = -(-dtype.bits * growth(dtype) * max(dtype.lanes, 1) // 8)
            power_of_two = 1 << max(width - 1, 0).bit_length()
            alignment = math.lcm(alignment, min(power_of_two, VECTOR_ALIGNMENT))
        return alignment

    @property
    def has_movable_indices(self) -> bool:
        """Whether something may be added to each index: narrow and unsigned types would wrap."""
        return all(does_not_wrap(dtype) for dtype in self.indexed)


def asked_alignment(buffer: Var) -> int | None:
    """Return the alignment in bytes that the program asks for; None for TVM's default.

    TVM writes `DEFAULT_ALIGNMENT` into each buffer that asks for none, so a program that asks for
    just that cannot be told from one that asks for nothing.
    """
    alignment = int(buffer.ty.data_alignment)
    return None if alignment == DEFAULT_ALIGNMENT else alignment


def find_memory_uses(
    access: LinearAccess, lasting: frozenset[str] = frozenset()
) -> tuple[AllocationUses, ...]:
    """List how memory is used, by the index of the allocation in ``access.allocs``.

    A pointer that is an argument of a call in an `Evaluate` statement, or in the bounds or the
    condition of a statement, is lent for the time of that statement: extern code keeps no
    pointers. Anywhere else, in a `Bind`, a `Return`, the value of a store, an attribute, a `Let`,
    or a buffer declared on a computed address, it may be kept, and the memory *escapes*. So does
    what is given to a call whose effect may end after it returns, such as an asynchronous copy,
    what is read or written where TVM makes such copies of loads and stores, and in what all threads
    of a CPU run. `lasting` is that of `is_done_on_return`.

    ValueError is raised when one name is declared for the memory of two allocations, a thread
    extent begins inside another scope of threads, or a loop is still bound to a thread.
    """
    return _Walk(access, lasting).find()


class _Walk(NodeVisitor):
    def __init__(self, access: LinearAccess, lasting: frozenset[str]) -> None:
        self._access, self._lasting = access, lasting
        self._of = tuple(AllocationUses(*each) for each in enumerate(access.alloc_stmts))
        self._around: list[Any] = []
        self._owners: list[int] = []
        self._in_thread_env = False
        self._threaded: set[int] = set()
        # Whether the expression that the walk is in may keep an address that it is given.
        self._keeps = False
        self._told = 0  # The handle of the buffer of which a `tvm_access_ptr` around tells the use
        # Whether the statement that the walk is in may still read or write after it is done.
        self._goes_on = False

    def find(self) -> tuple[AllocationUses, ...]:
        self._visit(nodes_of(self._access.body))
        for uses in self._of:
            uses.by_threads = uses.owner in self._threaded
        in_loops = [uses.index for uses in self._of if uses.loop is not None]
        if in_loops:
            owners = [uses.owner for uses in self._of]
            for index, loop in carrying_loops(self._access, in_loops, owners).items():
                self._of[index].carrying = loop
        return self._of

    def _visit_parts(self, op: Any) -> None:
        outer = self._keeps
        if isinstance(op, tirx.Stmt):
            self._keeps = not isinstance(op, _LEND)
        super()._visit_parts(op)
        self._keeps = outer

    def _uses(self, buffer: Var) -> AllocationUses | None:
        """Return what is known of the memory that a variable names."""
        entry = self._access.buffers.get(buffer.__chandle__())
        return self._of[entry.root] if entry is not None and entry.root >= 0 else None

    # Definitions

    def _visit_allocbuffer(self, op: tirx.AllocBuffer) -> None:
        uses = self._uses(op.buffer)
        if uses is None:
            raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
        uses.count += 1
        uses.owner = self._owners[-1] if self._owners else None
        loops = [around for around in self._around if isinstance(around, (tirx.For, tirx.While))]
        uses.loop = loops[-1] if loops else None
        uses.dtypes[op.buffer.ty.dtype.dtype] = None
        self._visit_parts(op)

    def _visit_declbuffer(self, op: tirx.DeclBuffer) -> None:
        uses, source = self._uses(op.buffer), buffer_data_var(op.data)
        if source is None or not tirx.is_buffer_var(source):
            if uses is not None:
                raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
            self._visit_parts(op)
        elif self._uses(source) is not uses:
            raise ValueError(
                f"buffer {op.buffer.name!r} is declared as a name of different memory in "
                "different places"
            )
        elif uses is not None:
            uses.aliases.append(op.buffer)
            uses.dtypes[op.buffer.ty.dtype.dtype] = None

    # Statements with a body

    def _visit_body(self, op: Any, is_owner: bool = False) -> None:
        owners = [op.__chandle__()] if is_owner else []
        self._around.append(op)
        self._owners += owners
        self._visit_parts(op)
        self._around.pop()
        del self._owners[len(self._owners) - len(owners) :]

    _visit_ifthenelse = _visit_while = _visit_body

    def _visit_for(self, op: tirx.For) -> None:
        if op.kind == _THREAD_LOOP:
            raise ValueError(
                f"loop {op.loop_var.name!r} is bound to a thread; run LowerOpaqueBlock first"
            )
        is_parallel = op.kind == _PARALLEL_LOOP
        if is_parallel and self._owners and self._owners[-1] in self._threaded:
            self._threaded.add(op.__chandle__())
        self._visit_body(op, is_parallel)

    def _visit_attrstmt(self, op: AttrStmt) -> None:
        name, before = op.attr_key, (self._in_thread_env, self._goes_on)
        is_thread = name == "thread_extent" and not self._in_thread_env
        if name == "virtual_thread" and self._in_thread_env:
            raise ValueError("a virtual thread begins inside a thread extent")
        self._in_thread_env |= is_thread
        self._goes_on |= name in ASYNCHRONOUS_SCOPES or name == _PARALLEL_REGION
        is_owner = is_thread or name in ("virtual_thread", _PARALLEL_REGION)
        # An extent without the tag of a thread may be of any thread.
        tag = str(getattr(op.node, "thread_tag", ""))
        if name == "virtual_thread" or (
            name == "thread_extent" and not tag.startswith("blockIdx.")
        ):
            self._threaded.update((*self._owners, op.__chandle__()))
        self._visit_body(op, is_owner)
        self._in_thread_env, self._goes_on = before

    # Accesses

    def _visit_bufferstore(self, op: tirx.BufferStore) -> None:
        self._note_access(op.buffer, op.value.ty.dtype, items(op.indices))
        uses = self._uses(op.buffer)
        if uses is not None:
            uses.stores.append(StoreSite(op, tuple(self._around)))
        self._visit_parts(op)

    def _visit_tensorload(self, op: TensorLoad) -> None:
        self._note_access(op.source, op.ty.dtype, items(op.indices))
        self._visit_parts(op)

    def _note_access(self, buffer: Var, dtype: Any, indices: Sequence[Any]) -> None:
        uses = self._uses(buffer)
        if uses is not None:
            uses.accessed[dtype] = None
            uses.indexed.update((index.ty.dtype, None) for index in indices)
            uses.escapes |= self._goes_on

    # Addresses

    def _visit_let(self, op: tirx.Let) -> None:
        # What its variable is given to is not followed.
        value, body = parts_of(op)
        outer, self._keeps = self._keeps, True
        self._visit(value)
        self._keeps = outer
        self._visit(body)

    def _visit_call(self, op: Call) -> None:
        keeps, told = self._keeps, self._told
        self._keeps |= not is_done_on_return(op, self._lasting)
        for operand in written_operands(op):
            self._visit_var(operand.source)
        if is_address_of(op) and type(op.args[0]) is TensorLoad:
            self._visit_var(op.args[0].source)
        at = masked_index(op)
        if at is not None:
            self._keeps = False  # A value is read or written, and no address is kept.
            value = op if at == 1 else op.args[1]
            self._note_access(op.args[0], value.ty.dtype, [op.args[at]])
        if is_tvm_access_ptr(op):
            self._note_pointer(op)
        first_stored = STORES.get(operator_name(op.op), len(op.args))
        for number, part in enumerate(parts_of(op)):
            self._keeps |= number >= first_stored
            self._visit(part)
        self._keeps, self._told = keeps, told

    def _note_pointer(self, op: Call) -> None:
        dtype, data, offset, _, mask = op.args
        source = buffer_data_var(data)
        if source is None:
            return
        uses = self._uses(source)
        if uses is not None:
            uses.dtypes[dtype.ty.dtype] = None
            uses.indexed[offset.ty.dtype] = None
        if isinstance(mask, tirx.IntImm) and mask.value in _READ_OR_WRITE:
            self._told = source.__chandle__()

    def _visit_var(self, buffer: Var) -> None:
        """Note that the address of a buffer's memory is an operand."""
        uses = self._uses(buffer)
        if uses is not None:
            uses.handed_on.append(tuple(self._around))
            uses.is_hidden |= buffer.__chandle__() != self._told
            uses.escapes |= self._keeps or self._goes_on
