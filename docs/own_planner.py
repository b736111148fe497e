# SPDX-License-Identifier: Apache-2.0
"""A planner in one file: the largest buffer first, each at the lowest bytes that are free.

Try it on a network, from this folder::

    tvm-ext compare resnet18 --planners best,own_planner:largest_first
"""

from collections.abc import Sequence

from tvm_ext import Budget, Buffer, Problem, register_planner


@register_planner("largest_first")
def largest_first(problem: Problem, budget: Budget) -> dict[str, list[int]]:
    """Return an offset in bytes for each slot of each buffer."""
    apart = {frozenset(pair) for pair in problem.separations}
    offsets: dict[str, list[int]] = {b.name: list(b.pinned) for b in problem.buffers if b.pinned}
    for buffer in sorted(problem.buffers, key=lambda b: b.size, reverse=True):
        if buffer.pinned:
            continue
        taken = list(problem.memory.reserved)
        for other in problem.buffers:
            if live_together(buffer, other) or frozenset((buffer.name, other.name)) in apart:
                taken += [(o, o + other.size) for o in offsets.get(other.name, ())]
        offsets[buffer.name] = []
        for _ in range(buffer.slots):
            offset = lowest(buffer.size, problem.alignment_of(buffer), taken)
            taken.append((offset, offset + buffer.size))
            offsets[buffer.name].append(offset)
    return offsets


def live_together(one: Buffer, two: Buffer) -> bool:
    """Whether both hold a value at one position; live ranges are half-open."""
    return any(a < d and c < b for a, b in one.live for c, d in two.live)


def lowest(size: int, alignment: int, taken: Sequence[tuple[int, int]]) -> int:
    """Return the lowest multiple of the alignment where `size` bytes are free."""
    offset = 0
    for begin, end in sorted(taken):
        if size and begin < offset + size and end > offset:
            offset = -(-end // alignment) * alignment
    return offset
