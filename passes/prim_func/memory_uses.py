# SPDX-License-Identifier: Apache-2.0
"""How each allocation's memory is used: through which names, as which types, by which threads.

The linear access sequence says *when* memory is touched. This module finds which pointers to it are
kept beyond the statement that makes them, and where stores write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.tirx import BufferStore, Evaluate, For, ForKind, IntImm, While, is_buffer_var

from passes.ir import LinearAccess, does_not_wrap, items
from passes.ir import statements as records
from passes.ir.operators import (
    STORES,
    buffer_data_var,
    is_address_of,
    is_tvm_access_ptr,
    masked_index,
    operator_name,
    written_operands,
)
from passes.prim_func.module_calls import ASYNCHRONOUS_SCOPES, is_done_on_return
from passes.prim_func.problem_options import DEFAULT_ALIGNMENT

VECTOR_ALIGNMENT = 64
"""The most alignment in bytes that a wide access asks for: that of a cache line."""

_PARALLEL_LOOP, _THREAD_LOOP = int(ForKind.PARALLEL), int(ForKind.THREAD_BINDING)
_PARALLEL_REGION = "pragma_parallel_launch_point"
"""The attribute of statements that each thread of a CPU runs, with memory of its own."""

_READ_OR_WRITE = (1, 2, 3)  # What `tvm_access_ptr` says is done there: its last argument.


@dataclass(frozen=True, eq=False)
class StoreSite:
    """One place where memory is written by a plain store."""

    record: records.Store  # The statement
    around: tuple[Any, ...]  # The records with a body that enclose it, outermost first

    @property
    def store(self) -> BufferStore:
        """The statement in the IR."""
        return self.record.op


@dataclass(frozen=True, eq=False, slots=True)
class AllocationUses:
    """How the memory of one allocation is used."""

    count: int = 0  # In how many places of the body its statement stands
    # The handle of the innermost parallel loop, parallel region or thread extent around it: each
    # iteration or thread has memory of its own. None for the whole function.
    owner: int | None = None
    # Whether its owner has several threads that run at the same time on this memory. A block of one
    # thread has memory of its own.
    by_threads: bool = False
    loop: For | While | None = None  # The innermost loop around it
    # The element types by which indices count: those of its names and of pointers into it.
    dtypes: dict[Any, None] = field(default_factory=dict)
    accessed: dict[Any, None] = field(default_factory=dict)  # The types of its loads and stores
    # The types of its indices, and of the offsets of pointers into it.
    indexed: dict[Any, None] = field(default_factory=dict)
    # Its other names: buffers declared on its memory.
    aliases: list[Var] = field(default_factory=list)
    stores: list[StoreSite] = field(default_factory=list)  # Where it is written by a store
    # Where its address is handed on, so that not all accesses are seen: the records with a body
    # that enclose each place, outermost first.
    handed_on: list[tuple[Any, ...]] = field(default_factory=list)
    # Whether its address is handed on other than by `tvm_access_ptr`, which says what is read and
    # written there.
    is_hidden: bool = False
    # Whether something may keep its address beyond a statement, or go on reading or writing it.
    escapes: bool = False

    def alignment(self, buffer: Var, growth: Callable[[Any], int] = lambda _dtype: 1) -> int:
        """Return the bytes that an offset of its memory, and of its buffer, is a multiple of.

        `growth` says how many times as wide as declared the elements of a type are.
        """
        alignment = 1
        for dtype in self.dtypes:
            nbytes = -(-dtype.bits * growth(dtype) * dtype.lanes // 8)
            alignment = math.lcm(alignment, max(1, nbytes))
        for dtype in self.accessed:
            width = -(-dtype.bits * growth(dtype) * max(dtype.lanes, 1) // 8)
            power_of_two = 1 << max(width - 1, 0).bit_length()
            alignment = math.lcm(alignment, min(power_of_two, VECTOR_ALIGNMENT))
        return math.lcm(alignment, asked_alignment(buffer) or 1)

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


class _Walk(records.RecordVisitor):
    def __init__(self, access: LinearAccess, lasting: frozenset[str]) -> None:
        self._lasting = lasting
        self._of = [AllocationUses() for _ in access.allocs]
        self._access, self._buffers = access, access.buffers
        self._around: list[Any] = []
        self._owners: list[int] = []
        self._in_thread_env = False
        self._threaded: set[int] = set()
        # Whether the expression that the walk is in may keep an address that it is given.
        self._keeps = False
        self._told = 0
        # Whether the statement that the walk is in may still read or write after it is done.
        self._goes_on = False

    def find(self) -> tuple[AllocationUses, ...]:
        self._visit(self._access.statements)
        return tuple(
            replace(uses, by_threads=True) if uses.owner in self._threaded else uses
            for uses in self._of
        )

    def _visit_kept(self, record: Any, keeps: bool = True) -> None:
        """Visit the parts of a record, in which addresses may be kept or not."""
        outer, self._keeps = self._keeps, keeps
        self._visit_parts(record)
        self._keeps = outer

    def _uses(self, key: int) -> AllocationUses | None:
        """Return what is known of the memory that a variable names."""
        entry = self._buffers.get(key)
        return self._of[entry.root] if entry is not None and entry.root >= 0 else None

    def _change(self, key: int, **changes: Any) -> None:
        root = self._buffers[key].root
        self._of[root] = replace(self._of[root], **changes)

    # Definitions

    def _visit_alloc(self, alloc: records.Alloc) -> None:
        buffer, uses = alloc.buffer, self._uses(alloc.key)
        if uses is None:
            raise ValueError(f"buffer {buffer.name!r} is both allocated and declared")
        loops = [
            record.op
            for record in self._around
            if type(record) in (records.ForLoop, records.WhileLoop)
        ]
        uses.dtypes[buffer.ty.dtype.dtype] = None
        owner, loop = (each[-1] if each else None for each in (self._owners, loops))
        self._change(alloc.key, count=uses.count + 1, owner=owner, loop=loop)
        self._visit_kept(alloc)

    def _visit_declare(self, declare: records.Declare) -> None:
        buffer = declare.op.buffer
        uses = self._uses(declare.key)
        source = buffer_data_var(declare.op.data)
        if source is not None and is_buffer_var(source):
            if self._uses(source.__chandle__()) is not uses:
                raise ValueError(
                    f"buffer {buffer.name!r} is declared as a name of different memory in "
                    "different places"
                )
            if uses is not None:
                uses.aliases.append(buffer)
                uses.dtypes[buffer.ty.dtype.dtype] = None
        else:
            if uses is not None:
                raise ValueError(f"buffer {buffer.name!r} is both allocated and declared")
            self._visit_kept(declare)

    def _visit_let(self, let: records.Let) -> None:
        # What its variable is given to is not followed.
        outer, self._keeps = self._keeps, True
        self._visit(let.value)
        self._keeps = outer
        self._visit(let.body)

    # Statements with a body

    def _visit_body(self, record: Any) -> None:
        self._around.append(record)
        self._visit_kept(record, keeps=False)
        self._around.pop()

    _visit_branch = _visit_whileloop = _visit_body

    def _visit_forloop(self, loop: records.ForLoop) -> None:
        if loop.op.kind == _THREAD_LOOP:
            raise ValueError(
                f"loop {loop.op.loop_var.name!r} is bound to a thread; run LowerOpaqueBlock first"
            )
        is_owner = loop.op.kind == _PARALLEL_LOOP
        if is_owner:
            if self._owners and self._owners[-1] in self._threaded:
                self._threaded.add(loop.key)
            self._owners.append(loop.key)
        self._visit_body(loop)
        if is_owner:
            self._owners.pop()

    def _visit_attribute(self, attribute: records.Attribute) -> None:
        op, name = attribute.op, attribute.op.attr_key
        before = self._keeps, self._in_thread_env, self._goes_on
        self._keeps = True
        self._visit(attribute.value)
        is_thread = name == "thread_extent" and not self._in_thread_env
        if name == "virtual_thread" and self._in_thread_env:
            raise ValueError("a virtual thread begins inside a thread extent")
        is_owner = is_thread or name in ("virtual_thread", _PARALLEL_REGION)
        self._in_thread_env |= is_thread
        self._goes_on |= name in ASYNCHRONOUS_SCOPES or name == _PARALLEL_REGION
        if is_owner:
            self._owners.append(attribute.key)
        if name == "virtual_thread" or (
            # What names no thread may be any.
            name == "thread_extent"
            and not str(getattr(op.node, "thread_tag", "")).startswith("blockIdx.")
        ):
            self._threaded.update(self._owners)
        self._around.append(attribute)
        self._visit(attribute.body)
        self._around.pop()
        if is_owner:
            self._owners.pop()
        self._keeps, self._in_thread_env, self._goes_on = before

    # Leaf statements

    def _visit_assert(self, record: records.Assert) -> None:
        self._visit_kept(record, keeps=False)

    def _visit_other(self, other: records.Other) -> None:
        self._visit_kept(other)

    def _visit_value(self, value: records.Value) -> None:
        self._visit_kept(value, keeps=type(value.op) is not Evaluate)

    def _visit_store(self, store: records.Store) -> None:
        uses = self._note_access(store.key, store.op.value.ty.dtype, store.op.indices)
        if uses is not None:
            uses.stores.append(StoreSite(store, tuple(self._around)))
        self._visit_kept(store)

    # Expressions

    def _visit_load(self, load: records.Load) -> None:
        self._note_access(load.key, load.op.ty.dtype, load.op.indices)
        self._visit(load.indices)

    def _note_access(self, key: int, dtype: Any, indices: Any) -> AllocationUses | None:
        uses = self._uses(key)
        if uses is not None:
            uses.accessed[dtype] = None
            uses.indexed.update((index.ty.dtype, None) for index in items(indices))
            self._note_longer(key)
        return uses

    def _visit_call(self, call: records.Call) -> None:
        op = call.op
        keeps, told = self._keeps, self._told
        self._keeps = self._keeps or not is_done_on_return(op, self._lasting)
        for operand in written_operands(op):
            self._hand_on(operand.source.__chandle__())
        if is_address_of(op) and type(op.args[0]) is TensorLoad:
            self._hand_on(op.args[0].source.__chandle__())
        at = masked_index(op)
        if at is not None:
            self._keeps = False  # A value is read or written, and no address is kept.
            uses = self._uses(op.args[0].__chandle__())
            value = op if at == 1 else op.args[1]
            if uses is not None:
                uses.accessed[value.ty.dtype] = None
                uses.indexed[op.args[at].ty.dtype] = None
        if is_tvm_access_ptr(op):
            source = buffer_data_var(op.args[1])
            uses = self._uses(source.__chandle__()) if source is not None else None
            if uses is not None:
                uses.dtypes[op.args[0].ty.dtype] = None
                uses.indexed[op.args[2].ty.dtype] = None
            mask = op.args[4]
            if source is not None and isinstance(mask, IntImm) and mask.value in _READ_OR_WRITE:
                self._told = source.__chandle__()
        first_stored = STORES.get(operator_name(op.op), len(op.args))
        for number, arg in enumerate(call.args):
            self._keeps |= number >= first_stored
            self._visit(arg)
        self._keeps, self._told = keeps, told

    def _visit_name(self, name: records.Name) -> None:
        self._hand_on(name.key)

    def _hand_on(self, key: int) -> None:
        """Note that the address of a buffer's memory is an operand."""
        uses = self._uses(key)
        if uses is not None:
            uses.handed_on.append(tuple(self._around))
            is_hidden = uses.is_hidden or key != self._told
            self._change(key, is_hidden=is_hidden, escapes=uses.escapes or self._keeps)
            self._note_longer(key)

    def _note_longer(self, key: int) -> None:
        """Let a buffer escape if the statement around may use it after it is done."""
        if self._goes_on and self._uses(key) is not None:
            self._change(key, escapes=True)
