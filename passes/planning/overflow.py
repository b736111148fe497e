# SPDX-License-Identifier: Apache-2.0
"""Messages for a plan that does not fit: the buffers in the way, and the remedies.

All passes and commands say it with this text. The change that would help is named only where a plan
of the changed problem was found, verified, and fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from passes.planning.bound import live_bytes, lower_bound, may_fit
from passes.planning.plan import Plan, Status
from passes.planning.planner import Budget
from passes.planning.problem import Problem
from passes.planning.solving import solve
from passes.planning.violations import violations

MOST_SHOWN = 200  # Buffers at the peak that are listed, at most
NODES = 2_000  # Placements that may be tried for one change
PLANNER_NODES = 50_000  # Placements that may be tried for the problem as it is
MOST_BUFFERS = 500  # Buffers beyond which first fit alone is asked
MOST_PLANNED = 20_000  # Buffers beyond which no change is tried: each plan takes seconds
MOST_DROPPED = 6  # Buffers whose slots are dropped, at most
PARTS = 16  # All sizes are tried at so many parts of what they are

Overflow = Callable[[Problem, Plan, int], str]
"""The message for a plan that does not fit: from the problem, the plan, and the bytes at the start
of the memory that enclosing scopes have taken."""


class Places:
    """Names for the positions of a problem in a message."""

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
    helps = remedy(problem)
    if plan.status is Status.INFEASIBLE or bound > (memory.capacity or 0):
        verdict = "it is proven that no plan fits with these live ranges"
    elif helps is not None and helps.problem is problem:
        verdict = "another plan fits"
    else:
        verdict = "whether another plan fits is not known: try a larger budget"
    lines.append(f"no plan needs less than {bound} bytes{rules}; {verdict}")
    if helps is not None:
        lines.append(f"it fits with {helps.text}: planned in {helps.plan.peak} bytes")
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
    largest = [b for b in problem.buffers if any(begin <= peak < end for begin, end in b.live)]
    largest.sort(key=lambda buffer: (-buffer.size, buffer.name))
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


# Changes that would help


@dataclass(frozen=True)
class Remedy:
    """A change under which a problem fits."""

    text: str  # The change to make
    problem: Problem  # With the change
    plan: Plan  # Verified, and within the capacity


def remedy(problem: Problem) -> Remedy | None:
    """Return the first change found under which a problem fits.

    Tried are, one after the other: the problem as it is, with more effort; one slot for buffers of
    several, of few buffers; all buffers smaller by the same part.
    """
    if len(problem.buffers) > MOST_PLANNED:
        return None
    if plan := _fitting(problem, PLANNER_NODES):
        return Remedy(f"the planner {plan.planner!r}, for this problem as it is", problem, plan)
    return next(_changed(problem), None)


def _fitting(problem: Problem, nodes: int = NODES) -> Plan | None:
    """Return a verified plan that fits, if one is found; of many buffers, by first fit alone."""
    searches = len(problem.buffers) <= MOST_BUFFERS
    for planner in ("first_fit", "best") if searches else ("first_fit",):
        plan = solve(problem, planner, Budget(nodes)) if may_fit(problem) else None
        if plan is not None and plan.fits and not any(violations(problem, plan)):
            return plan
    return None


def _changed(problem: Problem) -> Iterator[Remedy]:
    """Yield changes that fit, the smallest of a kind first."""
    several = [b for b in problem.buffers if b.slots > 1 and b.pinned is None]
    several.sort(key=lambda b: (-b.size * (b.slots - 1), b.name))
    for count in range(1, 1 + min(MOST_DROPPED, len(several))):
        dropped = several[:count]
        buffers = tuple(replace(b, slots=1) if b in dropped else b for b in problem.buffers)
        changed = replace(problem, buffers=buffers)
        if plan := _fitting(changed):
            named = " and of ".join(f"{b.name!r} ({b.slots} of {b.size} bytes)" for b in dropped)
            yield Remedy(f"one slot of {named}", changed, plan)
    for part in (Fraction(parts, PARTS) for parts in range(PARTS - 1, 0, -1)):
        sizes = (b.size if b.pinned else math.ceil(b.size * part) for b in problem.buffers)
        pairs = zip(problem.buffers, sizes, strict=True)
        changed = replace(problem, buffers=tuple(replace(b, size=size) for b, size in pairs))
        if plan := _fitting(changed):
            yield Remedy(f"smaller tiles, every buffer at most {part} of its bytes", changed, plan)
