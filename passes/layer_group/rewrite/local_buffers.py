# SPDX-License-Identifier: Apache-2.0
"""The buffers of a group in local memory, and which parts of tensors they hold in each slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import numpy as np

from passes.ir import AllocationUses, allocation_entry, element_type, tir
from passes.ir.storage_entries import ElementType
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.spans import AxisPart, Region, Spans
from passes.layer_group.rewrite.slice_values import INT32_MAX, SliceValues, number
from passes.prim_func import Arena, offset_in_elements

_BYTE = ElementType("uint8", 8, 1)

SCOPE = "local.LMEM"
"""The storage scope of local memory."""


def check_covers(held: AxisPart, needed: AxisPart, what: str) -> None:
    """Raise ValueError, which begins with `what`, if a slice needs elements that are not held."""
    low, high = held.spans.begin, held.spans.end
    if held.letter != needed.letter:
        # Any slice along the one letter may meet any along the other.
        low, high = low.max(keepdims=True), high.min(keepdims=True)
    spans = needed.spans
    lacking = (spans.begin < spans.end) & ((spans.begin < low) | (spans.end > high))
    for at in np.flatnonzero(lacking)[:1]:
        (begin, end), first, last = spans.ranges[at], low[at % len(low)], high[at % len(high)]
        there = f"{first} to {last}" if first < last else "none"
        raise ValueError(f"{what}: needs elements {begin} to {end}, holds {there}")


@dataclass(frozen=True, eq=False)
class LocalBuffer:
    """A buffer in local memory that holds a part of a tensor."""

    buffer: tir.Var  # Its extents are those of the largest part
    held: Region  # The part that it holds during each slice, in elements
    # Axes along which an element's place is its index modulo the buffer's extent.
    circular: frozenset[int] = frozenset()

    def indices(self, at: Sequence[Any], slices: SliceValues) -> list[Any]:
        """Return where an element of the tensor lies in the buffer."""

        def place(axis: int, index: Any) -> Any:
            held = self.held[axis]
            if axis in self.circular:
                return tir.floormod(index, number(int(self.buffer.ty.shape[axis])))
            is_whole = not held.letter and held.spans.ranges[0][0] == 0
            return index if is_whole else index - slices.begin(held)

        return [place(axis, index) for axis, index in enumerate(at)]

    def check_holds(self, needed: Region, what: str) -> None:
        """Raise ValueError, which begins with `what`, if a part of a slice is not in the buffer."""
        for axis, (held, part) in enumerate(zip(self.held, needed, strict=True)):
            begin, end = held.spans.begin, held.spans.end
            end = np.minimum(end, begin + int(self.buffer.ty.shape[axis]))
            there = AxisPart(held.letter, Spans(begin, end))
            check_covers(there, part, f"{what} axis {axis} of {self.buffer.name!r}")


class LaneBuffers:
    """The local memory of a group: its buffers, at their addresses in a lane, in bytes."""

    def __init__(self, planned: PlannedGroup, lanes: int) -> None:
        self._planned, self._lanes = planned, lanes
        self.declarations: list[Any] = []  # Statements that begin the kernel
        self._nbits: list[int] = []  # Of the widest elements of each allocation, in order
        self._as_type: dict[tuple[int, str], tir.Var] = {}

    def arena(self) -> Arena:
        """Return all buffers as members of one allocation, which a CPU runs.

        A lane's byte is as many bytes there as there are lanes, so that what overlaps in a lane
        overlaps in the arena; it is more where a CPU's elements would not be aligned otherwise.
        Raises ValueError when the arena has more bytes than functions of layers can be given.
        """
        allocations = [one for one in self.declarations if isinstance(one, tir.Allocation)]
        begins = [int(one.buffer.ty.allocated_addr[0]) for one in allocations]
        lane_byte = self._lanes
        for begin, nbits in zip(begins, self._nbits, strict=True):
            lane_byte *= nbits // gcd(nbits, begin * lane_byte * 8)
        size = max(self._planned.plan.peak, 1) * lane_byte
        if size > INT32_MAX:
            raise ValueError(f"memory scope {SCOPE!r}: {size} bytes are beyond int32")
        members = [
            (AllocationUses(at, one, allocation_entry(one)), (begin * lane_byte,))
            for at, (one, begin) in enumerate(zip(allocations, begins, strict=True))
        ]
        return Arena(SCOPE, size, None, tuple(members), keeps_indices=True)

    def tensor(self, name: str, element: ElementType) -> LocalBuffer:
        """Return the buffer of a tensor of the group."""
        slices = self._planned.slices.tensors[name]
        circular = frozenset(
            at
            for at, (held, made) in enumerate(zip(slices.holds, slices.makes, strict=True))
            if held.letter and held != made
        )
        return LocalBuffer(self._allocate(name, slices.window, element), slices.holds, circular)

    def working(
        self, layer: str, held: Mapping[int, Region], elements: Mapping[int, ElementType]
    ) -> dict[int, LocalBuffer]:
        """Return the working buffers of a layer, one after the other in its working memory.

        Raises ValueError when they need more than was planned.
        """
        if not held:
            return {}
        extents = {
            key: [max(1, part.spans.longest) for part in region] for key, region in held.items()
        }
        sizes = {key: prod(extents[key]) * elements[key].nbits // 8 for key in held}
        planned = self._planned.local.sizes[layer] * self._lanes
        if sum(sizes.values()) > planned:
            needed = sum(sizes.values())
            raise ValueError(
                f"layer {layer!r}: {planned} bytes to work in are planned, not {needed}"
            )
        memory = self._allocate(layer, (planned,), _BYTE, "_work")
        self._nbits[-1] = max(elements[key].nbits for key in held)
        buffers, at = {}, 0
        for key in sorted(held, key=lambda key: -elements[key].nbits):
            view = self._view(f"{layer}_{key}", extents[key], elements[key], memory, at)
            buffers[key] = LocalBuffer(view, held[key])
            at += sizes[key]
        return buffers

    def as_type(self, place: LocalBuffer, element: ElementType) -> LocalBuffer:
        """Return a buffer in the same place, for elements of another type of as many bits."""
        ty = place.buffer.ty
        if element_type(ty.dtype) == element:
            return place
        key = (place.buffer.__chandle__(), element.scalar)
        if key not in self._as_type:
            name = f"{place.buffer.name}_{element.scalar}"
            self._as_type[key] = self._view(name, ty.shape, element, place.buffer, 0)
        return replace(place, buffer=self._as_type[key])

    def _allocate(
        self, name: str, extents: Sequence[int], element: ElementType, suffix: str = ""
    ) -> tir.Var:
        lane_byte = self._planned.plan.offsets[name][0]
        buffer = _buffer(name + suffix, extents, element).with_allocated_addr([lane_byte])
        self._nbits.append(element.nbits)
        self.declarations.append(tir.Allocation(buffer))
        return buffer

    def _view(
        self, name: str, extents: Sequence[Any], element: ElementType, memory: tir.Var, at: int
    ) -> tir.Var:
        """Return a buffer that begins some bytes after the beginning of another one."""
        offset = memory.ty.elem_offset + offset_in_elements(name, at, element.nbits)
        view = _buffer(name, extents, element, offset)
        self.declarations.append(tir.Declaration(view, data=memory.data))
        return view


def _buffer(
    name: str, extents: Sequence[Any], element: ElementType, elem_offset: Any = None
) -> tir.Var:
    hint = "".join(c if c.isalnum() else "_" for c in name)
    return tir.new_buffer(
        [number(int(extent)) for extent in extents],
        element.scalar,
        hint,
        elem_offset=elem_offset,
        scope=SCOPE,
    )
