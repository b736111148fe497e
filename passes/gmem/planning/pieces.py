# SPDX-License-Identifier: Apache-2.0
"""Ways to place tensors in pieces: the storages that a program allocates at run time.

An arena is one piece. With several pieces, two things become possible:

- A tensor that the function returns must be an allocation of its own, since its caller keeps it.
  Until it is written, its bytes can hold tensors that end before.
- Where a size is known at run time only, padding multiplies too, and slots can take less: pieces in
  which tensors that are never live together take turns, all at offset 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from passes.gmem.planning.pool import Piece, Pieces
from passes.planning import Buffer, Plan, Problem, Solver, check
from target_hw.memory import round_up

Path = tuple[tuple[int, int], ...]
"""The branches that lead to where a buffer begins: each `if`, and which branch was taken."""


def in_slots_of(slots: Iterable[Sequence[Buffer]]) -> Pieces:
    """Return pieces that each hold one buffer at a time."""
    return tuple(
        Piece(max(buffer.size for buffer in slot), dict.fromkeys((b.name for b in slot), 0))
        for slot in slots
    )


def in_one_piece(plan: Plan) -> Pieces:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def in_slots(problem: Problem, plan: Plan) -> Pieces:
    """Return the slots of a plan in which two buffers begin at one byte or share none."""
    slots: dict[int, list[Buffer]] = {}
    for buffer in problem.buffers:
        slots.setdefault(plan.offsets[buffer.name][0], []).append(buffer)
    return in_slots_of(slots[start] for start in sorted(slots))


def in_given_slots(
    problem: Problem, shared: Sequence[Sequence[str]], paths: Mapping[str, Path]
) -> Pieces:
    """Return slots that another plan shares, as far as that plan is right."""
    slots: list[list[Buffer]] = []
    for names in shared:
        mine: list[list[Buffer]] = []
        for name in names:
            buffer, path = problem.buffers[problem.index[name]], paths[name]
            for slot in mine:
                there = paths[slot[0].name]
                if slot[-1].live[-1][1] <= buffer.live[0][0] and path[: len(there)] == there:
                    slot.append(buffer)
                    break
            else:
                mine.append([buffer])
        slots += mine
    return in_slots_of(slots)


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> Pieces:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    Such a piece has the tensor's bytes, rounded up to a multiple of `room`; it is left out where
    nothing else is in it.
    """
    # The pieces are ranges of one memory. A reserved range after each keeps buffers within one.
    starts, reserved, pinned = [0], [], []
    for buffer in returned:
        end = starts[-1] + round_up(buffer.size, room)
        pinned.append(replace(buffer, pinned=(starts[-1],)))
        starts.append(round_up(end, problem.memory.alignment) + problem.memory.alignment)
        reserved.append((end, starts[-1]))
    memory = replace(problem.memory, reserved=tuple(reserved))
    ranged = replace(problem, buffers=(*pinned, *problem.buffers), memory=memory)
    plan = solver(ranged)
    check(ranged, plan)
    inside: list[dict[str, int]] = [{} for _ in starts]
    sizes = [0] * len(starts)
    for buffer in ranged.buffers:
        (offset,) = plan.offsets[buffer.name]
        number = bisect_right(starts, offset) - 1
        inside[number][buffer.name] = offset - starts[number]
        sizes[number] = max(sizes[number], offset - starts[number] + buffer.size)
    *results, own = map(Piece, sizes, inside)
    pieces = [own] if own.offsets else []
    return (*pieces, *(piece for piece in results if len(piece.offsets) > 1))
