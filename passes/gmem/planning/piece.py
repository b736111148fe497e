# SPDX-License-Identifier: Apache-2.0
"""One allocation of a program, and how a plan in pieces is held against its problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passes.planning.plan import Plan, Status
from passes.planning.planner import Solver as Solver
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import check
from target_hw.memory import MemoryScope

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds an allocation up to (``kDefaultPageSize``)."""


@dataclass(frozen=True)
class Piece:
    """One allocation."""

    size: int  # Bytes
    offsets: Mapping[str, int]  # Of each buffer in it, by name, in bytes from its start


Cut = tuple[tuple[Piece, ...], ...]
"""For each group of a function's tensors, the pieces that its storages are."""


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
