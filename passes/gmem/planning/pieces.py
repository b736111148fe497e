# SPDX-License-Identifier: Apache-2.0
"""The allocations that a program makes, and what TVM's pool takes from the device for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from passes.planning import Buffer, Plan, Problem, Status, check
from target_hw.memory import MemoryScope

PAGE = 4096  # Bytes that TVM's pooled allocator rounds an allocation up to (``kDefaultPageSize``)

Allocation = tuple[int, int, int]
"""Bytes, the position at which it is made, and the one at which it is given back."""


@dataclass(frozen=True)
class Piece:
    """One allocation."""

    size: int  # Bytes
    offsets: Mapping[str, int]  # Of each buffer in it, by name, in bytes from its start
    scope: str | None = None  # The memory that it is in, where that is not its group's


Placement = tuple[tuple[Piece, ...], ...]
"""For each group of a function's tensors, the storages and what stands where in them."""


def checked(name: str, buffers: Sequence[Buffer], pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the pieces of a function, or raise `PlanError` where two buffers share bytes."""
    known = {buffer.name: buffer for buffer in buffers}
    placed = [inner for piece in pieces for inner in piece.offsets]
    if len(placed) != len(set(placed)):
        raise AssertionError(f"{name}: a buffer is in two pieces: {placed}")
    for piece in pieces:
        inside = tuple(known[inner] for inner in piece.offsets)
        part = Problem(inside, MemoryScope("global", max(piece.size, 1)), name=name)
        peak = max(piece.offsets[buffer.name] + buffer.size for buffer in inside)
        offsets = {inner: (offset,) for inner, offset in piece.offsets.items()}
        check(part, Plan(offsets, peak, 0, "pieces", Status.FEASIBLE))
    return pieces


def allocations(buffers: Sequence[Buffer], pieces: Iterable[Piece]) -> list[Allocation]:
    """Return when pieces are in use, and the buffers that are in none, each by itself."""
    live = {buffer.name: buffer.live for buffer in buffers}
    alone = {buffer.name: buffer.size for buffer in buffers}
    found = []
    for piece in pieces:
        begin = min(live[name][0][0] for name in piece.offsets)
        end = max(live[name][-1][1] for name in piece.offsets)
        found.append((piece.size, begin, end))
        for name in piece.offsets:
            del alone[name]
    return found + [(size, live[name][0][0], live[name][-1][1]) for name, size in alone.items()]


def bytes_taken(allocations: Iterable[Allocation], page: int = 1) -> int:
    """Return the bytes that the allocator takes from the device while a program runs once.

    Of each number of pages there are as many blocks as are in use at one time.
    """
    changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for size, begin, end in allocations:
        changes[-(-size // page) * page] += [(begin, 1), (end, -1)]
    # At one position, ends come first.
    most = {size: max(accumulate(by for _, by in sorted(all_))) for size, all_ in changes.items()}
    return sum(size * blocks for size, blocks in most.items())


def cost(buffers: Sequence[Buffer], pieces: Sequence[Piece], page: int) -> tuple[int, int, int]:
    """Return the bytes that are taken, those that are asked for, and how many pieces there are."""
    made = allocations(buffers, pieces)
    return bytes_taken(made, page), sum(size for size, _, _ in made), len(pieces)
