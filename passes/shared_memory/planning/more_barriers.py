# SPDX-License-Identifier: Apache-2.0
"""Where another barrier would let buffers share bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from passes.planning import Plan, Problem, live_together, lower_bound
from passes.shared_memory.planning.epochs import shared_memory_problem
from passes.shared_memory.planning.thread_block import (
    Event,
    EventBranch,
    EventLoop,
    Step,
    ThreadBlock,
    What,
)
from target_hw.memory import MemoryScope

LEAST_GAIN = 8
"""A barrier is added where it takes at least one part in so many off what a kernel needs."""

Solver = Callable[[Problem], Plan]  # From a problem to a complete plan

MOST_WORK = 20_000
"""Events of kernels that are gone through, at most; places in the fewest loops are tried first."""


def barriers_to_add(
    kernel: ThreadBlock, memory: MemoryScope, enough: int, solver: Solver, *, more: bool
) -> tuple[int, ...]:
    """Return the numbers of the places at which barriers are worth what they cost, sorted.

    Barriers are chosen one by one: each lowers what its plan takes by the most; of several that do,
    the one in the fewest loops, then the first. While the kernel needs more than `enough` bytes,
    any that lowers it is chosen, or one that lets most bytes be shared if none lowers it alone;
    behind that, with `more`, one that takes off one part in `LEAST_GAIN`.
    """
    events = list(_events(kernel.steps))
    places = [event for event in events if event.what is What.PLACE]
    places.sort(key=lambda place: (place.loops, place.number))
    tries = MOST_WORK // max(1, len(events))
    problem = shared_memory_problem(kernel, memory)
    needed, apart = solver(problem).peak, _bytes_apart(problem)
    chosen: list[int] = []
    useful = 0  # How many of these are needed: the last of them lowered the peak.
    while places and tries > 0 and (more or needed > enough):
        best = needed, apart, -1
        tried, tries = places[:tries], tries - len(places)
        for at, place in enumerate(tried):
            problem = shared_memory_problem(kernel, memory, (*chosen, place.number))
            peak = needed if lower_bound(problem) >= needed else solver(problem).peak
            best = min(best, (peak, _bytes_apart(problem), at), key=lambda found: found[:2])
        peak, apart, at = best
        is_worth = peak < needed if needed > enough else (needed - peak) * LEAST_GAIN >= needed
        if at < 0 or not (is_worth or needed > enough):
            break
        chosen.append(places.pop(at).number)
        if is_worth:
            needed, useful = peak, len(chosen)
    return tuple(sorted(chosen[:useful]))


def _bytes_apart(problem: Problem) -> int:
    """Return the bytes that pairs of buffers could share if they were not live together."""
    return sum(
        min(one.size, two.size)
        for one, two in combinations(problem.buffers, 2)
        if live_together(one.live, two.live)
    )


def _events(steps: tuple[Step, ...]) -> Iterator[Event]:
    for step in steps:
        if isinstance(step, EventLoop):
            yield from _events(step.body)
        elif isinstance(step, EventBranch):
            for arm in step.arms:
                yield from _events(arm)
        else:
            yield step
