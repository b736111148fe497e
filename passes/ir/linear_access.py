# SPDX-License-Identifier: Apache-2.0
"""The linear access sequence of a function: which statement touches which allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tvm.ir import Op

from passes.ir import tir
from passes.ir.buffers import (
    allocation_entry,
    array_size,
    element_type,
    is_same_type,
    items,
)
from passes.ir.operators import (
    buffer_data_var,
    is_address_of,
    is_tvm_access_ptr,
)
from passes.ir.statements import PARALLEL_REGION, NodeVisitor
from passes.ir.storage_entries import AllocEntry, StmtEntry, StmtKind
from passes.ir.structural import node_finder, nodes_in
from passes.ir.tir import (
    BufferType,
    Call,
    GlobalVar,
    Let,
    Load,
    PrimType,
    Store,
    StringConstant,
    Var,
)

_PARALLEL_LOOP, _VECTORIZED_LOOP = int(tir.LoopKind.PARALLEL), int(tir.LoopKind.VECTORIZED)

# A member is found in a third of the time that its class takes to look for it.
_NEST, _PARALLEL, _STORE = StmtKind.NEST, StmtKind.PARALLEL, StmtKind.STORE

_OUTSIDE = -1  # The root of memory that the function did not allocate


class Address(NamedTuple):
    """An address-of expression, with the same fields as a load."""

    source: Var
    ty: PrimType
    indices: list[Any]


Access = tuple[int, Any, Store | None]
"""One use of a buffer, or of something that forbids sharing in place.

The handle of the buffer, where 0 stands for all buffers; the load, store or `Address` that accesses
it, or None where that is not seen; and the store that this is, or for whose value or index it is
read.
"""

ANY_BUFFER: Access = (0, None, None)
"""An access that forbids sharing in place for all buffers: extern code, volatile memory."""


class BufferEntry(NamedTuple):
    """The allocation, type and scope that a buffer variable stands for."""

    root: int  # Index of the allocation whose memory it names; -1 for memory from outside
    var: Var  # The buffer with which the memory was declared
    level: int  # Number of statements with a body around the allocation
    refusal: str = ""  # The reason for which no load or store by this name is taken, if it is not

    @property
    def dtype(self) -> PrimType:
        """The element type with which the memory was declared."""
        dtype: PrimType = self.var.ty.dtype
        return dtype


@dataclass(eq=False)
class LinearAccess:
    """The statements of a function as a sequence: allocations, and the accesses to them."""

    body: tir.Statement  # The function's
    # The statements that touch an allocation, in program order.
    sequence: list[StmtEntry] = field(default_factory=list)
    # The uses of buffers in program order.
    accesses: list[Access] = field(default_factory=list)
    # The allocations in program order, their statements, and the handles of their variables.
    allocs: list[AllocEntry] = field(default_factory=list)
    alloc_stmts: list[tir.Allocation] = field(default_factory=list)
    alloc_keys: list[int] = field(default_factory=list)
    # The buffer that each variable stands for, by the variable's handle.
    buffers: dict[int, BufferEntry] = field(default_factory=dict)
    # Allocations whose address is taken, by an opaque use or by `address_of`.
    escaped: set[int] = field(default_factory=set)
    # Allocations with an access of just the element type they are declared with.
    plain: set[int] = field(default_factory=set)
    # Variables that are bound, but to numbers of their own type; buffers that are accessed before
    # they are declared, and those that are declared more than once.
    pointers: list[Var] = field(default_factory=list)
    undeclared: list[Var] = field(default_factory=list)
    declared_twice: list[Var] = field(default_factory=list)
    # The functions that may be called: global variables, and strings among a call's arguments; each
    # with the position in `sequence` at which the statement that calls it would stand, and whether
    # each thread of a CPU runs that.
    calls: list[tuple[str, int, bool]] = field(default_factory=list)
    # Whether a buffer is used other than by a load or store: as the argument of a call, whose
    # accesses are not seen.
    has_opaque: bool = False
    # Whether memory may be accessed in ways that `plain` does not tell.
    has_unclear_types: bool = False
    has_aliases: bool = False  # Whether a buffer is declared on an allocation
    names_buffers: bool = False  # Whether an attribute is of a buffer

    @cached_property
    def ranges(self) -> dict[int | None, tuple[int, int]]:
        """The positions of each statement with a body, by its handle, and of all (None)."""
        ranges: dict[int | None, tuple[int, int]] = {None: (0, max(len(self.sequence), 1))}
        for at, entry in enumerate(self.sequence):
            if entry.scope_pair_offset > 0:
                ranges[entry.key] = at, at + entry.scope_pair_offset + 1
        return ranges


def _takes_numbers(op: Call | Let) -> bool:
    """Return whether an expression is an operator's call whose operands are all plain numbers.

    So is the operand of `address_of`, whose result may be a number, too.
    """
    if type(op) is not Call or type(op.op) is not Op or is_address_of(op):
        return False
    return all(type(arg.ty) is PrimType for arg in items(op.args))


def accessed_type(op: Any) -> PrimType:
    """Return the type of what a load, store or `Address` reads or writes."""
    dtype: PrimType = op.value.ty if type(op) is Store else op.ty
    return dtype


def find_linear_access(func: tir.PrimFunc) -> LinearAccess:
    """Find which statement of a function touches what.

    Parameters
    ----------
    func : PrimFunc
        A function as it stands after `FlattenBuffer` and `VectorizeLoop`.

    Returns
    -------
    LinearAccess
        The allocations, and the statements and accesses in program order.

    Raises
    ------
    ValueError
        When an allocation is accessed that has not one dimension, a load stands where no statement
        can own it, an alias comes before its source, a loop is vectorized, or there are blocks. The
        message names the buffer or loop.
    TypeError
        When `func` is no PrimFunc.
    """
    if not isinstance(func, tir.PrimFunc):
        raise TypeError(f"needs a PrimFunc, such as mod['main'], got {type(func).__name__}")
    return LinearAccessPatternFinder(func).find()


class LinearAccessPatternFinder(NodeVisitor):
    """Goes through the statements of a function and lists its accesses in program order.

    The rules are those of the class of the same name in TVM's StorageRewrite.
    A statement with a body (`for`, `if`, `while`, `assert`, the outermost thread
    extent, virtual threads, extern code) stands in the sequence twice, before
    and after its body. An allocation is touched at the statement that stands at
    the level where it was made, however deep inside it the access is: that is
    what keeps memory alive through the loops that use it.
    """

    def __init__(self, func: tir.PrimFunc) -> None:
        self.found = found = LinearAccess(func.body)
        self._accesses, self._buffers = found.accesses, found.buffers
        self._loads_and_calls = node_finder(Load, Call, Let)
        # Buffers touched so far in each open scope, outermost first.
        self._scopes: list[list[int]] = []
        self._store: Store | None = None
        self._in_thread_env = self._in_region = False
        # The handles of buffers that a statement names without touching them.
        self._hidden: set[int] = set()
        for param in items(func.params):
            if type(param.ty) is BufferType:
                self._declare_outside(param)

    def find(self) -> LinearAccess:
        """Go through the function."""
        self._visit_part(self.found.body)
        return self.found

    # Definitions

    def _declare(self, buffer: Var, entry: BufferEntry) -> None:
        key = buffer.__chandle__()
        if key in self._buffers:
            self.found.has_unclear_types = True  # Declared twice: the vector rewrite's to refuse.
            self.found.declared_twice.append(buffer)
        self._buffers[key] = entry

    def _declare_outside(self, buffer: Var) -> None:
        self._declare(buffer, BufferEntry(_OUTSIDE, buffer, 0))

    def _visit_allocation(self, op: tir.Allocation) -> None:
        found, buffer, entry = self.found, op.buffer, allocation_entry(op)
        key, ndim = buffer.__chandle__(), entry.num_physical_dimensions
        if entry.is_symbolic:
            self._visit_parts(op)
        if entry.is_volatile:
            self._accesses.append(ANY_BUFFER)
        known = self._buffers.get(key)
        if known is None:
            root = len(found.allocs)
            found.allocs.append(entry)
            found.alloc_stmts.append(op)
            found.alloc_keys.append(key)
        elif known.root >= 0:
            # One statement may stand in several places; the last is what counts.
            root = known.root
            found.allocs[root], found.alloc_stmts[root] = entry, op
        else:
            raise ValueError(f"buffer {buffer.name!r} is both allocated and declared")
        refusal = ""
        if ndim != 1:
            refusal = f"allocated with {ndim} dimensions and accessed as flat memory"
        self._declare(buffer, BufferEntry(root, buffer, len(self._scopes), refusal))

    def _visit_declaration(self, op: tir.Declaration) -> None:
        buffer, data, found = op.buffer, op.data, self.found
        source = buffer_data_var(data)
        if source is None:
            # A pointer that is made in some other way: which buffer it is from is not known.
            found.has_opaque = found.has_unclear_types = True
            for var in nodes_in(data, Var):
                self._escape(var.__chandle__())
            for load in nodes_in(data, Load):
                self._note_address(load.source, load.ty, items(load.indices))
            for call in filter(is_tvm_access_ptr, nodes_in(data, Call)):
                self._note_access_ptr(items(call.args))
            self._declare_outside(buffer)
            return
        source_key = source.__chandle__()
        self._accesses.append((source_key, None, None))
        entry = self._buffers.get(source_key)
        if entry is not None:
            if entry.root >= 0 and not array_size(buffer.ty.shape):
                alias = "accessed without an index, through an alias without dimensions"
                entry = entry._replace(refusal=alias)
            found.has_aliases |= entry.root >= 0
            dtype = buffer.ty.dtype
            is_same = dtype.same_as(entry.dtype)
            if not is_same and element_type(dtype).lanes != element_type(entry.dtype).lanes:
                found.has_unclear_types = True  # The vector rewrite's to refuse, too.
            self._declare(buffer, entry)
        elif tir.is_buffer(source):
            raise ValueError(
                f"buffer {buffer.name!r} is declared as an alias of {source.name!r}, "
                "which is not declared before it"
            )
        else:
            self._declare_outside(buffer)

    # Accesses

    def _touch(self, entry: BufferEntry) -> None:
        try:
            self._scopes[entry.level].append(entry.root)
        except IndexError:
            raise ValueError(
                f"buffer {self.found.allocs[entry.root].name!r} is read in a place that belongs "
                "to no statement of the scope in which it is allocated"
            ) from None

    def _note_access(self, buffer: Var, op: Load | Store) -> None:
        """Note that a buffer is read by a load, or written by the store that is visited."""
        key, found = buffer.__chandle__(), self.found
        self._accesses.append((key, op, self._store))
        entry = self._buffers.get(key)
        if entry is None:
            found.has_unclear_types = True
            found.undeclared.append(buffer)
            return
        root = entry.root
        if root >= 0:
            if entry.refusal:
                what = f"buffer {found.allocs[root].name!r} is {entry.refusal}"
                raise ValueError(f"{what}; run FlattenBuffer first")
            if root not in found.plain:
                dtype = accessed_type(op)
                if is_same_type(dtype, entry.dtype):
                    found.plain.add(root)
                elif element_type(dtype).is_scalable:
                    found.has_unclear_types = True
            self._touch(entry)

    def _visit_load(self, op: Load) -> None:
        self._visit_parts(op)
        self._note_access(op.source, op)

    def _note_loads(self, op: Any) -> bool:
        """Note the loads in a statement, unless it has calls that take more than numbers.

        The loads in an index come before the load at that index.
        """
        nodes = self._loads_and_calls(op)
        for node in nodes:
            if type(node) is not Load and not _takes_numbers(node):
                return False
        for node in nodes:
            if type(node) is Load:
                self._note_access(node.source, node)
        return True

    def _visit_var(self, var: Var) -> None:
        """Note a buffer that is handed on as a whole."""
        key = var.__chandle__()
        entry = self._buffers.get(key)
        if entry is not None and key not in self._hidden:
            self.found.has_opaque = True
            self._escape(key)
            if entry.root >= 0:
                self._touch(entry)

    def _escape(self, key: int) -> None:
        self._accesses.append((key, None, None))
        self._take_address(key)

    def _take_address(self, key: int) -> None:
        entry = self._buffers.get(key)
        if entry is not None and entry.root >= 0:
            self.found.escaped.add(entry.root)

    def _visit_call(self, op: Call) -> None:
        found, args = self.found, items(op.args)
        called = [str(arg.value) for arg in args if type(arg) is StringConstant]
        if type(op.op) is GlobalVar:
            called.append(str(op.op.name_hint))
        found.calls.extend((name, len(found.sequence), self._in_region) for name in called)
        self._visit_parts(op)
        if is_tvm_access_ptr(op):
            self._note_access_ptr(args)
        elif is_address_of(op) and type(args[0]) is Load:
            self._take_address(args[0].source.__chandle__())

    def _note_access_ptr(self, args: list[Any]) -> None:
        found, buffer = self.found, buffer_data_var(args[1])
        entry = self._buffers.get(buffer.__chandle__()) if buffer is not None else None
        dtype = args[0].ty
        if buffer is not None:
            self._note_address(buffer, dtype, [args[2]])
        if entry is None or dtype.dtype.lanes != entry.dtype.dtype.lanes:
            found.has_unclear_types = True
        elif entry.root >= 0 and is_same_type(dtype, entry.dtype):
            found.plain.add(entry.root)

    def _note_address(self, buffer: Var, dtype: PrimType, indices: list[Any]) -> None:
        address = Address(buffer, dtype, indices)
        self._accesses.append((buffer.__chandle__(), address, None))

    def _visit_let(self, op: Let) -> None:
        self.found.has_unclear_types = True
        self.found.pointers.append(op.var)
        self._visit_parts(op)

    # Leaf statements

    def _visit_leaf(self, op: Any, kind: StmtKind = StmtKind.LEAF) -> None:
        touched: list[int] = []
        first = len(self._accesses)
        self._scopes.append(touched)
        is_store = kind is _STORE
        is_of_numbers = is_store or type(op.value.ty) is PrimType
        if not (is_of_numbers and self._note_loads(op)):
            self._visit_parts(op)
        if is_store:
            self._note_access(op.buffer, op)
        self._scopes.pop()
        if touched:
            last = len(self._accesses)
            self.found.sequence.append(StmtEntry(op.__chandle__(), kind, touched, first, last))

    _visit_evaluation = _visit_return = _visit_leaf

    def _visit_store(self, op: Store) -> None:
        self._store = op
        self._visit_leaf(op, _STORE)
        self._store = None

    def _visit_binding(self, op: tir.Binding) -> None:
        ty = op.var.ty
        if type(ty) is not PrimType or not is_same_type(ty, op.value.ty):
            self.found.has_unclear_types = True
            self.found.pointers.append(op.var)
        self._visit_leaf(op)

    def _visit_other(self, op: Any) -> None:
        if type(op) in (tir.Block, tir.BlockRealize):
            raise ValueError(
                "it has blocks; lower it first, as TVM's pipelines do: FlattenBuffer, "
                "VectorizeLoop and InjectDoubleBuffer come last"
            )
        if type(op) is tir.TilePrimitive:
            # The original does not look into the workspace.
            self._hidden = {buffer.__chandle__() for buffer in op.workspace.values()}
            self._hidden -= {arg.__chandle__() for arg in op.args if type(arg) is Var}
        self._visit_parts(op)
        self._hidden = set()

    # Statements with a body

    def _visit_nest(self, op: Any, kind: StmtKind = _NEST) -> None:
        scopes, key = self._scopes, op.__chandle__()
        sequence, accesses = self.found.sequence, self._accesses
        first, begin = len(accesses), len(sequence)
        before = StmtEntry(key, kind, [], first, first)
        sequence.append(before)
        scopes.append([])
        self._visit_parts(op)
        before.last_access = last = len(accesses)
        before.scope_pair_offset = offset = len(sequence) - begin
        sequence.append(StmtEntry(key, kind, scopes.pop(), first, last, -offset))

    _visit_if = _visit_while = _visit_nest

    def _visit_assertion(self, op: tir.Assertion) -> None:
        self._visit_nest(op, StmtKind.OPAQUE)

    def _visit_loop(self, op: tir.Loop) -> None:
        kind = op.kind
        if kind == _VECTORIZED_LOOP:
            raise ValueError(f"loop {op.loop_var.name!r} is vectorized; run VectorizeLoop first")
        self._visit_nest(op, _PARALLEL if kind == _PARALLEL_LOOP else _NEST)

    def _visit_attribute(self, op: tir.Attribute) -> None:
        key, was_in_thread_env = op.attr_key, self._in_thread_env
        self.found.names_buffers |= type(op.node) is Var
        if key == "virtual_thread" or (key == "thread_extent" and not was_in_thread_env):
            self._in_thread_env = was_in_thread_env or key == "thread_extent"
            self._visit_nest(op, StmtKind.THREAD)
            self._in_thread_env = was_in_thread_env
        elif key == "extern_scope":
            self._accesses.append(ANY_BUFFER)
            self._visit_nest(op, StmtKind.OPAQUE)
        else:
            was_in_region = self._in_region
            self._in_region |= key == PARALLEL_REGION
            self._visit_parts(op)
            self._in_region = was_in_region
