"""Cut a plan into pieces: the allocations that a program makes at run time.

An arena is one piece. A chip has one memory, but a program that a runtime serves may allocate
several pieces, and two things become possible:

- A tensor that the function returns must be an allocation of its own, since its caller keeps it.
  Until it is written, its bytes can hold tensors that end before. TVM's own plan gets the same by
  chance, where its pooled allocator hands a freed storage of the same size out again.
- Where a size is known at run time only, offsets are multiples of an unknown unit, and padding
  multiplies too. There, pieces of one slot each can take less than one piece with offsets.

All sizes are in bytes of a problem, which may itself count bytes for each of an unknown unit.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.planning.plan import Plan
from passes.planning.problem import Buffer, Problem
from passes.planning.relax.piece import PAGE, Piece, Solver
from passes.planning.relax.pool import allocations, bytes_taken
from passes.planning.relax.returned import can_gain, with_returned
from passes.planning.relax.slots import in_growing_slots, in_slots_of_one_size


def in_one_piece(plan: Plan) -> tuple[Piece, ...]:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def constant_pieces(
    problem: Problem,
    returned: Sequence[Buffer],
    plan: Plan,
    solver: Solver,
    alone: Sequence[Buffer] = (),
) -> list[tuple[Piece, ...]]:
    """Return ways to cut a plan, that for which TVM's pool takes the fewest bytes first.

    Only those are looked at that ask for no more bytes than slots do, which need no padding.

    Parameters
    ----------
    problem : Problem
        Without a capacity.
    returned : sequence of Buffer
        Tensors that are allocated by themselves, unless a piece has room for something else.
    plan : Plan
        Of the problem.
    solver : callable
        From a problem with pinned buffers and reserved ranges to a plan.
    alone : sequence of Buffer
        Tensors that are allocated by themselves in any case. The allocator may give them a piece
        that is no longer needed.
    """
    slots = [in_growing_slots(problem, returned, PAGE), in_slots_of_one_size(problem, returned)]
    most = min(_bytes(pieces, returned) for pieces in slots)
    candidates = [in_one_piece(plan), *slots]
    if can_gain(problem, returned, plan.peak):
        candidates += (with_returned(problem, returned, solver, room) for room in (1, PAGE))
    few = [pieces for pieces in candidates if _bytes(pieces, returned) <= most]
    all_of = (*problem.buffers, *returned, *alone)
    few.sort(
        key=lambda pieces: (
            bytes_taken(allocations(all_of, pieces), PAGE),
            _bytes(pieces, returned),
            len(pieces),
        )
    )
    return few


def symbolic_pieces(
    problem: Problem,
    returned: Sequence[Buffer],
    plan: Plan,
    solver: Solver,
    alone: Sequence[Buffer] = (),
) -> list[tuple[Piece, ...]]:
    """Return ways to cut a plan, the fewest bytes first; one byte stands for an unknown unit.

    Parameters
    ----------
    problem, returned, plan, solver, alone
        As `constant_pieces` takes them.
    """
    if not problem.buffers:
        return [()]
    slots = [in_growing_slots(problem, returned), in_slots_of_one_size(problem, returned)]
    candidates = [in_one_piece(plan), *slots]
    if can_gain(problem, returned, plan.peak):
        candidates.append(with_returned(problem, returned, solver))
    all_of = (*problem.buffers, *returned, *alone)
    candidates.sort(
        key=lambda pieces: (
            _bytes(pieces, returned),
            bytes_taken(allocations(all_of, pieces)),
            len(pieces),
        )
    )
    return candidates


def _bytes(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> int:
    """Return the bytes that are asked for."""
    return sum(piece.size for piece in pieces) + sum(_alone(pieces, returned))


def _alone(pieces: Sequence[Piece], returned: Sequence[Buffer]) -> list[int]:
    """Return the sizes of the returned tensors that are in no piece."""
    placed = {name for piece in pieces for name in piece.offsets}
    return [buffer.size for buffer in returned if buffer.name not in placed]
