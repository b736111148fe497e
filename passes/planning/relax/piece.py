"""One allocation of a program, and how a plan in pieces is held against its problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from passes.planning.plan import Plan, Status
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import check
from target_hw.memory import MemoryScope

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds an allocation up to (``kDefaultPageSize``)."""

Solver = Callable[[Problem], Plan]


@dataclass(frozen=True)
class Piece:
    """One allocation.

    Parameters
    ----------
    size : int
        Bytes.
    offsets : mapping of str to int
        Of each buffer in it, by name, in bytes from its start.
    """

    size: int
    offsets: Mapping[str, int]


def checked(
    problem: Problem, returned: Sequence[Buffer], pieces: tuple[Piece, ...]
) -> tuple[Piece, ...]:
    """Return pieces, or raise `PlanError` where two buffers of one piece share bytes."""
    buffers = {buffer.name: buffer for buffer in (*problem.buffers, *returned)}
    placed = [name for piece in pieces for name in piece.offsets]
    missing = {buffer.name for buffer in problem.buffers} - set(placed)
    if missing or len(placed) != len(set(placed)):
        raise AssertionError(f"{problem.name}: buffers are in no piece or in two: {placed}")
    for piece in pieces:
        part = Problem(
            tuple(buffers[name] for name in piece.offsets),
            MemoryScope(problem.memory.name, max(piece.size, 1)),
            name=problem.name,
        )
        peak = max(offset + buffers[name].size for name, offset in piece.offsets.items())
        offsets = {name: (offset,) for name, offset in piece.offsets.items()}
        check(part, Plan(offsets, peak, 0, "pieces", Status.FEASIBLE))
    return pieces
