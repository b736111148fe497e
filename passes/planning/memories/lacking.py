# SPDX-License-Identifier: Apache-2.0
"""Messages for several memories that do not hold everything: the lack, and the remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from passes.planning.buffer import Buffer
from passes.planning.memories.memories_problem import (
    MemoriesPlan,
    MemoriesProblem,
    end_alone,
    fits_alone,
)
from passes.planning.memories.planner import solve_memories
from passes.planning.plan import Status
from passes.planning.planner import Budget

MOST_SHOWN = 5  # Buffers that are named for each memory
SECONDS = 5.0  # Time to plan a memory without end


def does_not_fit_in_memories(
    problem: MemoriesProblem, plan: MemoriesPlan, words: Mapping[str, str] | None = None
) -> str:
    """Say which buffers lack how many bytes in each memory, and what would help.

    `words` has what a user calls a memory, by its scope.
    """
    called = {m.name: (words or {}).get(m.name, m.name) for m in problem.memories}
    proven = "no plan does, proven" if plan.status is Status.INFEASIBLE else "no plan was found"
    lines = [f"{problem.name} does not fit its memories ({proven})"]
    lines += list(_too_large(problem, called)) or list(_above(problem, plan, called))
    lines += _helps(problem, called)
    return "\n  ".join(lines)


def _too_large(problem: MemoriesProblem, called: Mapping[str, str]) -> Iterator[str]:
    """Yield buffers that fit none of their memories even alone."""
    for buffer in problem.buffers:
        allowed = [problem.memories[at] for at in problem.allowed(buffer)]
        if any(fits_alone(buffer, memory) for memory in allowed):
            continue
        room = ", ".join(
            f"{called[memory.name]!r} has {memory.capacity}, "
            f"lacks {end_alone(buffer, memory) - (memory.capacity or 0)}"
            for memory in allowed
        )
        yield f"{buffer.name!r} of {buffer.size} bytes has no room by itself: {room}"


def _above(
    problem: MemoriesProblem, plan: MemoriesPlan, called: Mapping[str, str]
) -> Iterator[str]:
    """Yield how much each memory lacks as planned, and which buffers are above its end."""
    for memory in problem.memories:
        peak = plan.peaks[memory.name]
        if memory.capacity is None or peak <= memory.capacity:
            continue

        def ends(buffer: Buffer) -> int:
            return max(plan.offsets[buffer.name]) + buffer.size

        there = [b for b in problem.buffers if plan.memory[b.name] == memory.name]
        above = [buffer for buffer in there if ends(buffer) > (memory.capacity or 0)]
        above.sort(key=lambda buffer: (-buffer.size, buffer.name))
        named = ", ".join(f"{b.name!r} of {b.size} bytes" for b in above[:MOST_SHOWN])
        more = f" and {len(above) - MOST_SHOWN} more" if len(above) > MOST_SHOWN else ""
        yield (
            f"{called[memory.name]!r} needs {peak} bytes as planned and has {memory.capacity}, "
            f"lacks {peak - memory.capacity}: no room for {named}{more}"
        )


def _helps(problem: MemoriesProblem, called: Mapping[str, str]) -> Iterator[str]:
    """Yield how large the slowest memory that would help alone would have to be."""
    for at, memory in reversed(list(enumerate(problem.memories))):
        if memory.capacity is None:
            continue
        without_end = replace(memory, capacity=None)
        memories = (*problem.memories[:at], without_end, *problem.memories[at + 1 :])
        plan = solve_memories(replace(problem, memories=memories), Budget(1 << 60, SECONDS))
        if plan.fits:
            needed = plan.peaks[memory.name]
            yield f"it fits with {needed} bytes of {called[memory.name]!r}: planned"
            return
