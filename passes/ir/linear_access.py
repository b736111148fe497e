# SPDX-License-Identifier: Apache-2.0
"""The linear access sequence of a function: which statement touches which allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import tirx
from tvm.ir import GlobalVar, PrimType, StringImm, TensorLoad, Var

from passes.ir import statements as records
from passes.ir.buffers import (
    array_size,
    constant_shape,
    element_type,
    is_same_type,
    is_volatile,
    items,
)
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind
from passes.ir.structural import nodes_in
from target_hw.storage_scope import parse_storage_scope

_PARALLEL_LOOP, _VECTORIZED_LOOP = int(tirx.ForKind.PARALLEL), int(tirx.ForKind.VECTORIZED)

_OUTSIDE = -1  # The root of memory that the function did not allocate


@dataclass(slots=True, eq=False)
class Access:
    """One use of a buffer, or of something that forbids sharing in place."""

    buffer: int  # Handle of the buffer variable; 0 stands for all buffers
    load: records.Load | None  # The load that reads it; None where it is used in any other way
    store: records.Store | None  # The store for whose value it is read


ANY_BUFFER = Access(0, None, None)
"""What forbids sharing in place for all buffers: extern code, ``A[B[i]]``, volatile memory."""


class BufferEntry(NamedTuple):
    """What a buffer variable stands for."""

    root: int  # Index of the allocation whose memory it names; -1 for memory from outside
    dtype: PrimType  # The element type with which the memory was declared
    level: int  # How many statements with a body enclose the allocation
    is_flat: bool  # Whether the memory was declared with one dimension


class LinearAccess(NamedTuple):
    """What the statements of a function say: allocations, and who touches what."""

    statements: records.Records  # The function, as it was read
    sequence: list[StmtEntry]  # The statements that touch an allocation, in program order
    accesses: list[Access]  # The uses of buffers in program order, for `InplaceOpVerifier`
    allocs: list[AllocEntry]  # The allocations, in program order
    alloc_stmts: list[tirx.AllocBuffer]  # Their statements
    alloc_keys: list[int]  # The handles of their buffer variables
    # What each buffer variable stands for, by the handle of the variable.
    buffers: dict[int, BufferEntry]
    escaped: set[int]  # Allocations whose address is taken, by an opaque use or by `address_of`
    plain: set[int]  # Allocations with an access of just the element type they are declared with
    # The accesses of any other type, such as a vector of it, with their indices, by allocation.
    retyped: dict[int, list[tuple[PrimType, Any]]]
    # The functions that may be called: global variables, and strings among a call's arguments; each
    # with the position in `sequence` at which the statement that calls it would stand.
    calls: list[tuple[str, int]]
    # Whether a buffer is used other than by a load or store: as the argument of a call, whose
    # accesses are not seen.
    has_opaque: bool = False
    # Whether memory may be accessed in ways that `plain` and `retyped` do not tell.
    has_unclear_types: bool = False


def find_linear_access(func: tirx.PrimFunc) -> LinearAccess:
    """Find which statement of a function, as it stands after `FlattenBuffer`, touches what.

    ValueError is raised when an allocation is accessed that has not one dimension, a load stands
    where no statement can own it, an alias comes before its source, a loop is vectorized, or there
    are blocks. The message names the buffer or loop.
    """
    return LinearAccessPatternFinder(func.params).find(records.read_statements(func.body))


class LinearAccessPatternFinder(records.RecordVisitor):
    """Goes through the statements of a function and lists its accesses in program order.

    The rules are those of the class of the same name in TVM's StorageRewrite.
    A statement with a body (`for`, `if`, `while`, `assert`, the outermost thread
    extent, virtual threads, extern code) stands in the sequence twice, before
    and after its body. An allocation is touched at the statement that stands at
    the level where it was made, however deep inside it the access is: that is
    what keeps memory alive through the loops that use it.
    """

    def __init__(self, params: Any) -> None:
        self._found = LinearAccess((), [], [], [], [], [], {}, set(), set(), {}, [])
        self._has_opaque = self._has_unclear_types = False
        # What has been touched so far in each open scope, outermost first.
        self._scopes: list[list[int]] = []
        self._store: records.Store | None = None
        self._index_depth = 0
        self._in_thread_env = False
        for param in items(params):
            ty = param.ty
            if type(ty) is tirx.BufferType:
                self._declare_outside(param.__chandle__(), ty.dtype)

    def find(self, statements: records.Records) -> LinearAccess:
        """Go through the statements of a function's body."""
        self._visit(statements)
        return self._found._replace(
            statements=statements,
            has_opaque=self._has_opaque,
            has_unclear_types=self._has_unclear_types,
        )

    # Definitions

    def _declare(self, key: int, entry: BufferEntry) -> None:
        known = self._found.buffers
        if key in known:
            self._has_unclear_types = True  # Declared twice: the vector rewrite's to refuse.
        known[key] = entry

    def _visit_alloc(self, alloc: records.Alloc) -> None:
        found, op, ty = self._found, alloc.op, alloc.buffer.ty
        volatile = is_volatile(op)
        if volatile:
            found.accesses.append(ANY_BUFFER)
        dtype = ty.dtype
        element = element_type(dtype)
        extents = constant_shape(alloc.extents)
        nbits = element.nbits
        if extents is None:
            self._visit(alloc.shape)
            nbits = 0
        else:
            for extent, _ in extents:
                nbits *= extent
        ndim, level = len(alloc.extents), len(self._scopes)
        scope = parse_storage_scope(ty.storage_scope)
        entry = AllocEntry(alloc.buffer.name, level, scope, element, extents, nbits, ndim, volatile)
        known = found.buffers.get(alloc.key)
        if known is not None and known.root >= 0:
            # One statement may stand in several places; the last is what counts.
            root = known.root
            found.allocs[root], found.alloc_stmts[root] = entry, op
        else:
            root = len(found.allocs)
            found.allocs.append(entry)
            found.alloc_stmts.append(op)
            found.alloc_keys.append(alloc.key)
        self._declare(alloc.key, BufferEntry(root, dtype, level, ndim == 1))

    def _declare_outside(self, key: int, dtype: PrimType) -> None:
        self._declare(key, BufferEntry(_OUTSIDE, dtype, 0, True))

    def _visit_declare(self, declare: records.Declare) -> None:
        buffer, data = declare.op.buffer, declare.op.data
        source = buffer_data_var(data)
        dtype = buffer.ty.dtype
        if source is None:
            # A pointer that is made in some other way: which buffer it is from is not known.
            self._has_opaque = True
            self._has_unclear_types = True
            for var in nodes_in(data, Var):
                self._escape(var.__chandle__())
            self._declare_outside(declare.key, dtype)
            return
        self._forbid_inplace(source.__chandle__())
        entry = self._found.buffers.get(source.__chandle__())
        if entry is not None:
            if element_type(dtype).lanes != element_type(entry.dtype).lanes:
                self._has_unclear_types = True  # The vector rewrite's to refuse, too.
            self._declare(declare.key, entry)
        elif tirx.is_buffer_var(source):
            raise ValueError(
                f"buffer {buffer.name!r} is declared as an alias of {source.name!r}, "
                "which is not declared before it"
            )
        else:
            self._declare_outside(declare.key, dtype)

    def _forbid_inplace(self, key: int) -> None:
        self._found.accesses.append(Access(key, None, None))

    def _escape(self, key: int) -> None:
        self._forbid_inplace(key)
        self._take_address(key)

    def _take_address(self, key: int) -> None:
        entry = self._found.buffers.get(key)
        if entry is not None and entry.root >= 0:
            self._found.escaped.add(entry.root)

    # Accesses

    def _touch(self, entry: BufferEntry) -> None:
        if entry.level >= len(self._scopes):
            raise ValueError(
                f"buffer {self._found.allocs[entry.root].name!r} is read in a place that belongs "
                "to no statement of the scope in which it is allocated"
            )
        self._scopes[entry.level].append(entry.root)

    def _access(self, entry: BufferEntry, dtype: PrimType, indices: Any) -> None:
        root, alloc = entry.root, self._found.allocs[entry.root]
        if not entry.is_flat:
            raise ValueError(
                f"buffer {alloc.name!r} is allocated with {alloc.num_physical_dimensions} "
                "dimensions and accessed as flat memory; run FlattenBuffer before StorageRewrite"
            )
        if not array_size(indices):
            raise ValueError(
                f"buffer {alloc.name!r} is accessed without an index, through an "
                "alias without dimensions; run FlattenBuffer before StorageRewrite"
            )
        if is_same_type(dtype, entry.dtype):
            self._found.plain.add(root)
        else:
            self._found.retyped.setdefault(root, []).append((dtype, indices))
        self._touch(entry)

    def _visit_indices(self, indices: records.Records) -> None:
        self._index_depth += 1
        self._visit(indices)
        self._index_depth -= 1

    def _visit_load(self, load: records.Load) -> None:
        if load.indices:
            self._visit_indices(load.indices)
        entry = self._found.buffers.get(load.key)
        if self._index_depth:
            self._found.accesses.append(ANY_BUFFER)
        if entry is None:
            self._has_unclear_types = True
        elif entry.root >= 0:
            if not self._index_depth:
                self._found.accesses.append(Access(load.key, load, self._store))
            self._access(entry, load.op.ty, load.op.indices)

    def _visit_store(self, store: records.Store) -> None:
        first = len(self._found.accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        self._store = store
        self._visit(store.value)
        self._store = None
        if store.indices:
            self._visit_indices(store.indices)
        entry = self._found.buffers.get(store.key)
        if entry is None:
            self._has_unclear_types = True
        elif entry.root >= 0:
            self._access(entry, store.op.value.ty, store.op.indices)
        self._leave_leaf(store.op, StmtKind.STORE, touched, first)

    def _visit_name(self, name: records.Name) -> None:
        """Note a buffer that is handed on as a whole."""
        entry = self._found.buffers.get(name.key)
        if entry is not None:
            self._has_opaque = True
            self._escape(name.key)
            if entry.root >= 0:
                self._touch(entry)

    def _visit_call(self, call: records.Call) -> None:
        op, found = call.op, self._found
        called = [str(arg.value) for arg in items(op.args) if type(arg) is StringImm]
        if type(op.op) is GlobalVar:
            called.append(str(op.op.name_hint))
        found.calls.extend((name, len(found.sequence)) for name in called)
        for arg in call.args:
            self._visit(arg)
        if is_tvm_access_ptr(op):
            self._note_access_ptr(list(op.args))
        elif is_address_of(op) and isinstance(op.args[0], TensorLoad):
            self._take_address(op.args[0].source.__chandle__())

    def _note_access_ptr(self, args: list[Any]) -> None:
        found, buffer = self._found, buffer_data_var(args[1])
        entry = found.buffers.get(buffer.__chandle__()) if buffer is not None else None
        dtype = args[0].ty
        if entry is None or dtype.dtype.lanes != entry.dtype.dtype.lanes:
            self._has_unclear_types = True
        elif entry.root >= 0 and is_same_type(dtype, entry.dtype):
            found.plain.add(entry.root)
        elif entry.root >= 0:
            found.retyped.setdefault(entry.root, []).append((dtype, args[2:3]))

    def _visit_let(self, let: records.Let) -> None:
        self._has_unclear_types = True
        self._visit_parts(let)

    # Leaf statements

    def _leave_leaf(self, op: Any, kind: StmtKind, touched: list[int], first: int) -> None:
        self._scopes.pop()
        if touched:
            last = len(self._found.accesses)
            self._found.sequence.append(StmtEntry(op.__chandle__(), kind, touched, first, last))

    def _visit_value(self, value: records.Value) -> None:
        op = value.op
        if type(op) is tirx.Bind and (
            type(op.var.ty) is not PrimType or not is_same_type(op.var.ty, op.value.ty)
        ):
            self._has_unclear_types = True
        first = len(self._found.accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        self._visit(value.value)
        self._leave_leaf(op, StmtKind.LEAF, touched, first)

    def _visit_other(self, other: records.Other) -> None:
        hidden: set[int] = set()
        if type(other.op) is tirx.TilePrimitiveCall:
            # The original does not look into the workspace.
            hidden = {buffer.__chandle__() for buffer in other.op.workspace.values()}
            hidden -= {arg.__chandle__() for arg in other.op.args if type(arg) is Var}
        self._visit([r for r in other.parts if type(r) is not records.Name or r.key not in hidden])

    # Statements with a body

    def _visit_nest(self, record: Any, kind: StmtKind) -> None:
        found = self._found
        first, begin = len(found.accesses), len(found.sequence)
        before = StmtEntry(record.key, kind, [], first, first)
        found.sequence.append(before)
        self._scopes.append([])
        self._visit_parts(record)
        before.last_access = last = len(found.accesses)
        before.scope_pair_offset = offset = len(found.sequence) - begin
        touched = self._scopes.pop()
        found.sequence.append(StmtEntry(before.key, kind, touched, first, last, -offset))

    def _visit_assert(self, record: records.Assert) -> None:
        self._visit_nest(record, StmtKind.OPAQUE)

    def _visit_branch(self, record: records.Branch | records.WhileLoop) -> None:
        self._visit_nest(record, StmtKind.NEST)

    _visit_whileloop = _visit_branch

    def _visit_forloop(self, loop: records.ForLoop) -> None:
        kind = loop.op.kind
        if kind == _VECTORIZED_LOOP:
            raise ValueError(
                f"loop {loop.op.loop_var.name!r} is vectorized; "
                "run VectorizeLoop before StorageRewrite"
            )
        self._visit_nest(loop, StmtKind.PARALLEL if kind == _PARALLEL_LOOP else StmtKind.NEST)

    def _visit_attribute(self, attribute: records.Attribute) -> None:
        key = attribute.op.attr_key
        was_in_thread_env = self._in_thread_env
        if key == "virtual_thread" or (key == "thread_extent" and not was_in_thread_env):
            self._in_thread_env = was_in_thread_env or key == "thread_extent"
            self._visit_nest(attribute, StmtKind.THREAD)
            self._in_thread_env = was_in_thread_env
        elif key == "extern_scope":
            self._found.accesses.append(ANY_BUFFER)
            self._visit_nest(attribute, StmtKind.OPAQUE)
        else:
            self._visit_parts(attribute)
