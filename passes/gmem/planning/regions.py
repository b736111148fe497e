# SPDX-License-Identifier: Apache-2.0
"""Regions of named addresses, and memory that is handed out from its start upwards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning.engine.blocks import settle
from target_hw.memory import ByteRange


class NewMemory:
    """Memory that nothing has had so far."""

    def __init__(self, base: int, alignment: int, taken: Sequence[ByteRange] = ()) -> None:
        self.end = base
        self._alignment = alignment
        self._taken = deque(taken)

    def open(self, size: int, alignment: int = 1) -> int:
        """Take the next `size` bytes, at a multiple of `alignment` bytes too."""
        while self._taken and self._taken[0][1] <= self.end:
            self._taken.popleft()
        offset = settle(self.end, size, math.lcm(alignment, self._alignment), self._taken)
        self.end = -(-(offset + size) // self._alignment) * self._alignment
        return offset


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor with its address."""

    name: str  # That of a weight or of a storage
    address: int  # Of its first byte
    size: int  # Bytes


@dataclass(frozen=True)
class Region:
    """Memory from an address on."""

    start: int  # Address of the first byte
    size: int  # Bytes
    tensors: tuple[PlacedTensor, ...] = ()  # What is in it

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.size

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        tensors = [{"name": t.name, "address": t.address, "bytes": t.size} for t in self.tensors]
        return {"start": self.start, "bytes": self.size, "tensors": tensors}
