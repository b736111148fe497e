# SPDX-License-Identifier: Apache-2.0
"""Writes a plan into the IR as arenas: one allocation of bytes, and typed views of it.

TVM tells LLVM that accesses never meet if they go through two variables that are not declared on
one another (`AddAliasInfo` in its ``codegen_llvm.cc``). So every name of an arena is declared on
the variable of the arena, and a view's offset is added to each index: after `FlattenBuffer` nothing
reads a buffer's ``elem_offset``. The views are in `passes.prim_func.arena_views`. A buffer reached
through a pointer of its own is no member: see `names_with_pointers`.

An arena that `keeps_indices` has no views: its members are buffers on addresses of their own.
LayerGroup's have several dimensions, and its kernels only hand their addresses to functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from passes.ir import (
    DEFAULT_ALIGNMENT,
    AllocationUses,
    Callbacks,
    PrimFunc,
    new_dtype,
    nodes_in,
    structural_map,
    structural_mutate,
    tir,
    with_body,
    with_loop_body,
)
from passes.ir.operators import (
    ASYNC_COPY,
    TAKE_ANY_ADDRESS,
    access_pointer,
    buffer_data_var,
    is_address_of,
    is_buffer_data,
    is_tvm_access_ptr,
    masked_index,
)
from passes.prim_func.arena_views import OffsetTable, View, from_the_start, index_type

_NO_ALIAS = "tirx.noalias"

_BYTES = new_dtype("uint8")

_READ_AND_WRITE = 3  # The mask of `tvm_access_ptr` for memory that is read and written


@dataclass(frozen=True, eq=False)
class Arena:
    """One allocation to make."""

    scope: str  # Its storage scope
    size: int  # Bytes
    # The handle of the statement in whose body it is made; None for the function's.
    owner: int | None
    # Its buffers, with the offset of each slot in bytes.
    members: tuple[tuple[AllocationUses, tuple[int, ...]], ...]
    alignment: int = DEFAULT_ALIGNMENT  # Bytes; at least the default is written
    # The type of its elements. With the type of all its members, code generators cast no pointers.
    dtype: Any = _BYTES
    # Whether its members are buffers on addresses of their own, and their indices stay.
    keeps_indices: bool = False


class AttachedAllocations:
    """New allocations of a function, by the statement in whose body each is made."""

    def __init__(self) -> None:
        self._at: dict[int | None, list[tir.Statement]] = {}

    def add(self, owner: int | None, *allocations: tir.Statement) -> None:
        """Attach an allocation to a statement, by its handle; None stands for the function."""
        self._at.setdefault(owner, []).extend(allocations)

    def before(self, owner: int | None, body: Any) -> Any:
        """Return the body of a statement, or of the function, after what is attached to it."""
        allocations = self._at.get(owner)
        return tir.Sequence([*allocations, body]) if allocations else body

    def rewrite_attr(self, op: tir.Attribute, node: Any, mutator: Any) -> Any:
        """Return an attribute of a node, with what is attached to it in its body."""
        attr = mutator.default_mutate(op)
        if node is op.node and op.__chandle__() not in self._at:
            return attr
        body = self.before(op.__chandle__(), attr.body)
        return tir.Attribute(node, op.attr_key, attr.value, body)

    def rewrite_for(self, op: tir.Loop, mutator: Any) -> Any:
        """Return a loop with its parts rewritten, and with what is attached to it in its body."""
        loop = mutator.default_mutate(op)
        if op.__chandle__() not in self._at:
            return loop
        return with_loop_body(loop, self.before(op.__chandle__(), loop.body))


def names_with_pointers(body: Any) -> frozenset[int]:
    """Return the handles of the buffers in statements that a pointer of its own may reach.

    That is one that is given a name, or that a buffer is declared on, other than the buffer's own;
    or a parameter of a function of the module, which LLVM may compile as a part of its caller. Of
    accesses through such a pointer TVM tells LLVM that they are to other memory than those through
    the buffer. Where that memory is not shared, it is as it would be without any plan.
    """
    found: set[int] = set()

    def note(node: Any) -> None:
        found.update(var.__chandle__() for var in nodes_in(node, tir.Var) if tir.is_buffer(var))

    for op in nodes_in(body, tir.Call, tir.Binding, tir.Declaration, tir.Let):
        if isinstance(op, tir.Call):
            for arg in op.args if isinstance(op.op, tir.GlobalVar) else ():
                note(arg)
        elif isinstance(op, tir.Declaration):
            if buffer_data_var(op.data) is None:
                note(op.data)
        elif isinstance(op.var.ty, tir.PointerType):
            note(op.value)
    return frozenset(found)


def write_arenas(func: PrimFunc, arenas: Sequence[Arena]) -> PrimFunc:
    """Make one allocation of each arena, and turn its members into views.

    A pointer to a member that is handed to a call becomes the address of its first element in the
    arena. Where an arena `keeps_indices`, the function no longer says ``tirx.noalias``: that would
    tell LLVM that addresses of one arena are of several.

    ValueError is raised, naming the buffer, when a member's memory is used in a way that the form
    cannot hold: a call that is not known to take any address, a name with other than one dimension,
    strides or an offset of its own.
    """
    if not arenas:
        return func
    result = with_body(func, _ArenaRewriter(arenas)(func.body))
    return result.without_attr(_NO_ALIAS) if any(a.keeps_indices for a in arenas) else result


class _ArenaRewriter:
    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._attached = AttachedAllocations()
        self._views: dict[int, View] = {}  # By the handle of the old name
        # The statement in the place of a member's allocation, by the member's handle.
        self._made: dict[int, list[tir.Statement]] = {}
        self._renamed: dict[int, tir.Var] = {}  # Buffers at addresses of their own, by handles
        for arena in arenas:
            memory = _memory_of(arena)
            self._attached.add(arena.owner, tir.Allocation(memory))
            if arena.keeps_indices:
                for uses, (offset,) in arena.members:
                    self._add_address(uses.buffer, memory, offset)
            else:
                self._add_views(arena, memory)

    def _add_views(self, arena: Arena, memory: tir.Var) -> None:
        is_read = [len(at) > 1 or not uses.has_movable_indices for uses, at in arena.members]
        table = OffsetTable(arena.size, compress(arena.members, is_read))
        for (uses, offsets), reads in zip(arena.members, is_read, strict=True):
            buffer = uses.buffer
            offset, read = table.read(uses, offsets) if reads else (offsets[0], {})
            for named in (buffer, *uses.aliases):
                key = named.__chandle__()
                if key not in self._views:
                    view = View(named, memory, arena.size, offset, read)
                    self._views[key] = replace(view, buffer=from_the_start(view))
            declared = tir.Declaration(self._views[buffer.__chandle__()].buffer, data=memory.data)
            self._made[buffer.__chandle__()] = [declared]
        self._attached.add(arena.owner, *table.statements)
        for loop, bind in table.reads:
            at = arena.owner if loop is None else loop.__chandle__()
            inside = [] if loop is None else nodes_in(loop.body, tir.Loop, tir.Attribute)
            is_around = any(op.__chandle__() == arena.owner for op in inside)
            self._attached.add(arena.owner if is_around else at, bind)

    def _add_address(self, buffer: tir.Var, arena: tir.Var, offset: int) -> None:
        dtype = arena.ty.shape[0].ty
        # Not `address_of`, which TVM's `CompactBufferAllocation` takes for an access to one byte.
        address = access_pointer(
            "uint8",
            arena.data,
            tir.IntConstant(dtype, offset),
            tir.IntConstant(dtype, arena.ty.shape[0].value - offset),
            _READ_AND_WRITE,
        )
        pointer, named = tir.Var(f"{buffer.name}_address", address.ty), buffer
        if len(buffer.ty.allocated_addr):
            # The program's own ``allocated_addr`` says nothing about a place in the arena.
            named = self._renamed[buffer.__chandle__()] = buffer.with_allocated_addr([])
        declared = tir.Declaration(named, data=pointer)
        self._made[buffer.__chandle__()] = [tir.Binding(pointer, address), declared]

    def __call__(self, body: Any) -> Any:
        callbacks: Callbacks = [
            (tir.Declaration, self._rewrite_decl),
            (tir.Loop, self._attached.rewrite_for),
            (tir.Sequence, self._rewrite_seq),
            (tir.Attribute, self._rewrite_attr),
        ]
        uses: list[tuple[Any, Callable[[Any], Any]]] = [
            (tir.Store, self._rewrite_store),
            (tir.Load, self._rewrite_load),
            (tir.Region, self._rewrite_region),
            (tir.Call, self._rewrite_call),
            (tir.TilePrimitive, self._check_workspace),
            (tir.Var, self._rewrite_var),
        ]
        return structural_map(self._attached.before(None, structural_mutate(body, callbacks)), uses)

    def _view(self, buffer: Any) -> View | None:
        return self._views.get(buffer.__chandle__()) if isinstance(buffer, tir.Var) else None

    # Definitions

    def _rewrite_decl(self, op: tir.Declaration, mutator: Any) -> Any:
        view = self._view(op.buffer)
        if view is None:
            return mutator.default_mutate(op)
        return tir.Declaration(view.buffer, data=view.arena.data)

    def _rewrite_seq(self, op: tir.Sequence, mutator: Any) -> Any:
        parts: list[Any] = []
        for part in op.seq:
            is_allocation = isinstance(part, tir.Allocation)
            made = self._made.get(part.buffer.__chandle__()) if is_allocation else None
            parts += [mutator.mutate(part)] if made is None else made
        return tir.Sequence(parts)

    def _rewrite_attr(self, op: tir.Attribute, mutator: Any) -> Any:
        view = self._view(op.node)
        return self._attached.rewrite_attr(op, op.node if view is None else view.buffer, mutator)

    # Accesses and addresses

    def _rewrite_load(self, op: tir.Load) -> Any:
        view = self._view(op.source)
        return op if view is None else tir.new_load(view.buffer, view.at(op.indices))

    def _rewrite_store(self, op: tir.Store) -> Any:
        view = self._view(op.buffer)
        return op if view is None else tir.Store(view.buffer, op.value, view.at(op.indices))

    def _rewrite_call(self, op: tir.Call) -> Any:
        is_pointer, masked = is_tvm_access_ptr(op), masked_index(op)
        places: tuple[tuple[int, int], ...] = ()  # Of buffers, and of the indices in them
        if is_pointer:
            places = ((1, 2),)
        elif masked is not None:
            places = ((0, masked),)
        elif getattr(op.op, "name", None) == ASYNC_COPY:
            places = ((0, 1), (2, 3))
        elif is_buffer_data(op):
            view = self._view(op.args[0])
            return op if view is None else view.first
        elif not (is_address_of(op) and isinstance(op.args[0], tir.Load)):
            self._check_takes_addresses(op)
        args, is_moved = list(op.args), False
        for data, at in places:
            view = self._view(buffer_data_var(args[data]))
            if view is None:
                continue
            element = args[0].ty.dtype if is_pointer else view.buffer.ty.dtype.dtype
            if element.bits * element.lanes == 0:
                raise ValueError(
                    f"buffer {view.buffer.name!r}: a pointer into it has no element type"
                )
            args[data] = view.buffer.data if masked is None else view.buffer
            args[at], is_moved = view.moved(args[at], element), True
        return tir.Call(op.op, args, op.attrs, None, op.span, op.ty) if is_moved else op

    def _check_takes_addresses(self, op: tir.Call) -> None:
        """Refuse a call that may mean the whole buffer where it is given one."""
        is_function = isinstance(
            op.op, tir.GlobalVar
        )  # One of the module knows its parameters' types.
        name = str(op.op.name_hint if is_function else getattr(op.op, "name", op.op))
        if name in TAKE_ANY_ADDRESS and not is_function:
            return
        for arg in op.args:
            if not (is_function and is_buffer_data(arg)):
                how = f"is handed to {name}, which may not take the address of a part of an arena"
                self._refuse(buffer_data_var(arg), how)

    def _rewrite_region(self, op: tir.Region) -> Any:
        self._refuse(op.source, "is used as a region, which an arena cannot hold")
        return op

    def _check_workspace(self, op: tir.TilePrimitive) -> Any:
        for buffer in op.workspace.values():
            self._refuse(buffer, f"is the workspace of {op.op.name}, which an arena cannot hold")
        return op

    def _refuse(self, buffer: Any, how: str) -> None:
        if self._view(buffer) is not None:
            raise ValueError(
                f"buffer {buffer.name!r} {how}; plan addresses instead, or other scopes"
            )

    def _rewrite_var(self, op: tir.Var) -> Any:
        view = self._view(op)
        return self._renamed.get(op.__chandle__(), op) if view is None else view.first


def _memory_of(arena: Arena) -> tir.Var:
    """Return the buffer that an arena is, as an array of its type."""
    dtype = _BYTES if arena.keeps_indices else arena.dtype
    extent = -(-arena.size * 8 // (dtype.bits * dtype.lanes))
    return tir.new_buffer(
        (tir.IntConstant(index_type(extent), extent),),
        str(dtype),
        "arena_" + re.sub(r"\W+", "_", arena.scope),
        scope=arena.scope,
        data_alignment=max(arena.alignment, DEFAULT_ALIGNMENT),
    )
