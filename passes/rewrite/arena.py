"""Writes a plan into the IR as arenas: one allocation of bytes, and typed views of it.

A view of a buffer with one offset begins where its arena begins, and its offset is added to every
index: after `FlattenBuffer` nothing reads a buffer's ``elem_offset`` any more. TVM's LLVM code
generator takes accesses through all names of one allocation to be to one memory (a view's ``data``
is the arena's own), and reads their alignment off the index.

A buffer with several slots begins at an address of its own, which is computed once an iteration,
where it was allocated. Its indices stay as the program has them. An index with the slot in it would
be another one for the compiler, and LLVM compiles sums of a slot and a wrapped index wrongly:
``docs/known-faults.md`` has the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import GlobalVar, TensorLoad, TensorRegion, Var
from tvm.ir.expr import Call
from tvm.tirx import (
    AllocBuffer,
    Bind,
    Broadcast,
    BufferLoad,
    BufferStore,
    Cast,
    DeclBuffer,
    For,
    IntImm,
    PrimFunc,
    Ramp,
    Select,
    SeqStmt,
    While,
    address_of,
)
from tvm.tirx.stmt import AttrStmt

from passes.analysis.storage_rewrite.linear_access import LinearAccess
from passes.analysis.tir.function_problems import Allocation
from passes.analysis.tir.memory_uses import AllocationUses
from passes.ir.buffers import (
    buffer_data_var,
    is_address_of,
    is_buffer_data,
    is_tvm_access_ptr,
    masked_index,
)
from passes.ir.structural import Callback, structural_mutate, type_index, with_body
from passes.rewrite.attach import AttachedAllocations

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

_TAKE_ADDRESSES = frozenset(
    f"tirx.{name}"
    for name in (
        "call_extern",
        "call_pure_extern",
        "call_llvm_intrin",
        "call_llvm_pure_intrin",
        "handle_add_byte_offset",
        "isnullptr",
        "reinterpret",
        "tvm_call_cpacked",
        "tvm_call_packed",
        "tvm_call_packed_lowered",
        "tvm_call_cpacked_lowered",
        "tvm_stack_make_array",
        "tvm_struct_set",
    )
)
"""Calls for which the address of any element is as good as that of a whole buffer."""


@dataclass(frozen=True, eq=False)
class Arena:
    """One allocation to make.

    Parameters
    ----------
    scope : str
        Its storage scope.
    size : int
        Bytes.
    owner : int or None
        The handle of the statement in whose body it is made; None for the function's.
    members : tuple of (Allocation, tuple of int)
        What lives in it, with the offset of each slot, in bytes.
    """

    scope: str
    size: int
    owner: int | None
    members: tuple[tuple[Allocation, tuple[int, ...]], ...]


@dataclass(frozen=True, eq=False)
class _Place:
    """Where an allocation with one offset lives, in bytes."""

    arena: Var
    offset: int


def write_arenas(
    func: PrimFunc, access: LinearAccess, uses: Sequence[AllocationUses], arenas: Sequence[Arena]
) -> PrimFunc:
    """Make one allocation of each arena, and turn its members into views.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        It stays as it is.
    access, uses
        What is known of it.
    arenas : sequence of Arena
        The allocations to make.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function. A pointer to a member that is handed to a call becomes the address of
        its first element in the arena. Where a member has several slots, the function no longer
        says ``tirx.noalias``: that would tell LLVM that addresses of one arena are of several.

    Raises
    ------
    ValueError
        When a member's memory is used in a way that the form cannot hold; the message names the
        buffer: a call that is not known to take any address, a name with other than one
        dimension, strides or an offset of its own.
    """
    if not arenas:
        return func
    result = with_body(func, _ArenaRewriter(access, uses, arenas)(func.body))
    if any(len(offsets) > 1 for arena in arenas for _, offsets in arena.members):
        result = result.without_attr(_NO_ALIAS)
    return result


class _ArenaRewriter:
    def __init__(
        self, access: LinearAccess, uses: Sequence[AllocationUses], arenas: Sequence[Arena]
    ) -> None:
        self._access = access
        self._places: dict[int, _Place] = {}
        self._attached = AttachedAllocations()
        self._view: dict[int, Var] = {}
        # Of buffers with several slots: the address of the slot in turn, and the new name.
        self._slotted: dict[int, Any] = {}
        self._renamed: dict[int, Var] = {}
        self._counters: dict[int, Var] = {}  # The iterations of `while` loops.
        for arena in arenas:
            name = "arena_" + re.sub(r"\W+", "_", arena.scope)
            memory = tirx.decl_buffer(
                (IntImm("int32" if arena.size <= _INT32_MAX else "int64", arena.size),),
                "uint8",
                name,
                scope=arena.scope,
                layout=None,
            )
            self._attached.add(arena.owner, AllocBuffer(memory))
            for allocation, offsets in arena.members:
                buffer = allocation.statement.buffer
                if len(offsets) > 1:
                    iteration = self._iteration(allocation.loop)
                    self._add_slotted(buffer, _slot_address(memory, offsets, iteration))
                    continue
                place = _Place(memory, offsets[0])
                self._places[allocation.index] = place
                for named in (buffer, *uses[allocation.index].aliases):
                    key = named.__chandle__()
                    if key not in self._view:
                        self._view[key] = _view(named, place)

    def _iteration(self, loop: Any) -> Any:
        """Return the number of the current iteration of a loop, from 0."""
        if isinstance(loop, For):
            return _iteration(loop)
        key = loop.__chandle__()
        if key not in self._counters:
            self._counters[key] = tirx.decl_buffer(
                (IntImm("int32", 1),), "int64", "iteration", scope="local", layout=None
            )
        return BufferLoad(self._counters[key], [IntImm("int32", 0)])

    def _add_slotted(self, buffer: Var, address: Any) -> None:
        key = buffer.__chandle__()
        self._slotted[key] = address
        if len(buffer.ty.allocated_addr):
            # An address of the program's own is not that in the arena.
            self._renamed[key] = buffer.with_allocated_addr([])

    def __call__(self, body: Any) -> Any:
        callbacks: list[tuple[int, Callback]] = [
            (_ALLOC_BUFFER, self._rewrite_alloc),
            (_DECL_BUFFER, self._rewrite_decl),
            (_FOR, self._attached.rewrite_for),
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
        address = self._slotted.get(op.buffer.__chandle__())
        if address is not None:
            buffer = self._renamed.get(op.buffer.__chandle__(), op.buffer)
            pointer = Var(f"{buffer.name}_slot", address.ty)
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

    def _rewrite_while(self, op: While, mutator: Any) -> Any:
        counter = self._counters.get(op.__chandle__())
        if counter is None:
            return mutator.default_mutate(op)
        zero = IntImm("int32", 0)

        def count(value: Any) -> Any:
            return BufferStore(counter, value, [zero])

        step = count(BufferLoad(counter, [zero]) + IntImm("int64", 1))
        body = SeqStmt([step, mutator.mutate(op.body)])
        loop = While(mutator.mutate(op.condition), body)
        return SeqStmt([AllocBuffer(counter), count(IntImm("int64", -1)), loop])

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
        dtype = buffer.ty.dtype.dtype
        nbits = dtype.bits * dtype.lanes
        if place.arena.ty.shape[0].value * 8 // nbits > _INT32_MAX and index.ty.dtype.bits < 64:
            index = _cast(index, f"int64x{index.ty.dtype.lanes}")
        return [_moved(index, _elements(place.offset, nbits, buffer.name))]

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
        offset = mutator.mutate(offset)
        shift = _elements(place.offset, element.bits * element.lanes, buffer.name)
        view = self._view[buffer.__chandle__()].data
        args = [dtype, view, offset + shift, mutator.mutate(extent), mask]
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

    def _check_takes_addresses(self, op: Call) -> None:
        """Refuse a call that may mean the whole buffer where it is given one."""
        is_function = isinstance(op.op, GlobalVar)  # Of the module: it knows types of parameters.
        name = str(op.op.name_hint if is_function else getattr(op.op, "name", op.op))
        if name in _TAKE_ADDRESSES and not is_function:
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
        dtype = buffer.ty.dtype.dtype
        shift = _elements(place.offset, dtype.bits * dtype.lanes, buffer.name)
        index = IntImm(buffer.ty.shape[0].ty, shift)
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
    end = _elements(place.offset, ty.dtype.dtype.bits * ty.dtype.dtype.lanes, buffer.name)
    extent = ty.shape[0]
    return tirx.decl_buffer(
        (extent + IntImm(extent.ty, end),),
        str(ty.dtype.dtype),
        buffer.name,
        scope=ty.storage_scope,
        layout=None,
    )


def _slot_address(arena: Var, offsets: Sequence[int], iteration: Any) -> Any:
    """Return the address of the slot whose turn it is: iteration number modulo their number."""
    dtype, count = arena.ty.shape[0].ty, len(offsets)
    slot = _cast(tirx.floormod(iteration, IntImm(iteration.ty, count)), dtype.dtype)
    stride = offsets[1] - offsets[0]
    if all(offset == offsets[0] + k * stride for k, offset in enumerate(offsets)):
        index = slot * IntImm(dtype, stride) + IntImm(dtype, offsets[0])
    else:
        index = IntImm(dtype, offsets[-1])
        for k in range(count - 2, -1, -1):
            index = Select(slot == IntImm(dtype, k), IntImm(dtype, offsets[k]), index)
    return address_of(BufferLoad(arena, [index]))


def _iteration(loop: For) -> Any:
    """Return the number of the current iteration of a loop, from 0."""
    number = loop.loop_var
    if not (isinstance(loop.min, IntImm) and loop.min.value == 0):
        number = number - loop.min
    if loop.step is not None and not (isinstance(loop.step, IntImm) and loop.step.value == 1):
        number = tirx.floordiv(number, loop.step)
    return number


def _elements(offset: int, nbits: int, name: str) -> int:
    """Return an offset in bytes as one in elements."""
    if offset * 8 % nbits:
        raise ValueError(
            f"buffer {name!r}: its offset of {offset} bytes is no multiple of its elements' "
            f"{nbits} bits"
        )
    return offset * 8 // nbits


def _moved(index: Any, shift: int) -> Any:
    """Return an index, scalar or vector, with as much added to each lane."""
    if shift == 0:
        return index
    lanes = index.ty.dtype.lanes
    amount = IntImm(str(index.ty.dtype.with_lanes(1)), shift)
    if isinstance(index, Ramp):
        return Ramp(index.base + amount, index.stride, index.lanes)
    if isinstance(index, Broadcast):
        return Broadcast(index.value + amount, index.lanes)
    return index + (amount if lanes == 1 else Broadcast(amount, lanes))


def _cast(value: Any, dtype: Any) -> Any:
    return value if str(value.ty.dtype) == str(dtype) else Cast(str(dtype), value)
