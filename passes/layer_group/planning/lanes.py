# SPDX-License-Identifier: Apache-2.0
"""Bytes a lane: how much of each lane's local memory a slice of a tensor takes.

The channels of a tensor lie across the lanes, and every lane has its part at the same offset.
The formulas are those of tpu-mlir's ``Arch.cpp``; which weights are padded is `is_eu_align` of its
``LayerGroupUtil.cpp``, and the units of a filter's channels are `ic_num` of ``BM168x.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from passes.layer_group.planning.cut import LETTERS, Cut
from passes.layer_group.planning.network import (
    Kind,
    Layer,
    NetworkIndex,
    Tensor,
    WeightRole,
    extent_of,
)
from target_hw.memory import MemoryScope


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lanes of a chip."""

    count: int  # Number of lanes
    # Bytes that the execution units of a lane read at once; padded tensors fill these.
    eu_bytes: int
    # On chips that pack entries of the batch: the bytes in which 4 of 1 byte or 2 of 2 bytes lie
    # side by side. Zero on all others.
    pack_bytes: int = 0
    channel_unit: int = 0  # Channels of 8 bits in the units of which filters have their inputs
    pads_depthwise: bool = False  # Whether the filters of depthwise convolutions are padded

    @classmethod
    def of(cls, memory: MemoryScope) -> Lanes:
        """Read the lanes that a local memory belongs to; ValueError if it says nothing of them."""
        for name in ("lanes", "eu_bytes"):
            if memory.fact(name) < 1:
                raise ValueError(f"memory scope {memory.name!r}: {name} must be at least 1")
        facts = dict(memory.facts)
        names = ("pack_bytes", "channel_unit", "pads_depthwise")
        packed, unit, pads = (facts.get(name, 0) for name in names)
        return cls(memory.fact("lanes"), memory.fact("eu_bytes"), packed, unit, bool(pads))

    def packed(self, bits: int) -> int:
        """Entries of the batch that lie in the same bytes; elements of `bits` bits."""
        return max(1, self.pack_bytes * 8 // bits)

    def most_slices(self, index: NetworkIndex, layer: Layer) -> dict[str, int]:
        """Return how many slices a layer's result can be cut into along each letter.

        No slice of the batch takes apart what lies in the same bytes.
        """
        tensor = index.tensors[layer.output]
        most = {x: 1 if x in layer.uncut else extent_of(tensor, x) for x in LETTERS}
        whole, rest = divmod(most["n"], self.packed(index.least_bits))
        return most | {"n": 1 if rest else max(1, whole)}

    def can_be_cut(self, index: NetworkIndex, layer: Layer, cut: Cut, *, stored: bool) -> bool:
        """Return whether a layer of a group can be cut so; whether its result is stored there."""
        if layer.uncut and any(cut.counts[letter] > 1 for letter in layer.uncut):
            return False
        if not stored:
            return True
        most, packed = self.most_slices(index, layer), self.packed(index.least_bits)
        alike = packed == 1 or most["n"] % cut.counts["n"] == 0
        return alike and all(count <= most[letter] for letter, count in cut.counts.items())

    def pads(self, tensor: Tensor) -> bool:
        """Return whether a tensor's rows are padded to what the execution units read at once."""
        if tensor.kind is Kind.ACTIVATION or tensor.role is WeightRole.OTHER:
            return True
        return tensor.role is WeightRole.DEPTHWISE and self.pads_depthwise

    def tensor_bytes(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return the bytes a lane of a part of a tensor, with so many elements on each axis."""
        return _tensor_bytes(self, tensor, extents)

    def working_bytes(self, tensor: Tensor, extents: tuple[int, ...], bits: int) -> int:
        """Return the bytes a lane of memory that lies as a part of a tensor, `bits` in all."""
        batch, channels, plane = _letters(tensor, extents)
        each = batch * -(-channels // self.count) * plane
        return -(-bits * each // (8 * max(1, batch * channels * plane)))


@lru_cache(maxsize=1 << 14)
def _tensor_bytes(lanes: Lanes, tensor: Tensor, extents: tuple[int, ...]) -> int:
    """Return the bytes a lane of a part of a tensor."""
    bits, axis = tensor.bits, tensor.input_axis
    if axis is not None and lanes.channel_unit and bits < 32:
        unit = max(1, lanes.channel_unit * 8 // bits)
        whole = -(-extents[axis] // unit) * unit
        extents = (*extents[:axis], whole, *extents[axis + 1 :])
    batch, channels, plane = _letters(tensor, extents)
    if tensor.kind is Kind.ACTIVATION and lanes.pack_bytes:
        batch = -(-batch // lanes.packed(bits))
        bits = max(bits, 8 * lanes.pack_bytes)
    if lanes.pads(tensor):
        together = max(1, lanes.eu_bytes * 8 // bits)
        plane = -(-plane // together) * together
    return -(-batch * -(-channels // lanes.count) * plane * bits // 8)


def _letters(tensor: Tensor, extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the elements of the batch, of the channels and of all else."""
    batch = channels = plane = 1
    for letter, extent in zip(tensor.axes, extents, strict=True):
        if letter == "c":
            channels *= extent
        elif letter in "nd":
            batch *= extent
        else:
            plane *= extent
    return batch, channels, plane
