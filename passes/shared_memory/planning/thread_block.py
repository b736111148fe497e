# SPDX-License-Identifier: Apache-2.0
"""What the threads of a block do with the memory that they share, as plain data.

A kernel is a sequence of steps that each thread takes. A step is an event, a loop or a branch. Who
takes which branch and how often a loop runs is not said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
