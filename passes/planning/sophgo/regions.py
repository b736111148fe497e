"""Regions of memory, and the memory that is handed out from its start upwards, as to weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.planning.engine.blocks import settle
from passes.planning.sophgo.op_sequence import Value
from target_hw.memory import ByteRange, is_byte_count

GMEM_ALIGNMENT = 4096
"""Bytes that addresses in the global memory of Sophgo's BM chips are multiples of."""


class NewMemory:
    """Memory that nothing has had so far.

    Parameters
    ----------
    base : int
        Its first byte.
    alignment : int
        Every offset is a multiple of this many bytes.
    taken : sequence of ByteRange
        Bytes that it steps over, sorted.

    Attributes
    ----------
    end : int
        Where the next piece may begin, aligned.
    """

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
class Placed:
    """A tensor with its address.

    Parameters
    ----------
    name : str
        That of a weight or of a storage.
    address : int
        Of its first byte.
    size : int
        Bytes.
    """

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Region:
    """Memory from an address on.

    Parameters
    ----------
    start : int
        Address of the first byte.
    size : int
        Bytes.
    tensors : tuple of Placed
        What is in it.
    """

    start: int
    size: int
    tensors: tuple[Placed, ...] = ()

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.size

    @property
    def addresses(self) -> Mapping[str, int]:
        """The address of each tensor, by name."""
        return {tensor.name: tensor.address for tensor in self.tensors}

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        tensors = [{"name": t.name, "address": t.address, "bytes": t.size} for t in self.tensors]
        return {"start": self.start, "bytes": self.size, "tensors": tensors}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Region:
        """Read what `to_plain` writes; TVM's own maps and lists will do."""
        tensors = tuple(
            Placed(str(t["name"]), int(t["address"]), int(t["bytes"])) for t in plain["tensors"]
        )
        return cls(int(plain["start"]), int(plain["bytes"]), tensors)


def place_weights(
    weights: Iterable[Value], start: int = 0, alignment: int = GMEM_ALIGNMENT
) -> Region:
    """Place weights one after another, nothing shared, as TPU-MLIR does.

    Parameters
    ----------
    weights : iterable of Value
        In the order of their addresses.
    start : int
        Where the region begins, in bytes.
    alignment : int
        Every address is a multiple of this many bytes, and of the weight's own alignment.

    Returns
    -------
    Region
        Its size is a multiple of the alignment.

    Raises
    ------
    ValueError
        If `start` is not a multiple of `alignment`.
    """
    check_region("weights", start, alignment)
    memory = NewMemory(start, alignment)
    placed = tuple(
        Placed(weight.name, memory.open(weight.size, weight.alignment), weight.size)
        for weight in weights
    )
    return Region(start, memory.end - start, placed)


def check_region(where: str, base: int, alignment: int) -> None:
    """Raise `ValueError` unless a region can begin at `base`; its message begins with `where`."""
    if not is_byte_count(alignment) or alignment < 1:
        raise ValueError(f"{where}: the alignment must be a positive integer, got {alignment!r}")
    if not is_byte_count(base) or base < 0:
        raise ValueError(f"{where}: the base must be an integer of at least 0, got {base!r}")
    if base % alignment:
        raise ValueError(
            f"{where}: the base {base} is not a multiple of the alignment of {alignment} bytes"
        )
