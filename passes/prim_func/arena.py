# SPDX-License-Identifier: Apache-2.0
"""Writes a plan into the IR as arenas: one allocation of bytes, and typed views of it.

A view of a buffer with one offset begins where its arena begins, and its offset is added to every
index: after `FlattenBuffer` nothing reads a buffer's ``elem_offset`` any more. TVM's LLVM code
generator takes accesses through all names of one allocation to be to one memory (a view's ``data``
is the arena's own), and reads their alignment off the index.

Some buffers begin at an address of their own, which is computed where they were allocated, and
their indices stay as the program has them:

- One with several slots: its address is another one each iteration. An index with the slot in it
  would be another one for the compiler, and LLVM compiles sums of a slot and a wrapped index
  wrongly: ``docs/known-faults.md`` has the program.
- One with an index of a type that wraps: an offset that is added to a ``uint8`` is lost beyond 255,
  and what is added behind a cast TVM's simplification moves in front of it.

Then all buffers of their arena do: TVM tells LLVM that what is reached through such an address
never meets what is reached through the arena.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import GlobalVar, TensorLoad, TensorRegion, Var
from tvm.ir.expr import Call
from tvm.tirx import (
    AllocBuffer,
    Bind,
    Broadcast,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    For,
    IntImm,
    PrimFunc,
    Ramp,
    SeqStmt,
    While,
    address_of,
    tvm_access_ptr,
)
from tvm.tirx.stmt import AttrStmt

from passes.ir.linear_access import LinearAccess
from passes.ir.operators import (
    ASYNC_COPY,
    TAKE_ANY_ADDRESS,
    buffer_data_var,
    is_address_of,
    is_buffer_data,
    is_tvm_access_ptr,
    masked_index,
)
from passes.ir.structural import Callback, structural_mutate, type_index, with_body
from passes.ir.whole_numbers import does_not_wrap
from passes.prim_func.attach import AttachedAllocations
from passes.prim_func.function_problems import Allocation
from passes.prim_func.iterations import Iterations, slot_index
from passes.prim_func.memory_uses import AllocationUses
from passes.prim_func.problem_options import DEFAULT_ALIGNMENT

_ALLOC_BUFFER = type_index(AllocBuffer)
_ATTR_STMT = type_index(AttrStmt)
_BUFFER_STORE = type_index(BufferStore)
_CALL = type_index(Call)
_DECL_BUFFER = type_index(DeclBuffer)
_FOR = type_index(For)
_SEQ_STMT = type_index(SeqStmt)
_TENSOR_LOAD, _TENSOR_REGION = type_index(TensorLoad), type_index(TensorRegion)
_VAR = type_index(Var)
_WHILE = type_index(While)

_INT32_MAX = 2**31 - 1

_NO_ALIAS = "tirx.noalias"

_BYTES = tvm_ffi.dtype("uint8")

_READ_AND_WRITE = 3
"""The mask of `tvm_access_ptr` for memory that is read and written."""


@dataclass(frozen=True, eq=False)
class Arena:
    """One allocation to make."""

    scope: str  # Its storage scope
    size: int  # Bytes
    # The handle of the statement in whose body it is made; None for the function's.
    owner: int | None
    # What lives in it, with the offset of each slot, in bytes.
    members: tuple[tuple[Allocation, tuple[int, ...]], ...]
    alignment: int = DEFAULT_ALIGNMENT  # Multiple of how many bytes it begins at, at least
    # What it is an array of. With the type of all its members, code generators cast no pointers.
    dtype: Any = _BYTES


@dataclass(frozen=True, eq=False)
class _Place:
    """Where an allocation with one offset lives, in bytes."""

    arena: Var
    size: int  # Of the arena
    offset: int


def write_arenas(
    func: PrimFunc, access: LinearAccess, uses: Sequence[AllocationUses], arenas: Sequence[Arena]
) -> PrimFunc:
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
    rewriter = _ArenaRewriter(access, uses, arenas)
    result = with_body(func, rewriter(func.body))
    return result.without_attr(_NO_ALIAS) if rewriter.has_addresses else result


class _ArenaRewriter:
    def __init__(
        self, access: LinearAccess, uses: Sequence[AllocationUses], arenas: Sequence[Arena]
    ) -> None:
        self._access = access
        self._places: dict[int, _Place] = {}
        self._attached = AttachedAllocations()
        self._view: dict[int, Var] = {}
        # Of buffers that begin at an address of their own: that of the slot in turn, and the new
        # name.
        self._addresses: dict[int, Any] = {}
        self._renamed: dict[int, Var] = {}
        self._iterations = Iterations()
        for arena in arenas:
            name = "arena_" + re.sub(r"\W+", "_", arena.scope)
            extent = -(-arena.size * 8 // (arena.dtype.bits * arena.dtype.lanes))
            memory = tirx.decl_buffer(
                (IntImm(_index_type(extent), extent),),
                str(arena.dtype),
                name,
                scope=arena.scope,
                data_alignment=max(arena.alignment, DEFAULT_ALIGNMENT),
                layout=None,
            )
            self._attached.add(arena.owner, AllocBuffer(memory))
            by_address = any(
                len(offsets) > 1 or not uses[allocation.index].has_movable_indices
                for allocation, offsets in arena.members
            )
            for allocation, offsets in arena.members:
                buffer = allocation.statement.buffer
                if by_address:
                    self._add_address(buffer, memory, offsets, allocation.loop)
                    continue
                place = _Place(memory, arena.size, offsets[0])
                self._places[allocation.index] = place
                for named in (buffer, *uses[allocation.index].aliases):
                    key = named.__chandle__()
                    if key not in self._view:
                        self._view[key] = _view(named, place)

    @property
    def has_addresses(self) -> bool:
        """Whether any buffer begins at an address of its own."""
        return bool(self._addresses)

    def _add_address(self, buffer: Var, arena: Var, offsets: Sequence[int], loop: Any) -> None:
        key, dtype = buffer.__chandle__(), arena.ty.shape[0].ty
        index: Any = IntImm(dtype, offsets[0])
        if len(offsets) > 1:
            index = slot_index(dtype, offsets, self._iterations.number_in(loop))
        # Not `address_of`, which TVM's `CompactBufferAllocation` takes for an access to one byte.
        extent = IntImm(dtype, arena.ty.shape[0].value - max(offsets))
        self._addresses[key] = tvm_access_ptr("uint8", arena.data, index, extent, _READ_AND_WRITE)
        if len(buffer.ty.allocated_addr):
            # An address of the program's own is not that in the arena.
            self._renamed[key] = buffer.with_allocated_addr([])

    def __call__(self, body: Any) -> Any:
        callbacks: list[tuple[int, Callback]] = [
            (_ALLOC_BUFFER, self._rewrite_alloc),
            (_DECL_BUFFER, self._rewrite_decl),
            (_FOR, self._rewrite_for),
            (_WHILE, self._rewrite_while),
            (_SEQ_STMT, self._rewrite_seq),
            (_ATTR_STMT, self._rewrite_attr),
            (_BUFFER_STORE, self._rewrite_store),
            (_TENSOR_LOAD, self._rewrite_load),
            (_TENSOR_REGION, self._rewrite_region),
            (_CALL, self._rewrite_call),
            (_VAR, self._rewrite_var),
        ]
        return self._attached.before(None, structural_mutate(body, callbacks))

    def _place(self, buffer: Any) -> _Place | None:
        known = self._access.buffers.get(buffer.__chandle__())
        return None if known is None else self._places.get(known.root)

    # Definitions

    def _rewrite_alloc(self, op: AllocBuffer, mutator: Any) -> Any:
        address = self._addresses.get(op.buffer.__chandle__())
        if address is not None:
            buffer = self._renamed.get(op.buffer.__chandle__(), op.buffer)
            pointer = Var(f"{buffer.name}_address", address.ty)
            return SeqStmt([Bind(pointer, address), DeclBuffer(buffer, data=pointer)])
        place = self._place(op.buffer)
        if place is None:
            return mutator.default_mutate(op)
        return DeclBuffer(self._view[op.buffer.__chandle__()], data=place.arena.data)

    def _rewrite_seq(self, op: SeqStmt, mutator: Any) -> Any:
        """Keep a buffer and the pointer that it is declared on in the sequence that uses it."""
        parts: list[Any] = []
        for statement in op.seq:
            new = mutator.mutate(statement)
            is_pair = isinstance(statement, AllocBuffer) and isinstance(new, SeqStmt)
            parts += list(new.seq) if is_pair else [new]
        return SeqStmt(parts)

    def _rewrite_decl(self, op: DeclBuffer, mutator: Any) -> Any:
        place = self._place(op.buffer)
        if place is None:
            return DeclBuffer(op.buffer, data=mutator.mutate(op.data))
        return DeclBuffer(self._view[op.buffer.__chandle__()], data=place.arena.data)

    # Statements that may own memory, or count

    def _rewrite_for(self, op: For, mutator: Any) -> Any:
        return self._iterations.write_for(op, self._attached.rewrite_for(op, mutator))

    def _rewrite_while(self, op: While, mutator: Any) -> Any:
        return self._iterations.write_while(op, mutator.default_mutate(op))

    def _rewrite_attr(self, op: AttrStmt, mutator: Any) -> Any:
        node = op.node
        if isinstance(node, Var):
            node = self._view.get(node.__chandle__(), node)
        value, body = mutator.mutate(op.value), mutator.mutate(op.body)
        body = self._attached.before(op.__chandle__(), body)
        if node is op.node and value.same_as(op.value) and body.same_as(op.body):
            return op
        return AttrStmt(node, op.attr_key, value, body)

    # Accesses

    def _indices(self, buffer: Var, place: _Place, indices: Any, mutator: Any) -> list[Any]:
        (index,) = mutator.mutate(indices)
        return [_moved(index, place, buffer.ty.dtype.dtype, buffer.name)]

    def _rewrite_load(self, op: TensorLoad, mutator: Any) -> Any:
        place = self._place(op.source)
        if place is None:
            return mutator.default_mutate(op)
        view = self._view[op.source.__chandle__()]
        return BufferLoad(view, self._indices(op.source, place, op.indices, mutator))

    def _rewrite_store(self, op: BufferStore, mutator: Any) -> Any:
        place = self._place(op.buffer)
        if place is None:
            return mutator.default_mutate(op)
        indices = self._indices(op.buffer, place, op.indices, mutator)
        view = self._view[op.buffer.__chandle__()]
        return BufferStore(view, mutator.mutate(op.value), indices)

    # Addresses

    def _rewrite_call(self, op: Call, mutator: Any) -> Any:
        if is_tvm_access_ptr(op):
            return self._rewrite_access_ptr(op, mutator)
        at = masked_index(op)
        if at is not None:
            return self._rewrite_masked(op, at, mutator)
        if getattr(op.op, "name", None) == ASYNC_COPY:
            return self._rewrite_copy(op, mutator)
        if is_buffer_data(op):
            place = self._place(op.args[0])
            return mutator.default_mutate(op) if place is None else self._first(op.args[0], place)
        if not (is_address_of(op) and isinstance(op.args[0], TensorLoad)):
            self._check_takes_addresses(op)
        return mutator.default_mutate(op)

    def _rewrite_access_ptr(self, op: Call, mutator: Any) -> Any:
        dtype, data, offset, extent, mask = op.args
        buffer = buffer_data_var(data)
        place = None if buffer is None else self._place(buffer)
        if buffer is None or place is None:
            return mutator.default_mutate(op)
        element = dtype.ty.dtype
        if element.bits * element.lanes == 0:
            raise ValueError(f"buffer {buffer.name!r}: a pointer into it has no element type")
        offset = _moved(mutator.mutate(offset), place, element, buffer.name)
        view = self._view[buffer.__chandle__()].data
        args = [dtype, view, offset, mutator.mutate(extent), mask]
        return Call(op.op, args, op.attrs, None, op.span, op.ty)

    def _rewrite_masked(self, op: Call, at: int, mutator: Any) -> Any:
        buffer = op.args[0]
        place = self._place(buffer)
        if place is None:
            return mutator.default_mutate(op)
        (index,) = self._indices(buffer, place, [op.args[at]], mutator)
        rest = [mutator.mutate(arg) for arg in op.args]
        args = [self._view[buffer.__chandle__()], *rest[1:at], index, *rest[at + 1 :]]
        return Call(op.op, args, op.attrs, None, op.span, op.ty)

    def _rewrite_copy(self, op: Call, mutator: Any) -> Any:
        args = list(op.args)
        for at in (0, 2):
            buffer = buffer_data_var(args[at])
            place = None if buffer is None else self._place(buffer)
            args[at + 1] = mutator.mutate(args[at + 1])
            if buffer is not None and place is not None:
                args[at] = self._view[buffer.__chandle__()].data
                args[at + 1] = _moved(args[at + 1], place, buffer.ty.dtype.dtype, buffer.name)
        args[4:] = [mutator.mutate(arg) for arg in args[4:]]
        return Call(op.op, args, op.attrs, None, op.span, op.ty)

    def _check_takes_addresses(self, op: Call) -> None:
        """Refuse a call that may mean the whole buffer where it is given one."""
        is_function = isinstance(op.op, GlobalVar)  # Of the module: it knows types of parameters.
        name = str(op.op.name_hint if is_function else getattr(op.op, "name", op.op))
        if name in TAKE_ANY_ADDRESS and not is_function:
            return
        for arg in op.args:
            buffer = None if is_function and is_buffer_data(arg) else buffer_data_var(arg)
            if buffer is not None and self._place(buffer) is not None:
                raise ValueError(
                    f"buffer {buffer.name!r} is handed to {name}, which may not take the address "
                    "of a part of an arena; plan addresses instead, or other scopes"
                )

    def _rewrite_region(self, op: TensorRegion, mutator: Any) -> Any:
        if self._place(op.source) is not None:
            raise ValueError(
                f"buffer {op.source.name!r} is used as a region, which an arena cannot hold; "
                "plan addresses instead, or other scopes"
            )
        return mutator.default_mutate(op)

    def _rewrite_var(self, op: Var, mutator: Any) -> Any:
        if op.__chandle__() in self._renamed:
            return self._renamed[op.__chandle__()]
        place = self._place(op)
        return mutator.default_mutate(op) if place is None else self._first(op, place)

    def _first(self, buffer: Var, place: _Place) -> Any:
        """Return the address of the first element of a buffer."""
        index = _moved(IntImm("int32", 0), place, buffer.ty.dtype.dtype, buffer.name)
        return address_of(BufferLoad(self._view[buffer.__chandle__()], [index]))


def _view(buffer: Var, place: _Place) -> Var:
    """Return a buffer of the same elements that begins where its arena begins."""
    ty = buffer.ty
    offset = ty.elem_offset
    if len(ty.shape) != 1 or len(ty.strides):
        raise ValueError(
            f"buffer {buffer.name!r} has {len(ty.shape)} dimensions or strides; "
            "run FlattenBuffer before PlanAddresses"
        )
    if not isinstance(offset, IntImm) or offset.value != 0:
        raise ValueError(
            f"buffer {buffer.name!r} has an elem_offset, which nothing reads after FlattenBuffer"
        )
    extent = ty.shape[0]
    if not does_not_wrap(extent.ty.dtype):
        extent = extent.astype("int64")
    return tirx.decl_buffer(
        (_moved(extent, place, ty.dtype.dtype, buffer.name),),
        str(ty.dtype.dtype),
        buffer.name,
        scope=ty.storage_scope,
        layout=None,
    )


def _elements(offset: int, nbits: int, name: str) -> int:
    """Return an offset in bytes as one in elements."""
    if offset * 8 % nbits:
        raise ValueError(
            f"buffer {name!r}: its offset of {offset} bytes is no multiple of its elements' "
            f"{nbits} bits"
        )
    return offset * 8 // nbits


def _moved(index: Any, place: _Place, element: Any, name: str) -> Any:
    """Return an index of elements of a buffer, scalar or vector, as one from the arena's start."""
    nbits = element.bits * element.lanes
    shift = _elements(place.offset, nbits, name)
    if shift == 0:
        return index
    lanes = index.ty.dtype.lanes
    if _index_type(place.size * 8 // nbits) == "int64":
        index = index.astype("int64" if lanes == 1 else f"int64x{lanes}")
    amount = IntImm(str(index.ty.dtype.with_lanes(1)), shift)
    if isinstance(index, Ramp):
        return Ramp(index.base + amount, index.stride, index.lanes)
    if isinstance(index, Broadcast):
        return Broadcast(index.value + amount, index.lanes)
    return index + (amount if lanes == 1 else Broadcast(amount, lanes))


def _index_type(elements: int) -> str:
    return "int32" if elements <= _INT32_MAX else "int64"
