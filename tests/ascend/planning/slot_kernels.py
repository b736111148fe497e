# SPDX-License-Identifier: Apache-2.0
"""Random small kernels that are short of memory, and the best that any plan can do for them.

The oracle tries every number of slots and every offset of each, and knows no planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random

from passes.ascend.planning.fewer_slots import MemoryRequest
from passes.ascend.planning.levels import with_level_penalties
from passes.planning import Buffer, PipelineUse, Plan, Problem, Status
from passes.simulation import Loop, Statement, simulate
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope

MACHINE = Machine(tuple(Pipe(name, "bytes", 1) for name in ("MTE2", "V", "MTE3")))
"""One cycle a unit of work."""


@dataclass(frozen=True)
class Kernel:
    """One loop: tiles are loaded, computed on, and stored."""

    program: tuple[Loop, ...]
    problem: Problem

    def with_slots(self, slots: dict[str, int]) -> Problem:
        buffers = (replace(b, slots=slots.get(b.name, b.slots)) for b in self.problem.buffers)
        return with_level_penalties(replace(self.problem, buffers=tuple(buffers), penalties=()))

    @property
    def request(self) -> MemoryRequest:
        return MemoryRequest(self.with_slots({}), self.with_slots)

    def cost(self, placed: Sequence[tuple[Problem, Plan]]) -> int:
        return simulate(self.program, placed, MACHINE, timeline=0).makespan


def random_kernel(random: Random, most_slots: int = 2) -> Kernel:
    """Draw a kernel of up to four buffers, and a capacity from half of what they take apart."""
    statements: list[Statement] = []
    for source in range(random.choice((1, 2))):
        name = f"in{source}"
        statements.append(Statement(name, "MTE2", (), (name,), random.randint(1, 6)))
    known = [statement.name for statement in statements]
    for step in range(random.choice((1, 1, 2))):
        name, reads = f"mid{step}", tuple(sorted(random.sample(known, min(len(known), 2))))
        statements.append(Statement(name, "V", reads, (name,), random.randint(1, 6)))
        known.append(name)
    out = known[-1]
    statements.append(Statement("store", "MTE3", (out,), (), random.randint(1, 6)))
    extent = random.randint(2, 5)
    buffers = []
    for at, statement in enumerate(statements[:-1]):
        name = statement.name
        last = max([i for i, s in enumerate(statements) if name in s.reads], default=at)
        is_moved = statement.pipe == "MTE2" or name == out
        slots = random.choice((1, most_slots, 2)) if is_moved else 1
        use = PipelineUse(dma=is_moved, loop=0, runs=extent)
        live = ((2 * at, 2 * last + 2),)
        buffers.append(Buffer(name, random.choice((1, 1, 2)), live, slots=slots, use=use))
    side_by_side = sum(b.size * b.slots for b in buffers)
    capacity = random.randint(max(1, side_by_side // 2), side_by_side)
    problem = Problem(tuple(buffers), MemoryScope("local.UB", capacity))
    return Kernel((Loop(0, extent, tuple(statements)),), problem)


def placements(buffers: Sequence[Buffer], capacity: int) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield every way to place slots within a capacity, byte by byte."""
    blocks = [(b, slot) for b in buffers for slot in range(b.slots)]

    def together(one: Buffer, two: Buffer) -> bool:
        return one is two or any(
            max(a, c) < min(b, d) for (a, b), (c, d) in product(one.live, two.live)
        )

    def descend(at: int, chosen: list[int]) -> Iterator[list[int]]:
        if at == len(blocks):
            yield list(chosen)
            return
        buffer = blocks[at][0]
        for offset in range(capacity - buffer.size + 1):
            if all(
                offset >= low + other.size or low >= offset + buffer.size
                for low, (other, _) in zip(chosen, blocks, strict=False)
                if together(buffer, other)
            ):
                chosen.append(offset)
                yield from descend(at + 1, chosen)
                chosen.pop()

    for flat in descend(0, []):
        offsets: dict[str, tuple[int, ...]] = {}
        for (buffer, _), offset in zip(blocks, flat, strict=True):
            offsets[buffer.name] = (*offsets.get(buffer.name, ()), offset)
        yield offsets


def shared(buffers: Sequence[Buffer], offsets: dict[str, tuple[int, ...]]) -> tuple[object, ...]:
    """Return which slots share bytes, all that a simulation looks at."""
    blocks = [
        (b.name, slot, low, low + b.size)
        for b in buffers
        for slot, low in enumerate(offsets[b.name])
    ]
    return tuple(
        (one[:2], two[:2])
        for one, two in combinations(blocks, 2)
        if max(one[2], two[2]) < min(one[3], two[3])
    )


def fewest_cycles(kernel: Kernel) -> int | None:
    """The fewest cycles of any plan in which no buffer has more slots than it asks for.

    None where nothing fits.
    """
    best = None
    counts = [range(1, buffer.slots + 1) for buffer in kernel.problem.buffers]
    for slots in product(*counts):
        names = [buffer.name for buffer in kernel.problem.buffers]
        problem = kernel.with_slots(dict(zip(names, slots, strict=True)))
        seen = set()
        for offsets in placements(problem.buffers, problem.capacity or 0):
            key = shared(problem.buffers, offsets)
            if key not in seen:
                seen.add(key)
                plan = Plan(offsets, 0, 0, "brute force", Status.FEASIBLE)
                cycles = kernel.cost([(problem, plan)])
                best = cycles if best is None else min(best, cycles)
    return best
