# SPDX-License-Identifier: Apache-2.0
"""The buffers of a group in local memory, and which parts of tensors they hold in each slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.tirx import AllocBuffer, DeclBuffer, floormod

from passes.ir import element_type
from passes.ir.storage_entries import ElementType
from passes.layer_group.analysis.axis_reads import AxisReads
from passes.layer_group.planning.cuts import CHANNELS, LETTERS
from passes.layer_group.planning.network import Box, Range
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.slicing import AxisSlices, TensorSlices
from passes.layer_group.planning.spans import Spans
from passes.layer_group.rewrite.slice_values import INT32_MAX, SliceValues, number
from passes.prim_func import AllocationUses, Arena, offset_in_elements

_BYTE = ElementType("uint8", 8, 1)

SCOPE = "local.LMEM"
"""The storage scope of local memory."""


@dataclass(frozen=True)
class AxisPart:
    """The part of an axis that each slice computes, reads or holds."""

    # One range for each slice along the letter; a single range where the axis is not cut.
    ranges: tuple[Range, ...]
    letter: str = ""  # Which slices it follows; empty where the axis is not cut

    @property
    def extent(self) -> int:
        """Elements of the largest range; at least one."""
        return max(1, *(end - begin for begin, end in self.ranges))

    def begin(self, slices: SliceValues) -> Any:
        """Return the first element of a slice's range."""
        return slices.value([begin for begin, _ in self.ranges], self.letter, "begin")

    def count(self, slices: SliceValues) -> Any:
        """Return how many elements a slice's range has."""
        return slices.value([end - begin for begin, end in self.ranges], self.letter, "extent")

    def read_by(self, reads: AxisReads) -> AxisPart:
        """Return the part of another axis that is read for each range of this one."""
        return AxisPart(tuple(map(reads.of, self.ranges)), self.letter)


Parts = tuple[AxisPart, ...]
"""The part of each axis of a buffer."""


def whole(extent: int) -> AxisPart:
    """Return all of an axis."""
    return AxisPart(((0, extent),))


def check_covers(held: AxisPart, needed: AxisPart, what: str) -> None:
    """Check that the elements of an axis that each slice needs are among those that are held.

    Raises ValueError, which begins with `what`, when an element is not.
    """
    for at, (begin, end) in enumerate(needed.ranges):
        # Of two letters, any slice along the one may meet any along the other.
        there = held.ranges[at : at + 1] if held.letter == needed.letter else held.ranges
        low, high = max(first for first, _ in there), min(last for _, last in there)
        if begin < end and not low <= begin < end <= high:
            raise ValueError(f"{what}: needs elements {begin} to {end}, holds {low} to {high}")


def made_parts(tensor: TensorSlices) -> Parts:
    """Return what each slice computes or loads of a tensor."""
    return parts_of(tensor, lambda axis: axis.made)


def parts_of(tensor: TensorSlices, spans: Callable[[AxisSlices], Spans]) -> Parts:
    """Return the part of each axis of a tensor that has these spans."""
    return tuple(
        whole(extent) if axis is None else AxisPart(spans(axis).ranges, axis.letter)
        for extent, axis in zip(tensor.tensor.shape, tensor.axes, strict=True)
    )


def buffer_parts(made: TensorSlices, boxes: Callable[[Box], Mapping[int, Box]]) -> dict[int, Parts]:
    """Return the part that each slice needs of the buffers on the way to a tensor.

    Raises ValueError when an axis of a buffer follows slices of more than one axis.
    """
    shape = made.tensor.shape
    start = boxes(tuple((0, extent) for extent in shape))
    ranges: dict[tuple[int, int], AxisPart] = {
        (key, axis): AxisPart((part,))
        for key, box in start.items()
        for axis, part in enumerate(box)
    }
    for letter in LETTERS + CHANNELS:
        lines = [axis for axis in made.axes if axis is not None and axis.letter == letter]
        if not lines:
            continue
        found = []
        for at in range(len(lines[0].made.ranges)):
            box = tuple(
                axis.made.ranges[at] if axis is not None and axis.letter == letter else (0, extent)
                for extent, axis in zip(shape, made.axes, strict=True)
            )
            found.append(boxes(box) if all(a < b for a, b in box) else None)
        for (key, axis), part in ranges.items():
            if all(box is None or box[key][axis] == start[key][axis] for box in found):
                continue
            along = tuple((0, 0) if box is None else box[key][axis] for box in found)
            if part.letter:
                raise ValueError(f"tensor {made.tensor.name!r}: an axis follows two cuts")
            ranges[key, axis] = AxisPart(along, letter)
    return {key: tuple(ranges[key, axis] for axis in range(len(box))) for key, box in start.items()}


@dataclass(frozen=True, eq=False)
class LocalBuffer:
    """A buffer in local memory that holds a part of a tensor."""

    buffer: Var  # Its extents are those of the largest part
    held: Parts  # What it holds during each slice, in elements
    # For each axis whether an element's place is its index modulo the buffer's extent.
    circular: tuple[bool, ...]

    def is_whole(self, axis: int) -> bool:
        """Whether each element of an axis has its own place, from the first one on."""
        held = self.held[axis]
        return not held.letter and held.ranges[0][0] == 0 and not self.circular[axis]

    def indices(self, at: Sequence[Any], slices: SliceValues) -> list[Any]:
        """Return where an element of the tensor lies in the buffer."""
        return [
            index
            if self.is_whole(axis)
            else floormod(index, number(int(self.buffer.ty.shape[axis])))
            if self.circular[axis]
            else index - self.held[axis].begin(slices)
            for axis, index in enumerate(at)
        ]

    def check_holds(self, needed: Parts, what: str) -> None:
        """Check that the buffer has room for, and holds, a part of its tensor in each slice.

        Raises ValueError, which begins with `what`, when an element of the part is outside.
        """
        for axis, (held, part) in enumerate(zip(self.held, needed, strict=True)):
            room = int(self.buffer.ty.shape[axis])
            there = AxisPart(tuple((a, min(b, a + room)) for a, b in held.ranges), held.letter)
            check_covers(there, part, f"{what} axis {axis} of {self.buffer.name!r}")


class LaneBuffers:
    """The local memory of a group: its buffers, at their addresses in a lane, in bytes."""

    def __init__(self, planned: PlannedGroup, lanes: int) -> None:
        self._planned, self._lanes = planned, lanes
        self.declarations: list[Any] = []  # Statements that begin the kernel
        self._nbits: list[int] = []  # Of the widest elements of each allocation, in order
        self._as_type: dict[tuple[int, str], Var] = {}

    def arena(self) -> Arena:
        """Return all buffers as members of one allocation, which a CPU runs.

        There a lane's byte is as many bytes as there are lanes: tensors lie one after the other, so
        that what overlaps in a lane overlaps in the arena. It is more bytes where elements would
        not be aligned otherwise: a chip may ask for less than a CPU does.

        Raises ValueError when it has more bytes than functions of layers can be given.
        """
        allocations = [one for one in self.declarations if isinstance(one, AllocBuffer)]
        begins = [int(one.buffer.ty.allocated_addr[0]) for one in allocations]
        lane_byte = self._lanes
        for begin, nbits in zip(begins, self._nbits, strict=True):
            lane_byte *= nbits // gcd(nbits, begin * lane_byte * 8)
        size = max(self._planned.plan.peak, 1) * lane_byte
        if size > INT32_MAX:
            raise ValueError(f"memory scope {SCOPE!r}: {size} bytes are beyond int32")
        members = [
            (AllocationUses(at, one), (begin * lane_byte,))
            for at, (one, begin) in enumerate(zip(allocations, begins, strict=True))
        ]
        return Arena(SCOPE, size, None, tuple(members), keeps_indices=True)

    def tensor(self, name: str, element: ElementType) -> LocalBuffer:
        """Return the buffer of a tensor of the group."""
        slices = self._planned.slices.tensors[name]
        extents = self._planned.slices.window(name)
        buffer = self._allocate(name, extents, element, self._planned.plan.offsets[name][0])
        circular = [
            axis is not None and axis.letter in slices.keep and axis.held.ranges != axis.made.ranges
            for axis in slices.axes
        ]
        if name in self._planned.slices.streamed:
            parts, _ = self._planned.slices.streamed[name]
            slices, circular[parts.axis] = slices.in_parts(parts), True
        return LocalBuffer(buffer, parts_of(slices, lambda axis: axis.held), tuple(circular))

    def working(
        self, layer: str, parts: Mapping[int, tuple[tuple[int, ...], ElementType]]
    ) -> dict[int, Var]:
        """Return the working buffers of a layer, one behind the other in its working memory.

        Raises ValueError when they need more than was planned.
        """
        sizes = {
            key: prod(extents) * element.nbits // 8 for key, (extents, element) in parts.items()
        }
        planned = self._planned.local.sizes[layer] * self._lanes
        if sum(sizes.values()) > planned:
            raise ValueError(
                f"layer {layer!r}: its working memory is planned with {planned} bytes, and needs "
                f"{sum(sizes.values())} in memory scope {SCOPE!r}"
            )
        offset = self._planned.plan.offsets[layer][0]
        memory = self._allocate(f"{layer}_work", (planned,), _BYTE, offset)
        self._nbits[-1] = max(element.nbits for _, element in parts.values())
        buffers, at = {}, 0
        for key in sorted(parts, key=lambda key: -parts[key][1].nbits):
            buffers[key] = self._view(f"{layer}_{key}", *parts[key], memory, at)
            at += sizes[key]
        return buffers

    def as_type(self, place: LocalBuffer, element: ElementType) -> LocalBuffer:
        """Return a buffer in the same place, for elements of another type of as many bits.

        The sum of a convolution of int8 is int32, and may be scaled as float32 where it lies.
        """
        ty = place.buffer.ty
        if element_type(ty.dtype) == element:
            return place
        key = (place.buffer.__chandle__(), element.scalar)
        if key not in self._as_type:
            name = f"{place.buffer.name}_{element.scalar}"
            self._as_type[key] = self._view(name, ty.shape, element, place.buffer, 0)
        return replace(place, buffer=self._as_type[key])

    def _allocate(
        self, name: str, extents: Sequence[int], element: ElementType, lane_byte: int
    ) -> Var:
        buffer = _buffer(name, extents, element).with_allocated_addr([lane_byte])
        self._nbits.append(element.nbits)
        self.declarations.append(AllocBuffer(buffer))
        return buffer

    def _view(
        self, name: str, extents: Sequence[Any], element: ElementType, memory: Var, at: int
    ) -> Var:
        """Return a buffer that begins some bytes behind the beginning of another one."""
        offset = memory.ty.elem_offset + offset_in_elements(name, at, element.nbits)
        view = _buffer(name, extents, element, offset)
        self.declarations.append(DeclBuffer(view, data=memory.data))
        return view


def _buffer(
    name: str, extents: Sequence[Any], element: ElementType, elem_offset: Any = None
) -> Var:
    hint = "".join(c if c.isalnum() else "_" for c in name)
    return tirx.decl_buffer(
        [number(int(extent)) for extent in extents],
        element.scalar,
        hint,
        elem_offset=elem_offset,
        scope=SCOPE,
        layout=None,
    )
