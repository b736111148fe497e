# SPDX-License-Identifier: Apache-2.0
"""Ways to place tensors in pieces: the storages that a program allocates at run time.

An arena is one piece. A chip has one memory, but a program that a run time serves may allocate
several pieces, and two things become possible:

- A tensor that the function returns must be an allocation of its own, since its caller keeps it.
  Until it is written, its bytes can hold tensors that end before. TVM's own plan gets the same by
  chance, where its pooled allocator hands a freed storage of the same size out again.
- Where a size is known at run time only, offsets are multiples of an unknown unit, and padding
  multiplies too. There, slots can take less than one piece with offsets: a slot is a piece in which
  tensors that are never live together take turns, all at offset 0.

All sizes are in bytes of a problem, which may itself count bytes for each of an unknown unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from passes.gmem.planning.pool import Piece, Pieces, cost
from passes.planning import Buffer, Plan, Problem, Solver, check, live_bytes
from target_hw.memory import round_up

LEAST_SHARE = 32
"""Tensors are placed in results that have at least one part in so many of the others' bytes."""

REACH = 16
"""A slot is given to a buffer of at most so many times its size, or at least that part of it."""

Path = tuple[tuple[int, int], ...]
"""The branches that lead to where a buffer begins: each `if`, and which branch was taken."""


@dataclass
class _Slot:
    """A piece that holds one buffer at a time."""

    size: int
    buffers: list[Buffer]

    def is_free(self, buffer: Buffer) -> bool:
        """Whether all that it holds has ended when a buffer begins."""
        return max(one.live[-1][1] for one in self.buffers) <= buffer.live[0][0]

    def add(self, buffer: Buffer) -> None:
        self.size = max(self.size, buffer.size)
        self.buffers.append(buffer)


def _pieces(slots: Iterable[_Slot]) -> Pieces:
    return tuple(
        Piece(slot.size, dict.fromkeys((b.name for b in slot.buffers), 0)) for slot in slots
    )


def in_one_piece(plan: Plan) -> Pieces:
    """Return a plan as one piece; as none where it has no bytes."""
    offsets = {name: offset for name, (offset,) in plan.offsets.items()}
    return (Piece(plan.peak, offsets),) if offsets else ()


def in_slots(problem: Problem, plan: Plan) -> Pieces | None:
    """Return a plan's slots; None where two buffers share some bytes, and do not begin at one."""
    slots: dict[int, _Slot] = {}
    for buffer in problem.buffers:
        (offset,) = plan.offsets[buffer.name]
        slots.setdefault(offset, _Slot(0, [])).add(buffer)
    starts = sorted(slots)
    if any(one + slots[one].size > other for one, other in pairwise(starts)):
        return None
    return _pieces(slots[start] for start in starts)


def in_growing_slots(problem: Problem) -> Pieces:
    """Return slots by the rule of TVM's own plan, `StaticPlanBlockMemory`.

    In the order in which buffers begin, each takes the smallest free slot that is large enough, or
    else the largest of those that are not, which grows; within `REACH`.
    """
    slots: list[_Slot] = []
    for buffer in sorted(problem.buffers, key=lambda buffer: buffer.live[0][0]):
        free = sorted((s for s in slots if s.is_free(buffer)), key=lambda slot: slot.size)
        larger = [slot for slot in free if buffer.size <= slot.size <= buffer.size * REACH]
        smaller = [slot for slot in free if buffer.size // REACH <= slot.size < buffer.size]
        if larger or smaller:
            (larger[0] if larger else smaller[-1]).add(buffer)
        else:
            slots.append(_Slot(buffer.size, [buffer]))
    return _pieces(slots)


def in_given_slots(
    problem: Problem, shared: Sequence[Sequence[str]], paths: Mapping[str, Path]
) -> Pieces:
    """Return slots that another plan shares, as far as that plan is right."""
    slots: list[_Slot] = []
    for names in shared:
        mine: list[_Slot] = []
        for name in names:
            buffer, path = problem.buffers[problem.index[name]], paths[name]
            for slot in mine:
                there = paths[slot.buffers[0].name]
                if slot.is_free(buffer) and path[: len(there)] == there:
                    slot.add(buffer)
                    break
            else:
                mine.append(_Slot(buffer.size, [buffer]))
        slots += mine
    return _pieces(slots)


def ways_in_slots(
    problem: Problem, plan: Plan, others: Sequence[Buffer] = (), page: int = 1
) -> list[Pieces]:
    """Return ways to share whole slots, that for which TVM's pool takes the fewest bytes first.

    The plan is one in slots. `others` are tensors that are allocated by themselves in any case.
    """
    ways = [in_slots(problem, plan) or (), in_growing_slots(problem)]
    return sorted(ways, key=lambda pieces: cost((*problem.buffers, *others), pieces, page))


def ways_at_offsets(
    problem: Problem,
    plan: Plan,
    returned: Sequence[Buffer],
    solver: Solver,
    alone: Sequence[Buffer] = (),
    page: int = 1,
) -> list[Pieces]:
    """Return ways to place tensors, that for which TVM's pool takes the fewest bytes first.

    Only those are looked at that ask for no more bytes than slots do, which need no padding. The
    plan is one in one piece. Tensors may stand in the memory of those that are returned, for which
    `solver` plans again; the function allocates those that are `alone` by themselves in any case.
    `page` is what the pool rounds up to, in bytes; 1 where sizes count for each of a unit.
    """
    slots = in_growing_slots(problem)
    ways = [in_one_piece(plan), slots]
    every = replace(problem, buffers=(*problem.buffers, *returned))
    results = sum(buffer.size for buffer in returned)
    most_live = max((nbytes for _, nbytes in live_bytes(every)), default=0)
    if results * LEAST_SHARE > plan.peak and most_live < plan.peak + results:
        ways.append(with_returned(problem, returned, solver, page))

    def taken(pieces: Pieces) -> tuple[int, int, int]:
        return cost((*every.buffers, *alone), pieces, page)

    most = taken(slots)[1]
    return sorted((pieces for pieces in ways if taken(pieces)[1] <= most), key=taken)


def with_returned(
    problem: Problem, returned: Sequence[Buffer], solver: Solver, room: int = 1
) -> Pieces:
    """Place buffers in one piece, and in the pieces of returned tensors until those begin.

    The piece of a returned tensor is as large as the tensor, rounded up to a multiple of `room`
    bytes. One in which nothing else is placed is left out: it is allocated by itself.
    """
    # The pieces are ranges of one memory. A reserved range behind each keeps buffers within one.
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
