# SPDX-License-Identifier: Apache-2.0
"""What TVM's pooled allocator takes from the device for allocations that come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from passes.gmem.planning.piece import Piece
from passes.planning.problem import LiveRange

Allocation = tuple[int, int, int]
"""Bytes, the position at which it is made, and the one at which it is given back."""


class Touched(Protocol):
    """A buffer, or anything else with a name, bytes and live ranges."""

    @property
    def name(self) -> str:
        """How pieces call it."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def live(self) -> tuple[LiveRange, ...]:
        """Where it is in use."""


def allocations(buffers: Sequence[Touched], pieces: Iterable[Piece]) -> list[Allocation]:
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

    What is given back is handed out again to a request of as many pages, and to no other. So of
    each number of pages there are as many blocks as are in use at one time.
    """
    changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for size, begin, end in allocations:
        changes[-(-size // page) * page] += [(begin, 1), (end, -1)]
    taken = 0
    for size, of_size in changes.items():
        used = most = 0
        for _, change in sorted(of_size):
            used += change
            most = max(most, used)
        taken += size * most
    return taken


def cost(buffers: Sequence[Touched], pieces: Sequence[Piece], page: int) -> tuple[int, int, int]:
    """Return the bytes that are taken, those that are asked for, and how many pieces there are."""
    made = allocations(buffers, pieces)
    return bytes_taken(made, page), sum(size for size, _, _ in made), len(pieces)


def least_taken(buffers: Iterable[Touched], page: int = 1) -> int:
    """Return the bytes that the allocator takes at least, where no two buffers share bytes at once.

    That is as long as each buffer that lives is in an allocation that nothing else lives in.
    """
    changes: list[tuple[int, int]] = []
    for buffer in buffers:
        size = -(-buffer.size // page) * page
        for begin, end in buffer.live:
            changes += [(begin, size), (end, -size)]
    used = most = 0
    for _, change in sorted(changes):
        used += change
        most = max(most, used)
    return most
