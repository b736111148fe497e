# SPDX-License-Identifier: Apache-2.0
"""Global memory as regions: weights one after the other, then activations.

Source: tpu-mlir's address assignment for the BM168x chips. Activations follow the weights, or have
a base of their own on chips whose addresses carry tags. Addresses and sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from passes.gmem.planning.pool import Piece
from passes.planning import ADDRESS_LIMIT, Problem
from passes.planning.engine import NewMemory
from target_hw.memory import ByteRange, MemoryScope, is_byte_count, round_up


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
    tensors: tuple[PlacedTensor, ...] = ()  # The tensors in it

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.size

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        tensors = [{"name": t.name, "address": t.address, "bytes": t.size} for t in self.tensors]
        return {"start": self.start, "bytes": self.size, "tensors": tensors}


def region_of(problem: Problem, pieces: Sequence[Piece], start: int) -> Region:
    """Return storages one after the other, from an address on.

    A plan at offsets keeps off reserved bytes by itself; whole slots are put after them.
    """
    scope, end, placed = problem.memory, 0, []
    at_offsets = any(any(piece.offsets.values()) for piece in pieces)
    memory = NewMemory(0, scope.alignment, () if at_offsets else scope.reserved)
    for piece in pieces:
        begin = memory.open(piece.size)
        end = begin + piece.size
        placed += [
            PlacedTensor(name, start + begin + offset, problem.buffers[problem.index[name]].size)
            for name, offset in piece.offsets.items()
            if name in problem.index
        ]
    return Region(start, end, tuple(placed))


@dataclass(frozen=True)
class GMEMLayout:
    """Addresses of the weights and the activations of one function."""

    planner: str  # The planner that placed the activations
    # Bytes that the addresses of weights, and the starts of the regions, are multiples of.
    alignment: int
    # The coefficient region: that of the whole module, with this function's weights.
    weights: Region
    # The memory that this function's activations share: its storages, one after the other.
    activations: Region
    storages: tuple[Piece, ...] = ()  # As they are allocated, with the offsets of tensors in them
    # Whether the addresses of activations hold at run time: not where the runtime puts several
    # storages where it likes, or where the function may run twice at a time.
    has_addresses: bool = True

    def __post_init__(self) -> None:
        first, second = sorted((self.weights, self.activations), key=lambda region: region.start)
        if second.size and second.start < first.end:
            raise ValueError(
                f"the weights take [{self.weights.start:#x}, {self.weights.end:#x}), and the "
                f"activations [{self.activations.start:#x}, {self.activations.end:#x}): give the "
                "weights another base"
            )

    def to_plain(self) -> dict[str, Any]:
        """Return maps, lists, strings and integers that say the same."""
        activations = self.activations
        if not self.has_addresses:
            activations = replace(activations, tensors=())
        return {
            "planner": self.planner,
            "alignment": self.alignment,
            "weights": self.weights.to_plain(),
            "activations": activations.to_plain(),
            "storages": [
                {
                    **({} if piece.scope is None else {"memory": piece.scope}),
                    "bytes": piece.size,
                    "tensors": [{"name": n, "offset": at} for n, at in piece.offsets.items()],
                }
                for piece in self.storages
            ],
        }


@dataclass(frozen=True)
class GMEM:
    """A chip's global memory, as weights and activations are placed in it."""

    scope: MemoryScope  # Its capacity and reserved ranges hold
    alignment: int  # Bytes; what addresses are multiples of
    offset_alignment: int  # Bytes; what the offsets of activations in their region are multiples of
    weight_start: int  # Address of the first weight
    # Address of the first activation; None where it follows the weights.
    activation_base: int | None

    def __post_init__(self) -> None:
        check_alignment(self.alignment)
        for what, address in (
            ("the base of the weights", self.weight_start),
            ("the chip's base of activations", self.activation_base),
        ):
            if address is not None and address % self.alignment:
                raise ValueError(
                    f"{what}, {address:#x}, is not a multiple of the alignment of "
                    f"{self.alignment} bytes"
                )

    def place_weights(
        self, weights: Mapping[str, Sequence[tuple[str, int, int | None]]]
    ) -> dict[str, Region]:
        """Return for each function the region of the module's weights, with its own tensors in it.

        A weight has a name, bytes, and what tells its data from others', if that may be shared.
        """
        memory, scope = NewMemory(self.weight_start, self.alignment), self.scope
        address_of: dict[object, int] = {}
        placed: dict[str, list[PlacedTensor]] = {function: [] for function in weights}
        for function, own in weights.items():
            for number, (name, size, data) in enumerate(own):
                key = (function, number) if data is None else data
                if key not in address_of:
                    address_of[key] = memory.open(size)
                    needed = address_of[key] + size - self.weight_start
                    if scope.capacity is not None and needed > scope.capacity:
                        raise ValueError(
                            f"weight '{function}.{name}' needs bytes up to {needed}, and memory "
                            f"scope {scope.name!r} has {scope.capacity}"
                        )
                placed[function].append(PlacedTensor(name, address_of[key], size))
        start, end = self.weight_start, memory.end
        for begin, behind in _shifted(scope.reserved, scope.base):
            if max(begin, start) < min(behind, end):
                raise ValueError(
                    f"the weights take [{start:#x}, {end:#x}), and [{begin:#x}, {behind:#x}) of "
                    f"memory scope {scope.name!r} is reserved"
                )
        return {name: Region(start, end - start, tuple(own)) for name, own in placed.items()}

    def memory_behind(self, weights: Region, others: Iterable[Region]) -> tuple[int, MemoryScope]:
        """Return where activations begin, and the memory from there on as a scope of its own.

        They follow the weights or have a base of their own, and stand after other regions.
        """
        first = weights.end if self.activation_base is None else self.activation_base
        start = max((round_up(region.end, self.alignment) for region in others), default=first)
        taken = weights.size + start - first
        scope, capacity = self.scope, self.scope.capacity
        if capacity is not None:
            capacity -= taken
            if capacity < self.offset_alignment:
                raise ValueError(
                    f"memory scope {scope.name!r} has {scope.capacity} bytes, and weights and "
                    f"callers take {taken} of them"
                )
        last = ADDRESS_LIMIT if capacity is None else capacity
        moved = _shifted(scope.reserved, scope.base - start)
        reserved = tuple((max(b, 0), min(e, last)) for b, e in moved if e > 0 and b < last)
        memory = MemoryScope(scope.name, capacity, self.offset_alignment, reserved=reserved, base=0)
        return start, memory


def _shifted(ranges: Iterable[ByteRange], by: int) -> list[ByteRange]:
    return [(begin + by, end + by) for begin, end in ranges]


def check_alignment(alignment: object) -> None:
    """Raise ValueError unless this is a power of two."""
    if not is_byte_count(alignment) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two, got {alignment!r}")


def check_base(base: object) -> None:
    """Raise ValueError unless this can be an address."""
    if not is_byte_count(base) or not 0 <= base < ADDRESS_LIMIT:
        raise ValueError(f"base must be an address from 0 and below 2**62, got {base!r}")
