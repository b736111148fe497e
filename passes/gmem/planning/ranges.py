# SPDX-License-Identifier: Apache-2.0
"""Place buffers in ranges of given sizes: each range becomes a piece of its own.

Between two ranges stands a reserved one, which keeps every buffer within one of them. So any
planner that knows pinned buffers and reserved ranges decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from passes.gmem.planning.piece import Piece, Solver
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import check


def divided(
    problem: Problem, most: int, sizes: Sequence[int], solver: Solver
) -> tuple[Piece, ...] | None:
    """Place the buffers of a piece in pieces of given sizes, and the rest in one more.

    TVM's pooled allocator hands a freed piece out again to a request of the same pages. Functions
    of one module that run one after another then share pieces of equal size. It is None where the
    pieces have more than `most` bytes.
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
    """Return the offsets in each range, and in what is behind all of them.

    `first` are buffers that stand at the start of a range each.
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


def _end(buffers: Sequence[Buffer], offsets: dict[str, int]) -> int:
    return max((offsets[b.name] + b.size for b in buffers if b.name in offsets), default=0)
