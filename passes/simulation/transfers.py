# SPDX-License-Identifier: Apache-2.0
"""Cost of a plan of several memories in cycles: operators, and copies beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from passes.planning import Buffer, MemoriesPlan, MemoriesProblem


@dataclass(frozen=True)
class TransferTime:
    """The time of a run, in cycles."""

    cycles: int  # All of it
    stall: int  # Of these, the operators wait for copies
    copying: int  # Cycles that the copies take by themselves
    busy: Mapping[str, int]  # For each memory, the cycles that its bus is used by operators


def simulate_transfers(
    problem: MemoriesProblem, plan: MemoriesPlan, compute: Mapping[int, int] | None = None
) -> TransferTime:
    """Run the operators of a plan one after the other, and its copies beside them.

    An operator reads and writes the buffers that are touched at its position, each over the bus of
    the memory that the buffer is in, and computes at the same time: `compute` says for how many
    cycles, by position, or 0. One engine makes the copies, first come first served, in the cycles
    in which the operators leave the slower of both buses free. The operator at a copy's end waits
    for it. ValueError is raised if a memory does not say how many bytes it moves in a cycle.
    """
    rates = {}
    for memory in problem.memories:
        if memory.bytes_per_cycle is None:
            raise ValueError(f"memory {memory.name!r}: bytes_per_cycle is not described")
        rates[memory.name] = memory.bytes_per_cycle
    used = _bytes_by_position(problem, plan)
    copies = sorted(plan.copies, key=lambda copy: (copy.begin, copy.end, copy.buffer))
    slower = [min((copy.source, copy.target), key=rates.__getitem__) for copy in copies]
    left = [-(-copy.size // rates[bus]) for copy, bus in zip(copies, slower, strict=True)]
    copying = sum(left)
    busy = dict.fromkeys(rates, 0)
    cycles = stall = 0
    given = compute or {}
    for position in sorted({*used, *given, *(c.begin for c in copies), *(c.end for c in copies)}):
        due = [at + 1 for at, copy in enumerate(copies) if copy.end <= position and left[at]]
        last = max(due, default=0)
        waits, left[:last] = sum(left[:last]), [0] * last
        cycles, stall = cycles + waits, stall + waits
        buses = {name: -(-n // rates[name]) for name, n in used.get(position, {}).items()}
        takes = max([given.get(position, 0), *buses.values()])
        for name, n in buses.items():
            busy[name] += n
        spare = takes
        for at, copy in enumerate(copies):
            if copy.begin > position:
                break
            done = max(0, min(left[at], spare, takes - buses.get(slower[at], 0)))
            left[at] -= done
            spare -= done
            if left[at]:
                break
        cycles += takes
    rest = sum(left)
    return TransferTime(cycles + rest, stall + rest, copying, busy)


def _bytes_by_position(problem: MemoriesProblem, plan: MemoriesPlan) -> dict[int, dict[str, int]]:
    """Return for each position the bytes that its operator moves over each bus."""
    found: dict[int, dict[str, int]] = {}
    for buffer in problem.buffers:
        for touch in problem.traffic_of(buffer).touches:
            moved = found.setdefault(touch, {})
            where = _memory_at(plan, buffer, touch)
            moved[where] = moved.get(where, 0) + buffer.size * buffer.slots
    return found


def _memory_at(plan: MemoriesPlan, buffer: Buffer, position: int) -> str:
    """Return the memory that a buffer is read or written in."""
    for stay in plan.stays.get(buffer.name, ()):
        if stay.live[0] <= position < stay.live[1]:
            return stay.memory
    return plan.memory[buffer.name]
