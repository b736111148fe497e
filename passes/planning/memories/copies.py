# SPDX-License-Identifier: Apache-2.0
"""The transfers of buffers that move, and the time that each has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from passes.planning.buffer import Buffer
from passes.planning.memories.memories_plan import Copy, MemoriesPlan, Stay
from passes.planning.memories.traffic import MemoriesProblem

Held = tuple[int, int, int, int]  # Bytes [low, high) that are in use at positions [begin, end)


def with_copies(problem: MemoriesProblem, plan: MemoriesPlan) -> MemoriesPlan:
    """Return a plan with the copies of its stays, each copy in as early as its bytes are free.

    A copy in so early holds its bytes from then on, which its stay says.
    """
    if not plan.stays:
        return plan
    held = {memory.name: list(_held(problem, plan, memory.name)) for memory in problem.memories}
    stays: dict[str, tuple[Stay, ...]] = {}
    copies: list[Copy] = []
    for name, given in plan.stays.items():
        buffer = problem.buffers[problem.index[name]]
        traffic = problem.traffic_of(buffer)
        home, written = plan.memory[name], buffer.live[0][0]
        found = []
        for stay in given:
            touches = [t for t in traffic.touches if stay.live[0] <= t < stay.live[1]]
            if traffic.stored_in is None and touches[0] == traffic.touches[0]:
                written = stay.live[1]
                begin = touches[0] + 1
                copies.append(Copy(name, stay.memory, home, buffer.size, begin, written))
            else:
                if traffic.stored_in is None:
                    written = max(written, traffic.touches[0] + 1)
                early = _earliest(held[stay.memory], buffer, stay, written)
                held[stay.memory].append(_bytes(buffer, stay.offsets[0], early, stay.live[0]))
                copies.append(Copy(name, home, stay.memory, buffer.size, early, touches[0]))
                stay = replace(stay, live=(early, stay.live[1]))
            found.append(stay)
        stays[name] = tuple(found)
    copies.sort(key=lambda copy: (copy.begin, copy.end, copy.buffer))
    return replace(plan, stays=stays, copies=tuple(copies))


def _bytes(buffer: Buffer, offset: int, begin: int, end: int) -> Held:
    return offset, offset + buffer.size, begin, end


def _held(problem: MemoriesProblem, plan: MemoriesPlan, memory: str) -> Iterator[Held]:
    """Yield the bytes of a memory that are in use, and when."""
    for buffer in problem.buffers:
        for stay in plan.stays.get(buffer.name, ()):
            if stay.memory == memory:
                yield _bytes(buffer, stay.offsets[0], *stay.live)
        if plan.memory[buffer.name] == memory:
            for offset in plan.offsets[buffer.name]:
                for begin, end in buffer.live:
                    yield _bytes(buffer, offset, begin, end)


def _earliest(held: list[Held], buffer: Buffer, stay: Stay, written: int) -> int:
    """Return the first position from which a stay's bytes are free until it begins."""
    low = stay.offsets[0]
    ends = [
        end
        for other_low, other_high, _, end in held
        if other_low < low + buffer.size and low < other_high and end <= stay.live[0]
    ]
    return max([written, *ends])
