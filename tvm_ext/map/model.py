# SPDX-License-Identifier: Apache-2.0
"""What a memory map is made of: placements of buffers, beside the lines of the program.

Nothing here knows TVM.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from passes.planning import (
    Buffer,
    Plan,
    Problem,
    TextPlaces,
    does_not_fit,
    live_together,
    lower_bound,
)
from passes.simulation import Simulation
from tvm_ext.named_planners import STOCK


@dataclass(frozen=True)
class Listing(TextPlaces):
    """The text of a function, and where its positions are in it."""

    name: str  # The function's name
    rules: tuple[int, ...] = ()  # The lines with a rule above them, across all maps: barriers


@dataclass(frozen=True)
class BufferNote:
    """What is known of a buffer besides its problem."""

    label: str = ""  # What to call it where there is little room; empty for its name
    # The type of its elements and its shape, or which operator makes it; empty if not known.
    what: str = ""
    allocated: int | None = None  # The line of the listing that allocates it
    # The lines that read and that write it.
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    pipes: tuple[str, ...] = ()  # The pipelines that touch it, sorted


@dataclass(frozen=True)
class Peak:
    """Where a plan is at its highest."""

    # Of the positions at which a buffer reaches the plan's peak, the first one with the most bytes
    # in use; in TVM's own plan, whose peak is the sum of its allocations, of all positions.
    position: int
    # The buffers that are live there, largest first, all slots of each counted.
    live: tuple[str, ...]
    # Bytes of the memory that hold a live buffer there; bytes shared in place count once.
    occupied: int
    # All positions that reach the peak with as many bytes in use, each with other live buffers than
    # the one before it; `position` is the first.
    places: tuple[int, ...]
    # The most bytes in use at any other position, and the first position with them.
    below: tuple[int, int] | None


@dataclass(frozen=True)
class PlannedProblem:
    """A plan, with the problem that it solves."""

    # The planner that was asked. The plan may name another one that this one asked in turn.
    planner: str
    problem: Problem  # What the planner was asked
    plan: Plan  # What it decided. It may be above the capacity.

    @property
    def label(self) -> str:
        """The planner that was asked, and the one that made the plan where that is another."""
        asked, made = self.planner, self.plan.planner
        return asked if asked == made else f"{asked} ({made})"

    def peak(self) -> Peak:
        """Find where the plan is at its highest."""
        steps = list(_bytes_in_use(self.problem, self.plan, everywhere=self.planner == STOCK))
        most = max((used for _, used, highest in steps if highest), default=0)
        places = tuple(at for at, used, highest in steps if highest and used == most) or (0,)
        others = ((at, used) for at, used, highest in steps if not (highest and used == most))
        at, below = max(others, key=lambda step: step[1], default=(0, 0))
        here = (places[0], places[0] + 1)
        live = [b for b in self.problem.buffers if live_together(b.live, (here,))]
        live.sort(key=lambda b: (-b.size * len(self.plan.offsets[b.name]), b.name))
        names = tuple(b.name for b in live)
        return Peak(places[0], names, most, places, (below, at) if below else None)


@dataclass(frozen=True, eq=False)
class ScopeMap:
    """One memory of one function, as each planner fills it."""

    function: str  # The function's name, or the file's
    placements: tuple[PlannedProblem, ...]  # At least one. All have the same buffers.
    listing: Listing | None = None  # The function's text, where it has one
    notes: Mapping[str, BufferNote] = field(default_factory=dict)  # By the name of the buffer
    rules: str = ""  # Which rules the lower bound rests on, where they are not the problem's alone
    form: str = ""  # In which form the device takes a plan, and why, where that is for it to say
    unit: str = ""  # Bytes are for each of this product of symbolic dimensions, if there is one

    @property
    def problem(self) -> Problem:
        """The problem of the first placement."""
        return self.placements[0].problem

    @property
    def scope(self) -> str:
        """The storage scope."""
        return self.problem.memory.name

    @property
    def name(self) -> str:
        """The storage scope, and where in the function its memory is there."""
        return self.problem.name if self.problem.name.startswith(self.scope) else self.scope

    @property
    def capacity(self) -> int | None:
        """Bytes in the memory, or None."""
        return self.problem.capacity

    def bound(self) -> int:
        """Return a number of bytes that no plan's peak can be below."""
        return lower_bound(self.problem)

    def ends(self) -> tuple[int, int]:
        """Return the first and one past the last position at which a buffer is live."""
        live = [pair for buffer in self.problem.buffers for pair in buffer.live]
        begin = min((begin for begin, _ in live), default=0)
        return begin, max((end for _, end in live), default=begin + 1)

    def explain(self, placement: PlannedProblem) -> str:
        """Say why a plan does not fit, and what would help; empty if it does."""
        if placement.plan.fits:
            return ""
        return does_not_fit(
            placement.problem, placement.plan, places=self.listing, rules=self.rules
        )

    def lines_of(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the first and the last line of each live range of a buffer."""
        if self.listing is not None:
            for begin, end in self.problem.buffers[self.problem.index[name]].live:
                yield self.listing.span(begin, end)


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A function, run in simulation with its buffers where a planner put them."""

    # Which function and which planner.
    function: str
    planner: str
    simulation: Simulation  # How it runs


Shown = ScopeMap | PlannedRun | str
"""What a map is put together from; a text says what is not planned, and why."""


def _bytes_in_use(
    problem: Problem, plan: Plan, everywhere: bool
) -> Iterator[tuple[int, int, bool]]:
    """Yield each position at which other buffers are live than before, and what holds from there.

    That is the bytes that are in use, and whether one of the buffers that end highest is live, or
    that counts `everywhere`.
    """
    paired = {name for pair in problem.in_place for name in pair}
    changes: defaultdict[int, list[tuple[int, Buffer]]] = defaultdict(list)
    for buffer in problem.buffers:
        for begin, end in buffer.live:
            changes[begin].append((1, buffer))
            changes[end].append((-1, buffer))
    top = max((o + b.size for b in problem.buffers for o in plan.offsets[b.name]), default=0)
    apart = highest = 0
    together: dict[str, Buffer] = {}
    for position in sorted(changes):
        for sign, buffer in sorted(changes[position], key=lambda change: change[0]):
            offsets = plan.offsets[buffer.name]
            highest += sign * (max(offsets) + buffer.size == top)
            if buffer.name not in paired:  # Nothing else that is live has bytes of it.
                apart += sign * buffer.size * len(offsets)
            elif sign > 0:
                together[buffer.name] = buffer
            else:
                del together[buffer.name]
        yield position, apart + _union(plan, together), everywhere or highest > 0


def _union(plan: Plan, buffers: Mapping[str, Buffer]) -> int:
    """Return how many bytes belong to at least one of the buffers."""
    occupied = reached = 0
    for begin, end in sorted(
        (at, at + buffer.size) for name, buffer in buffers.items() for at in plan.offsets[name]
    ):
        occupied += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return occupied
