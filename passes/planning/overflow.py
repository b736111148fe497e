# SPDX-License-Identifier: Apache-2.0
"""What is said of a plan that does not fit: what is in the way, and what would help.

All passes and commands say it with this text. What would help is tried, not guessed: a change is
named only where a plan of the changed problem was found, verified, and fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from passes.planning.bound import live_bytes, lower_bound, may_fit
from passes.planning.buffer import Buffer
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget
from passes.planning.problem import Problem
from passes.planning.solving import solve
from passes.planning.violations import violations

MOST_SHOWN = 200  # Buffers at the peak that are listed, at most
NODES = 2_000  # Placements that may be tried for one change
PLANNER_NODES = 50_000  # Placements that may be tried for the problem as it is
MOST_BUFFERS = 500
"""Buffers beyond which only quick planners are asked, and only for changes of many buffers."""
MOST_PLANNED = 20_000  # Buffers beyond which nothing is tried: each plan takes seconds
MOST_TRIED = 6  # Buffers that are looked at for each kind of change
TRIES = 5  # Sizes of one buffer, or of all, that are planned
SHOWN = 2  # Remedies of one kind, the best first
PARTS = 16  # All sizes are tried at so many parts of what they are

Overflow = Callable[[Problem, Plan, int], str]
"""What to say of a plan that does not fit: from the problem, the plan, and the bytes at the start
of the memory that enclosing scopes have taken."""


class Places:
    """What a message calls positions of a problem."""

    def at(self, position: int) -> str:
        """Return what one position is called."""
        return f"position {position}"

    def during(self, begin: int, end: int) -> str:
        """Return what the positions ``[begin, end)`` are called."""
        return f"in [{begin}, {end})"

    def legend(self) -> str:
        """Return a line that says what the words mean, if they need one."""
        return ""


@dataclass(frozen=True)
class Bindings(Places):
    """The positions of a Relax function are its bindings."""

    names: tuple[str, ...]  # The name of the binding at each position

    def at(self, position: int) -> str:
        """Return the binding."""
        return f"binding {self.names[position]!r}"

    def during(self, begin: int, end: int) -> str:
        """Return the first and the last binding."""
        last = max(begin, min(end, len(self.names)) - 1)
        return f"from {self.at(begin)} to {self.names[last]!r}"


@dataclass(frozen=True)
class TextPlaces(Places):
    """The positions of a function are lines of its text."""

    lines: tuple[str, ...]  # The text, without line ends
    # For each position the line that it belongs to, counted from 0. It never goes back. A statement
    # with a body has two positions: its first line, and the last line of its body.
    line_of: tuple[int, ...]

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first and the last line of the positions ``[begin, end)``."""
        last = len(self.line_of) - 1
        return self.line_of[max(0, min(begin, last))], self.line_of[max(0, min(end - 1, last))]

    def at(self, position: int) -> str:
        """Return the line and what is written there."""
        line, _ = self.span(position, position + 1)
        return f"line {line + 1} ({self.lines[line].strip()})"

    def during(self, begin: int, end: int) -> str:
        """Return the first and the last line."""
        first, last = self.span(begin, end)
        return f"on line {first + 1}" if first == last else f"on lines {first + 1} to {last + 1}"


def does_not_fit(
    problem: Problem,
    plan: Plan,
    base: int = 0,
    *,
    places: Places | None = None,
    rules: str = "",
) -> str:
    """Say what does not fit: what is live at the peak, whether it could fit, and what would help.

    The first line names the scope and the bytes needed and available.

    Parameters
    ----------
    problem : Problem
        What was asked; it has a capacity.
    plan : Plan
        A complete plan above that capacity.
    base : int
        Bytes at the start of the memory that enclosing scopes have taken.
    places : Places, optional
        What positions are called.
    rules : str
        What the lower bound rests on, where that is not the problem alone.
    """
    places = places or Places()
    memory, bound = problem.memory, lower_bound(problem)
    lines = [
        f"scope {memory.name!r} needs {plan.peak} bytes as planned by {plan.planner!r}, "
        f"and has {memory.capacity}"
    ]
    if memory.reserved:
        taken = sum(end - begin for begin, end in memory.reserved)
        outer = f", {base} of them by enclosing scopes" if base else ""
        lines.append(f"{taken} bytes are reserved{outer}")
    lines += live_at_the_peak(problem, places)
    helps = remedies(problem)
    if plan.status is Status.INFEASIBLE or bound > (memory.capacity or 0):
        verdict = "it is proven that no plan fits"
    elif any(remedy.problem is problem for remedy in helps):
        verdict = "another plan fits"
    else:
        verdict = "whether another plan fits is not known: try a larger budget"
    lines.append(f"no plan needs less than {bound} bytes{rules}; {verdict}")
    if helps:
        lines.append("it fits with one of these changes, each of which was planned:")
    lines += [f"  {remedy.text}: {remedy.plan.peak} bytes" for remedy in helps]
    if len(problem.buffers) > MOST_PLANNED:
        lines.append(f"no change is tried for more than {MOST_PLANNED} buffers")
    if legend := places.legend():
        lines.append(legend)
    return "\n  ".join(lines)


def live_at_the_peak(problem: Problem, places: Places | None = None) -> Iterator[str]:
    """Yield lines that say which buffers are live where most bytes are; there is one at least."""
    places = places or Places()
    profile = live_bytes(problem)
    peak, total = max(profile, key=lambda entry: (entry[1], -entry[0]))
    tied = dict.fromkeys(places.at(position) for position, live in profile if live == total)
    largest = _at_the_peak(problem, by_slot=True)
    live = {buffer.name for buffer in largest}
    sources: dict[str, list[str]] = {}
    for source, destination in problem.in_place:
        if source in live and destination in live:
            sources.setdefault(destination, []).append(repr(source))
    apart = " with nothing in place" if sources else ""
    yield f"most is live at {places.at(peak)}, {total} bytes{apart}:"
    for buffer in largest[:MOST_SHOWN]:
        slots = f" in each of {buffer.slots} slots" if buffer.slots > 1 else ""
        others = " or ".join(sources.get(buffer.name, ()))
        place = f", may be in place of {others}" if others else ""
        during = next(places.during(*live) for live in buffer.live if live[0] <= peak < live[1])
        yield f"  {buffer.name}: {buffer.size} bytes{slots}, live {during}{place}"
    if rest := largest[MOST_SHOWN:]:
        yield f"  and {len(rest)} more: {sum(b.slots * b.size for b in rest)} bytes"
    if len(tied) > 1:
        others = f"{len(tied) - 1} other place{'s' if len(tied) > 2 else ''}"
        yield f"as much is live at {others}: to need less, each has to hold less"


def _at_the_peak(problem: Problem, by_slot: bool = False) -> list[Buffer]:
    """Return the buffers that are live at the peak, largest first: of all slots, or of one."""
    peak, _ = max(live_bytes(problem), key=lambda entry: (entry[1], -entry[0]), default=(0, 0))
    live = [b for b in problem.buffers if any(begin <= peak < end for begin, end in b.live)]
    return sorted(live, key=lambda b: (-b.size * (1 if by_slot else b.slots), b.name))


# What would help


@dataclass(frozen=True)
class Remedy:
    """A change under which a problem fits."""

    text: str  # What to change
    problem: Problem  # With the change
    plan: Plan  # Verified, and within the capacity


def remedies(problem: Problem) -> list[Remedy]:
    """Return changes under which a problem fits, at most `SHOWN` of each kind.

    Tried are: the problem as it is, with more effort; one slot in the place of several; smaller
    buffers, one by one and all together, with the largest sizes that a bisection finds. Where the
    problem fits as it is, nothing else is tried; of more than `MOST_PLANNED` buffers, nothing is.
    """
    if len(problem.buffers) > MOST_PLANNED:
        return []
    if plan := _fitting(problem, PLANNER_NODES):
        return [Remedy(f"the planner {plan.planner!r}, for this problem as it is", problem, plan)]
    found: list[Remedy] = []
    if len(problem.buffers) <= MOST_BUFFERS:
        at_peak = _at_the_peak(problem)
        found += _fewer_slots(problem, at_peak)
        smaller = [_smaller_buffer(problem, b) for b in at_peak[:MOST_TRIED] if not b.pinned]
        kept = sorted(filter(None, smaller), key=lambda each: -each[0])
        found += [remedy for _, remedy in kept[:SHOWN]]
    return found + _smaller_buffers(problem)


def _fitting(problem: Problem, nodes: int = NODES) -> Plan | None:
    """Return a verified plan that fits, if one is found; of many buffers, by first fit alone."""
    searches = len(problem.buffers) <= MOST_BUFFERS
    for planner in ("first_fit", "best") if searches else ("first_fit",):
        plan = solve(problem, planner, Budget(nodes)) if may_fit(problem) else None
        if plan is not None and plan.fits and not any(violations(problem, plan)):
            return plan
    return None


def _fewer_slots(problem: Problem, at_peak: Sequence[Buffer]) -> list[Remedy]:
    """Return buffers that could have one slot: one by one, else as many together as it takes.

    Those live at the peak come first.
    """
    several = [b for b in problem.buffers if b.slots > 1 and b.pinned is None]
    several.sort(key=lambda b: (b not in at_peak, -b.size * (b.slots - 1), b.name))

    def dropped(group: Sequence[Buffer]) -> Iterator[Remedy]:
        buffers = (replace(b, slots=1) if b in group else b for b in problem.buffers)
        changed = replace(problem, buffers=tuple(buffers))
        if plan := _fitting(changed):
            named = (f"{b.name!r} ({b.slots} of {b.size} bytes)" for b in group)
            yield Remedy(f"drop the slots of {' and of '.join(named)}", changed, plan)

    first = several[:MOST_TRIED]
    single = [remedy for buffer in first for remedy in dropped([buffer])]
    if single:
        return single[:SHOWN]
    together = (r for count in range(2, len(first) + 1) for r in dropped(first[:count]))
    return list(islice(together, 1))


def _smaller_buffer(problem: Problem, buffer: Buffer) -> tuple[Fraction, Remedy] | None:
    """Return how much of its bytes one buffer can keep, and the change, if one helps."""
    unit = problem.alignment_of(buffer)
    units = -(-buffer.size // unit)

    def sized(count: int) -> Problem:
        return _resized(problem, lambda b: count * unit if b == buffer else b.size)

    if (largest := _largest(sized, units)) is None:
        return None
    count, changed, plan = largest
    text = f"a smaller {buffer.name!r}, at most {count * unit} of its {buffer.size} bytes"
    return Fraction(count, units), Remedy(text, changed, plan)


def _smaller_buffers(problem: Problem) -> list[Remedy]:
    """Return the part of their bytes that all buffers can keep."""

    def sized(parts: int) -> Problem:
        return _resized(problem, lambda b: b.size if b.pinned else -(-b.size * parts // PARTS))

    if (largest := _largest(sized, PARTS)) is None:
        return []
    parts, changed, plan = largest
    text = f"smaller tiles, every buffer at most {Fraction(parts, PARTS)} of its bytes"
    return [Remedy(text, changed, plan)]


def _resized(problem: Problem, size: Callable[[Buffer], int]) -> Problem:
    return replace(problem, buffers=tuple(replace(b, size=size(b)) for b in problem.buffers))


def _largest(sized: Callable[[int], Problem], whole: int) -> tuple[int, Problem, Plan] | None:
    """Return the largest count found, from 1 below `whole`, for which there is a plan.

    No larger one than the lower bound allows is planned; `TRIES` are, by bisection.
    """
    # How many counts, from 1 up, the bound allows.
    high = bisect_left(range(1, whole), True, key=lambda count: not may_fit(sized(count)))
    low, best, middle = 1, None, high
    for _ in range(TRIES):
        if low > high:
            break
        problem = sized(middle)
        plan = _fitting(problem)
        if plan is None:
            high = middle - 1
        else:
            best, low = (middle, problem, plan), middle + 1
        middle = (low + high) // 2
    return best
