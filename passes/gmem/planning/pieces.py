# SPDX-License-Identifier: Apache-2.0
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

from passes.gmem.planning.piece import Piece, Solver
from passes.gmem.planning.pool import cost, least_taken
from passes.gmem.planning.ranges import divided, with_returned
from passes.gmem.planning.slots import in_growing_slots, in_slots_of_one_size
from passes.planning.plan import Plan
from passes.planning.problem import Buffer, Problem


def in_one_piece(plan: Plan) -> tuple[Piece, ...]:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def ways_to_cut(
    problem: Problem,
    returned: Sequence[Buffer],
    plan: Plan,
    solver: Solver,
    alone: Sequence[Buffer] = (),
    page: int = 1,
) -> list[tuple[Piece, ...]]:
    """Return ways to cut a plan, that for which TVM's pool takes the fewest bytes first.

    Only those are looked at that ask for no more bytes than slots do, which need no padding.
    """
    slots = [in_growing_slots(problem, returned, page), in_slots_of_one_size(problem, returned)]
    candidates = [in_one_piece(plan), *slots]
    apart = plan.peak + sum(buffer.size for buffer in returned)
    if returned and least_taken((*problem.buffers, *returned)) < apart:
        rooms = sorted({1, page})
        candidates += (with_returned(problem, returned, solver, room) for room in rooms)
    all_of = (*problem.buffers, *returned, *alone)
    costs = {number: cost(all_of, pieces, page) for number, pieces in enumerate(candidates)}
    least = min(costs[number][1] for number in (1, 2))
    few = [number for number in costs if costs[number][1] <= least]
    return [candidates[number] for number in sorted(few, key=lambda number: costs[number])]


def in_fewer(problem: Problem, pieces: Sequence[Piece], solver: Solver) -> tuple[Piece, ...] | None:
    """Place buffers in the largest of some pieces, as few as do; None where it takes all of them.

    What is left has as many pages as it had, at any size of an unknown unit.
    """
    sizes = sorted((piece.size for piece in pieces), reverse=True)
    least = least_taken(problem.buffers)
    for count in range(1, len(sizes)):
        if sum(sizes[:count]) >= least:
            found = divided(problem, sum(sizes[:count]), sizes[:count], solver)
            if found is not None:
                return found
    return None
