# SPDX-License-Identifier: Apache-2.0
"""A memory map: all that is shown of a program's memory."""

from __future__ import annotations

from dataclasses import dataclass

from passes.planning.html_table import html_table
from tvm_ext.map.html_page import html_page, in_a_frame, page_data
from tvm_ext.map.model import PlannedRun, ScopeMap


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """All that is shown of a program's memory.

    Raises
    ------
    ValueError
        If there is nothing to show.
    """

    title: str
    """What the program is called."""
    scopes: tuple[ScopeMap, ...]
    """At least one."""
    runs: tuple[PlannedRun, ...] = ()
    """Simulations, for chips whose pipelines are described."""
    left: tuple[str, ...] = ()
    """One line for each allocation that is not planned: which and why."""

    def __post_init__(self) -> None:
        if not self.scopes:
            left = f": {'; '.join(self.left)}" if self.left else ""
            raise ValueError(f"{self.title}: there is no buffer to plan{left}")

    @property
    def planners(self) -> tuple[str, ...]:
        """The planners, in the order in which they were asked."""
        return tuple(dict.fromkeys(p.planner for scope in self.scopes for p in scope.placements))

    def __str__(self) -> str:
        """Say in a line what the map shows."""
        memories = f"{len(self.scopes)} memor{'y' if len(self.scopes) == 1 else 'ies'}"
        return f"memory map of {self.title}: {memories}, by {', '.join(self.planners)}"

    def page(self) -> str:
        """Return the map as a page of HTML, which needs neither a network nor a server."""
        return html_page(self.title, page_data(self.title, self.scopes, self.runs, self.left))

    def _repr_html_(self) -> str:
        """Return a table of the memories, and the page in a frame, for a notebook."""
        rows = (
            (
                f"{scope.function}, {scope.name}",
                placement.label,
                f"{placement.plan.peak:,}",
                f"{scope.bound():,}",
                "" if scope.capacity is None else f"{scope.capacity:,}",
            )
            for scope in self.scopes
            for placement in scope.placements
        )
        header = ("memory", "planner", "bytes", "lower bound", "capacity")
        return html_table(str(self), header, rows) + in_a_frame(self.title, self.page())
