# SPDX-License-Identifier: Apache-2.0
"""Where another barrier would let buffers share bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from passes.planning import Plan, Problem, lower_bound
from passes.shared_memory.planning.epochs import shared_memory_problem
from passes.shared_memory.planning.kernel import Branch, Event, Kernel, Loop, Step, What
from target_hw.memory import MemoryScope

LEAST_GAIN = 8
"""A barrier is added where it takes at least one part in so many off what a kernel needs."""

Solver = Callable[[Problem], Plan]
"""From a problem to a complete plan."""

MOST_PLACES = 256
"""Places of a kernel that are tried, at most: those in the fewest loops."""


def barriers_to_add(
    kernel: Kernel, memory: MemoryScope, enough: int, solver: Solver, *, more: bool
) -> tuple[int, ...]:
    """Return the numbers of the places at which barriers are worth what they cost, sorted.

    Barriers are chosen one by one: each lowers what its plan takes by the most; of
    several that do, the one in the fewest loops, then the first. While the kernel needs more than
    `enough` bytes, any that lowers it is chosen; behind that, with `more`, one that takes off one
    part in `LEAST_GAIN`. Where two are needed to lower it at all, none is found.
    """
    places = sorted(_places(kernel.steps), key=lambda place: (place.loops, place.number))
    chosen: tuple[int, ...] = ()
    needed = solver(shared_memory_problem(kernel, memory)).peak
    while places and (more or needed > enough):
        best, at = needed, -1
        for number, place in enumerate(places[:MOST_PLACES]):
            problem = shared_memory_problem(kernel, memory, (*chosen, place.number))
            if lower_bound(problem) < best and (peak := solver(problem).peak) < best:
                best, at = peak, number
        is_worth = more and (needed - best) * LEAST_GAIN >= needed
        if best == needed or not (is_worth or needed > enough):
            break
        needed, chosen = best, (*chosen, places.pop(at).number)
    return tuple(sorted(chosen))


def _places(steps: tuple[Step, ...]) -> Iterator[Event]:
    for step in steps:
        if isinstance(step, Loop):
            yield from _places(step.body)
        elif isinstance(step, Branch):
            for arm in step.arms:
                yield from _places(arm)
        elif step.what is What.PLACE:
            yield step
