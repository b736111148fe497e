# SPDX-License-Identifier: Apache-2.0
"""The linear access sequence of a function: which statement touches which allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tvm import tirx
from tvm.ir import Expr, GlobalVar, PrimType, StringImm, TensorLoad, Var
from tvm.ir.expr import Call
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx.stmt import AttrStmt

from passes.ir.buffers import (
    array_size,
    constant_shape,
    element_type,
    is_same_type,
    is_volatile,
    items,
    storage_scope,
)
from passes.ir.operators import (
    buffer_data_var,
    is_address_of,
    is_if_then_else,
    is_tvm_access_ptr,
)
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind
from passes.ir.structural import nodes_in, nodes_in_statement, nodes_without, outermost_nodes

_PARALLEL_LOOP, _VECTORIZED_LOOP = int(tirx.ForKind.PARALLEL), int(tirx.ForKind.VECTORIZED)

_OUTSIDE = -1  # The root of memory that the function did not allocate

_CONSTANTS = frozenset({tirx.IntImm, tirx.FloatImm, StringImm})
_IN_NUMBERS = (TensorLoad, Call, tirx.Let)  # What a number may be made of beside arithmetic


class Access(NamedTuple):
    """One use of a buffer, or of something that forbids sharing in place."""

    buffer: int  # Handle of the buffer variable; 0 stands for all buffers
    load: TensorLoad | None = None  # The load that reads it; None where it is used in any other way
    store: tirx.BufferStore | None = None  # The store for whose value or index it is read


ANY_BUFFER = Access(0)
"""What forbids sharing in place for all buffers: extern code, volatile memory."""


class BufferEntry(NamedTuple):
    """What a buffer variable stands for."""

    root: int  # Index of the allocation whose memory it names; -1 for memory from outside
    dtype: PrimType  # The element type with which the memory was declared
    level: int  # How many statements with a body enclose the allocation
    refusal: str = ""  # Why no load or store by this name is taken, if it is not


@dataclass(eq=False)
class LinearAccess:
    """What the statements of a function say: allocations, and who touches what."""

    body: tirx.Stmt  # The function's
    # The statements that touch an allocation, in program order.
    sequence: list[StmtEntry] = field(default_factory=list)
    # The uses of buffers other than by stores, in program order, for `InplaceOpVerifier`.
    accesses: list[Access] = field(default_factory=list)
    # The allocations in program order, their statements, and the handles of their variables.
    allocs: list[AllocEntry] = field(default_factory=list)
    alloc_stmts: list[tirx.AllocBuffer] = field(default_factory=list)
    alloc_keys: list[int] = field(default_factory=list)
    # What each buffer variable stands for, by the handle of the variable.
    buffers: dict[int, BufferEntry] = field(default_factory=dict)
    # Allocations whose address is taken, by an opaque use or by `address_of`.
    escaped: set[int] = field(default_factory=set)
    # Allocations with an access of just the element type they are declared with.
    plain: set[int] = field(default_factory=set)
    # Allocations with an access of any other type, such as a vector of it.
    retyped: set[int] = field(default_factory=set)
    # The functions that may be called: global variables, and strings among a call's arguments; each
    # with the position in `sequence` at which the statement that calls it would stand.
    calls: list[tuple[str, int]] = field(default_factory=list)
    # Whether a buffer is used other than by a load or store: as the argument of a call, whose
    # accesses are not seen.
    has_opaque: bool = False
    # Whether memory may be accessed in ways that `plain` and `retyped` do not tell.
    has_unclear_types: bool = False
    names_buffers: bool = False  # Whether an attribute is of a buffer


def find_linear_access(func: tirx.PrimFunc) -> LinearAccess:
    """Find which statement of a function, as it stands after `FlattenBuffer`, touches what.

    ValueError is raised when an allocation is accessed that has not one dimension, a load stands
    where no statement can own it, an alias comes before its source, a loop is vectorized, or there
    are blocks. The message names the buffer or loop.
    """
    return LinearAccessPatternFinder(func).find()


class LinearAccessPatternFinder:
    """Goes through the statements of a function and lists its accesses in program order.

    The rules are those of the class of the same name in TVM's StorageRewrite.
    A statement with a body (`for`, `if`, `while`, `assert`, the outermost thread
    extent, virtual threads, extern code) stands in the sequence twice, before
    and after its body. An allocation is touched at the statement that stands at
    the level where it was made, however deep inside it the access is: that is
    what keeps memory alive through the loops that use it.

    Statements are gone through in Python, expressions by TVM, up to the loads and calls in them.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._found = LinearAccess(func.body)
        # What has been touched so far in each open scope, outermost first.
        self._scopes: list[list[int]] = []
        self._store: tirx.BufferStore | None = None
        self._in_thread_env = False
        # The handles of buffers that a statement names without touching them.
        self._hidden: set[int] = set()
        self._in_number = outermost_nodes(*_IN_NUMBERS)
        self._loads_alone = nodes_without(*_IN_NUMBERS)
        for param in items(func.params):
            ty = param.ty
            if type(ty) is tirx.BufferType:
                self._declare_outside(param.__chandle__(), ty.dtype)

    def find(self) -> LinearAccess:
        """Go through the statements of the function's body."""
        self._visit([self._found.body])
        return self._found

    def _visit(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            _VISITORS.get(type(node), LinearAccessPatternFinder._visit_other)(self, node)

    def _visit_seq(self, op: tirx.SeqStmt) -> None:
        self._visit(items(op.seq))

    # Definitions

    def _declare(self, key: int, entry: BufferEntry) -> None:
        known = self._found.buffers
        if key in known:
            self._found.has_unclear_types = True  # Declared twice: the vector rewrite's to refuse.
        known[key] = entry

    def _visit_alloc(self, op: tirx.AllocBuffer) -> None:
        found, buffer = self._found, op.buffer
        key, ty = buffer.__chandle__(), buffer.ty
        dtype, extents = ty.dtype, items(ty.shape)
        element, shape = element_type(dtype), constant_shape(extents)
        nbits = element.nbits
        if shape is None:
            for extent in extents:
                self._visit_number(extent)
            nbits = 0
        else:
            for extent, _ in shape:
                nbits *= extent
        ndim, level = len(extents), len(self._scopes)
        scope, volatile = storage_scope(buffer), is_volatile(op)
        if volatile:
            found.accesses.append(ANY_BUFFER)
        entry = AllocEntry(buffer.name, level, scope, element, shape, nbits, ndim, volatile)
        known = found.buffers.get(key)
        if known is not None and known.root >= 0:
            # One statement may stand in several places; the last is what counts.
            root = known.root
            found.allocs[root], found.alloc_stmts[root] = entry, op
        else:
            root = len(found.allocs)
            found.allocs.append(entry)
            found.alloc_stmts.append(op)
            found.alloc_keys.append(key)
        refusal = f"allocated with {ndim} dimensions and accessed as flat memory"
        self._declare(key, BufferEntry(root, dtype, level, "" if ndim == 1 else refusal))

    def _declare_outside(self, key: int, dtype: PrimType) -> None:
        self._declare(key, BufferEntry(_OUTSIDE, dtype, 0))

    def _visit_decl(self, op: tirx.DeclBuffer) -> None:
        buffer, data, found = op.buffer, op.data, self._found
        source, key, dtype = buffer_data_var(data), buffer.__chandle__(), buffer.ty.dtype
        if source is None:
            # A pointer that is made in some other way: which buffer it is from is not known.
            found.has_opaque = found.has_unclear_types = True
            for var in nodes_in(data, Var):
                self._escape(var.__chandle__())
            self._declare_outside(key, dtype)
            return
        source_key = source.__chandle__()
        self._forbid_inplace(source_key)
        entry = found.buffers.get(source_key)
        if entry is not None:
            if not entry.refusal and entry.root >= 0 and not array_size(buffer.ty.shape):
                alias = "accessed without an index, through an alias without dimensions"
                entry = entry._replace(refusal=alias)
            if element_type(dtype).lanes != element_type(entry.dtype).lanes:
                found.has_unclear_types = True  # The vector rewrite's to refuse, too.
            self._declare(key, entry)
        elif tirx.is_buffer_var(source):
            raise ValueError(
                f"buffer {buffer.name!r} is declared as an alias of {source.name!r}, "
                "which is not declared before it"
            )
        else:
            self._declare_outside(key, dtype)

    def _forbid_inplace(self, key: int) -> None:
        self._found.accesses.append(Access(key))

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

    def _access(self, key: int, value: Any) -> None:
        """Note that a value, which tells its type, is read from a buffer or written to it."""
        found = self._found
        entry = found.buffers.get(key)
        if entry is None:
            found.has_unclear_types = True
        elif entry.root >= 0:
            root, dtype = entry.root, value.ty
            if entry.refusal:
                what = f"buffer {found.allocs[root].name!r} is {entry.refusal}"
                raise ValueError(f"{what}; run FlattenBuffer before StorageRewrite")
            if is_same_type(dtype, entry.dtype):
                found.plain.add(root)
            else:
                found.retyped.add(root)
                found.has_unclear_types |= element_type(dtype).is_scalable
            self._touch(entry)

    def _note_load(self, op: TensorLoad) -> None:
        key = op.source.__chandle__()
        self._found.accesses.append(Access(key, op, self._store))
        self._access(key, op)

    def _visit_load(self, op: TensorLoad) -> None:
        self._visit(self._in_number(op.indices))
        self._note_load(op)

    def _visit_store(self, op: tirx.BufferStore) -> None:
        first = len(self._found.accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        self._store = op
        loads = self._loads_alone(op)
        if loads is None:
            self._visit_number(op.value)
            self._visit_number(op.indices)
        else:
            for load in loads:
                self._note_load(load)
        self._store = None
        self._access(op.buffer.__chandle__(), op.value)
        self._leave_leaf(op, StmtKind.STORE, touched, first)

    def _visit_number(self, part: Any) -> None:
        kind = type(part)
        if kind is TensorLoad:
            self._visit_load(part)
        elif kind is not Var and kind not in _CONSTANTS:
            self._visit(self._in_number(part))

    def _visit_operand(self, part: Any) -> None:
        """Visit what may be a buffer, or have one among its operands."""
        if type(part) is Var:
            self._visit_var(part)
        elif isinstance(part, Expr) and type(part.ty) is PrimType:
            self._visit_number(part)
        elif type(part) not in _CONSTANTS:
            self._visit(outermost_nodes(*_IN_NUMBERS, Var)(part))

    def _visit_var(self, var: Var) -> None:
        """Note a buffer that is handed on as a whole."""
        key = var.__chandle__()
        entry = self._found.buffers.get(key)
        if entry is not None and key not in self._hidden:
            self._found.has_opaque = True
            self._escape(key)
            if entry.root >= 0:
                self._touch(entry)

    def _visit_call(self, op: Call) -> None:
        # Without recursion: conditions nest as deep as a concatenation has tensors.
        waiting: list[Any] = [op]
        while waiting:
            part = waiting.pop()
            if is_if_then_else(part):
                waiting += reversed(items(part.args))
            elif type(part) is Call:
                self._note_call(part)
            else:
                self._visit_operand(part)

    def _note_call(self, op: Call) -> None:
        found, args = self._found, items(op.args)
        called = [str(arg.value) for arg in args if type(arg) is StringImm]
        if type(op.op) is GlobalVar:
            called.append(str(op.op.name_hint))
        found.calls.extend((name, len(found.sequence)) for name in called)
        for arg in args:
            self._visit_operand(arg)
        if is_tvm_access_ptr(op):
            self._note_access_ptr(args)
        elif is_address_of(op) and type(args[0]) is TensorLoad:
            self._take_address(args[0].source.__chandle__())

    def _note_access_ptr(self, args: list[Any]) -> None:
        found, buffer = self._found, buffer_data_var(args[1])
        entry = found.buffers.get(buffer.__chandle__()) if buffer is not None else None
        dtype = args[0].ty
        if entry is None or dtype.dtype.lanes != entry.dtype.dtype.lanes:
            found.has_unclear_types = True
        elif entry.root >= 0 and is_same_type(dtype, entry.dtype):
            found.plain.add(entry.root)
        elif entry.root >= 0:
            found.retyped.add(entry.root)

    def _visit_let(self, op: tirx.Let) -> None:
        self._found.has_unclear_types = True
        self._visit_operand(op.value)
        self._visit_operand(op.body)

    # Leaf statements

    def _leave_leaf(self, op: Any, kind: StmtKind, touched: list[int], first: int) -> None:
        self._scopes.pop()
        if touched:
            last = len(self._found.accesses)
            self._found.sequence.append(StmtEntry(op.__chandle__(), kind, touched, first, last))

    def _visit_value(self, op: tirx.Evaluate | tirx.Bind | tirx.Return) -> None:
        value = op.value
        if type(op) is tirx.Bind and (
            type(op.var.ty) is not PrimType or not is_same_type(op.var.ty, value.ty)
        ):
            self._found.has_unclear_types = True
        first = len(self._found.accesses)
        touched: list[int] = []
        self._scopes.append(touched)
        self._visit_operand(value)
        self._leave_leaf(op, StmtKind.LEAF, touched, first)

    def _visit_other(self, op: Any) -> None:
        if type(op) is tirx.TilePrimitiveCall:
            # The original does not look into the workspace.
            self._hidden = {buffer.__chandle__() for buffer in op.workspace.values()}
            self._hidden -= {arg.__chandle__() for arg in op.args if type(arg) is Var}
        self._visit(nodes_in_statement(op, *_IN_NUMBERS, Var))
        self._hidden = set()

    def _refuse_block(self, _op: SBlock | SBlockRealize) -> None:
        raise ValueError(
            "it has blocks; lower it first, as far as TVM does before it runs StorageRewrite: "
            "FlattenBuffer, VectorizeLoop and InjectDoubleBuffer come last"
        )

    # Statements with a body

    def _visit_nest(self, op: Any, kind: StmtKind, parts: Any, *bodies: Any) -> None:
        found = self._found
        first, begin, key = len(found.accesses), len(found.sequence), op.__chandle__()
        before = StmtEntry(key, kind, [], first, first)
        found.sequence.append(before)
        self._scopes.append([])
        for part in parts:
            if type(part) is not tirx.IntImm:
                self._visit_number(part)
        self._visit(bodies)
        before.last_access = last = len(found.accesses)
        before.scope_pair_offset = offset = len(found.sequence) - begin
        touched = self._scopes.pop()
        found.sequence.append(StmtEntry(key, kind, touched, first, last, -offset))

    def _visit_assert(self, op: tirx.AssertStmt) -> None:
        self._visit_nest(op, StmtKind.OPAQUE, (op.condition,))

    def _visit_if(self, op: tirx.IfThenElse) -> None:
        other = op.else_case
        cases = (op.then_case,) if other is None else (op.then_case, other)
        self._visit_nest(op, StmtKind.NEST, (op.condition,), *cases)

    def _visit_while(self, op: tirx.While) -> None:
        self._visit_nest(op, StmtKind.NEST, (op.condition,), op.body)

    def _visit_for(self, op: tirx.For) -> None:
        kind, step = op.kind, op.step
        if kind == _VECTORIZED_LOOP:
            raise ValueError(
                f"loop {op.loop_var.name!r} is vectorized; run VectorizeLoop before StorageRewrite"
            )
        bounds = (op.min, op.extent) if step is None else (op.min, op.extent, step)
        is_parallel = kind == _PARALLEL_LOOP
        self._visit_nest(op, StmtKind.PARALLEL if is_parallel else StmtKind.NEST, bounds, op.body)

    def _visit_attr(self, op: AttrStmt) -> None:
        key, was_in_thread_env = op.attr_key, self._in_thread_env
        self._found.names_buffers |= type(op.node) is Var
        if key == "virtual_thread" or (key == "thread_extent" and not was_in_thread_env):
            self._in_thread_env = was_in_thread_env or key == "thread_extent"
            self._visit_nest(op, StmtKind.THREAD, (op.value,), op.body)
            self._in_thread_env = was_in_thread_env
        elif key == "extern_scope":
            self._found.accesses.append(ANY_BUFFER)
            self._visit_nest(op, StmtKind.OPAQUE, (op.value,), op.body)
        else:
            self._visit_operand(op.value)
            self._visit([op.body])


_VISITORS: dict[type, Callable[[LinearAccessPatternFinder, Any], None]] = {
    Call: LinearAccessPatternFinder._visit_call,
    tirx.Let: LinearAccessPatternFinder._visit_let,
    TensorLoad: LinearAccessPatternFinder._visit_load,
    Var: LinearAccessPatternFinder._visit_var,
    tirx.AllocBuffer: LinearAccessPatternFinder._visit_alloc,
    tirx.AssertStmt: LinearAccessPatternFinder._visit_assert,
    AttrStmt: LinearAccessPatternFinder._visit_attr,
    tirx.Bind: LinearAccessPatternFinder._visit_value,
    tirx.BufferStore: LinearAccessPatternFinder._visit_store,
    tirx.DeclBuffer: LinearAccessPatternFinder._visit_decl,
    tirx.Evaluate: LinearAccessPatternFinder._visit_value,
    tirx.For: LinearAccessPatternFinder._visit_for,
    tirx.IfThenElse: LinearAccessPatternFinder._visit_if,
    tirx.Return: LinearAccessPatternFinder._visit_value,
    SBlock: LinearAccessPatternFinder._refuse_block,
    SBlockRealize: LinearAccessPatternFinder._refuse_block,
    tirx.SeqStmt: LinearAccessPatternFinder._visit_seq,
    tirx.While: LinearAccessPatternFinder._visit_while,
}
