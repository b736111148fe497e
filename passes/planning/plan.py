# SPDX-License-Identifier: Apache-2.0
"""The decision of a planner: an offset for each slot of each buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from passes.planning.html_table import html_table


class Status(Enum):
    """The proof status of a plan."""

    OPTIMAL = "optimal"
    """It fits, and no plan has less penalty, nor as little with a lower peak."""
    FEASIBLE = "feasible"
    """It fits; a better plan may exist."""
    INFEASIBLE = "infeasible"
    """No plan fits the capacity: this is proven. The offsets show what was needed."""
    NOT_FOUND = "not found"
    """This plan does not fit the capacity; whether another one does is open."""


@dataclass(frozen=True)
class Reuse:
    """At which reuse level a buffer was placed, and why not at a better one.

    Parameters
    ----------
    level : int
        2: it takes no bytes that another pipeline uses in the same loop. 1: it takes all slots of
        a multi-buffered one there, in step with it. 0: it shares wherever live ranges allow.
    reason : str
        Why it fell, in a few words; empty if it shares with nothing on another pipeline.
    """

    level: int
    reason: str = ""


class OffsetColumn(Mapping[str, tuple[int, ...]]):
    """The offset of each buffer of a table, kept as an array until somebody asks for one."""

    def __init__(self, names: Sequence[str], column: npt.NDArray[np.int64]) -> None:
        self.names, self.column = names, column

    @cached_property
    def _by_name(self) -> dict[str, tuple[int, ...]]:
        return dict(zip(self.names, zip(self.column.tolist()), strict=True))

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return repr(self._by_name)


@dataclass(frozen=True)
class Plan:
    """An offset for each slot of each buffer.

    A plan is complete even when it does not fit the capacity, so that a message can say how many
    bytes were needed and what was live at the peak.

    Parameters
    ----------
    offsets : mapping of str to tuple of int
        Bytes from the start of the memory, one a slot, by buffer name. A buffer that a loop's
        iterations can take turns with may have more offsets than the slots that it asks for; its
        value then moves from one to the next with each iteration, and all of them are its own for
        as long as it lives.
    peak : int
        The highest end of any buffer, in bytes.
    penalty : int
        Sum of the costs of the penalties whose buffers share bytes.
    planner : str
        Name of the planner that made it.
    status : Status
        What is known of it.
    nodes : int
        Placements that a search tried; zero for planners that do not search.
    reuse : mapping of str to Reuse
        By buffer name; empty from planners that know no levels.
    bytes_without_sharing : int, optional
        Bytes that the planner needs to let no two pipelines share any; None where it does not say.
    """

    offsets: Mapping[str, tuple[int, ...]]
    peak: int
    penalty: int
    planner: str
    status: Status
    nodes: int = 0
    reuse: Mapping[str, Reuse] = field(default_factory=dict)
    bytes_without_sharing: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the plan is within the capacity."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)

    def __str__(self) -> str:
        """Say in a line what the plan takes, and what is known of it."""
        cost = f", penalty {self.penalty:,}" if self.penalty else ""
        return (
            f"plan by {self.planner}: {len(self.offsets):,} buffers in {self.peak:,} bytes{cost}, "
            f"{self.status.value}"
        )

    def _repr_html_(self) -> str:
        """Return a table of the offsets, for a notebook."""
        rows = ((name, ", ".join(f"{o:,}" for o in at)) for name, at in self.offsets.items())
        return html_table(str(self), ("buffer", "offsets in bytes"), rows)
