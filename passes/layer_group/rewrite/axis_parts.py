# SPDX-License-Identifier: Apache-2.0
"""The part of a tensor's axis that each slice computes, reads or holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from passes.layer_group.analysis.axis_reads import AxisReads
from passes.layer_group.planning.cuts import CHANNELS, LETTERS
from passes.layer_group.planning.network import Box, Range
from passes.layer_group.planning.slicing import AxisSlices, TensorSlices
from passes.layer_group.planning.spans import Spans
from passes.layer_group.rewrite.slice_values import SliceValues


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
    return _parts(tensor, lambda axis: axis.made)


def held_parts(tensor: TensorSlices) -> Parts:
    """Return what local memory holds of a tensor during each slice."""
    return _parts(tensor, lambda axis: axis.held)


def _parts(tensor: TensorSlices, spans: Callable[[AxisSlices], Spans]) -> Parts:
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
