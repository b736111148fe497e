# SPDX-License-Identifier: Apache-2.0
"""What each slice of a tensor holds, makes and reads, and where its elements lie in the lanes."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.loops import Parts
from passes.layer_group.planning.network import Kind, Tensor, WeightRole
from passes.layer_group.planning.slicing import TensorSlices
from passes.layer_group.planning.spans import AxisMap, Range, Spans

Box = tuple[Range, ...]
"""A range on each axis of a tensor."""


def indices_of(cut: Cut) -> list[dict[str, int]]:
    """Return the index of each slice on each axis, by letter, in the slices' order."""
    every = product(*map(range, cut.counts.values()))
    return [dict(zip(cut.counts, index, strict=True)) for index in every]


def _ranges(spans: Spans, index: dict[str, int], letter: str) -> Range:
    """Return what a slice has of an axis: all where it comes in parts, which others look at."""
    return spans.ranges[index[letter]] if letter in index else spans.hull


def held_box(slices: TensorSlices, index: dict[str, int]) -> Box:
    """Return the elements in local memory during a slice, by the slice's index on each axis."""
    return tuple(_ranges(spans, index, x) for x, spans in slices.holds)


def made_box(slices: TensorSlices, index: dict[str, int]) -> Box:
    """Return what a slice computes or loads; all ranges are empty if that is nothing."""
    box = tuple(_ranges(spans, index, x) for x, spans in slices.makes)
    # A tensor that is whole along a cut stays from its first slice there on.
    again = any(index[x] % slices.cut.runs[x] and x not in slices.letters for x in slices.keep)
    if again or any(begin == end for begin, end in box):
        return tuple((0, 0) for _ in box)
    return box


def read_by(m: AxisMap, element: int) -> range:
    """Return what one element of an output's axis reads of an input's axis."""
    return range(*m.spans.ranges[element])


def read_of(m: AxisMap | None, made: list[np.ndarray], extent: int) -> np.ndarray:
    """Return the indices of an input's axis that are read for the indices of an output."""
    if m is None:
        return np.arange(extent)
    found = {index for element in made[m.axis] for index in read_by(m, int(element))}
    return np.array(sorted(found), int)


def hull(*parts: np.ndarray) -> np.ndarray:
    """Return all indices from the first to the last one of any part."""
    together = np.concatenate(parts)
    return np.arange(together.min(), together.max() + 1) if len(together) else together


def part_of(box: Box, parts: Parts, at: int) -> Box:
    """Return a box with one of its axes in a part."""
    begin = at * parts.chunk
    part = (begin, min(begin + parts.chunk, parts.extent))
    return (*box[: parts.axis], part, *box[parts.axis + 1 :])


class Layout:
    """Where the elements of a tensor lie in the lanes: channels across them, rows padded."""

    def __init__(self, tensor: Tensor, window: list[int], lanes: int, eu_bytes: int) -> None:
        self.bytes = tensor.bits // 8
        self.lanes = lanes
        self.tensor, self.window = tensor, window
        plane = prod(n for n, letter in zip(window, tensor.axes, strict=True) if letter in "hw")
        batch = prod(n for n, letter in zip(window, tensor.axes, strict=True) if letter in "nd")
        channels = prod(n for n, letter in zip(window, tensor.axes, strict=True) if letter == "c")
        is_padded = tensor.kind is Kind.ACTIVATION or tensor.role is WeightRole.OTHER
        together = max(1, eu_bytes // self.bytes) if is_padded else 1
        self.plane = -(-plane // together) * together
        self.lines = -(-channels // lanes)
        self.size = batch * self.lines * self.plane * self.bytes

    def of(self, slots: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the lane and the first byte of each element of a box of slots."""
        grid = np.meshgrid(*slots, indexing="ij")
        place = {"n": np.zeros_like(grid[0]), "c": np.zeros_like(grid[0])}
        plane = np.zeros_like(grid[0])
        for at, letter, extent in zip(grid, self.tensor.axes, self.window, strict=True):
            if letter in "ncd":
                of = "c" if letter == "c" else "n"
                place[of] = place[of] * extent + at
            else:
                plane = plane * extent + at
        line = place["n"] * self.lines + place["c"] // self.lanes
        return place["c"] % self.lanes, (line * self.plane + plane) * self.bytes
