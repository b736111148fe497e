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
from passes.layer_group.planning.network import Range
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


def parts_needed(
    made: TensorSlices, axes: Sequence[AxisReads | None], shape: Sequence[int]
) -> Parts:
    """Return the part that each slice of a tensor needs of a buffer on the way to it.

    An axis of which every slice that makes anything needs as much is not cut.
    """
    result, found = made_parts(made), []
    for reads, extent in zip(axes, shape, strict=True):
        if reads is None:
            found.append(whole(extent))
            continue
        along, every = result[reads.axis], reads.of((0, made.tensor.shape[reads.axis]))
        part = along.read_by(reads)
        pairs = zip(along.ranges, part.ranges, strict=True)
        is_cut = any(begin < end and needed != every for (begin, end), needed in pairs)
        found.append(part if is_cut else AxisPart((every,)))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class LocalBuffer:
    """A buffer in local memory that holds a part of a tensor."""

    buffer: Var  # Its extents are those of the largest part
    held: Parts  # What it holds during each slice, in elements
    # Axes along which an element's place is its index modulo the buffer's extent.
    circular: frozenset[int] = frozenset()

    def indices(self, at: Sequence[Any], slices: SliceValues) -> list[Any]:
        """Return where an element of the tensor lies in the buffer."""

        def place(axis: int, index: Any) -> Any:
            held = self.held[axis]
            if axis in self.circular:
                return floormod(index, number(int(self.buffer.ty.shape[axis])))
            is_whole = not held.letter and held.ranges[0][0] == 0
            return index if is_whole else index - held.begin(slices)

        return [place(axis, index) for axis, index in enumerate(at)]

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
        buffer = self._allocate(name, self._planned.slices.window(name), element)
        circular = {
            at
            for at, axis in enumerate(slices.axes)
            if axis and axis.letter in slices.keep and axis.held.ranges != axis.made.ranges
        }
        if name in self._planned.slices.streamed:
            parts, _ = self._planned.slices.streamed[name]
            slices = slices.in_parts(parts)
            circular.add(parts.axis)
        held = parts_of(slices, lambda axis: axis.held)
        return LocalBuffer(buffer, held, frozenset(circular))

    def working(
        self, layer: str, held: Mapping[int, Parts], elements: Mapping[int, ElementType]
    ) -> dict[int, LocalBuffer]:
        """Return the working buffers of a layer, one behind the other in its working memory.

        Raises ValueError when they need more than was planned.
        """
        if not held:
            return {}
        extents = {key: [part.extent for part in parts] for key, parts in held.items()}
        sizes = {key: prod(extents[key]) * elements[key].nbits // 8 for key in held}
        planned = self._planned.local.sizes[layer] * self._lanes
        if sum(sizes.values()) > planned:
            raise ValueError(
                f"layer {layer!r}: its working memory is planned with {planned} bytes, and needs "
                f"{sum(sizes.values())} in memory scope {SCOPE!r}"
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
        self, name: str, extents: Sequence[int], element: ElementType, suffix: str = ""
    ) -> Var:
        lane_byte = self._planned.plan.offsets[name][0]
        buffer = _buffer(name + suffix, extents, element).with_allocated_addr([lane_byte])
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
