# SPDX-License-Identifier: Apache-2.0
"""What a simulation finds: how long a kernel takes, and what each pipe waits for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """What a statement waits for while its pipe is idle."""

    DATA = "data"
    """A value that it reads, or the last use of the value that it replaces: the program's own."""
    SLOT = "slot"
    """The use of its buffer by an earlier iteration; one more slot would end it."""
    REUSE = "reuse"
    """The use of the same bytes by another buffer: the plan's doing."""


@dataclass(frozen=True)
class Stall:
    """Cycles that a pipe is idle because one statement waits for another, in all."""

    # What is waited for. A wait that is held by several causes counts for `DATA` until the data are
    # there, then for `SLOT`, and only what is left for `REUSE`.
    cause: Cause
    pipe: str  # The pipe that is idle
    # The statement that waits, and its buffer.
    statement: str
    buffer: str
    # The statement that it waits for, and the buffer as that one knows it.
    other_statement: str
    other_buffer: str
    cycles: int  # Idle cycles over the whole run


@dataclass(frozen=True)
class PipeTime:
    """What one pipe does over the whole run, in cycles; `busy` and `idle` make the makespan."""

    pipe: str
    busy: int
    idle: int


@dataclass(frozen=True)
class Run:
    """One statement, run once."""

    statement: str  # Its name
    index: int  # Its place among the program's statements, from 0
    pipe: str  # Where it ran
    # In cycles, half-open.
    begin: int
    end: int
    iteration: tuple[int, ...]  # That of each loop around it, from the outermost
    # The buffers that it read and wrote, and the slot of each.
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]
    # What the pipe was idle for just before, in this order, and for how many cycles.
    waits: tuple[tuple[Cause, int], ...] = ()


@dataclass(frozen=True)
class Simulation:
    """How a kernel runs under a plan."""

    makespan: int  # Cycles from the start of the first statement to the end of the last
    pipes: tuple[PipeTime, ...]  # In the machine's order; those that have something to do
    stalls: tuple[Stall, ...]  # The longest first
    runs: int  # How many statements ran, each as often as it did
    timeline: tuple[Run, ...]  # The first of them, in program order

    def idle(self, pipe: str) -> int:
        """Return the cycles that a pipe is idle; all of them for a pipe with nothing to do."""
        return next((time.idle for time in self.pipes if time.pipe == pipe), self.makespan)

    def waited(self, cause: Cause) -> int:
        """Return the cycles that pipes are idle for one cause, summed over the pipes."""
        return sum(stall.cycles for stall in self.stalls if stall.cause is cause)
