# SPDX-License-Identifier: Apache-2.0
"""The views of an arena: buffers of which each access is moved by an offset.

An offset is a constant, which also says how accesses are aligned, or a variable that is read where
the buffer was allocated, from memory that is volatile, so that no compiler knows its value:

- That of a buffer with several slots changes with each iteration of a ``for``. (A CPU runs one
  iteration after the other, so in a ``while`` the first slot serves all of them.) LLVM compiles the
  sum of a slot's offset that it knows and a wrapped index wrongly: ``docs/known-faults.md`` has the
  program.
- An index of a type that wraps is widened first: an offset that is added to a ``uint8`` is lost
  beyond 255. TVM's simplification would move a constant in front of that cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, Var

from passes.ir import does_not_wrap
from passes.prim_func.memory_uses import AllocationUses

_INT32_MAX = 2**31 - 1

_TRUE = tirx.IntImm("bool", 1)
# The allocation is one of LLVM's, not of the runtime's, where it would no longer be volatile.
_OFFSETS = {"tirx.volatile": _TRUE, "disable_lower_builtin": _TRUE}


@dataclass(frozen=True, eq=False)
class View:
    """A buffer in an arena."""

    buffer: Var
    arena: Var
    size: int  # Bytes of the arena
    # Bytes; or, where it is read when the program runs, by the bits of an element, in elements.
    offset: int | Mapping[int, Var]

    def moved(self, index: Any, element: Any) -> Any:
        """Return an index of elements, scalar or vector, as one from the arena's start."""
        nbits = element.bits * element.lanes
        dtype, lanes = index.ty.dtype, index.ty.dtype.lanes
        wide = index_type(self.size * 8 // nbits)
        if isinstance(self.offset, int):
            shift = offset_in_elements(self.buffer.name, self.offset, nbits)
            if shift == 0:
                return index
            if wide == "int64":
                index = index.astype("int64" if lanes == 1 else f"int64x{lanes}")
            amount = tirx.IntImm(str(index.ty.dtype.with_lanes(1)), shift)
        else:
            if wide == "int64" or not does_not_wrap(dtype):
                index = index.astype(wide if lanes == 1 else f"{wide}x{lanes}")
            amount = self.offset[nbits].astype(str(index.ty.dtype.with_lanes(1)))
        if isinstance(index, tirx.Ramp):
            return tirx.Ramp(index.base + amount, index.stride, index.lanes)
        if isinstance(index, tirx.Broadcast):
            return tirx.Broadcast(index.value + amount, index.lanes)
        return index + (amount if lanes == 1 else tirx.Broadcast(amount, lanes))

    def at(self, indices: Any) -> list[Any]:
        """Return the indices of an access, moved by the view's offset."""
        (index,) = indices
        return [self.moved(index, self.buffer.ty.dtype.dtype)]

    @property
    def first(self) -> Any:
        """The address of the first element."""
        return tirx.address_of(tirx.BufferLoad(self.buffer, self.at([tirx.IntImm("int32", 0)])))


class OffsetTable:
    """Offsets that are read when the program runs: an array that is stored where an arena is.

    The arena has `size` bytes; each of `members` is a buffer with its offsets, one for each slot.
    """

    def __init__(self, size: int, members: Iterable[tuple[AllocationUses, Sequence[int]]]) -> None:
        self._stored: list[int] = []
        self._dtype = index_type(size)
        count = sum(len(offsets) * len(_widths(uses)) for uses, offsets in members)
        self._table = tirx.decl_buffer((max(count, 1),), self._dtype, "offsets", scope="local")

    @property
    def statements(self) -> list[tirx.Stmt]:
        """The allocation, and what it holds; nothing where nothing is read."""
        stores = [
            tirx.BufferStore(self._table, tirx.IntImm(self._dtype, value), [at])
            for at, value in enumerate(self._stored)
        ]
        return [tirx.AllocBuffer(self._table, annotations=_OFFSETS), *stores] if stores else []

    def read(
        self, uses: AllocationUses, offsets: Sequence[int]
    ) -> tuple[dict[int, Var], list[tirx.Stmt]]:
        """Return a buffer's offset, in elements by their bits, and the statements that read it."""
        name, read, made = uses.statement.buffer.name, {}, []
        for nbits in _widths(uses):
            index = _turn(len(offsets), uses.loop)
            index = index + tirx.IntImm(index.ty, len(self._stored))
            self._stored += [offset_in_elements(name, offset, nbits) for offset in offsets]
            read[nbits] = Var(f"{name}_offset", PrimType(self._dtype))
            made.append(tirx.Bind(read[nbits], self._table[index]))
        return read, made


def _widths(uses: AllocationUses) -> list[int]:
    """Return the bits of the elements that an index of the memory can count."""
    return sorted({dtype.bits * dtype.lanes for dtype in uses.dtypes})


def offset_in_elements(name: str, offset: int, nbits: int) -> int:
    """Convert an offset from bytes to elements of `nbits`; ValueError if it is no multiple."""
    if offset * 8 % nbits:
        raise ValueError(
            f"buffer {name!r}: its offset of {offset} bytes is no multiple of its elements' "
            f"{nbits} bits"
        )
    return offset * 8 // nbits


def from_the_start(view: View) -> Var:
    """Return a buffer of the same elements that begins where its arena begins."""
    buffer, ty = view.buffer, view.buffer.ty
    offset = ty.elem_offset
    if len(ty.shape) != 1 or len(ty.strides):
        raise ValueError(
            f"buffer {buffer.name!r} has {len(ty.shape)} dimensions or strides; "
            "run FlattenBuffer before PlanAddresses"
        )
    if not isinstance(offset, tirx.IntImm) or offset.value != 0:
        raise ValueError(
            f"buffer {buffer.name!r} has an elem_offset, which nothing reads after FlattenBuffer"
        )
    element, extent = ty.dtype.dtype, ty.shape[0]
    if not isinstance(view.offset, int):
        extent = tirx.IntImm("int64", view.size * 8 // (element.bits * element.lanes))
    else:
        if not does_not_wrap(extent.ty.dtype):
            extent = extent.astype("int64")
        extent = view.moved(extent, element)
    return tirx.decl_buffer(
        (extent,),
        str(ty.dtype.dtype),
        buffer.name,
        scope=ty.storage_scope,
        layout=None,
    )


def index_type(elements: int) -> str:
    """Return the type of an index that can count so many elements."""
    return "int32" if elements <= _INT32_MAX else "int64"


def _turn(count: int, loop: Any) -> Any:
    """Return which of a buffer's offsets is its own now: iteration number modulo their number.

    Outside of a ``for``, and if the loop's step is not constant, it is always the first.
    """
    if not isinstance(loop, tirx.For):
        return tirx.IntImm("int32", 0)
    number = loop.loop_var
    if isinstance(loop.step, tirx.IntImm):
        number = tirx.floordiv(number, loop.step)
    elif loop.step is not None:
        return tirx.IntImm("int32", 0)
    if not does_not_wrap(number.ty.dtype):
        number = number.astype("int64")  # A narrow type may be too small for the number of slots.
    return tirx.floormod(number, tirx.IntImm(number.ty, count))
