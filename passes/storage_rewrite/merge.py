# SPDX-License-Identifier: Apache-2.0
"""Writes a storage plan into the IR: allocations that share become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from passes.ir import LinearAccess, items, new_dtype, structural_map, tir, with_loop_body
from passes.ir.operators import buffer_data_var, is_buffer_data, is_tvm_access_ptr, masked_index
from passes.ir.storage_entries import StmtKind, StorageEntry, StoragePlan
from passes.prim_func import VIEWS_REFUSE, index_type

_INT32_MAX = 2**31 - 1
_MOST_NAMES = 8  # Of those that a message gives
_NOTHING = tir.Evaluation(0)  # A sequence leaves it out


def prepare_new_alloc(
    entry: StorageEntry, access: LinearAccess, *, sound: bool = False
) -> tir.Allocation:
    """Build the one allocation of an entry without a parent, and of what is packed into it.

    It is of the entry's first buffer itself where all that share are alike; else of a new buffer
    with the same name. ValueError is raised when allocations that are not alike share, and one is
    not flat.
    """
    shared = [access.alloc_stmts[index].buffer for index in entry.allocs]
    buffer, volatile = shared[0], entry.is_volatile
    if entry.children:
        element = buffer.ty.dtype.dtype.with_lanes(1)
        size = -(-entry.packed_nbits // entry.element.bits)
        counted = tir.PrimType(index_type(size)) if sound else buffer.ty.shape[0].ty
        if size > _most(counted.dtype):
            packed = entry, *entry.children
            names = [repr(access.alloc_stmts[each.allocs[0]].buffer.name) for each in packed]
            raise ValueError(
                f"buffers {', '.join(names[:_MOST_NAMES])}{', ...' * (len(names) > _MOST_NAMES)} "
                f"in {entry.scope} are packed into one of {entry.packed_nbits // 8} bytes, which "
                f"are {size} elements of {element}: more than an extent of type {counted.dtype} "
                "can count"
            )
        extent = tir.IntConstant(counted, size)
        buffer = _flat_buffer(extent, element, buffer.name, entry)
        volatile = volatile or any(child.is_volatile for child in entry.children)
    elif len(shared) > 1:
        elements = [access.allocs[index].element for index in entry.allocs]
        if any(element.is_scalable for element in elements):
            raise ValueError(
                f"buffer {buffer.name!r} in {entry.scope} shares memory and has a scalable vector "
                "type, whose size is not known"
            )
        if any(each is not elements[0] for each in elements) or not _all_alike(shared):
            widest = max((each.ty.dtype.dtype for each in shared), key=lambda dtype: dtype.lanes)
            extent = _merged_extent(shared, widest.bits * widest.lanes)
            buffer = _flat_buffer(extent, widest, buffer.name, entry)
    return tir.Allocation(buffer, {"tirx.volatile": True} if volatile else None)


def _most(dtype: Any) -> int:
    """Return the largest number of a type."""
    return int(2 ** (dtype.bits - (not str(dtype).startswith("uint"))) - 1)


def _flat_buffer(extent: Any, element: Any, name: str, entry: StorageEntry) -> tir.Var:
    return tir.new_buffer((extent,), element, name, scope=str(entry.scope))


def _all_alike(buffers: list[tir.Var]) -> bool:
    """Return whether all buffers have the same shape."""
    shape, *others = (items(buffer.ty.shape) for buffer in buffers)
    return all(
        len(other) == len(shape) and all(map(tir.expr_deep_equal, other, shape)) for other in others
    )


def _merged_extent(buffers: list[tir.Var], element_nbits: int) -> Any:
    """Return the number of elements, of so many bits each, that hold any of the buffers."""
    nbits = None
    for buffer in buffers:
        shape, dtype = buffer.ty.shape, buffer.ty.dtype.dtype
        if len(shape) != 1:
            raise ValueError(
                f"buffer {buffer.name!r} shares memory and has {len(shape)} dimensions; "
                "only flat buffers can share; run FlattenBuffer first"
            )
        extent = shape[0]
        if type(extent) is tir.IntConstant and extent.value > _INT32_MAX // (
            dtype.bits * dtype.lanes
        ):
            extent = tir.IntConstant("int64", extent.value)
        needed = extent * (dtype.bits * dtype.lanes)
        nbits = needed if nbits is None else tir.most(nbits, needed)
    analyzer = tir.Analyzer()
    divides = analyzer.can_prove(tir.indexmod(nbits, element_nbits) == 0)
    extent = tir.indexdiv(nbits, element_nbits)
    return analyzer.simplify(extent if divides else extent + 1)


class StorageRewriter:
    """Replaces the allocations of a function by those of a plan, whose special memory is packed.

    A buffer keeps its variable: where its memory is another's, its allocation turns into an alias.
    So most accesses stay as they are. If `sound`, an allocation that the plan leaves out stays, a
    pointer keeps its buffer's name, and an index that is too narrow for the memory that its buffer
    is packed into is widened before an offset is added. The original takes pointers of the owner,
    where TVM's `LowerIntrin` refuses one of another element type, and adds in the index's type, in
    which the sum may wrap.
    """

    def __init__(self, access: LinearAccess, plan: StoragePlan, *, sound: bool = False) -> None:
        self.plan = plan
        self._sound = sound
        self._buffers = access.buffers
        self._entry_of = plan.entry_of
        self._undeclared: dict[int, tir.Var] = {}
        self._data: dict[int, Any] = {}  # The pointers to owners' memory, by their handles
        self.owners: dict[StorageEntry, tir.Var] = {}
        # The buffer that owns the memory of each allocation that turns into an alias.
        self._alias_owner: dict[int, tir.Var] = {}
        # The new allocations, by the statement in whose body each is made, and their handles.
        self._attached: dict[int | None, list[tir.Allocation]] = {}
        self._new: set[int] = set()
        self._names_buffers = access.names_buffers
        self._in_loops, self._in_attributes = False, access.names_buffers
        for entry in plan.entries:
            if entry.parent is None:
                alloc, scope = prepare_new_alloc(entry, access, sound=sound), entry.attach_scope
                begin = None if scope is None else access.sequence[scope]
                self._attached.setdefault(begin.key if begin else None, []).append(alloc)
                self._new.add(alloc.__chandle__())
                self._in_loops |= begin is not None and begin.kind is StmtKind.PARALLEL
                self._in_attributes |= begin is not None and begin.kind is StmtKind.THREAD
                owner = alloc.buffer
            else:
                owner = self.owners[entry.parent]
            self.owners[entry] = owner
            key = owner.__chandle__()
            for index in entry.allocs:
                # A statement that stands in two places may give its buffer two entries.
                if plan.entry_of[index] is entry and access.alloc_keys[index] != key:
                    self._alias_owner[access.alloc_keys[index]] = owner
        # A used buffer without an entry stays where it is. The original drops memory that nothing
        # but a computed pointer reaches.
        self._staying: set[int] = set()
        if len(plan.entry_of) < len(access.allocs):
            used = {index for stmt in access.sequence for index in stmt.touched}
            used |= access.escaped if sound else set()
            self._staying = {access.alloc_keys[index] for index in used - plan.entry_of.keys()}
        self._has_aliases, self._has_opaque = access.has_aliases, access.has_opaque

    def __call__(self, body: Any) -> Any:
        """Rewrite the body that `access` walked; it stays as it is."""
        callbacks: list[tuple[Any, Callable[[Any], Any]]] = [(tir.Allocation, self._rewrite_alloc)]
        if self._has_aliases:
            callbacks.append((tir.Declaration, self._rewrite_decl))
        if self._in_attributes:
            callbacks.append((tir.Attribute, self._rewrite_attr))
        if self._in_loops:
            callbacks.append((tir.Loop, self._rewrite_for))
        # An access to packed memory has its index moved, and a buffer handed to
        # a call becomes the buffer that owns its memory.
        moves_indices = any(entry.bits_offset for entry in self.plan.entries)
        if moves_indices:
            callbacks.append((tir.Load, self._rewrite_load))
            callbacks.append((tir.Store, self._rewrite_store))
        if moves_indices or self._has_opaque:
            callbacks.append((tir.Call, self._rewrite_call))
        return structural_map(self._behind_allocations(None, body), callbacks)

    def _behind_allocations(self, owner: int | None, body: Any) -> Any:
        """Return the body of a statement, or of the function, after what is allocated in it."""
        allocations = self._attached.get(owner)
        return tir.Sequence([*allocations, body]) if allocations else body

    def _entry(self, buffer: tir.Var) -> StorageEntry | None:
        known = self._buffers.get(buffer.__chandle__())
        return self._entry_of.get(known.root) if known is not None else None

    # Definitions

    def _rewrite_alloc(self, op: tir.Allocation) -> Any:
        buffer = op.buffer
        key = buffer.__chandle__()
        if key in self._staying or op.__chandle__() in self._new:
            return op
        owner, scope = self._alias_owner.get(key), str(buffer.ty.storage_scope) or "global"
        if owner is None:
            return _NOTHING
        if len(buffer.ty.allocated_addr) and scope in VIEWS_REFUSE:
            raise ValueError(
                f"buffer {buffer.name!r} in {scope} has an allocated_addr and would share the "
                f"memory of {owner.name!r}: TVM takes a view of it with an address in no such scope"
            )
        return tir.Declaration(buffer, data=self._data_of(owner))

    def _data_of(self, owner: tir.Var) -> Any:
        """Return the pointer to the memory of an owner, which is made once."""
        key = owner.__chandle__()
        data = self._data.get(key)
        if data is None:
            data = self._data[key] = owner.data
        return data

    def _rewrite_decl(self, op: tir.Declaration) -> Any:
        entry = self._entry(op.buffer)
        if entry is None:
            return op
        return tir.Declaration(op.buffer, data=self._data_of(self.owners[entry]))

    # Statements that may own memory

    def _rewrite_attr(self, op: tir.Attribute) -> Any:
        key = op.__chandle__()
        if key not in self._attached and not self._names_buffers:
            return op
        node = op.node
        entry = self._entry(node) if type(node) is tir.Var else None
        if entry is not None and not self.owners[entry].same_as(node):
            # The original does not rename buffers here. So where it gives a buffer a new variable,
            # the node is left with one that nothing declares.
            node = self._undeclared.setdefault(node.__chandle__(), tir.Var(node.name, node.ty))
        elif key not in self._attached:
            return op
        return tir.Attribute(node, op.attr_key, op.value, self._behind_allocations(key, op.body))

    def _rewrite_for(self, op: tir.Loop) -> Any:
        key = op.__chandle__()
        if key not in self._attached:
            return op
        return with_loop_body(op, self._behind_allocations(key, op.body))

    # Uses

    def _moved_last(self, indices: Any, buffer: tir.Var) -> list[Any] | None:
        """Return the indices into the memory a buffer is packed into; None where they are its."""
        entry = self._entry(buffer)
        if entry is None or not entry.bits_offset:
            return None
        *others, last = indices
        dtype = buffer.ty.dtype.dtype
        # The original counts bits of one lane, and then fails on elements that are vectors.
        bits = dtype.bits * (dtype.lanes if self._sound else 1)
        return [*others, self._moved(last, entry, bits, buffer.name)]

    def _moved(self, index: Any, entry: StorageEntry, element_nbits: int, name: str) -> Any:
        """Return an index of elements of so many bits as one in the memory it is packed into."""
        if self._sound:
            packed = entry.parent or entry
            wide = new_dtype(index_type(packed.packed_nbits // element_nbits))
            if index.ty.dtype.bits < wide.bits:
                index = index.astype(str(wide.with_lanes(index.ty.dtype.lanes)))
        where = f"buffer {name!r} begins"
        if entry.bits_offset % element_nbits:
            raise ValueError(
                f"{where} {entry.bits_offset} bits into the memory of {entry.scope}, "
                f"which is no multiple of its elements' {element_nbits} bits"
            )
        offset, dtype = entry.bits_offset // element_nbits, index.ty.dtype
        if offset > _most(dtype):
            raise ValueError(
                f"{where} {offset} elements into the memory of {entry.scope}, "
                f"which is more than an index of type {dtype} can count"
            )
        return tir.IntConstant(str(index.ty.dtype.with_lanes(1)), offset) + index

    def _rewrite_load(self, op: tir.Load) -> Any:
        indices = self._moved_last(op.indices, op.source)
        return op if indices is None else tir.new_load(op.source, indices)

    def _rewrite_store(self, op: tir.Store) -> Any:
        indices = self._moved_last(op.indices, op.buffer)
        return op if indices is None else tir.Store(op.buffer, op.value, indices)

    def _rewrite_call(self, op: tir.Call) -> Any:
        if is_buffer_data(op):
            entry = None if self._sound else self._entry(op.args[0])
            return op if entry is None else self.owners[entry].data
        at = masked_index(op)
        if at is not None:
            moved = self._moved_last([op.args[at]], op.args[0])
            args = [*op.args[:at], *(moved or []), *op.args[at + 1 :]]
            return op if moved is None else tir.Call(op.op, args, op.attrs, None, op.span, op.ty)
        if not is_tvm_access_ptr(op):
            return op
        dtype, data, offset, extent, mask = op.args
        buffer = buffer_data_var(data)
        entry = None if buffer is None else self._entry(buffer)
        if buffer is None or entry is None:
            return op
        element = dtype.ty.dtype
        if element.lanes < 0:
            raise ValueError(
                f"the address of buffer {buffer.name!r} is taken as one of {element}, and the "
                "offset of memory in elements of unknown size is not known"
            )
        if entry.bits_offset:
            offset = self._moved(offset, entry, element.bits * element.lanes, buffer.name)
        args = [dtype, data if self._sound else self.owners[entry], offset, extent, mask]
        return tir.Call(op.op, args, op.attrs, None, op.span, op.ty)
