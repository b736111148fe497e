# SPDX-License-Identifier: Apache-2.0
"""The largest buffers first, each into the fastest memory that takes it.

That is the rule of ExecuTorch's planner for several banks (`exir/banked_memory_planning.py`): a
memory is a row of objects, each as large as its first buffer. A buffer goes where it is not live
together with what an object holds, or above those of an object that it is live together with, or
opens an object at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from passes.planning import Buffer, MemoriesProblem, live_together
from target_hw.memory import MemoryScope, round_up, settle


@dataclass
class _Object:
    """Bytes of a memory that buffers share."""

    begin: int
    size: int
    held: list[tuple[int, Buffer]]  # Offset in the object, buffer

    def offset_for(self, buffer: Buffer, size: int, stacked: bool) -> int | None:
        """Return where in the object a buffer can start: with nothing, or stacked on the rest."""
        met = [at + other.size for at, other in self.held if live_together(other.live, buffer.live)]
        offset = round_up(max(met, default=0), buffer.alignment)
        if bool(met) is not stacked or offset + size > self.size:
            return None
        return offset


def _take(memory: MemoryScope, objects: list[_Object], buffer: Buffer) -> int | None:
    """Place a buffer in a memory that has some objects, and return its offset; None if full."""
    alignment = math.lcm(buffer.alignment, memory.alignment)
    size = round_up(buffer.size, alignment)
    for stacked in (False, True):
        for held in objects:
            offset = held.offset_for(buffer, size, stacked)
            if offset is not None and (held.begin + offset) % alignment == 0:
                held.held.append((offset, buffer))
                return held.begin + offset
    end = objects[-1].begin + objects[-1].size if objects else 0
    begin = settle(end, size, alignment, memory.reserved)
    if memory.capacity is not None and begin + size > memory.capacity:
        return None
    objects.append(_Object(begin, size, [(0, buffer)]))
    return begin


def greedy(problem: MemoriesProblem) -> dict[str, tuple[str, int]] | None:
    """Return the memory and offset of each buffer; None where one has no place.

    ValueError is raised if a buffer has several slots, or a pinned offset: the rule knows neither.
    """
    if any(buffer.slots > 1 or buffer.pinned is not None for buffer in problem.buffers):
        raise ValueError(f"{problem.name}: greedy places neither slots nor pinned offsets")
    objects: list[list[_Object]] = [[] for _ in problem.memories]
    found: dict[str, tuple[str, int]] = {}
    # Buffers pinned to one memory go first; of equal sizes, the later one does.
    numbered = enumerate(problem.buffers)
    order = sorted(numbered, key=lambda e: (len(problem.allowed(e[1])) > 1, -e[1].size, -e[0]))
    for _, buffer in order:
        for at in problem.allowed(buffer):
            offset = _take(problem.memories[at], objects[at], buffer)
            if offset is not None:
                found[buffer.name] = (problem.memories[at].name, offset)
                break
        else:
            return None
    return found
