# SPDX-License-Identifier: Apache-2.0
"""A plan without a program: buffers by their worth, each into the first memory that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from passes.planning.engine.blocks import UNPLACED, BlockList
from passes.planning.memories.choice import Part
from passes.planning.memories.placing import problem_of
from passes.planning.memories.traffic import MemoriesProblem
from passes.planning.plan import Plan
from passes.planning.planners.first_fit import fit_blocks
from target_hw.memory import MemoryScope

Filled = tuple[list[tuple[tuple[Part, ...], Plan]], tuple[int, ...], bool]
"""The parts and the plan of each memory; the bytes moved, the last memory's first; whether all fit.
"""


def filled(problem: MemoriesProblem, wanted: Mapping[int, int]) -> Filled:
    """Return the best plan of several orders; `wanted` has memories that buffers try first."""
    plans = [_filled(problem, wanted, worth) for worth in _WORTHS]
    return min(plans, key=lambda plan: (not plan[2], plan[1]))


def _life(problem: MemoriesProblem, index: int) -> int:
    return sum(end - begin for begin, end in problem.buffers[index].live)


def _saved(problem: MemoriesProblem, index: int) -> int:
    buffer = problem.buffers[index]
    costs = [problem.cost(buffer, memory) for memory in problem.allowed(buffer)]
    return max(costs) - costs[0]


_WORTHS: tuple[Callable[[MemoriesProblem, int], float], ...] = (
    lambda p, i: _saved(p, i) / max(1, p.buffers[i].size * _life(p, i)),
    lambda p, i: _saved(p, i) / _life(p, i),
    lambda p, i: p.buffers[i].size,
)


def _filled(
    problem: MemoriesProblem,
    wanted: Mapping[int, int],
    worth: Callable[[MemoriesProblem, int], float],
) -> Filled:
    left = dict.fromkeys(range(len(problem.buffers)))
    allowed = [problem.allowed(buffer) for buffer in problem.buffers]
    found, moved = [], []
    for memory, scope in enumerate(problem.memories):
        asked = [index for index in left if memory in allowed[index]]
        asked.sort(
            key=lambda i: (
                problem.buffers[i].pinned is None,
                allowed[i][-1] != memory,
                wanted.get(i) != memory,
                -worth(problem, i),
                i,
            )
        )
        parts = [Part(index, memory, (), problem.buffers[index].live) for index in asked]
        must = [allowed[index][-1] == memory for index in asked]
        taken, plan = _taken(problem, parts, must, scope)
        for part in taken:
            del left[part.buffer]
        found.append((taken, plan))
        moved.append(sum(problem.cost(problem.buffers[part.buffer], memory) for part in taken))
    fits = all(plan.fits for _, plan in found)
    return found, tuple(reversed(moved)), fits


def _taken(
    problem: MemoriesProblem, parts: list[Part], must: list[bool], scope: MemoryScope
) -> tuple[tuple[Part, ...], Plan]:
    """Return the parts that a memory takes by first fit, and their plan.

    Those that must lie there go above its capacity where nothing else is left.
    """
    blocks = BlockList(problem_of(problem.buffers, parts, scope))
    order = range(len(blocks))
    offsets = fit_blocks(blocks, order, limit=scope.capacity)
    out = {blocks.buffer_of[b] for b in order if offsets[b] == UNPLACED}
    fixed = {b: offsets[b] for b in order if blocks.buffer_of[b] not in out}
    late = [b for b in order if blocks.buffer_of[b] in out and must[blocks.buffer_of[b]]]
    if late:
        offsets = fit_blocks(blocks, late, fixed=fixed)
    kept = [n for n in range(len(parts)) if n not in out or must[n]]
    taken = tuple(parts[n] for n in kept)
    chosen = set(kept)
    placed = [offsets[b] for b in order if blocks.buffer_of[b] in chosen]
    return taken, BlockList(problem_of(problem.buffers, taken, scope)).plan(placed, "first_fit")
