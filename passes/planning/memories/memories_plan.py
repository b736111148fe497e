# SPDX-License-Identifier: Apache-2.0
"""What is decided for several memories: the memory and the offset of each buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from passes.planning.buffer import LiveRange
from passes.planning.html_table import html_table
from passes.planning.plan import Status


@dataclass(frozen=True)
class Stay:
    """A part of a buffer's life that it spends in a faster memory than its own."""

    memory: str  # The name of the faster memory
    offsets: tuple[int, ...]  # Bytes from the start of that memory, one a slot
    live: LiveRange  # From the start of the copy in, or the first touch, to the end of the copy out


@dataclass(frozen=True)
class Copy:
    """A transfer of a whole buffer between two memories, beside the operators that run then.

    It may start with position `begin` and has to be over when position `end` starts.
    """

    buffer: str
    source: str
    target: str
    size: int  # Bytes, of all slots
    begin: int
    end: int


@dataclass(frozen=True)
class MemoriesPlan:
    """A memory and an offset for each buffer.

    Parameters
    ----------
    memory : mapping of str to str
        The memory of each buffer, by name.
    offsets : mapping of str to tuple of int
        Bytes from the start of that memory, one a slot.
    moved : mapping of str to int
        Bytes that a run moves over the bus of each memory.
    bound : tuple of int
        Bytes that no plan is below, over each bus, the last memory's first. Each number holds for
        plans that are at the bound in those before it.
    peaks : mapping of str to int
        The highest end of any buffer in each memory, in bytes.
    status : Status
        `OPTIMAL`: no plan moves fewer bytes. `INFEASIBLE` and `NOT_FOUND`: it does not fit.
    planner : str
        What chose the memories.
    stays : mapping of str to tuple of Stay
        For a buffer that moves, the parts of its life in faster memories; `memory` and `offsets`
        then say where it lies for good.
    copies : tuple of Copy
        The transfers of buffers that move, by begin.
    """

    memory: Mapping[str, str]
    offsets: Mapping[str, tuple[int, ...]]
    moved: Mapping[str, int]
    bound: tuple[int, ...]
    peaks: Mapping[str, int]
    status: Status
    planner: str
    stays: Mapping[str, tuple[Stay, ...]]
    copies: tuple[Copy, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every buffer lies within the capacity of its memory."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)

    def __str__(self) -> str:
        """Say in a line what moves, and what is known of the plan."""
        moved = ", ".join(f"{nbytes:,} bytes over {name}" for name, nbytes in self.moved.items())
        return f"plan by {self.planner}: {len(self.memory):,} buffers, {moved}, {self.status.value}"

    def _repr_html_(self) -> str:
        """Return a table of memories and offsets, for a notebook."""
        rows = (
            (name, memory, ", ".join(f"{offset:,}" for offset in self.offsets[name]))
            for name, memory in self.memory.items()
        )
        return html_table(str(self), ("buffer", "memory", "offsets in bytes"), rows)
