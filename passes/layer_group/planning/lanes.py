# SPDX-License-Identifier: Apache-2.0
"""Bytes a lane: how much of each lane's local memory a slice of a tensor takes.

The channels of a tensor lie across the lanes, and every lane has its part at the same offset.
The formulas are those of tpu-mlir's ``Arch.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.layer_group.planning.network import Kind, Tensor
from passes.layer_group.planning.slicing import Cut, TensorSlices
from target_hw.memory import MemoryScope


@dataclass(frozen=True)
class Lanes:
    """The lanes of a chip."""

    count: int  # Number of lanes
    # What the execution units of a lane read at once, in bytes; padded tensors fill these.
    eu_bytes: int
    # On chips that pack entries of the batch: the bytes in which 4 of 1 byte or 2 of 2 bytes lie
    # side by side. Zero on all others.
    pack_bytes: int = 0

    @classmethod
    def of(cls, memory: MemoryScope) -> Lanes:
        """Read the lanes that a local memory belongs to; ValueError if it says nothing of them."""
        facts = dict(memory.facts)
        return cls(memory.fact("lanes"), memory.fact("eu_bytes"), facts.get("pack_bytes", 0))

    def batch_unit(self, bits: int) -> int:
        """Entries of the batch that lie in the same bytes; elements of `bits` bits."""
        return max(1, self.pack_bytes * 8 // bits)

    def tensor_bytes(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return the bytes a lane of a part of a tensor.

        Parameters
        ----------
        tensor : Tensor
            Which tensor.
        extents : tuple of int
            Elements of the part on each axis.
        """
        batch, channels, plane = _letters(tensor, extents)
        bits = tensor.bits
        if self.pack_bytes and tensor.kind is Kind.ACTIVATION:
            batch = -(-batch // self.batch_unit(bits))
            bits = max(bits, 8 * self.pack_bytes)
        if tensor.aligned:
            together = max(1, self.eu_bytes * 8 // bits)
            plane = -(-plane // together) * together
        return -(-batch * -(-channels // self.count) * plane * bits // 8)

    def elements(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return how many elements of a part of a tensor one lane has, at most."""
        batch, channels, plane = _letters(tensor, extents)
        return batch * -(-channels // self.count) * plane


def _letters(tensor: Tensor, extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the elements of the batch, of the channels and of all else."""
    sizes = {"n": 1, "c": 1, "h": 1, "w": 1}
    for letter, extent in zip(tensor.axes, extents, strict=True):
        sizes[letter] *= extent
    return sizes["n"], sizes["c"], sizes["h"] * sizes["w"]


def window_extents(slices: TensorSlices, cut: Cut) -> tuple[int, ...]:
    """Return the elements on each axis of what is held of a tensor during one slice, at most.

    A tensor that stays along an outer axis, and lies across the inner one, is held whole there.
    """
    extents = []
    for extent, axis in zip(slices.tensor.shape, slices.axes, strict=True):
        if axis is None or _outlasts(slices, axis.letter, cut):
            extents.append(extent)
        else:
            extents.append(axis.window)
    return tuple(extents)


def line_extents(slices: TensorSlices, cut: Cut) -> tuple[int, ...] | None:
    """Return the extents of a line buffer: what waits for the next step of the outer axis.

    Where slices go along rows and their rows are kept, the rows that the next line of slices needs
    again wait, over all columns, while the window moves along. None where nothing waits so.
    """
    outer, inner = cut.order[1], cut.order[2]
    if cut.count(outer) == 1 or cut.count(inner) == 1 or outer not in slices.keep:
        return None
    kept = [axis.kept for axis in slices.axes if axis is not None and axis.letter == outer]
    if not kept or not kept[0]:
        return None
    extents = []
    for extent, axis in zip(slices.tensor.shape, slices.axes, strict=True):
        if axis is None:
            extents.append(extent)
        elif axis.letter == outer:
            extents.append(kept[0])
        else:
            extents.append(axis.covered if axis.letter == inner else axis.window)
    return tuple(extents)


def _outlasts(slices: TensorSlices, letter: str, cut: Cut) -> bool:
    """Whether all slices along `letter` must stay, because an outer axis comes back to them."""
    outer, inner = cut.order[1], cut.order[2]
    return (
        letter == inner
        and outer in slices.keep
        and outer not in slices.letters
        and cut.count(outer) > 1
    )


def lane_bytes(lanes: Lanes, slices: TensorSlices, cut: Cut) -> int:
    """Return the bytes a lane that a tensor's slices take: window and line buffer.

    What waits in the line buffer is read from there, so the window has only the other rows. When
    it moves on, the rows that the next line of slices needs take the place of those that are done.
    """
    line = line_extents(slices, cut)
    window = window_extents(slices, cut)
    if line is None:
        return lanes.tensor_bytes(slices.tensor, window)
    new = tuple(
        extent - axis.kept if axis is not None and axis.letter == cut.order[1] else extent
        for extent, axis in zip(window, slices.axes, strict=True)
    )
    return lanes.tensor_bytes(slices.tensor, new) + lanes.tensor_bytes(slices.tensor, line)
