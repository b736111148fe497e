# SPDX-License-Identifier: Apache-2.0
"""What the threads of a block do with the memory that they share, as plain data.

A kernel is a sequence of steps that each thread takes. A step is an event, a loop or a branch. Who
takes which branch and how often a loop runs is not said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class What(Enum):
    """What happens at an event."""

    BEGIN = "begin"  # The buffers hold no value any more: they are allocated anew
    READ = "read"
    WRITE = "write"
    # An asynchronous copy writes the buffers from here on, until it is waited for.
    COPY = "copy"
    COMMIT = "commit"  # The thread's copies since the last commit become a group
    # The thread waits until at most `pending` of its groups of copies are not done.
    WAIT = "wait"
    BARRIER = "barrier"  # All threads of the block meet, and each sees what the others wrote
    PLACE = "place"  # All threads of the block come by: a barrier might stand here


@dataclass(frozen=True)
class Event:
    """One thing that a thread does."""

    what: What
    buffers: tuple[str, ...] = ()
    # Groups of copies that a `WAIT` may leave undone; -1 where it waits for copies of no group too.
    pending: int = 0
    # Of which statement it is, or which `PLACE`, in the kernel's own numbers; -1 if not known.
    number: int = -1
    loops: int = 0  # How many loops are around a `PLACE`


@dataclass(frozen=True)
class EventLoop:
    """Steps that a thread repeats."""

    body: tuple[Step, ...]
    may_skip: bool = True  # Whether it may run not even once


@dataclass(frozen=True)
class EventBranch:
    """Steps of which a thread takes one arm."""

    arms: tuple[tuple[Step, ...], ...]


Step = Event | EventLoop | EventBranch


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer that the threads of a block share."""

    name: str
    size: int  # Bytes
    alignment: int = 1  # Bytes
    # Whether not all that happens to it is known, so that nothing else may have its bytes.
    is_kept: bool = False


@dataclass(frozen=True)
class ThreadBlock:
    """What one block of threads does with one memory."""

    name: str
    buffers: tuple[SharedBuffer, ...]
    steps: tuple[Step, ...]  # They may name other buffers too, of other memories

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ThreadBlock:
        """Read lists, maps, strings and integers, such as JSON holds.

        ValueError says which step is none.
        """
        buffers = tuple(SharedBuffer(name, *facts) for name, facts in plain["buffers"].items())
        return cls(plain["name"], buffers, _steps(plain["steps"]))


def _steps(plain: Sequence[Any]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for step in plain:
        if isinstance(step, Mapping) and "loop" in step:
            steps.append(EventLoop(_steps(step["loop"]), bool(step.get("may_skip", True))))
        elif isinstance(step, Mapping) and "branch" in step:
            steps.append(EventBranch(tuple(map(_steps, step["branch"]))))
        elif isinstance(step, Sequence) and step and not isinstance(step, str):
            steps.append(Event(What(step[0]), tuple(step[1] if step[1:] else ()), *step[2:]))
        else:
            raise ValueError(f"a step must be an event, a loop or a branch, got {step!r}")
    return tuple(steps)
