# SPDX-License-Identifier: Apache-2.0
"""The views of an arena: buffers whose accesses are all moved by an offset.

An offset is a constant, which also says how accesses are aligned. Some have a part that is read
when the program runs, from memory that is volatile, so that no compiler knows its value:

- That of a buffer with several slots changes with each iteration of a ``for``. (A CPU runs one
  iteration after the other, so in a ``while`` the first slot serves all of them.) LLVM compiles the
  sum of a slot's offset that it knows and a wrapped index wrongly: ``docs/known-faults.md`` has the
  program.
- An index of a type that wraps is widened first: an offset that is added to a ``uint8`` is lost
  beyond 255. TVM's simplification would move a constant before that cast.

Buffers whose slots are as far from one another have the same variable. So LLVM sees that a result
in the place of its operand has the operand's elements, and which others are apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.ir import AllocationUses, does_not_wrap, tir
from passes.ir.operators import address_of

_INT32_MAX = 2**31 - 1

_TRUE = tir.IntConstant("bool", 1)
# The allocation is one of LLVM's, not of the runtime's, where it would no longer be volatile.
_OFFSETS = {"tirx.volatile": _TRUE, "disable_lower_builtin": _TRUE}


@dataclass(frozen=True, eq=False)
class View:
    """A buffer in an arena."""

    buffer: tir.Var
    arena: tir.Var
    size: int  # Bytes of the arena
    offset: int  # Bytes
    # The offset added to it when the program runs, in elements, by the bits of an element.
    read: Mapping[int, tir.Var]

    def moved(self, index: Any, element: Any) -> Any:
        """Return an index of elements, scalar or vector, as one from the arena's start."""
        nbits = element.bits * element.lanes
        shift = offset_in_elements(self.buffer.name, self.offset, nbits)
        if shift == 0 and not self.read:
            return index
        lanes, wide = index.ty.dtype.lanes, index_type(self.size * 8 // nbits)
        if wide == "int64" or (self.read and not does_not_wrap(index.ty.dtype)):
            index = index.astype(wide if lanes == 1 else f"{wide}x{lanes}")
        dtype = str(index.ty.dtype.with_lanes(1))
        amount = tir.IntConstant(dtype, shift)
        if self.read:
            amount = self.read[nbits].astype(dtype) + amount
        if isinstance(index, tir.Ramp):
            return tir.Ramp(index.base + amount, index.stride, index.lanes)
        if isinstance(index, tir.Broadcast):
            return tir.Broadcast(index.value + amount, index.lanes)
        return index + (amount if lanes == 1 else tir.Broadcast(amount, lanes))

    def at(self, indices: Any) -> list[Any]:
        """Return the indices of an access, moved by the view's offset."""
        (index,) = indices
        return [self.moved(index, self.buffer.ty.dtype.dtype)]

    @property
    def first(self) -> Any:
        """The address of the first element."""
        return address_of(tir.new_load(self.buffer, self.at([tir.IntConstant("int32", 0)])))


class OffsetTable:
    """Parts of offsets that are read when the program runs, from an array.

    The arena has `size` bytes; each of `members` is a buffer with its offsets, one for each slot.
    """

    def __init__(self, size: int, members: Iterable[tuple[AllocationUses, Sequence[int]]]) -> None:
        self._stored: list[int] = []
        self._dtype = index_type(size)
        count = sum(len(offsets) * len(uses.widths) for uses, offsets in members)
        self._table = tir.new_buffer(
            (max(count, 1),), self._dtype, "offsets", layout="default", scope="local"
        )
        self._known: dict[tuple[int | None, int, tuple[int, ...]], tir.Var] = {}
        # The reader of each part, with the loop whose body has it; None where the array is made.
        self.reads: list[tuple[tir.Loop | None, tir.Binding]] = []

    @property
    def statements(self) -> list[tir.Statement]:
        """The allocation, and what it holds; nothing where nothing is read."""
        stores = [
            tir.Store(self._table, tir.IntConstant(self._dtype, value), [at])
            for at, value in enumerate(self._stored)
        ]
        return [tir.Allocation(self._table, annotations=_OFFSETS), *stores] if stores else []

    def read(self, uses: AllocationUses, offsets: Sequence[int]) -> tuple[int, dict[int, tir.Var]]:
        """Return a buffer's offset in bytes, and what is added to it, in elements by their bits."""
        known = offsets[0] if uses.has_movable_indices else 0
        parts = [offset - known for offset in offsets]
        name, turn = uses.buffer.name, _turn(len(offsets), uses.loop)
        loop: Any = None if turn is None else uses.loop
        if turn is None:
            parts, turn = parts[:1], tir.IntConstant("int32", 0)
        read = {}
        for nbits in uses.widths:
            elements = tuple(offset_in_elements(name, part, nbits) for part in parts)
            key = None if loop is None else loop.__chandle__(), nbits, elements
            if key not in self._known:
                index = turn + tir.IntConstant(turn.ty, len(self._stored))
                self._stored += elements
                self._known[key] = tir.Var("offset", tir.PrimType(self._dtype))
                self.reads.append((loop, tir.Binding(self._known[key], self._table[index])))
            read[nbits] = self._known[key]
        return known, read


def offset_in_elements(name: str, offset: int, nbits: int) -> int:
    """Convert an offset from bytes to elements of `nbits`; ValueError if it is no multiple."""
    if offset * 8 % nbits:
        raise ValueError(
            f"buffer {name!r}: its offset of {offset} bytes is no multiple of its elements' "
            f"{nbits} bits"
        )
    return offset * 8 // nbits


def from_the_start(view: View) -> tir.Var:
    """Return a buffer of the same elements that begins where its arena begins."""
    buffer, ty = view.buffer, view.buffer.ty
    offset = ty.elem_offset
    if len(ty.shape) != 1 or len(ty.strides):
        raise ValueError(
            f"buffer {buffer.name!r} has {len(ty.shape)} dimensions or strides; "
            "run FlattenBuffer before PlanAddresses"
        )
    if not isinstance(offset, tir.IntConstant) or offset.value != 0:
        raise ValueError(
            f"buffer {buffer.name!r} has an elem_offset, which nothing reads after FlattenBuffer"
        )
    element, extent = ty.dtype.dtype, ty.shape[0]
    if view.read:
        extent = tir.IntConstant("int64", view.size * 8 // (element.bits * element.lanes))
    else:
        if not does_not_wrap(extent.ty.dtype):
            extent = extent.astype("int64")
        extent = view.moved(extent, element)
    return tir.new_buffer((extent,), str(ty.dtype.dtype), buffer.name, scope=ty.storage_scope)


def index_type(elements: int) -> str:
    """Return the type of an index that can count so many elements."""
    return "int32" if elements <= _INT32_MAX else "int64"


def _turn(count: int, loop: Any) -> Any:
    """Return which of a buffer's offsets is its own now: iteration number modulo their number.

    None, which stands for the first, outside of a ``for``, or where a step is not constant.
    """
    if count == 1 or not isinstance(loop, tir.Loop):
        return None
    number = loop.loop_var
    if isinstance(loop.step, tir.IntConstant):
        number = tir.floordiv(number, loop.step)
    elif loop.step is not None:
        return None
    if not does_not_wrap(number.ty.dtype):
        number = number.astype("int64")  # A narrow type may be too small for the number of slots.
    return tir.floormod(number, tir.IntConstant(number.ty, count))
