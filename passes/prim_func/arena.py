# SPDX-License-Identifier: Apache-2.0
"""Writes a plan into the IR as arenas: one allocation of bytes, and typed views of it.

A view of a buffer with one offset begins where its arena begins, and its offset is added to every
index: after `FlattenBuffer` nothing reads a buffer's ``elem_offset`` any more. TVM's LLVM code
generator takes accesses through all names of one allocation to be to one memory (a view's ``data``
is the arena's own), and reads their alignment off the index.

Some buffers begin at an address of their own, which is computed where they were allocated, and
their indices stay as the program has them:

- A buffer with several slots: its address changes with each iteration of a ``for``. (A CPU runs one
  iteration after the other, so in a ``while`` the first slot serves all of them.) LLVM compiles the
  sum of a slot's offset and a wrapped index wrongly: ``docs/known-faults.md`` has the program.
- A buffer with an index of a type that wraps: an offset that is added to a ``uint8`` is lost beyond
  255, and TVM's simplification moves an offset that is added behind a cast in front of the cast.
- The buffers of an arena that `keeps_indices`: LayerGroup's have several dimensions, and its
  kernels only hand their addresses to functions.

If one buffer of an arena begins at an address of its own, all do: TVM tells LLVM that memory behind
such an address never overlaps memory that is reached through the arena.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import GlobalVar, TensorLoad, TensorRegion, Var
from tvm.ir.expr import Call
from tvm.tirx.stmt import AttrStmt

from passes.ir import (
    Callbacks,
    does_not_wrap,
    structural_map,
    structural_mutate,
    with_body,
    with_loop_body,
)
from passes.ir.operators import (
    ASYNC_COPY,
    TAKE_ANY_ADDRESS,
    buffer_data_var,
    is_address_of,
    is_buffer_data,
    is_tvm_access_ptr,
    masked_index,
)
from passes.prim_func.memory_uses import DEFAULT_ALIGNMENT, AllocationUses

_INT32_MAX = 2**31 - 1

_NO_ALIAS = "tirx.noalias"

_BYTES = tvm_ffi.dtype("uint8")

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
    # What it is an array of, where its members do not begin at addresses of their own. With the
    # type of all its members, code generators cast no pointers.
    dtype: Any = _BYTES
    # Whether its members begin at addresses of their own, whatever their indices are.
    keeps_indices: bool = False


@dataclass(frozen=True, eq=False)
class _View:
    """A buffer at one offset in an arena; sizes and offsets are in bytes."""

    buffer: Var
    arena: Var
    size: int  # Of the arena
    offset: int

    def moved(self, index: Any, element: Any) -> Any:
        """Return an index of elements, scalar or vector, as one from the arena's start."""
        nbits = element.bits * element.lanes
        shift = offset_in_elements(self.buffer.name, self.offset, nbits)
        if shift == 0:
            return index
        lanes = index.ty.dtype.lanes
        if _index_type(self.size * 8 // nbits) == "int64":
            index = index.astype("int64" if lanes == 1 else f"int64x{lanes}")
        amount = tirx.IntImm(str(index.ty.dtype.with_lanes(1)), shift)
        if isinstance(index, tirx.Ramp):
            return tirx.Ramp(index.base + amount, index.stride, index.lanes)
        if isinstance(index, tirx.Broadcast):
            return tirx.Broadcast(index.value + amount, index.lanes)
        return index + (amount if lanes == 1 else tirx.Broadcast(amount, lanes))

    def at(self, indices: Any) -> list[Any]:
        """Return the indices of an access, moved by the view's offset."""
        (index,) = indices
        return [self.moved(index, self.buffer.ty.dtype.dtype)]

    @property
    def first(self) -> Any:
        """The address of the first element."""
        return tirx.address_of(tirx.BufferLoad(self.buffer, self.at([tirx.IntImm("int32", 0)])))


class AttachedAllocations:
    """New allocations of a function, by the statement in whose body each is made."""

    def __init__(self) -> None:
        self._at: dict[int | None, list[tirx.AllocBuffer]] = {}

    def add(self, owner: int | None, allocation: tirx.AllocBuffer) -> None:
        """Attach an allocation to a statement, by its handle; None stands for the function."""
        self._at.setdefault(owner, []).append(allocation)

    def before(self, owner: int | None, body: Any) -> Any:
        """Return the body of a statement, or of the function, behind what is attached to it."""
        allocations = self._at.get(owner)
        return tirx.SeqStmt([*allocations, body]) if allocations else body

    def rewrite_attr(self, op: AttrStmt, node: Any, mutator: Any) -> Any:
        """Return an attribute of a node, with what is attached to it in its body."""
        attr = mutator.default_mutate(op)
        if node is op.node and op.__chandle__() not in self._at:
            return attr
        body = self.before(op.__chandle__(), attr.body)
        return AttrStmt(node, op.attr_key, attr.value, body)

    def rewrite_for(self, op: tirx.For, mutator: Any) -> Any:
        """Return a loop with its parts rewritten, and with what is attached to it in its body."""
        loop = mutator.default_mutate(op)
        if op.__chandle__() not in self._at:
            return loop
        return with_loop_body(loop, self.before(op.__chandle__(), loop.body))


def write_arenas(func: tirx.PrimFunc, arenas: Sequence[Arena]) -> tirx.PrimFunc:
    """Make one allocation of each arena, and turn its members into views.

    A pointer to a member that is handed to a call becomes the address of its first element in the
    arena. Where members begin at addresses of their own, the function no longer says
    ``tirx.noalias``: that would tell LLVM that addresses of one arena are of several.

    ValueError is raised, naming the buffer, when a member's memory is used in a way that the form
    cannot hold: a call that is not known to take any address, a name with other than one dimension,
    strides or an offset of its own.
    """
    if not arenas:
        return func
    rewriter = _ArenaRewriter(arenas)
    result = with_body(func, rewriter(func.body))
    return result.without_attr(_NO_ALIAS) if rewriter.addresses else result


class _ArenaRewriter:
    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._attached = AttachedAllocations()
        self._views: dict[int, _View] = {}  # By the handle of the old name
        # By handles of buffers at addresses of their own: the slot's address, and the new buffer.
        self.addresses: dict[int, Any] = {}
        self._renamed: dict[int, Var] = {}
        for arena in arenas:
            by_address = arena.keeps_indices or any(
                len(offsets) > 1 or not uses.has_movable_indices for uses, offsets in arena.members
            )
            memory = _memory_of(arena, _BYTES if by_address else arena.dtype)
            self._attached.add(arena.owner, tirx.AllocBuffer(memory))
            for uses, offsets in arena.members:
                buffer = uses.statement.buffer
                if by_address:
                    self._add_address(buffer, memory, offsets, uses.loop)
                    continue
                for named in (buffer, *uses.aliases):
                    key = named.__chandle__()
                    if key not in self._views:
                        view = _View(named, memory, arena.size, offsets[0])
                        self._views[key] = replace(view, buffer=_from_the_start(view))

    def _add_address(self, buffer: Var, arena: Var, offsets: Sequence[int], loop: Any) -> None:
        key, dtype = buffer.__chandle__(), arena.ty.shape[0].ty
        index: Any = tirx.IntImm(dtype, offsets[0])
        if len(offsets) > 1 and isinstance(loop, tirx.For):
            index = _slot_index(dtype, offsets, loop)
        # Not `address_of`, which TVM's `CompactBufferAllocation` takes for an access to one byte.
        extent = tirx.IntImm(dtype, arena.ty.shape[0].value - max(offsets))
        self.addresses[key] = tirx.tvm_access_ptr(
            "uint8", arena.data, index, extent, _READ_AND_WRITE
        )
        if len(buffer.ty.allocated_addr):
            # The program's own ``allocated_addr`` says nothing about a place in the arena.
            self._renamed[key] = buffer.with_allocated_addr([])

    def __call__(self, body: Any) -> Any:
        callbacks: Callbacks = [
            (tirx.AllocBuffer, self._rewrite_alloc),
            (tirx.DeclBuffer, self._rewrite_alloc),
            (tirx.For, self._attached.rewrite_for),
            (tirx.SeqStmt, self._rewrite_seq),
            (AttrStmt, self._rewrite_attr),
        ]
        uses = [
            (tirx.BufferStore, self._rewrite_store),
            (TensorLoad, self._rewrite_load),
            (TensorRegion, self._rewrite_region),
            (Call, self._rewrite_call),
            (tirx.TilePrimitiveCall, self._check_workspace),
            (Var, self._rewrite_var),
        ]
        return structural_map(self._attached.before(None, structural_mutate(body, callbacks)), uses)

    def _view(self, buffer: Any) -> _View | None:
        return self._views.get(buffer.__chandle__()) if isinstance(buffer, Var) else None

    # Definitions

    def _rewrite_alloc(self, op: tirx.AllocBuffer | tirx.DeclBuffer, mutator: Any) -> Any:
        view = self._view(op.buffer)
        if view is None:
            return mutator.default_mutate(op)
        return tirx.DeclBuffer(view.buffer, data=view.arena.data)

    def _rewrite_seq(self, op: tirx.SeqStmt, mutator: Any) -> Any:
        parts: list[Any] = []
        for part in op.seq:
            made = part.buffer if isinstance(part, tirx.AllocBuffer) else None
            address = None if made is None else self.addresses.get(made.__chandle__())
            if made is None or address is None:
                parts.append(mutator.mutate(part))
                continue
            buffer = self._renamed.get(made.__chandle__(), made)
            pointer = Var(f"{buffer.name}_address", address.ty)
            parts += [tirx.Bind(pointer, address), tirx.DeclBuffer(buffer, data=pointer)]
        return tirx.SeqStmt(parts)

    def _rewrite_attr(self, op: AttrStmt, mutator: Any) -> Any:
        view = self._view(op.node)
        return self._attached.rewrite_attr(op, op.node if view is None else view.buffer, mutator)

    # Accesses and addresses

    def _rewrite_load(self, op: TensorLoad) -> Any:
        view = self._view(op.source)
        return op if view is None else tirx.BufferLoad(view.buffer, view.at(op.indices))

    def _rewrite_store(self, op: tirx.BufferStore) -> Any:
        view = self._view(op.buffer)
        return op if view is None else tirx.BufferStore(view.buffer, op.value, view.at(op.indices))

    def _rewrite_call(self, op: Call) -> Any:
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
        elif not (is_address_of(op) and isinstance(op.args[0], TensorLoad)):
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
        return Call(op.op, args, op.attrs, None, op.span, op.ty) if is_moved else op

    def _check_takes_addresses(self, op: Call) -> None:
        """Refuse a call that may mean the whole buffer where it is given one."""
        is_function = isinstance(op.op, GlobalVar)  # One of the module knows its parameters' types.
        name = str(op.op.name_hint if is_function else getattr(op.op, "name", op.op))
        if name in TAKE_ANY_ADDRESS and not is_function:
            return
        for arg in op.args:
            if not (is_function and is_buffer_data(arg)):
                how = f"is handed to {name}, which may not take the address of a part of an arena"
                self._refuse(buffer_data_var(arg), how)

    def _rewrite_region(self, op: TensorRegion) -> Any:
        self._refuse(op.source, "is used as a region, which an arena cannot hold")
        return op

    def _check_workspace(self, op: tirx.TilePrimitiveCall) -> Any:
        for buffer in op.workspace.values():
            self._refuse(buffer, f"is the workspace of {op.op.name}, which an arena cannot hold")
        return op

    def _refuse(self, buffer: Any, how: str) -> None:
        if self._view(buffer) is not None:
            raise ValueError(
                f"buffer {buffer.name!r} {how}; plan addresses instead, or other scopes"
            )

    def _rewrite_var(self, op: Var) -> Any:
        view = self._view(op)
        return self._renamed.get(op.__chandle__(), op) if view is None else view.first


def _memory_of(arena: Arena, dtype: Any) -> Var:
    """Return the buffer that an arena is, as an array of a type."""
    extent = -(-arena.size * 8 // (dtype.bits * dtype.lanes))
    return tirx.decl_buffer(
        (tirx.IntImm(_index_type(extent), extent),),
        str(dtype),
        "arena_" + re.sub(r"\W+", "_", arena.scope),
        scope=arena.scope,
        data_alignment=max(arena.alignment, DEFAULT_ALIGNMENT),
        layout=None,
    )


def offset_in_elements(name: str, offset: int, nbits: int) -> int:
    """Convert an offset from bytes to elements of `nbits`; ValueError if it is no multiple."""
    if offset * 8 % nbits:
        raise ValueError(
            f"buffer {name!r}: its offset of {offset} bytes is no multiple of its elements' "
            f"{nbits} bits"
        )
    return offset * 8 // nbits


def _from_the_start(view: _View) -> Var:
    """Return a buffer of the same elements that begins where its arena begins."""
    buffer, ty = view.buffer, view.buffer.ty
    offset = ty.elem_offset
    if len(ty.shape) != 1 or len(ty.strides):
        raise ValueError(
            f"buffer {buffer.name!r} has {len(ty.shape)} dimensions or strides; "
            "run FlattenBuffer before PlanAddresses"
        )
    if not isinstance(offset, tirx.IntImm) or offset.value != 0:
        raise ValueError(
            f"buffer {buffer.name!r} has an elem_offset, which nothing reads after FlattenBuffer"
        )
    extent = ty.shape[0]
    if not does_not_wrap(extent.ty.dtype):
        extent = extent.astype("int64")
    return tirx.decl_buffer(
        (view.moved(extent, ty.dtype.dtype),),
        str(ty.dtype.dtype),
        buffer.name,
        scope=ty.storage_scope,
        layout=None,
    )


def _index_type(elements: int) -> str:
    return "int32" if elements <= _INT32_MAX else "int64"


def _slot_index(dtype: Any, offsets: Sequence[int], loop: tirx.For) -> Any:
    """Return where the slot begins whose turn it is: iteration number modulo their number.

    Offsets are in bytes; `dtype` is the type of the index. If the loop's step is not constant, it
    is always the first slot.
    """
    count, number = len(offsets), loop.loop_var
    if isinstance(loop.step, tirx.IntImm):
        number = tirx.floordiv(number, loop.step)
    elif loop.step is not None:
        return tirx.IntImm(dtype, offsets[0])
    if not does_not_wrap(number.ty.dtype):
        number = number.astype("int64")  # A narrow type may be too small for the number of slots.
    slot = tirx.floormod(number, tirx.IntImm(number.ty, count)).astype(dtype)
    stride = offsets[1] - offsets[0]
    if all(offset == offsets[0] + k * stride for k, offset in enumerate(offsets)):
        return slot * tirx.IntImm(dtype, stride) + tirx.IntImm(dtype, offsets[0])
    index: Any = tirx.IntImm(dtype, offsets[-1])
    for k in range(count - 2, -1, -1):
        index = tirx.Select(slot == tirx.IntImm(dtype, k), tirx.IntImm(dtype, offsets[k]), index)
    return index
