# SPDX-License-Identifier: Apache-2.0
"""What is said of a plan that does not fit: what is in the way, and what would help.

All passes and commands say it with this text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from passes.planning.bound import live_bytes, lower_bound
from passes.planning.plan import Plan, Status
from passes.planning.problem import Problem
from passes.planning.remedies import MOST_PLANNED, PARTS, Change, Remedy, remedies

MOST_SHOWN = 200  # Buffers at the peak that are listed, at most

Overflow = Callable[[Problem, Plan, int], str]
"""What to say of a plan that does not fit: from the problem, the plan, and the bytes at the start
of the memory that enclosing scopes have taken."""

Cost = Callable[[Problem, Plan], str]
"""What a changed problem with its plan costs, in a few words; empty where that is not known."""


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
    cost: Cost | None = None,
) -> str:
    """Say what does not fit: what is live at the peak, whether it could fit, and what would help.

    The plan is complete, and above the capacity. Enclosing scopes have taken `base` bytes at the
    start of the memory. `rules` says what the lower bound rests on, where that is not the problem
    alone, and `cost` what changes to slots and places cost. The first line names the scope and the
    bytes needed and available.
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
    proven = plan.status is Status.INFEASIBLE or bound > (memory.capacity or 0)
    helps = remedies(problem)
    if proven:
        verdict = "it is proven that no plan fits"
    elif any(remedy.change is Change.PLANNER for remedy in helps):
        verdict = "another plan fits"
    else:
        verdict = "whether another plan fits is not known: try a larger budget"
    lines.append(f"no plan needs less than {bound} bytes{rules}; {verdict}")
    lines += _what_helps(problem, helps, places, cost)
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
    live = {
        buffer.name: (buffer, begin, end)
        for buffer in problem.buffers
        for begin, end in buffer.live
        if begin <= peak < end
    }
    sources: dict[str, list[str]] = {}
    for source, destination in problem.in_place:
        if source in live and destination in live:
            sources.setdefault(destination, []).append(source)
    apart = " with nothing in place" if sources else ""
    yield f"most is live at {places.at(peak)}, {total} bytes{apart}:"
    largest = sorted(live.values(), key=lambda entry: (-entry[0].size, entry[0].name))
    for buffer, begin, end in largest[:MOST_SHOWN]:
        slots = f" in each of {buffer.slots} slots" if buffer.slots > 1 else ""
        others = " or ".join(map(repr, sources.get(buffer.name, ())))
        place = f", may be in place of {others}" if others else ""
        during = places.during(begin, end)
        yield f"  {buffer.name}: {buffer.size} bytes{slots}, live {during}{place}"
    if rest := [buffer for buffer, _, _ in largest[MOST_SHOWN:]]:
        yield f"  and {len(rest)} more: {sum(b.slots * b.size for b in rest)} bytes"
    if len(tied) > 1:
        others = f"{len(tied) - 1} other place{'s' if len(tied) > 2 else ''}"
        yield f"as much is live at {others}: to need less, each has to hold less"


def _what_helps(
    problem: Problem, helps: tuple[Remedy, ...], places: Places, cost: Cost | None
) -> Iterator[str]:
    """Yield a line for each remedy: the change, the bytes it needs, and what it costs."""
    if helps:
        yield "it fits with one of these changes, each of which was planned:"
    for remedy in helps:
        text = _change(problem, remedy, places)
        priced = remedy.change in (Change.PLANNER, Change.SLOTS, Change.IN_PLACE)
        price = cost(remedy.problem, remedy.plan) if cost is not None and priced else ""
        yield f"  {text}: {remedy.plan.peak} bytes{', ' + price if price else ''}"


def _change(problem: Problem, remedy: Remedy, places: Places) -> str:
    buffers = [problem.buffers[problem.index[name]] for name in remedy.buffers]
    if remedy.change is Change.PLANNER:
        return f"the planner {remedy.plan.planner!r}, for this problem as it is"
    if remedy.change is Change.SLOTS:
        names = " and of ".join(f"{b.name!r} ({b.slots} of {b.size} bytes)" for b in buffers)
        return f"drop the slots of {names}"
    if remedy.change is Change.IN_PLACE:
        pairs = " and ".join(
            f"{result.name!r} in place of {source.name!r}, both live only "
            f"{places.during(result.live[0][0], source.live[-1][1])}"
            for source, result in zip(buffers[::2], buffers[1::2], strict=True)
        )
        return f"allow {pairs}"
    if remedy.change is Change.SMALLER:
        (buffer,) = buffers
        size = remedy.problem.buffers[problem.index[buffer.name]].size
        return f"a smaller {buffer.name!r}, at most {size} of its {buffer.size} bytes"
    part = Fraction(remedy.parts, PARTS)
    return f"smaller tiles, every buffer at most {part} of its bytes"
