# SPDX-License-Identifier: Apache-2.0
"""Facts read off buffer variables, types and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tvm_ffi

from passes.ir import tir
from passes.ir.storage_entries import AllocEntry, ElementType
from passes.ir.structural import nodes_in
from target_hw.storage_scope import StorageScope, parse_storage_scope

DEFAULT_ALIGNMENT = 64
"""Default alignment in bytes, for a memory that no target describes.

TVM's runtime gives every allocation this alignment (``kAllocAlignment``), and extern code may
count on it.
"""

new_dtype = tvm_ffi.dtype
"""``new_dtype(name)``: a type of elements, such as ``"float32x4"``."""

array_get = tvm_ffi.get_global_func("ffi.ArrayGetItem")
"""``array_get(array, index)``: the item of an array, at a third of the time of ``array[index]``."""


array_size = tvm_ffi.get_global_func("ffi.ArraySize")
"""``array_size(array)``: the number of its items, at a third of the time of ``len(array)``."""


def items(array: Any) -> list[Any]:
    """Return the items of an array, in a fraction of the time of its iterator."""
    found = []
    for index in range(array_size(array)):  # For one item, quicker than a comprehension
        found.append(array_get(array, index))
    return found


_map_count = tvm_ffi.get_global_func("ffi.MapCount")

# By the handle of a type object. The type is kept beside what was read off it, so that a handle
# is never used twice. TVM keeps one object for each primitive type, but a module that was loaded
# brings its own: what is read off those is the same object.
_element_types: dict[int, tuple[tir.PrimType, ElementType]] = {}
_element_types_by_name: dict[str, ElementType] = {}


def element_type(dtype: tir.PrimType) -> ElementType:
    """Read an element type off TVM's own."""
    key = dtype.__chandle__()
    known = _element_types.get(key)
    if known is None:
        text = dtype.dtype
        element = _element_types_by_name.setdefault(
            str(text), ElementType(str(text).split("x", 1)[0], text.bits, text.lanes)
        )
        known = dtype, element
        _element_types[key] = known
    return known[1]


def storage_scope(buffer: tir.Var) -> StorageScope:
    """Return where a buffer is; ValueError, which names it, for a scope that TVM does not know."""
    try:
        return parse_storage_scope(buffer.ty.storage_scope)
    except ValueError as error:
        raise ValueError(f"buffer {buffer.name!r}: {error}") from error


def asked_alignment(buffer: tir.Var) -> int | None:
    """Return the alignment in bytes that the program asks for; None for TVM's default.

    TVM writes `DEFAULT_ALIGNMENT` into each buffer that asks for none, so a program that asks for
    just that is no different from one that asks for nothing.
    """
    alignment = int(buffer.ty.data_alignment)
    return None if alignment == DEFAULT_ALIGNMENT else alignment


def is_same_type(one: tir.Type, other: tir.Type) -> bool:
    """Return whether two types are equal; the fast path is that they are one object."""
    if one.same_as(other):
        return True
    if type(one) is tir.PrimType and type(other) is tir.PrimType:
        return element_type(one) is element_type(other)
    return bool(one == other)


def is_volatile(alloc: tir.Allocation) -> bool:
    """Return whether something other than the program reads or writes an allocation."""
    return bool(_map_count(alloc.annotations, "tirx.volatile"))


def constant_count(shape: Iterable[Any]) -> int | None:
    """Return the number of elements in a shape; None when an extent is symbolic."""
    count = 1
    for extent in shape:
        if type(extent) is not tir.IntConstant:
            return None
        count *= extent.value
    return count


def allocation_entry(op: tir.Allocation) -> AllocEntry:
    """Return what a planner sees of an allocation."""
    buffer = op.buffer
    extents, element = items(buffer.ty.shape), element_type(buffer.ty.dtype)
    count, scope = constant_count(extents), storage_scope(buffer)
    nbits = element.nbits * (count or 0)
    is_symbolic, ndim = count is None, len(extents)
    return AllocEntry(buffer.name, scope, element, is_symbolic, nbits, ndim, is_volatile(op))


def is_dense(ramp: tir.Ramp) -> bool:
    """Return whether a ramp is of neighbouring elements, as many as is known at compile time."""
    stride, lanes = ramp.stride, ramp.lanes
    return type(stride) is tir.IntConstant and stride.value == 1 and type(lanes) is tir.IntConstant


def allocated_bits(body: Any) -> Iterator[tuple[str, int | None]]:
    """Yield scope and bits of each allocation in a body; None for bits that are not constant."""
    for ty in (alloc.buffer.ty for alloc in nodes_in(body, tir.Allocation)):
        count, element = constant_count(ty.shape), element_type(ty.dtype)
        is_known = count is not None and not element.is_scalable
        yield str(ty.storage_scope) or "global", (count or 0) * element.nbits if is_known else None
