# SPDX-License-Identifier: Apache-2.0
"""The buffers of a group in local memory, and which of their elements a tensor's elements are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, Var
from tvm.tirx import AllocBuffer, DeclBuffer, floormod

from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.slicing import TensorSlices
from passes.layer_group.rewrite.slice_values import SliceValues, number

SCOPE = "local.LMEM"
"""The storage scope of local memory."""


@dataclass(frozen=True, eq=False)
class LocalBuffer:
    """A buffer in local memory that holds a part of a tensor."""

    buffer: Var  # Its extents are those of the largest part
    # For each axis the values that the part begins at, with the letter of the slices that they
    # follow, or None where the axis is held from its first element.
    begins: tuple[tuple[tuple[int, ...], str] | None, ...]
    # For each axis whether an element's place is its index modulo the buffer's extent.
    circular: tuple[bool, ...]

    def indices(self, at: Sequence[Any], slices: SliceValues) -> list[Any]:
        """Return where an element of the tensor lies in the buffer."""
        extents = [int(extent) for extent in self.buffer.ty.shape]
        return [
            floormod(index, number(extent))
            if circular
            else index
            if begin is None
            else index - slices.value(*begin, f"{begin[1]}_held")
            for index, extent, begin, circular in zip(
                at, extents, self.begins, self.circular, strict=True
            )
        ]


@dataclass(eq=False)
class LocalMemory:
    """The local memory of a group: statements that declare its buffers, at their addresses."""

    planned: PlannedGroup  # Offsets in bytes a lane
    # How many lanes there are. In the arena, which a CPU runs, a lane's byte is as many bytes:
    # tensors lie one after the other there, so that what overlaps in a lane overlaps in it.
    lanes: int
    # An allocation for each buffer, with its address in a lane; or one allocation for all.
    form: str
    declarations: list[Any] = field(default_factory=list)
    _as_type: dict[tuple[int, str], Var] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arena: Var | None = None
        if self.form == "arena":
            size = max(self.planned.plan.peak, 1) * self.lanes
            shape = (number(size),)
            self.arena = tirx.decl_buffer(shape, "uint8", "lmem", scope=SCOPE, layout=None)
            self.declarations.append(AllocBuffer(self.arena))

    def tensor(self, name: str, dtype: str) -> LocalBuffer:
        """Declare the buffer of a tensor of the group."""
        slices = self.planned.slices.tensors[name]
        extents = self.planned.slices.window(name)
        hint = _identifier(name)
        buffer = self._declare(hint, extents, dtype, self.planned.plan.offsets[name][0])
        circular = list(_circular(slices))
        if name in self.planned.slices.streamed:
            circular[self.planned.slices.streamed[name][0]] = True
        return LocalBuffer(buffer, _begins(slices), tuple(circular))

    def working(
        self, layer: str, parts: Mapping[int, tuple[tuple[int, ...], str]]
    ) -> dict[int, Var]:
        """Declare the working buffers of a layer, one behind the other in its working memory.

        Raises ValueError when they need more than was planned.
        """
        sizes = {
            key: -(-prod(extents) * _bits(dtype) // 8) for key, (extents, dtype) in parts.items()
        }
        planned = self.planned.local.item[layer].lane_bytes * self.lanes
        if sum(sizes.values()) > planned:
            raise ValueError(
                f"layer {layer!r}: its working memory is planned with {planned} bytes, and needs "
                f"{sum(sizes.values())} in memory scope {SCOPE!r}"
            )
        offset = self.planned.plan.offsets[layer][0]
        memory, at = self.arena, offset * self.lanes
        if memory is None:
            memory = self._declare(f"{_identifier(layer)}_work", (planned,), "uint8", offset)
            at = 0
        buffers = {}
        for key in sorted(parts, key=lambda key: -_bits(parts[key][1])):
            extents, dtype = parts[key]
            hint = f"{_identifier(layer)}_{key}"
            buffers[key] = self._view(hint, extents, dtype, memory, at)
            at += sizes[key]
        return buffers

    def as_type(self, place: LocalBuffer, dtype: str) -> LocalBuffer:
        """Return a buffer in the same place, for elements of another type of as many bits.

        The sum of a convolution of int8 is int32, and may be scaled as float32 where it lies.
        """
        ty = place.buffer.ty
        if str(ty.dtype.dtype) == dtype:
            return place
        hint = f"{place.buffer.name}_{dtype}"
        key = (place.buffer.__chandle__(), dtype)
        if key not in self._as_type:
            view = tirx.decl_buffer(
                ty.shape, dtype, hint, elem_offset=ty.elem_offset, scope=SCOPE, layout=None
            )
            self.declarations.append(DeclBuffer(view, data=place.buffer.data))
            self._as_type[key] = view
        return replace(place, buffer=self._as_type[key])

    def _declare(self, hint: str, extents: Sequence[int], dtype: str, offset: int) -> Var:
        if self.arena is not None:
            return self._view(hint, extents, dtype, self.arena, offset * self.lanes)
        shape = [number(extent) for extent in extents]
        buffer = tirx.decl_buffer(shape, dtype, hint, scope=SCOPE, layout=None)
        buffer = buffer.with_allocated_addr([offset])
        self.declarations.append(AllocBuffer(buffer))
        return buffer

    def _view(self, hint: str, extents: Sequence[int], dtype: str, memory: Var, offset: int) -> Var:
        bits = _bits(dtype)
        if offset * 8 % bits:
            raise ValueError(f"buffer {hint!r}: byte {offset} is no place for {dtype}")
        view = tirx.decl_buffer(
            [number(extent) for extent in extents],
            dtype,
            hint,
            elem_offset=number(offset * 8 // bits),
            scope=SCOPE,
            layout=None,
        )
        self.declarations.append(DeclBuffer(view, data=memory.data))
        return view


def _begins(slices: TensorSlices) -> tuple[tuple[tuple[int, ...], str] | None, ...]:
    return tuple(
        None if axis is None else (tuple(begin for begin, _ in axis.held), axis.letter)
        for axis in slices.axes
    )


def _circular(slices: TensorSlices) -> tuple[bool, ...]:
    return tuple(
        axis is not None and axis.letter in slices.keep and axis.held != axis.made
        for axis in slices.axes
    )


def _bits(dtype: str) -> int:
    element = PrimType(dtype).dtype
    return 8 if dtype == "bool" else int(element.bits * element.lanes)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
