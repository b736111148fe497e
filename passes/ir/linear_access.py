# SPDX-License-Identifier: Apache-2.0
"""The linear access sequence of a function: which statement touches which allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm.ir import GlobalVar, PrimType, StringImm, TensorLoad, TensorRegion, Var
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
    Return,
    TilePrimitiveCall,
    While,
    is_buffer_var,
)
from tvm.tirx.stmt import AttrStmt

from passes.ir.accesses import ANY_BUFFER, Access
from passes.ir.buffers import array_get, constant_shape, element_type, is_same_type, is_volatile
from passes.ir.node_visitor import NodeVisitor
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind
from passes.ir.structural import on_a_fresh_stack, structural_visit, type_index
from target_hw.storage_scope import parse_storage_scope

_STORE, _LEAF, _NEST = StmtKind.STORE, StmtKind.LEAF, StmtKind.NEST
_OPAQUE, _PARALLEL, _THREAD = StmtKind.OPAQUE, StmtKind.PARALLEL, StmtKind.THREAD

_PARALLEL_LOOP, _VECTORIZED_LOOP = int(ForKind.PARALLEL), int(ForKind.VECTORIZED)

_TENSOR_REGION = type_index(TensorRegion)

_OUTSIDE = -1
# A level of calls takes three levels of Python's recursion, of which a thread has a thousand.
_CALLS_PER_STACK = 200
"""The root of memory that the function did not allocate."""


class BufferEntry(NamedTuple):
    """What a buffer variable stands for."""

    root: int  # Index of the allocation whose memory it names; -1 for memory from outside
    dtype: PrimType  # The element type with which the memory was declared
    level: int  # How many statements with a body enclose the allocation
    is_flat: bool  # Whether the memory was declared with one dimension


@dataclass(frozen=True, eq=False, slots=True)
class LinearAccess:
    """What one walk over a function finds: statements, allocations, and who touches what."""

    sequence: list[StmtEntry]  # The statements that touch an allocation, in program order
    accesses: list[Access]  # The uses of buffers in program order, for `InplaceOpVerifier`
    allocs: list[AllocEntry]  # The allocations, in program order
    alloc_stmts: list[AllocBuffer]  # Their statements
    alloc_keys: list[int]  # The handles of their buffer variables
    # What each buffer variable stands for, by the handle of the variable.
    buffers: dict[int, BufferEntry]
    # Whether a buffer is used other than by a load or store: as the argument of a call, whose
    # accesses are not seen.
    has_opaque: bool
    escaped: set[int]  # Allocations whose address is taken, by that or by `address_of`
    # Allocations with an access of just the element type that they are declared with.
    plain: set[int]
    # The accesses of any other type, such as a vector of it, with their indices, by allocation.
    retyped: dict[int, list[tuple[PrimType, Any]]]
    # Whether memory may be accessed in ways that `plain` and `retyped` do not tell.
    has_unclear_types: bool
    # The functions that may be called: global variables, and strings among a call's arguments; each
    # with the position in `sequence` at which the statement that calls it would stand.
    calls: list[tuple[str, int]]


def find_linear_access(func: PrimFunc) -> LinearAccess:
    """Find which statement of a function touches which allocation; see the class below."""
    return LinearAccessPatternFinder(func.params)(func.body)


class LinearAccessPatternFinder(NodeVisitor):
    """Walks a function once and lists its accesses in program order.

    The rules are those of the class of the same name in TVM's StorageRewrite.
    A statement with a body (`for`, `if`, `while`, `assert`, the outermost thread
    extent, virtual threads, extern code) stands in the sequence twice, before
    and after its body. An allocation is touched at the statement that stands at
    the level where it was made, however deep inside it the access is: that is
    what keeps memory alive through the loops that use it.
    """

    def __init__(self, params: Any) -> None:
        super().__init__()
        self._sequence: list[StmtEntry] = []
        self._accesses: list[Access] = []
        self._allocs: list[AllocEntry] = []
        self._alloc_stmts: list[AllocBuffer] = []
        self._alloc_keys: list[int] = []
        self._buffers: dict[int, BufferEntry] = {}
        self._has_opaque = False
        self._escaped: set[int] = set()
        self._plain: set[int] = set()
        self._retyped: dict[int, list[tuple[PrimType, Any]]] = {}
        self._has_unclear_types = False
        self._calls: list[tuple[str, int]] = []
        # What has been touched so far in each open scope, outermost first.
        self._scopes: list[list[int]] = []
        self._store: BufferStore | None = None
        self._index_depth = 0
        self._in_thread_env = False
        self._call_depth = 0
        for position in range(len(params)):
            param = array_get(params, position)
            if is_buffer_var(param):
                self._declare_outside(param, param.ty.dtype)

    def __call__(self, body: Any) -> LinearAccess:
        """Walk a function's body, as it stands after `FlattenBuffer`.

        ValueError is raised when an allocation is accessed that has not one dimension, a load
        stands where no statement can own it, an alias comes before its source, a loop is
        vectorized, or there are blocks. The message names the buffer or loop.
        """
        structural_visit(body, self.callbacks((_TENSOR_REGION, self._visit_region)))
        return LinearAccess(
            self._sequence,
            self._accesses,
            self._allocs,
            self._alloc_stmts,
            self._alloc_keys,
            self._buffers,
            self._has_opaque,
            self._escaped,
            self._plain,
            self._retyped,
            self._has_unclear_types,
            self._calls,
        )

    # Definitions

    def _declare(self, buffer: Var, dtype: PrimType, source: BufferEntry) -> None:
        key = buffer.__chandle__()
        if key in self._buffers or element_type(dtype).lanes != element_type(source.dtype).lanes:
            # Declared twice, or an alias of other lanes: the vector rewrite's to refuse.
            self._has_unclear_types = True
        self._buffers[key] = source

    def _visit_alloc(self, op: AllocBuffer, visitor: Any) -> None:
        buffer = op.buffer
        ty = buffer.ty
        shape, dtype = ty.shape, ty.dtype
        volatile = is_volatile(op)
        if volatile:
            self._accesses.append(ANY_BUFFER)
        element = element_type(dtype)
        extents = constant_shape(shape)
        nbits = element.nbits
        if extents is None:
            visitor.visit(shape)
            nbits = 0
        else:
            for extent, _ in extents:
                nbits *= extent
        ndim = len(shape) if extents is None else len(extents)
        level = len(self._scopes)
        scope = parse_storage_scope(ty.storage_scope)
        entry = AllocEntry(buffer.name, level, scope, element, extents, nbits, ndim, volatile)
        key = buffer.__chandle__()
        known = self._buffers.get(key)
        if known is not None and known.root >= 0:
            # One statement may stand in several places; the last is what counts.
            root = known.root
            self._allocs[root], self._alloc_stmts[root] = entry, op
        else:
            root = len(self._allocs)
            self._allocs.append(entry)
            self._alloc_stmts.append(op)
            self._alloc_keys.append(key)
        self._declare(buffer, dtype, BufferEntry(root, dtype, level, ndim == 1))

    def _declare_outside(self, buffer: Var, dtype: PrimType) -> None:
        self._declare(buffer, dtype, BufferEntry(_OUTSIDE, dtype, 0, True))

    def _visit_decl(self, op: DeclBuffer, _visitor: Any) -> None:
        buffer, data = op.buffer, op.data
        source = buffer_data_var(data)
        dtype = buffer.ty.dtype
        if source is None:
            # A pointer that is made in some other way: which buffer it is from is not known.
            self._has_opaque = True
            self._has_unclear_types = True
            tvm_ffi.structural_walk(data, (Var, self._escape))
            self._declare_outside(buffer, dtype)
            return
        self._forbid_inplace(source)
        entry = self._buffers.get(source.__chandle__())
        if entry is not None:
            self._declare(buffer, dtype, entry)
        elif is_buffer_var(source):
            raise ValueError(
                f"buffer {buffer.name!r} is declared as an alias of {source.name!r}, "
                "which is not declared before it"
            )
        else:
            self._declare_outside(buffer, dtype)

    def _forbid_inplace(self, var: Var) -> None:
        self._accesses.append(Access(var.__chandle__(), None, None))

    def _escape(self, var: Var) -> None:
        self._forbid_inplace(var)
        entry = self._buffers.get(var.__chandle__())
        if entry is not None and entry.root >= 0:
            self._escaped.add(entry.root)

    # Accesses

    def _touch(self, entry: BufferEntry) -> None:
        if entry.level >= len(self._scopes):
            raise ValueError(
                f"buffer {self._allocs[entry.root].name!r} is read in a place that belongs to no "
                "statement of the scope in which it is allocated"
            )
        self._scopes[entry.level].append(entry.root)

    def _access(self, entry: BufferEntry, dtype: PrimType, indices: Any) -> None:
        root = entry.root
        if not entry.is_flat:
            alloc = self._allocs[root]
            raise ValueError(
                f"buffer {alloc.name!r} is allocated with {alloc.num_physical_dimensions} "
                "dimensions and accessed as flat memory; run FlattenBuffer before StorageRewrite"
            )
        if not len(indices):
            raise ValueError(
                f"buffer {self._allocs[root].name!r} is accessed without an index, through an "
                "alias without dimensions; run FlattenBuffer before StorageRewrite"
            )
        if is_same_type(dtype, entry.dtype):
            self._plain.add(root)
        else:
            self._retyped.setdefault(root, []).append((dtype, indices))
        self._touch(entry)

    def _visit_load(self, op: TensorLoad, visitor: Any) -> None:
        indices = op.indices
        is_index = self._index_depth
        self._index_depth = is_index + 1
        visitor.visit(indices)
        self._index_depth = is_index
        key = op.source.__chandle__()
        entry = self._buffers.get(key)
        if is_index:
            self._accesses.append(ANY_BUFFER)
        if entry is None:
            self._has_unclear_types = True
        elif entry.root >= 0:
            if not is_index:
                self._accesses.append(Access(key, op, self._store))
            self._access(entry, op.ty, indices)

    def _visit_store(self, op: BufferStore, visitor: Any) -> None:
        first = len(self._accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        value, indices = op.value, op.indices
        self._store = op
        visitor.visit(value)
        self._store = None
        self._index_depth += 1
        visitor.visit(indices)
        self._index_depth -= 1
        entry = self._buffers.get(op.buffer.__chandle__())
        if entry is None:
            self._has_unclear_types = True
        elif entry.root >= 0:
            self._access(entry, value.ty, indices)
        self._leave_leaf(op, _STORE, touched, first)

    def _use(self, expr: Any) -> None:
        """Note a buffer that is handed on as a whole, if that is what an expression is."""
        if type(expr) is not Var:
            return
        entry = self._buffers.get(expr.__chandle__())
        if entry is not None:
            self._has_opaque = True
            self._escape(expr)
            if entry.root >= 0:
                self._touch(entry)

    # The places where an expression can be a buffer: arithmetic only takes numbers.

    def _visit_call(self, op: Call, visitor: Any) -> None:
        self._call_depth += 1
        if self._call_depth % _CALLS_PER_STACK:
            self._walk_call(op, visitor)
        else:
            on_a_fresh_stack(lambda: self._walk_call(op, visitor))
        self._call_depth -= 1

    def _walk_call(self, op: Call, visitor: Any) -> None:
        args = [array_get(op.args, i) for i in range(len(op.args))]
        called = [str(arg.value) for arg in args if type(arg) is StringImm]
        if type(op.op) is GlobalVar:
            called.append(str(op.op.name_hint))
        self._calls += ((name, len(self._sequence)) for name in called)
        if any(type(arg) is Var for arg in args):
            for arg in args:
                self._visit_operand(arg, visitor)
        else:
            visitor.visit(op.args)
        if is_tvm_access_ptr(op):
            self._note_access_ptr(args)
        elif is_address_of(op) and isinstance(args[0], TensorLoad):
            entry = self._buffers.get(args[0].source.__chandle__())
            if entry is not None and entry.root >= 0:
                self._escaped.add(entry.root)

    def _note_access_ptr(self, args: list[Any]) -> None:
        buffer = buffer_data_var(args[1])
        entry = self._buffers.get(buffer.__chandle__()) if buffer is not None else None
        dtype = args[0].ty
        if entry is None or dtype.dtype.lanes != entry.dtype.dtype.lanes:
            self._has_unclear_types = True
        elif entry.root >= 0 and is_same_type(dtype, entry.dtype):
            self._plain.add(entry.root)
        elif entry.root >= 0:
            self._retyped.setdefault(entry.root, []).append((dtype, args[2:3]))

    def _visit_operand(self, expr: Any, visitor: Any) -> None:
        if type(expr) is Var:
            self._use(expr)
        else:
            visitor.visit(expr)

    def _visit_let(self, op: Let, visitor: Any) -> None:
        self._has_unclear_types = True
        self._visit_operand(op.value, visitor)
        self._visit_operand(op.body, visitor)

    def _visit_region(self, op: TensorRegion, visitor: Any) -> None:
        self._use(op.source)
        visitor.visit(op.region)

    def _visit_tile_primitive(self, op: TilePrimitiveCall, visitor: Any) -> None:
        # The original does not look into the workspace.
        for arg in op.args:
            self._visit_operand(arg, visitor)
        visitor.visit(op.config)

    # Leaf statements

    def _leave_leaf(self, op: Any, kind: StmtKind, touched: list[int], first: int) -> None:
        self._scopes.pop()
        if touched:
            entry = StmtEntry(op.__chandle__(), kind, touched, first, len(self._accesses))
            self._sequence.append(entry)

    def _visit_value(self, op: Evaluate | Return | Bind, visitor: Any) -> None:
        first = len(self._accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        self._visit_operand(op.value, visitor)
        self._leave_leaf(op, _LEAF, touched, first)

    def _visit_bind(self, op: Bind, visitor: Any) -> None:
        ty = op.var.ty
        if type(ty) is not PrimType or not is_same_type(ty, op.value.ty):
            self._has_unclear_types = True
        self._visit_value(op, visitor)

    # Statements with a body

    def _enter(self, op: Any, kind: StmtKind) -> StmtEntry:
        first = len(self._accesses)
        entry = StmtEntry(op.__chandle__(), kind, [], first, first, len(self._sequence))
        self._sequence.append(entry)
        self._scopes.append([])
        return entry

    def _leave(self, before: StmtEntry) -> None:
        # Until now the offset of the first half was its own position.
        offset = len(self._sequence) - before.scope_pair_offset
        first, last = before.first_access, len(self._accesses)
        before.scope_pair_offset = offset
        before.last_access = last
        touched = self._scopes.pop()
        self._sequence.append(StmtEntry(before.key, before.kind, touched, first, last, -offset))

    def _visit_for(self, op: For, visitor: Any) -> None:
        kind = op.kind
        if kind == _VECTORIZED_LOOP:
            raise ValueError(
                f"loop {op.loop_var.name!r} is vectorized; run VectorizeLoop before StorageRewrite"
            )
        before = self._enter(op, _PARALLEL if kind == _PARALLEL_LOOP else _NEST)
        for bound in (op.min, op.extent, op.step):
            if bound is not None and type(bound) is not IntImm:
                visitor.visit(bound)
        visitor.visit(op.body)
        self._leave(before)

    def _visit_if(self, op: IfThenElse, visitor: Any) -> None:
        before = self._enter(op, _NEST)
        visitor.visit(op.condition)
        visitor.visit(op.then_case)
        if op.else_case is not None:
            visitor.visit(op.else_case)
        self._leave(before)

    def _visit_while(self, op: While, visitor: Any) -> None:
        before = self._enter(op, _NEST)
        visitor.visit(op.condition)
        visitor.visit(op.body)
        self._leave(before)

    def _visit_assert(self, op: AssertStmt, visitor: Any) -> None:
        before = self._enter(op, _OPAQUE)
        visitor.visit(op.condition)
        self._leave(before)

    def _visit_attr(self, op: AttrStmt, visitor: Any) -> None:
        key = op.attr_key
        kind = self._attr_kind(key)
        if kind is None:
            visitor.visit(op.value)
            visitor.visit(op.body)
            return
        if kind is _OPAQUE:
            self._accesses.append(ANY_BUFFER)
        was_in_thread_env = self._in_thread_env
        self._in_thread_env = was_in_thread_env or key == "thread_extent"
        before = self._enter(op, kind)
        visitor.visit(op.value)
        visitor.visit(op.body)
        self._leave(before)
        self._in_thread_env = was_in_thread_env

    def _attr_kind(self, key: str) -> StmtKind | None:
        """Return what an attribute is to the planner; None for no statement of its own."""
        if key == "thread_extent" and not self._in_thread_env:
            return _THREAD
        if key == "virtual_thread":
            return _THREAD
        return _OPAQUE if key == "extern_scope" else None
