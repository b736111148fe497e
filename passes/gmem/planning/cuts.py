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
from dataclasses import replace

from passes.gmem.planning.pieces import Piece, cost
from passes.gmem.planning.slots import in_growing_slots
from passes.planning import Buffer, Plan, Problem, Solver, check, live_bytes

LEAST_SHARE = 32
"""Tensors are placed in results that have at least one part in so many of the others' bytes."""


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
    slots = in_growing_slots(problem, returned, page)
    candidates = [in_one_piece(plan), slots]
    every = replace(problem, buffers=(*problem.buffers, *returned))
    results = sum(buffer.size for buffer in returned)
    if results * LEAST_SHARE > plan.peak and _most_live(every) < plan.peak + results:
        candidates.append(with_returned(problem, returned, solver, page))

    def taken(pieces: tuple[Piece, ...]) -> tuple[int, int, int]:
        return cost((*every.buffers, *alone), pieces, page)

    most = taken(slots)[1]
    return sorted((pieces for pieces in candidates if taken(pieces)[1] <= most), key=taken)


def in_fewer(problem: Problem, pieces: Sequence[Piece], solver: Solver) -> tuple[Piece, ...] | None:
    """Place buffers in the largest of some pieces, as few as do; None where it takes all of them.

    What is left has as many pages as it had, at any size of an unknown unit.
    """
    sizes = sorted((piece.size for piece in pieces), reverse=True)
    least = _most_live(problem)
    for count in range(1, len(sizes)):
        if sum(sizes[:count]) >= least:
            found = divided(problem, sum(sizes[:count]), sizes[:count], solver)
            if found is not None:
                return found
    return None


def divided(
    problem: Problem, most: int, sizes: Sequence[int], solver: Solver
) -> tuple[Piece, ...] | None:
    """Place the buffers of a piece in pieces of given sizes, and the rest in one more.

    It is None where the pieces have more than `most` bytes.
    """
    inside = _in_ranges(problem, sizes, (), solver)
    all_sizes = *sizes, _end(problem.buffers, inside[-1])
    pieces = [Piece(size, offsets) for size, offsets in zip(all_sizes, inside, strict=True)]
    used = tuple(piece for piece in pieces if piece.offsets)
    return used if sum(piece.size for piece in used) <= most else None


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> tuple[Piece, ...]:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    The piece of a returned tensor is as large as the tensor, rounded up to a multiple of `room`
    bytes. One in which nothing else is placed is left out: it is allocated by itself.
    """
    sizes = [-(-buffer.size // room) * room for buffer in returned]
    *inside, own = _in_ranges(problem, sizes, returned, solver)
    every = (*problem.buffers, *returned)
    shared = [offsets for offsets in inside if len(offsets) > 1]
    return tuple(Piece(_end(every, o), o) for o in (*([own] if own else []), *shared))


def _in_ranges(
    problem: Problem, sizes: Sequence[int], first: Sequence[Buffer], solver: Solver
) -> list[dict[str, int]]:
    """Return the offsets in ranges of given sizes, and in what is behind all of them.

    Between two ranges stands a reserved one, which keeps every buffer within one of them. `first`
    are buffers that stand at the start of a range each.
    """
    unit = problem.memory.alignment
    starts, reserved = [0], []
    for size in sizes:
        end = starts[-1] + size
        starts.append(-(-end // unit) * unit + unit)
        reserved.append((end, starts[-1]))
    pinned = (
        replace(buffer, pinned=(start,)) for buffer, start in zip(first, starts, strict=False)
    )
    memory = replace(problem.memory, reserved=tuple(reserved))
    ranged = replace(problem, buffers=(*pinned, *problem.buffers), memory=memory)
    plan = solver(ranged)
    check(ranged, plan)
    inside: list[dict[str, int]] = [{} for _ in starts]
    for name, (offset,) in plan.offsets.items():
        number = max(n for n, start in enumerate(starts) if start <= offset)
        inside[number][name] = offset - starts[number]
    return inside


def _most_live(problem: Problem) -> int:
    return max((nbytes for _, nbytes in live_bytes(problem)), default=0)


def _end(buffers: Sequence[Buffer], offsets: dict[str, int]) -> int:
    return max((offsets[b.name] + b.size for b in buffers if b.name in offsets), default=0)
