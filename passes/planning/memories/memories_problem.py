# SPDX-License-Identifier: Apache-2.0
"""Several memories: which buffer lies in which, so that the fewest bytes move, and the plan of it.

Sizes, offsets and costs are in bytes. Positions are indices in a sequence of operators, and every
range is half-open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from passes.planning.buffer import ADDRESS_LIMIT, Buffer, LiveRange
from passes.planning.html_table import html_table
from passes.planning.plan import Status
from passes.planning.problem import Problem
from target_hw.memory import MemoryScope, is_byte_count, settle


@dataclass(frozen=True)
class Traffic:
    """The bytes that a run moves for one buffer, and the memories where it may lie.

    Parameters
    ----------
    uses : int, optional
        How often a run writes or reads the whole buffer: 1 by default, or as many as `touches`.
    touches : tuple of int
        The positions of these uses, ascending, inside the live range; empty where they are not
        known. A buffer whose touches are known can leave a fast memory between two of them.
    costs : mapping of str to int
        Bytes that a run moves if the buffer lies in a memory, by the memory's name. Where it has
        no entry, the cost is zero in the fastest memory and `uses` times the buffer's bytes in
        each other memory.
    memories : tuple of str, optional
        The memories that the buffer may lie in; None stands for all. One name pins it.
    stored_in : str, optional
        A memory that holds the value before the run, such as that of a weight, so that the first
        touch is a read and the value never has to be written there.

    Raises
    ------
    ValueError
        If a number is malformed or negative, or the fields contradict each other.
    """

    uses: int | None = None
    touches: tuple[int, ...] = ()
    costs: Mapping[str, int] = field(default_factory=dict)
    memories: tuple[str, ...] | None = None
    stored_in: str | None = None

    def __post_init__(self) -> None:
        touches = tuple(self.touches)
        if list(touches) != sorted(set(touches)) or not all(map(is_byte_count, touches)):
            raise ValueError(f"traffic: touches must be ascending positions, got {touches!r}")
        uses = (len(touches) or 1) if self.uses is None else self.uses
        if not is_byte_count(uses) or not 0 <= uses < ADDRESS_LIMIT:
            raise ValueError(f"traffic: uses must be an integer from 0, got {uses!r}")
        if touches and uses != len(touches):
            raise ValueError(f"traffic: {uses} uses, but {len(touches)} touches")
        for name, cost in self.costs.items():
            if not is_byte_count(cost) or not 0 <= cost < ADDRESS_LIMIT:
                raise ValueError(f"traffic: the cost in {name!r} must be from 0, got {cost!r}")
        object.__setattr__(self, "touches", touches)
        object.__setattr__(self, "uses", uses)
        if self.memories is not None:
            object.__setattr__(self, "memories", tuple(self.memories))


@dataclass(frozen=True)
class MemoriesProblem:
    """Buffers, and the memories that they can lie in.

    The best plan moves the fewest bytes over the bus of the last memory, then over that of the one
    before it, and so on.

    Parameters
    ----------
    buffers : tuple of Buffer
        A pinned offset needs a buffer that is pinned to one memory.
    memories : tuple of MemoryScope
        The fastest first. A memory without a capacity takes everything.
    traffic : mapping of str to Traffic
        By buffer; one that is not named has `Traffic()`.
    name : str
        Where the problem comes from, for messages.

    Raises
    ------
    ValueError
        If a name is unknown or used twice, a buffer may lie nowhere, or a pin is impossible.
    """

    buffers: tuple[Buffer, ...]
    memories: tuple[MemoryScope, ...]
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    name: str = "problem"

    def __post_init__(self) -> None:
        for entry in fields(self)[:2]:
            object.__setattr__(self, entry.name, tuple(getattr(self, entry.name)))
        if not self.memories or not all(isinstance(m, MemoryScope) for m in self.memories):
            raise ValueError(f"{self.name}: memories must be MemoryScopes, got {self.memories!r}")
        names = [memory.name for memory in self.memories]
        if len(set(names)) < len(names):
            raise ValueError(f"{self.name}: two memories have one name: {', '.join(names)}")
        # A problem of one memory has the same rules for names and sizes.
        free = (replace(b, pinned=None) if isinstance(b, Buffer) else b for b in self.buffers)
        index = Problem(tuple(free), name=self.name).index
        for name, traffic in self.traffic.items():
            if name not in index:
                raise ValueError(f"{self.name}: traffic of an unknown buffer {name!r}")
            _check_traffic(self, self.buffers[index[name]], traffic)
        for buffer in self.buffers:
            if buffer.pinned is not None and len(self.allowed(buffer)) != 1:
                raise ValueError(
                    f"{self.name}: buffer {buffer.name!r} is pinned at {buffer.pinned[0]}, but not "
                    "to one memory"
                )
        for at, memory in enumerate(self.memories):
            pinned = [b for b in self.buffers if b.pinned is not None and self.allowed(b) == (at,)]
            Problem(tuple(pinned), memory, name=f"{self.name}: in {memory.name!r}")

    def traffic_of(self, buffer: Buffer) -> Traffic:
        """Return what a run moves for a buffer."""
        return self.traffic.get(buffer.name, _ONE_USE)

    def allowed(self, buffer: Buffer) -> tuple[int, ...]:
        """Return the indices of the memories that a buffer may lie in, whatever fits."""
        names = self.traffic_of(buffer).memories
        return tuple(k for k, m in enumerate(self.memories) if names is None or m.name in names)

    def cost(self, buffer: Buffer, memory: int) -> int:
        """Return the bytes that a run moves if a buffer lies in a memory all its life."""
        traffic = self.traffic_of(buffer)
        given = traffic.costs.get(self.memories[memory].name)
        if given is not None:
            return given
        assert traffic.uses is not None
        return 0 if memory == 0 else traffic.uses * buffer.size * buffer.slots

    @cached_property
    def index(self) -> dict[str, int]:
        """The place of each buffer in `buffers`, by name."""
        return {buffer.name: at for at, buffer in enumerate(self.buffers)}

    @cached_property
    def memory_index(self) -> dict[str, int]:
        """The place of each memory in `memories`, by name."""
        return {memory.name: at for at, memory in enumerate(self.memories)}

    def objective(self, moved: Mapping[str, int]) -> tuple[int, ...]:
        """Return what to minimise, first things first: the bytes over each bus, slowest first."""
        return tuple(moved.get(memory.name, 0) for memory in reversed(self.memories))

    def __str__(self) -> str:
        """Say in a line what competes for which memories."""
        shown = ", ".join(
            m.name + ("" if m.capacity is None else f" of {m.capacity:,} bytes")
            for m in self.memories
        )
        return f"{self.name}: {len(self.buffers):,} buffers in {shown}"


_ONE_USE = Traffic()


def _check_traffic(problem: MemoriesProblem, buffer: Buffer, traffic: object) -> None:
    where = f"{problem.name}: traffic of {buffer.name!r}"
    if not isinstance(traffic, Traffic):
        raise ValueError(f"{where} must be a Traffic, got {traffic!r}")
    stored = () if traffic.stored_in is None else (traffic.stored_in,)
    names: tuple[Any, ...] = (*traffic.costs, *(traffic.memories or ()), *stored)
    known = [memory.name for memory in problem.memories]
    for name in names:
        if name not in known:
            raise ValueError(f"{where}: no memory {name!r}; there are: {', '.join(known)}")
    if traffic.memories == ():
        raise ValueError(f"{where}: it may lie in no memory")
    for touch in traffic.touches:
        if not any(begin <= touch < end for begin, end in buffer.live):
            raise ValueError(f"{where}: it is touched at {touch}, where it does not live")


def units(memory: MemoryScope, unit: int) -> int | None:
    """Return how many units of bytes buffers can start or go on in; None without a capacity.

    Offsets are multiples of `unit`, so that a buffer takes a unit exactly if it takes the unit's
    first byte: those units count whose first byte is below the capacity, and not reserved.
    """
    if memory.capacity is None:
        return None
    reserved = sum(-(-end // unit) - -(-begin // unit) for begin, end in memory.reserved)
    return -(-memory.capacity // unit) - reserved


def end_alone(buffer: Buffer, memory: MemoryScope) -> int:
    """Return the byte at which one slot of a buffer ends in a memory, were it alone there."""
    alignment = math.lcm(buffer.alignment, memory.alignment)
    return settle(0, buffer.size, alignment, memory.reserved) + buffer.size if buffer.size else 0


def fits_alone(buffer: Buffer, memory: MemoryScope) -> bool:
    """Return whether some offset of a memory has room for one slot of a buffer, were it alone."""
    return memory.capacity is None or end_alone(buffer, memory) <= memory.capacity


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
