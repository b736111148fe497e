# SPDX-License-Identifier: Apache-2.0
"""Place buffers in the memory of returned tensors, until those begin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from passes.gmem.planning.piece import Piece, Solver
from passes.gmem.planning.pool import least_taken
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import check


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> tuple[Piece, ...]:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    Each returned tensor is pinned in a range of its own, and a reserved range between two ranges
    keeps every buffer within one of them. So any planner that knows pinned buffers and reserved
    ranges decides.
    """
    unit = problem.memory.alignment
    starts, reserved, pinned = [], [], []
    end = 0
    for buffer in returned:
        starts.append(end)
        pinned.append(replace(buffer, pinned=(end,)))
        inner = end + -(-buffer.size // room) * room
        end = -(-inner // unit) * unit + unit
        reserved.append((inner, end))
    ranged = replace(
        problem,
        buffers=(*pinned, *problem.buffers),
        memory=replace(problem.memory, reserved=tuple(reserved)),
    )
    plan = solver(ranged)
    check(ranged, plan)
    inside: dict[int, dict[str, int]] = defaultdict(dict)
    own: dict[str, int] = {}
    size_of = {buffer.name: buffer.size for buffer in ranged.buffers}
    for buffer in problem.buffers:
        (offset,) = plan.offsets[buffer.name]
        if offset >= end:
            own[buffer.name] = offset - end
        else:
            number = max(n for n, start in enumerate(starts) if start <= offset)
            inside[number][buffer.name] = offset - starts[number]
    pieces = [Piece(max(own[name] + size_of[name] for name in own), own)] if own else []
    for number, offsets in sorted(inside.items()):
        offsets[returned[number].name] = 0
        pieces.append(Piece(max(at + size_of[name] for name, at in offsets.items()), offsets))
    return tuple(pieces)


def can_gain(problem: Problem, returned: Sequence[Buffer], peak: int) -> bool:
    """Whether placing buffers in what is returned can save bytes, as far as a bound tells."""
    apart = peak + sum(buffer.size for buffer in returned)
    return bool(returned) and least_taken((*problem.buffers, *returned)) < apart
