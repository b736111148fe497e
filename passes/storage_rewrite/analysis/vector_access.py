# SPDX-License-Identifier: Apache-2.0
"""The element type on which the accesses to each allocation agree.

The rules are those of `VectorTypeAccessChecker` in TVM's StorageRewrite, with the
switches that StorageRewrite sets: the memory of parameters keeps its type.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from passes.ir import (
    LinearAccess,
    PrimFunc,
    accessed_type,
    array_get,
    element_type,
    is_dense,
    items,
    new_dtype,
    tir,
)
from passes.ir.storage_entries import ElementType, StorageEntry, StoragePlan

_OUTSIDE = -1  # The root of memory that the function did not allocate


@dataclass(frozen=True)
class Retype:
    """A new element type for a variable's memory."""

    var: tir.Var  # The buffer or pointer that declares the memory
    element: Any  # Its new element type
    factor: int  # Old elements in a new one

    @property
    def changes_lanes_only(self) -> bool:
        """Whether every byte stays where it was.

        Vectors of elements such as ``int4`` are packed in memory where single ones are not: LLVM
        gives each a byte.
        """
        scalar = self.var.ty.dtype.dtype.with_lanes(1)
        return bool(scalar == self.element.with_lanes(1)) and scalar.bits % 8 == 0


@dataclass
class _Memory:
    """The declaration of a variable's memory, and the accesses to it."""

    var: tir.Var  # The buffer or pointer
    scalar: str  # The type of one lane; empty for an untyped pointer that nothing has accessed yet
    lanes: int
    is_internal: bool  # Whether the function made it: an allocation or a bound pointer
    # The types of the accesses, by scalar and lanes, as an ordered set.
    accessed: dict[tuple[str, int], None] = field(default_factory=dict)

    def access(self, element: ElementType, indices: list[Any], is_moved: bool) -> None:
        """Note an access of a type, and where it is; a moved index is a sum.

        ValueError is raised when the type has lanes that neither the last index nor the element
        type explains. TVM makes no access with another index that is a vector.
        """
        if element.is_scalable:
            return  # The original does not look at scalable vectors.
        name, scalar = self.var.name, _stored(element)
        self.scalar = self.scalar or scalar
        last: Any = indices[-1] if indices else None
        index_lanes = 1 if last is None else element_type(last.ty).lanes
        lanes = self.lanes
        if lanes < 0:
            raise ValueError(
                f"{name!r} is accessed as {_type_of(scalar, element.lanes)}, but its elements are "
                f"{_type_of(self.scalar, lanes)}, of a size that is not known"
            )
        if index_lanes * lanes != element.lanes:
            if index_lanes != element.lanes:
                raise ValueError(
                    f"{name!r} is accessed as {_type_of(scalar, element.lanes)} with an index of "
                    f"{index_lanes} lanes, but its elements are {_type_of(self.scalar, lanes)}"
                )
            lanes = self.lanes = 1
        if type(last) is tir.Ramp and not is_moved and is_dense(last):
            lanes = index_lanes if _is_multiple(last.base, index_lanes) else lanes
        self.accessed[scalar, lanes] = None

    def retype(self) -> Retype | None:
        """Return the element type that all the accesses agree on, if it is a new one."""
        scalars = {scalar for scalar, _ in self.accessed}
        if not self.is_internal or len(scalars) != 1:
            return None
        (scalar,), lanes = scalars, self.lanes
        if lanes == 1 and len(self.accessed) == 1:
            ((_, accessed),) = self.accessed
            lanes = accessed if _is_multiple(_last_extent(self.var), accessed) else 1
        if (scalar, lanes) == (self.scalar, self.lanes):
            return None
        return Retype(self.var, _type_of(scalar, lanes), lanes // self.lanes)


def find_retypes(
    func: PrimFunc,
    access: LinearAccess,
    plan: StoragePlan,
    owners: Mapping[StorageEntry, tir.Var],
) -> tuple[list[Retype], dict[int, int]]:
    """Find the new element types of the memory that a function's allocations share by a plan.

    `owners` are the buffers that own the memory of entries. The second result is the handle of the
    owner by that of each buffer. ValueError is raised when a variable is declared twice or accessed
    undeclared, or an access does not fit its element type.
    """
    owned = [index for entry in plan.entries for index in entry.allocs]
    # One object that stands in two places may have made an allocation twice.
    is_unclear = access.has_unclear_types or len(set(owned)) < len(owned)
    memories: dict[int, _Memory] = {}
    for entry in plan.entries:
        if entry.parent is None and (is_unclear or _may_retype(entry, access)):
            _declare(memories, owners[entry], owners[entry].ty.dtype, is_internal=True)
    if not memories and not is_unclear:
        return [], {}
    roots: dict[int, int] = {}
    moved: set[int] = set()
    for key, known in access.buffers.items():
        shared = plan.entry_of.get(known.root)
        roots[key] = (known.var if shared is None else owners[shared]).__chandle__()
        if shared is not None and shared.bits_offset:
            moved.add(key)
    if is_unclear:
        _declare_others(memories, func, access, roots)
    for key, op, _ in access.accesses:
        memory = memories.get(roots.get(key, key))
        if op is not None and memory is not None:
            memory.access(element_type(accessed_type(op)), items(op.indices), key in moved)
        elif op is not None and is_unclear:
            var = op.buffer if type(op) is tir.Store else op.source
            raise ValueError(f"{var.name!r} is accessed before its declaration")
    found = (memory.retype() for memory in memories.values())
    return [retype for retype in found if retype is not None], roots


def check_declared(access: LinearAccess, declared: Container[int]) -> None:
    """Raise ValueError for a buffer that is accessed and not declared, by the handles of those."""
    for var in access.undeclared:
        if var.__chandle__() not in declared:
            raise ValueError(f"{var.name!r} is accessed before its declaration")


def _may_retype(entry: StorageEntry, access: LinearAccess) -> bool:
    """Return whether the memory of an entry might get another type.

    It keeps its type as soon as one access has just that type, if all that share it are declared
    with it.
    """
    elements = [access.allocs[index].element for index in entry.allocs]
    is_mixed = any(element is not elements[0] for element in elements)
    return bool(entry.children) or is_mixed or access.plain.isdisjoint(entry.allocs)


def _declare(
    memories: dict[int, _Memory], var: tir.Var, dtype: tir.PrimType, *, is_internal: bool
) -> None:
    key, element = var.__chandle__(), element_type(dtype)
    if key in memories:
        raise ValueError(f"{var.name!r} is declared more than once in the function")
    scalar, lanes = (_stored(element), element.lanes) if element.bits else ("", 1)
    memories[key] = _Memory(var, scalar, lanes, is_internal)


def _declare_others(
    memories: dict[int, _Memory],
    func: PrimFunc,
    access: LinearAccess,
    roots: Mapping[int, int],
) -> None:
    """Declare what is no allocation, and refuse what is declared twice or too late.

    An allocation that no statement touches is ignored.
    """
    touched = {_OUTSIDE, *(index for entry in access.sequence for index in entry.touched)}
    check_declared(access, memories)
    for var in access.declared_twice:
        key = var.__chandle__()
        if access.buffers[key].root < 0 or roots[key] != key:
            raise ValueError(f"{var.name!r} is declared more than once in the function")
    for known in access.buffers.values():
        if known.root not in touched:
            continue
        key = known.var.__chandle__()
        if key not in memories and roots.get(key, key) == key:
            _declare(memories, known.var, known.dtype, is_internal=False)
    variables = [(var, False) for var in func.params] + [(var, True) for var in access.pointers]
    for var, is_internal in variables:
        if type(var.ty) is tir.PointerType and type(var.ty.element_type) is tir.PrimType:
            _declare(memories, var, var.ty.element_type, is_internal=is_internal)


def _last_extent(var: tir.Var) -> Any:
    """Return the number of elements in a buffer's last dimension; 0 when it has none."""
    shape = var.ty.shape if type(var.ty) is tir.BufferType else ()
    return array_get(shape, len(shape) - 1) if len(shape) else 0


def _stored(element: ElementType) -> str:
    """Return the type that a lane has in memory: a truth value takes a byte."""
    return "int8" if element.scalar == "bool" else element.scalar


def _type_of(scalar: str, lanes: int) -> Any:
    return new_dtype(scalar).with_lanes(lanes)


def _is_multiple(value: Any, lanes: int) -> bool:
    if isinstance(value, int):
        return value % lanes == 0
    if type(value) is tir.IntConstant:
        return bool(value.value % lanes == 0)
    modular = tir.Analyzer().modular_set(value)
    return bool(modular.coeff % lanes == 0 and modular.base % lanes == 0)
