# SPDX-License-Identifier: Apache-2.0
"""Which element type the accesses to each allocation agree on.

The rules are those of `VectorTypeAccessChecker` in TVM's StorageRewrite, with the
switches that StorageRewrite sets: the memory behind parameters keeps its type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType, TensorLoad, Var
from tvm.ir.expr import Call
from tvm.sym import Analyzer
from tvm_ffi import WalkOrder, WalkResult

from passes.ir import LinearAccess, array_get, is_dense, structural_walk
from passes.ir.operators import buffer_data_var, is_address_of, is_tvm_access_ptr
from passes.ir.storage_entries import StorageEntry, StoragePlan


@dataclass
class BufferVarInfo:
    """How a variable's memory is declared and accessed."""

    var: Var  # The buffer or pointer
    element: Any  # Its element type; None for an untyped pointer that nothing has accessed yet
    extent: Any  # Elements in the last dimension; 0 when unknown
    is_internal: bool  # Whether the function made it: an allocation or a bound pointer
    # The types of the accesses, as an ordered set.
    accessed: dict[Any, None] = field(default_factory=dict)

    def access(self, dtype: Any, indices: Any, analyzer: Analyzer) -> None:
        """Note an access of a type, and where it is.

        ValueError is raised when an index other than the last is a vector, or the type has lanes
        that neither the index nor the element type explains.
        """
        if dtype.lanes < 0:
            # The original does not look at scalable vectors.
            return
        dtype = stored_type(dtype)
        if self.element is None:
            self.element = dtype.with_lanes(1)
        ndim = len(indices)
        if any(indices[axis].ty.dtype.lanes != 1 for axis in range(ndim - 1)):
            raise ValueError(f"{self.var.name!r} has a vector index that is not the last one")
        last = array_get(indices, ndim - 1) if ndim else None
        index_lanes = 1 if last is None else last.ty.dtype.lanes
        lanes = self.element.lanes
        if lanes < 0:
            raise ValueError(
                f"{self.var.name!r} is accessed as {dtype}, but its elements are {self.element}, "
                "of a size that is not known"
            )
        if index_lanes * lanes != dtype.lanes:
            if index_lanes != dtype.lanes:
                raise ValueError(
                    f"{self.var.name!r} is accessed as {dtype} with an index of {index_lanes} "
                    f"lanes, but its elements are {self.element}"
                )
            lanes = 1
            self.element = self.element.with_lanes(1)
        if isinstance(last, tirx.Ramp) and is_dense(last):
            width = int(last.lanes.value)
            if _is_multiple(analyzer, last.base, width):
                lanes = width
        self.accessed[dtype.with_lanes(lanes)] = None

    def preferred(self) -> Any:
        """Return the element type that all the accesses agree on, or the declared one."""
        bases = {dtype.with_lanes(1) for dtype in self.accessed}
        if len(bases) != 1:
            return self.element
        lanes = self.element.lanes
        if lanes == 1 and len(self.accessed) == 1:
            (accessed,) = self.accessed
            if _is_multiple(Analyzer(), self.extent, accessed.lanes):
                lanes = accessed.lanes
        return bases.pop().with_lanes(lanes)


@dataclass(frozen=True)
class Retype:
    """A new element type for a variable's memory."""

    var: Var  # The buffer or pointer that declares the memory
    element: Any  # Its new element type
    factor: int  # How many of the old elements make a new one


class VectorTypeAccessChecker:
    """Finds how each buffer and pointer of a function is accessed, by walking it."""

    def __init__(self, params: Any) -> None:
        self._infos: dict[int, BufferVarInfo] = {}
        self._roots: dict[int, int] = {}
        self._analyzer = Analyzer()
        for param in params:
            if tirx.is_buffer_var(param):
                self._declare_buffer(param, param.__chandle__(), is_internal=False)
            else:
                self._declare_pointer(param, is_internal=False)

    def __call__(self, body: Any) -> tuple[list[Retype], dict[int, int]]:
        """Walk a function's body; return the new element types, in the order of declaration.

        And, by the handle of each buffer, that of the variable that declared its memory. ValueError
        is raised when a variable is declared twice or accessed undeclared, or an access does not
        fit its element type.
        """
        self._walk(body)
        found = (retype_of(info) for info in self._infos.values())
        return [retype for retype in found if retype is not None], self._roots

    def _walk(self, part: Any) -> None:
        notes = [
            (TensorLoad, self._visit_load),
            (tirx.BufferStore, self._visit_store),
            (Call, self._visit_call),
            (tirx.AllocBuffer, self._visit_alloc),
            (tirx.DeclBuffer, self._visit_decl),
            (tirx.Bind, self._visit_definition),
            (tirx.Let, self._visit_definition),
        ]
        structural_walk(part, notes, WalkOrder.PREORDER)

    # Declarations

    def _declare(self, var: Var, element: Any, extent: Any, is_internal: bool) -> None:
        key = var.__chandle__()
        if key in self._infos:
            raise ValueError(f"{var.name!r} is declared more than once in the function")
        stored = None if element is None else stored_type(element)
        self._infos[key] = BufferVarInfo(var, stored, extent, is_internal)

    def _declare_buffer(self, buffer: Var, root: int, is_internal: bool) -> None:
        self._roots[buffer.__chandle__()] = root
        self._declare(buffer, buffer.ty.dtype.dtype, last_extent(buffer), is_internal)

    def _declare_pointer(self, var: Var, is_internal: bool) -> None:
        if type(var.ty) is PointerType and type(var.ty.element_type) is PrimType:
            element = var.ty.element_type.dtype
            self._declare(var, element if element.bits else None, 0, is_internal)

    def _visit_alloc(self, op: tirx.AllocBuffer) -> WalkResult:
        self._declare_buffer(op.buffer, op.buffer.__chandle__(), is_internal=True)
        self._walk(op.buffer.ty.shape)
        return WalkResult.SKIP

    def _visit_decl(self, op: tirx.DeclBuffer) -> WalkResult:
        source = buffer_data_var(op.data)
        root = op.buffer.__chandle__()
        if source is not None and tirx.is_buffer_var(source):
            if source.__chandle__() not in self._roots:
                raise ValueError(
                    f"buffer {op.buffer.name!r} is declared as an alias of {source.name!r}, "
                    "which is not declared before it"
                )
            root = self._roots[source.__chandle__()]
        self._declare_buffer(op.buffer, root, is_internal=False)
        self._walk(op.data)
        self._walk(op.buffer.ty.shape)
        return WalkResult.SKIP

    def _visit_definition(self, op: tirx.Bind | tirx.Let) -> None:
        self._declare_pointer(op.var, is_internal=True)

    # Accesses

    def _visit_load(self, op: TensorLoad) -> None:
        self._access(op.source, op.ty.dtype, op.indices)

    def _visit_store(self, op: tirx.BufferStore) -> None:
        self._access(op.buffer, op.value.ty.dtype, op.indices)

    def _visit_call(self, op: Call) -> None:
        if is_tvm_access_ptr(op):
            dtype, data, index = list(op.args)[:3]
            buffer = buffer_data_var(data)
            if buffer is not None:
                self._access(buffer, dtype.ty.dtype, tvm_ffi.Array([index]))
        elif is_address_of(op) and isinstance(op.args[0], TensorLoad):
            load = op.args[0]
            self._access(load.source, load.ty.dtype, load.indices)

    def _access(self, buffer: Var, dtype: Any, indices: Any) -> None:
        key = buffer.__chandle__()
        info = self._infos.get(self._roots.get(key, key)) or self._infos.get(key)
        if info is None:
            raise ValueError(f"{buffer.name!r} is accessed before its declaration")
        info.access(dtype, indices, self._analyzer)


def retype_of(info: BufferVarInfo) -> Retype | None:
    """Return the new element type for a variable's memory, if it is to have one."""
    if not info.is_internal or info.element is None:
        return None
    preferred = info.preferred()
    if preferred == info.element:
        return None
    return Retype(info.var, preferred, preferred.lanes // info.element.lanes)


def may_retype(access: LinearAccess, plan: StoragePlan) -> bool:
    """Whether any memory might get another type: no access to it has the declared one.

    Memory keeps its type as soon as one access has just that type. So what the first walk saw tells
    for most functions that `VectorTypeAccessChecker` would find nothing.
    """
    owned = [index for entry in plan.entries for index in entry.allocs]
    if access.has_unclear_types or len(set(owned)) < len(owned):
        return True  # One object that stands in two places may have made an allocation twice.
    return any(_may_retype_entry(access, entry) for entry in plan.entries)


def _may_retype_entry(access: LinearAccess, entry: StorageEntry) -> bool:
    if entry.parent is not None or entry.children:
        return True
    plain = access.plain.intersection(entry.allocs)
    elements = [access.allocs[index].element for index in entry.allocs]
    if all(element is elements[0] for element in elements):
        return not plain and not access.retyped.isdisjoint(entry.allocs)
    if any(element.lanes != 1 for element in elements):
        return True
    accessed = {access.allocs[index].element.scalar for index in plain}
    return len({"int8" if scalar == "bool" else scalar for scalar in accessed}) < 2


def changes_lanes_only(retype: Retype) -> bool:
    """Whether a new type for an allocation leaves every byte where it was.

    Vectors of elements such as ``int4`` are packed in memory where single ones are not: LLVM gives
    each a byte.
    """
    scalar = retype.var.ty.dtype.dtype.with_lanes(1)
    return bool(scalar == retype.element.with_lanes(1)) and scalar.bits % 8 == 0


def last_extent(buffer: Var) -> Any:
    """Return the number of elements in a buffer's last dimension; 0 when it has none."""
    shape = buffer.ty.shape
    ndim = len(shape)
    return array_get(shape, ndim - 1) if ndim else 0


def stored_type(dtype: Any) -> Any:
    """Return the type that elements have in memory: a truth value takes a byte."""
    return tvm_ffi.dtype("int8").with_lanes(dtype.lanes) if dtype.startswith("bool") else dtype


def _is_multiple(analyzer: Analyzer, value: Any, lanes: int) -> bool:
    if isinstance(value, int):
        return value % lanes == 0
    if type(value) is tirx.IntImm:
        return bool(value.value % lanes == 0)
    modular = analyzer.modular_set(value)
    return bool(modular.coeff % lanes == 0 and modular.base % lanes == 0)
