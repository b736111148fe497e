# SPDX-License-Identifier: Apache-2.0
"""What would make a problem fit that does not: changes that are tried, not guessed.

Each remedy is a problem changed in one way, with a verified plan of it within the capacity.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, islice

from passes.planning.bound import live_bytes, may_fit
from passes.planning.plan import Plan
from passes.planning.planner import Budget, solve_one
from passes.planning.problem import Buffer, Problem
from passes.planning.verify import violations

NODES = 2_000  # Placements that may be tried for one change
PLANNER_NODES = 50_000  # Placements that may be tried for the problem as it is

MOST_BUFFERS = 500
"""Buffers beyond which only quick planners are asked, and only for changes of many buffers."""

MOST_PLANNED = 20_000  # Buffers beyond which nothing is tried: each plan takes seconds
MOST_TRIED = 6  # Buffers, and pairs of them, that are looked at for each kind of change
TRIES = 5  # Sizes of one buffer, or of all, that are planned
SHOWN = 2  # Remedies of one kind that are returned, the best first
PARTS = 16  # All sizes are tried at so many parts of what they are


class Change(Enum):
    """What a remedy changes."""

    PLANNER = "another planner"
    SLOTS = "fewer slots"
    IN_PLACE = "in place"
    SMALLER = "a smaller buffer"
    ALL_SMALLER = "all buffers smaller"


@dataclass(frozen=True)
class Remedy:
    """A change under which a problem fits."""

    change: Change  # What is changed
    # The buffers concerned; source and destination of each pair for `Change.IN_PLACE`, and empty
    # where it is all or none.
    buffers: tuple[str, ...]
    problem: Problem  # The problem with the change
    plan: Plan  # A plan of it that was verified and fits
    # For `Change.ALL_SMALLER`: of `PARTS` parts of its bytes, those that each buffer keeps.
    parts: int = PARTS


def remedies(problem: Problem) -> tuple[Remedy, ...]:
    """Look for changes under which a problem fits.

    Tried are: the problem as it is, with more effort; one slot in the place of several; pairs of
    which one is live no longer than the statement in which the other begins, in place; smaller
    buffers, one by one and all together. The first three keep what the program computes with; the
    sizes are the largest that were found, by bisection.

    At most `SHOWN` of each kind are returned, and none but another plan where there is one that
    fits; none where nothing that was tried helps, or the buffers are more than `MOST_PLANNED`.
    """
    if len(problem.buffers) > MOST_PLANNED:
        return ()
    if plan := _fitting(problem, PLANNER_NODES):
        return (Remedy(Change.PLANNER, (), problem, plan),)
    kinds: tuple[Callable[[Problem], Iterator[Remedy]], ...] = (_by_smaller_buffers,)
    if len(problem.buffers) <= MOST_BUFFERS:
        kinds = (_by_slots, _by_in_place, _by_smaller_buffer, *kinds)
    return tuple(remedy for kind in kinds for remedy in islice(kind(problem), SHOWN))


def _fitting(problem: Problem, nodes: int = NODES) -> Plan | None:
    """Return a verified plan that fits, if one is found; of many buffers, by first fit alone."""
    searches = len(problem.buffers) <= MOST_BUFFERS
    for planner in ("first_fit", "best") if searches else ("first_fit",):
        plan = solve_one(problem, planner, Budget(nodes)) if may_fit(problem) else None
        if plan is not None and plan.fits and not any(violations(problem, plan)):
            return plan
    return None


def _at_the_peak(problem: Problem) -> list[Buffer]:
    """Return what is live where the most bytes are, largest first."""
    peak, _ = max(live_bytes(problem), key=lambda entry: (entry[1], -entry[0]), default=(0, 0))
    live = [b for b in problem.buffers if any(begin <= peak < end for begin, end in b.live)]
    return sorted(live, key=lambda b: (-b.size * b.slots, b.name))


def _by_slots(problem: Problem) -> Iterator[Remedy]:
    """Yield buffers that may have one slot only."""
    at_peak = [buffer.name for buffer in _at_the_peak(problem)]
    several = [b for b in problem.buffers if b.slots > 1 and b.pinned is None]
    several.sort(key=lambda b: (b.name not in at_peak, -b.size * (b.slots - 1), b.name))
    choices = [(buffer.name,) for buffer in several]
    return _one_or_more(Change.SLOTS, choices, lambda names: with_one_slot(problem, names))


def _by_in_place(problem: Problem) -> Iterator[Remedy]:
    """Yield pairs that may be in place."""

    def in_place(names: Sequence[str]) -> Problem:
        pairs = zip(names[::2], names[1::2], strict=True)
        return replace(problem, in_place=(*problem.in_place, *pairs))

    pairs = _meeting(problem, _at_the_peak(problem))
    return _one_or_more(Change.IN_PLACE, [*pairs], in_place)


def _one_or_more(
    change: Change,
    choices: Sequence[tuple[str, ...]],
    changed: Callable[[Sequence[str]], Problem],
) -> Iterator[Remedy]:
    """Yield the single choices that help; if none does, the first ones, as many as it takes."""
    choices = choices[:MOST_TRIED]
    found = False
    for names in choices:
        if plan := _fitting(changed(names)):
            found = True
            yield Remedy(change, names, changed(names), plan)
    for count in range(2, len(choices) + 1 if not found else 0):
        names = tuple(chain.from_iterable(choices[:count]))
        if plan := _fitting(changed(names)):
            yield Remedy(change, names, changed(names), plan)
            return


def with_one_slot(problem: Problem, names: Iterable[str]) -> Problem:
    """Return a problem in which some buffers have one slot."""
    chosen = frozenset(names)
    return _changed(problem, lambda b: replace(b, slots=1) if b.name in chosen else b)


def _changed(problem: Problem, change: Callable[[Buffer], Buffer]) -> Problem:
    return replace(problem, buffers=tuple(map(change, problem.buffers)))


def _meeting(problem: Problem, buffers: Sequence[Buffer]) -> Iterator[tuple[str, str]]:
    """Yield pairs of which the second begins in the last statement that the first is live in.

    Nothing else begins or ends while both are live, and no rule speaks against sharing.
    """
    changes = sorted({at for b in problem.buffers for live in b.live for at in live})
    decided = {frozenset(pair) for pair in (*problem.in_place, *problem.separations)}
    for source in buffers:
        for result in buffers:
            begin, end = result.live[0][0], source.live[-1][1]
            if (
                source.live[0][0] < begin < end < result.live[-1][1]
                and source.slots == result.slots
                and source.pinned is None
                and result.pinned is None
                and frozenset((source.name, result.name)) not in decided
                and not any(begin < at < end for at in changes)
                and len(source.live) == len(result.live) == 1
            ):
                yield source.name, result.name


def _by_smaller_buffer(problem: Problem) -> Iterator[Remedy]:
    """Yield buffers of which a part would fit, those that keep most of their bytes first."""
    found = []
    for buffer in _at_the_peak(problem)[:MOST_TRIED]:
        unit = problem.alignment_of(buffer)
        units = -(-buffer.size // unit)

        def sized(count: int, name: str = buffer.name, unit: int = unit) -> Problem:
            return _changed(
                problem, lambda b: replace(b, size=count * unit) if b.name == name else b
            )

        if not buffer.pinned and (largest := _largest(sized, units)):
            count, plan = largest
            remedy = Remedy(Change.SMALLER, (buffer.name,), sized(count), plan)
            found.append((count / units, remedy))
    found.sort(key=lambda entry: -entry[0])
    yield from (remedy for _, remedy in found)


def _by_smaller_buffers(problem: Problem) -> Iterator[Remedy]:
    """Yield the part of their bytes that all buffers can keep."""

    def sized(parts: int) -> Problem:
        return _changed(
            problem, lambda b: b if b.pinned else replace(b, size=-(-b.size * parts // PARTS))
        )

    if largest := _largest(sized, PARTS):
        parts, plan = largest
        yield Remedy(Change.ALL_SMALLER, (), sized(parts), plan, parts)


def _largest(sized: Callable[[int], Problem], whole: int) -> tuple[int, Plan] | None:
    """Return the largest count found, from 1 below `whole`, for which there is a plan.

    No larger one than the lower bound allows is planned; `TRIES` are, by bisection.
    """
    # How many counts, from 1 up, the bound allows.
    high = bisect_left(range(1, whole), True, key=lambda count: not may_fit(sized(count)))
    low, best, middle = 1, None, high
    for _ in range(TRIES):
        if low > high:
            break
        plan = _fitting(sized(middle))
        if plan is None:
            high = middle - 1
        else:
            best, low = (middle, plan), middle + 1
        middle = (low + high) // 2
    return best
