# SPDX-License-Identifier: Apache-2.0
"""Pieces of one slot each, in which buffers that are never live together take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from passes.gmem.planning.pieces import Piece, cost
from passes.planning import Buffer, Plan, Problem

Path = tuple[tuple[int, int], ...]
"""The branches that lead to where a buffer begins: each `if`, and which branch was taken."""


@dataclass
class _Slot:
    """A piece that holds one buffer at a time."""

    size: int
    buffers: list[Buffer]

    @property
    def end(self) -> int:
        """The position from which on it is free."""
        return max(buffer.live[-1][1] for buffer in self.buffers)

    def add(self, buffer: Buffer) -> None:
        self.size = max(self.size, buffer.size)
        self.buffers.append(buffer)

    def piece(self) -> Piece:
        return Piece(self.size, {buffer.name: 0 for buffer in self.buffers})


def in_slots(problem: Problem, plan: Plan) -> tuple[Piece, ...] | None:
    """Return a plan's slots; None where two buffers share some bytes, and do not begin at one."""
    slots: dict[int, _Slot] = {}
    for buffer in problem.buffers:
        (offset,) = plan.offsets[buffer.name]
        slots.setdefault(offset, _Slot(0, [])).add(buffer)
    starts = sorted(slots)
    if any(one + slots[one].size > other for one, other in pairwise(starts)):
        return None
    return tuple(slots[start].piece() for start in starts)


def ways_in_slots(
    problem: Problem,
    returned: Sequence[Buffer],
    plan: Plan,
    alone: Sequence[Buffer] = (),
    page: int = 1,
) -> list[tuple[Piece, ...]]:
    """Return ways to share whole slots, that for which TVM's pool takes the fewest bytes first.

    The plan is one in slots. `alone` are tensors that are allocated by themselves in any case.
    """
    planned = [
        _Slot(p.size, [problem.buffers[problem.index[n]] for n in p.offsets])
        for p in in_slots(problem, plan) or ()
    ]
    ways = [tuple(slot.piece() for slot in planned)]
    _give_to_returned(planned, returned, page)
    ways += [
        tuple(slot.piece() for slot in planned),
        in_growing_slots(problem, returned, page),
    ]
    all_of = (*problem.buffers, *returned, *alone)
    return sorted(ways, key=lambda pieces: cost(all_of, pieces, page))


REACH = 16
"""A slot is given to a buffer of at most so many times its size, or at least that part of it."""


def in_growing_slots(
    problem: Problem, returned: Sequence[Buffer] = (), page: int = 1
) -> tuple[Piece, ...]:
    """Return slots by the rule of TVM's own plan, `StaticPlanBlockMemory`.

    In the order in which buffers begin, each takes the smallest free slot that is large enough, or
    else the largest of those that are not, which grows; within `REACH`. A returned tensor takes a
    slot that is free by then and has as many pages, as TVM's pooled allocator would hand it out
    again.
    """
    slots: list[_Slot] = []
    for buffer in sorted(problem.buffers, key=lambda buffer: buffer.live[0][0]):
        free = [slot for slot in slots if slot.end <= buffer.live[0][0]]
        larger = [slot for slot in free if buffer.size <= slot.size <= buffer.size * REACH]
        smaller = [slot for slot in free if buffer.size // REACH <= slot.size < buffer.size]
        if larger or smaller:
            by_size = attrgetter("size")
            (min(larger, key=by_size) if larger else max(smaller, key=by_size)).add(buffer)
        else:
            slots.append(_Slot(buffer.size, [buffer]))
    _give_to_returned(slots, returned, page)
    return tuple(slot.piece() for slot in slots)


def in_given_slots(
    problem: Problem, shared: Sequence[Sequence[str]], paths: Mapping[str, Path]
) -> tuple[Piece, ...]:
    """Return slots that another plan shares, as far as that plan is right."""
    slots: list[_Slot] = []
    for names in shared:
        mine: list[_Slot] = []
        for name in names:
            buffer, path = problem.buffers[problem.index[name]], paths[name]
            for slot in mine:
                there = paths[slot.buffers[0].name]
                if slot.end <= buffer.live[0][0] and path[: len(there)] == there:
                    slot.add(buffer)
                    break
            else:
                mine.append(_Slot(buffer.size, [buffer]))
        slots += mine
    return tuple(slot.piece() for slot in slots)


def _give_to_returned(slots: Sequence[_Slot], returned: Sequence[Buffer], page: int) -> None:
    taken: set[int] = set()
    for buffer in returned:
        for number, slot in enumerate(slots):
            pages = -(-slot.size // page), -(-buffer.size // page)
            if number not in taken and slot.end <= buffer.live[0][0] and pages[0] == pages[1]:
                taken.add(number)
                slot.add(buffer)
                break
