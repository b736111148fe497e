# SPDX-License-Identifier: Apache-2.0
"""Placements of buffers beside the lines of the program; this module knows no TVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from passes.planning import Problem, TextPlaces, does_not_fit
from tvm_ext.planned.placements import PlannedProblem, PlannedRun


@dataclass(frozen=True)
class Listing(TextPlaces):
    """The text of a function, and where its positions are in it."""

    name: str  # The function's name
    rules: tuple[int, ...] = ()  # The lines with a rule above them, across all maps: barriers


@dataclass(frozen=True)
class BufferNote:
    """What is known of a buffer besides its problem."""

    label: str = ""  # A shorter name; empty for the buffer's own
    what: str = ""  # The type of its elements and its shape, or the operator that makes it
    allocated: int | None = None  # The line of the listing that allocates it
    reads: tuple[int, ...] = ()  # The lines that read it
    writes: tuple[int, ...] = ()  # The lines that write it
    pipes: tuple[str, ...] = ()  # The pipelines that touch it, sorted


@dataclass(frozen=True, eq=False)
class ScopeMap:
    """One memory of one function, as each planner fills it."""

    function: str  # The function's name, or the file's
    placements: tuple[PlannedProblem, ...]  # At least one. All have the same buffers.
    listing: Listing | None = None  # The function's text, where it has one
    notes: Mapping[str, BufferNote] = field(default_factory=dict)  # By the name of the buffer
    rules: str = ""  # For messages: the rules of the target that the lower bound rests on
    form: str = ""  # Of a network: in which form the device takes a plan, and why
    unit: str = ""  # Bytes are for each of this product of symbolic dimensions; empty for bytes

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

    @property
    def labels(self) -> dict[str, str]:
        """What a picture calls each buffer, by its name, where its notes have a label."""
        return {name: note.label for name, note in self.notes.items() if note.label}

    @property
    def bound(self) -> int:
        """Bytes that no plan's peak can be below."""
        return self.placements[0].bound

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


Shown = ScopeMap | PlannedRun | str
"""The parts of a map; a text names an allocation that is not planned, and why."""
