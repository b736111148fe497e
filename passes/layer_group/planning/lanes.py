# SPDX-License-Identifier: Apache-2.0
"""Bytes a lane: how much of each lane's local memory a slice of a tensor takes.

The channels of a tensor lie across the lanes, and every lane has its part at the same offset.
The formulas are those of tpu-mlir's ``Arch.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from passes.layer_group.planning.network import Kind, NetworkIndex, Tensor, extent_of
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
        for name in ("lanes", "eu_bytes"):
            if memory.fact(name) < 1:
                raise ValueError(f"memory scope {memory.name!r}: {name} must be at least 1")
        packed = dict(memory.facts).get("pack_bytes", 0)
        return cls(memory.fact("lanes"), memory.fact("eu_bytes"), packed)

    def batch_unit(self, bits: int) -> int:
        """Entries of the batch that lie in the same bytes; elements of `bits` bits."""
        return max(1, self.pack_bytes * 8 // bits)

    def most_slices(self, index: NetworkIndex, name: str) -> tuple[int, int, int]:
        """Return how many slices a tensor's batch, rows and columns can be cut into.

        No slice takes apart what lies in the same bytes of any tensor of the network.
        """
        batch, rows, columns = (extent_of(index.tensors[name], letter) for letter in "nhw")
        return -(-batch // self.batch_unit(index.least_bits)), rows, columns

    def tensor_bytes(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return the bytes a lane of a part of a tensor, with so many elements on each axis."""
        return _tensor_bytes(self, tensor, extents)

    def elements(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return how many elements of a part of a tensor one lane has, at most."""
        batch, channels, plane = _letters(tensor, extents)
        return batch * -(-channels // self.count) * plane


@lru_cache(maxsize=1 << 14)
def _tensor_bytes(lanes: Lanes, tensor: Tensor, extents: tuple[int, ...]) -> int:
    """Return the bytes a lane of a part of a tensor."""
    batch, channels, plane = _letters(tensor, extents)
    bits = tensor.bits
    if tensor.kind is Kind.ACTIVATION:
        if lanes.pack_bytes:
            batch = -(-batch // lanes.batch_unit(bits))
            bits = max(bits, 8 * lanes.pack_bytes)
        together = max(1, lanes.eu_bytes * 8 // bits)
        plane = -(-plane // together) * together
    return -(-batch * -(-channels // lanes.count) * plane * bits // 8)


def _letters(tensor: Tensor, extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the elements of the batch, of the channels and of all else."""
    batch = channels = plane = 1
    for letter, extent in zip(tensor.axes, extents, strict=True):
        if letter == "c":
            channels *= extent
        elif letter == "n":
            batch *= extent
        else:
            plane *= extent
    return batch, channels, plane
