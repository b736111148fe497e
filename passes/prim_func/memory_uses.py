# SPDX-License-Identifier: Apache-2.0
"""How each allocation's memory is used: through which names, as which types, by whom.

The linear access sequence says *when* memory is touched. What it does not say is here: which
pointers to it are kept beyond the statement that makes them, and where exactly it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    Let,
    PrimFunc,
    Stmt,
    While,
    is_buffer_var,
)
from tvm.tirx.stmt import AttrStmt

from passes.ir.buffers import buffer_data_var, is_address_of, is_tvm_access_ptr, masked_index
from passes.ir.linear_access import LinearAccess
from passes.ir.structural import structural_visit, type_index
from passes.ir.whole_numbers import does_not_wrap
from passes.prim_func.call_ends import ASYNCHRONOUS_SCOPES, is_done_on_return

_STMT, _CALL, _VAR, _LET = type_index(Stmt), type_index(Call), type_index(Var), type_index(Let)
_TENSOR_LOAD = type_index(TensorLoad)
_PARALLEL_LOOP = int(ForKind.PARALLEL)
_READ_OR_WRITE = (1, 2, 3)  # What `tvm_access_ptr` says is done there: its last argument.


@dataclass(frozen=True, eq=False)
class StoreSite:
    """One place where memory is written by a plain store."""

    store: BufferStore  # The statement
    key: int  # The handle of the buffer variable that it writes through
    around: tuple[Any, ...]  # The statements with a body that enclose it, outermost first


@dataclass(frozen=True, eq=False)
class AllocationUses:
    """What is known of the memory of one allocation, beyond when it is touched."""

    count: int = 0  # In how many places of the body its statement stands
    # The handle of the innermost parallel loop or thread extent around it: each iteration or thread
    # has memory of its own. None for the whole function.
    owner: int | None = None
    # Whether its owner has several threads that run at the same time on this memory. A block of one
    # thread has memory of its own.
    by_threads: bool = False
    loop: For | While | None = None  # The innermost loop around it
    # The types that say what an index means: those of its names and of pointers into it.
    dtypes: dict[Any, None] = field(default_factory=dict)
    accessed: dict[Any, None] = field(default_factory=dict)  # The types of its loads and stores
    # The types of its indices, and of the offsets of pointers into it.
    indexed: dict[Any, None] = field(default_factory=dict)
    # Its other names: buffers declared on its memory.
    aliases: list[Var] = field(default_factory=list)
    stores: list[StoreSite] = field(default_factory=list)  # Where it is written by a store
    # Where its address is handed on, so that not all accesses are seen: the statements with a body
    # that enclose each place, outermost first.
    handed_on: list[tuple[Any, ...]] = field(default_factory=list)
    # Whether its address is handed on other than by `tvm_access_ptr`, which says what is read and
    # written there.
    is_hidden: bool = False
    # What may keep its address beyond a statement, or go on reading or writing it, for messages;
    # None if nothing does.
    escape: str | None = None

    @property
    def has_movable_indices(self) -> bool:
        """Whether something may be added to each index: narrow and unsigned types would wrap."""
        return all(does_not_wrap(dtype) for dtype in self.indexed)


def find_memory_uses(
    func: PrimFunc, access: LinearAccess, lasting: frozenset[str] = frozenset()
) -> tuple[AllocationUses, ...]:
    """Walk a function once more and list how memory is used.

    A pointer that is an argument of a call in an `Evaluate` statement, or in the bounds or the
    condition of a statement, is lent for the time of that statement: extern code keeps no
    pointers. Anywhere else, in a `Bind`, a `Return`, the value of a store, an attribute, a `Let`,
    or a buffer declared on a computed address, it may be kept, and the memory *escapes*. So does
    what is given to a call whose effect may end after it returns, such as an asynchronous copy, and
    what is read or written where TVM makes such copies of loads and stores.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Flat.
    access : LinearAccess
        What is known of it: which name stands for which allocation.
    lasting : frozenset of str
        As in `is_done_on_return`.

    Returns
    -------
    tuple of AllocationUses
        By the index of the allocation in ``access.allocs``.

    Raises
    ------
    ValueError
        When one name is declared for the memory of two allocations, or a thread extent begins
        inside another scope of threads.
    """
    return _Walk(access, lasting)(func.body)


class _Walk:
    def __init__(self, access: LinearAccess, lasting: frozenset[str]) -> None:
        self._lasting = lasting
        self._of = [AllocationUses() for _ in access.allocs]
        self._buffers = access.buffers
        self._around: list[Any] = []
        self._owners: list[Any] = []
        self._in_thread_env = False
        self._threaded: set[int] = set()
        self._keeper: str | None = None
        self._told = 0
        self._is_asynchronous = False
        self._visitors: dict[type, Callable[[Any, Any], None]] = {
            AllocBuffer: self._visit_alloc,
            AttrStmt: self._visit_attr,
            AssertStmt: self._visit_assert,
            Bind: self._visit_bind,
            BufferStore: self._visit_store,
            DeclBuffer: self._visit_decl,
            Evaluate: self._visit_evaluate,
            For: self._visit_for,
            IfThenElse: self._visit_if,
            While: self._visit_while,
        }

    def __call__(self, body: Any) -> tuple[AllocationUses, ...]:
        structural_visit(
            body,
            [
                (_STMT, self._visit_stmt),
                (_TENSOR_LOAD, self._visit_load),
                (_CALL, self._visit_call),
                (_LET, self._visit_let),
                (_VAR, self._visit_var),
            ],
        )
        return tuple(replace(uses, by_threads=uses.owner in self._threaded) for uses in self._of)

    def _index(self, key: int) -> int | None:
        """Return the allocation whose memory a variable names."""
        entry = self._buffers.get(key)
        return entry.root if entry is not None and entry.root >= 0 else None

    def _uses(self, key: int) -> AllocationUses | None:
        index = self._index(key)
        return None if index is None else self._of[index]

    def _visit_stmt(self, op: Any, visitor: Any) -> None:
        visit = self._visitors.get(type(op))
        keeper = self._keeper
        if visit is not None:
            visit(op, visitor)
        else:
            self._keeper = type(op).__name__
            visitor.default_visit(op)
        self._keeper = keeper

    # Definitions

    def _visit_alloc(self, op: AllocBuffer, visitor: Any) -> None:
        index = self._index(op.buffer.__chandle__())
        if index is None:
            raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
        uses = self._of[index]
        owner = self._owners[-1] if self._owners else None
        loops = [stmt for stmt in self._around if type(stmt) in (For, While)]
        uses.dtypes[op.buffer.ty.dtype.dtype] = None
        self._of[index] = replace(
            uses,
            count=uses.count + 1,
            owner=None if owner is None else owner.__chandle__(),
            loop=loops[-1] if loops else None,
        )
        visitor.visit(op.buffer.ty.shape)

    def _visit_decl(self, op: DeclBuffer, visitor: Any) -> None:
        uses = self._uses(op.buffer.__chandle__())
        source = buffer_data_var(op.data)
        if source is not None and is_buffer_var(source):
            root = self._uses(source.__chandle__())
            if root is not uses:
                raise ValueError(
                    f"buffer {op.buffer.name!r} is declared as a name of different memory in "
                    "different places"
                )
            if uses is not None:
                uses.aliases.append(op.buffer)
                uses.dtypes[op.buffer.ty.dtype.dtype] = None
        else:
            if uses is not None:
                raise ValueError(f"buffer {op.buffer.name!r} is both allocated and declared")
            self._keeper = f"buffer {op.buffer.name!r}, declared on a computed address"
            visitor.visit(op.data)

    def _visit_bind(self, op: Bind, visitor: Any) -> None:
        self._keeper = f"variable {op.var.name!r}"
        visitor.visit(op.value)

    def _visit_let(self, op: Let, visitor: Any) -> None:
        # What its variable is given to is not followed.
        keeper, self._keeper = self._keeper, f"variable {op.var.name!r}"
        visitor.visit(op.value)
        self._keeper = keeper
        visitor.visit(op.body)

    # Statements with a body

    def _within(self, op: Any, visitor: Any, *parts: Any) -> None:
        self._around.append(op)
        for part in parts:
            if part is not None:
                visitor.visit(part)
        self._around.pop()

    def _visit_for(self, op: For, visitor: Any) -> None:
        self._keeper = None
        is_owner = op.kind == _PARALLEL_LOOP
        if is_owner:
            if self._owners and self._owners[-1].__chandle__() in self._threaded:
                self._threaded.add(op.__chandle__())
            self._owners.append(op)
        self._within(op, visitor, op.min, op.extent, op.step, op.body)
        if is_owner:
            self._owners.pop()

    def _visit_if(self, op: IfThenElse, visitor: Any) -> None:
        self._keeper = None
        self._within(op, visitor, op.condition, op.then_case, op.else_case)

    def _visit_while(self, op: While, visitor: Any) -> None:
        self._keeper = None
        self._within(op, visitor, op.condition, op.body)

    def _visit_attr(self, op: AttrStmt, visitor: Any) -> None:
        self._keeper = f"attribute {op.attr_key!r}"
        visitor.visit(op.value)
        was_in_thread_env = self._in_thread_env
        is_thread = op.attr_key == "thread_extent" and not was_in_thread_env
        if op.attr_key == "virtual_thread" and was_in_thread_env:
            raise ValueError("a virtual thread begins inside a thread extent")
        is_owner = is_thread or op.attr_key == "virtual_thread"
        self._in_thread_env = was_in_thread_env or is_thread
        was_asynchronous = self._is_asynchronous
        self._is_asynchronous |= op.attr_key in ASYNCHRONOUS_SCOPES
        if is_owner:
            self._owners.append(op)
        if op.attr_key == "virtual_thread" or (
            op.attr_key == "thread_extent" and not str(op.node.thread_tag).startswith("blockIdx.")
        ):
            self._threaded.update(owner.__chandle__() for owner in self._owners)
        self._within(op, visitor, op.body)
        if is_owner:
            self._owners.pop()
        self._in_thread_env = was_in_thread_env
        self._is_asynchronous = was_asynchronous

    # Leaf statements

    def _visit_evaluate(self, op: Evaluate, visitor: Any) -> None:
        self._keeper = None
        visitor.visit(op.value)

    def _visit_assert(self, op: AssertStmt, visitor: Any) -> None:
        self._keeper = None
        visitor.visit(op.condition)

    def _visit_store(self, op: BufferStore, visitor: Any) -> None:
        key = op.buffer.__chandle__()
        uses = self._uses(key)
        if uses is not None:
            uses.accessed[op.value.ty.dtype] = None
            uses.indexed.update((index.ty.dtype, None) for index in op.indices)
            uses.stores.append(StoreSite(op, key, tuple(self._around)))
            self._note_copy(key)
        self._keeper = f"the store to {op.buffer.name!r}"
        visitor.visit(op.value)
        visitor.visit(op.indices)

    # Expressions

    def _visit_load(self, op: TensorLoad, visitor: Any) -> None:
        uses = self._uses(op.source.__chandle__())
        if uses is not None:
            uses.accessed[op.ty.dtype] = None
            uses.indexed.update((index.ty.dtype, None) for index in op.indices)
            self._note_copy(op.source.__chandle__())
        visitor.visit(op.indices)

    def _visit_call(self, op: Call, visitor: Any) -> None:
        keeper, told = self._keeper, self._told
        if keeper is None and not is_done_on_return(op, self._lasting):
            self._keeper = f"{op.op}, which may go on after it returns"
        if is_address_of(op) and type(op.args[0]) is TensorLoad:
            self._hand_on(op.args[0].source)
        at = masked_index(op)
        if at is not None:
            self._keeper = None  # A value is read or written, and no address is kept.
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
        for arg in op.args:
            visitor.visit(arg)
        self._keeper, self._told = keeper, told

    def _visit_var(self, op: Var, _visitor: Any) -> None:
        self._hand_on(op)

    def _hand_on(self, var: Var) -> None:
        """Note that the address of a buffer's memory is an operand."""
        index = self._index(var.__chandle__())
        if index is not None:
            self._of[index].handed_on.append(tuple(self._around))
            if var.__chandle__() != self._told:
                self._of[index] = replace(self._of[index], is_hidden=True)
            self._note_keeper(index, self._keeper)
            self._note_copy(var.__chandle__())

    def _note_copy(self, key: int) -> None:
        """Note what a copy that runs by itself may be reading or writing for longer."""
        index = self._index(key)
        if index is not None and self._is_asynchronous:
            self._note_keeper(index, "an asynchronous copy")

    def _note_keeper(self, index: int, keeper: str | None) -> None:
        if keeper is not None and self._of[index].escape is None:
            self._of[index] = replace(self._of[index], escape=keeper)
