# SPDX-License-Identifier: Apache-2.0
"""Data of `StorageRewrite`: the linear access sequence, and storage entries.

These are the data types of the mirrored pass. Its plan is of *storage entries*
that allocations share, not of offsets, so it has types of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from target_hw.storage_scope import StorageScope


@dataclass(frozen=True)
class ElementType:
    """The element type of an allocation."""

    scalar: str  # The type of one lane, as TVM spells it: ``float32``
    bits: int  # Bits of one lane
    # Lanes of one element; negative for a scalable vector, whose count only the chip knows.
    lanes: int

    @cached_property
    def is_scalable(self) -> bool:
        """Whether the number of lanes is known at run time only."""
        return self.lanes < 0

    @cached_property
    def nbits(self) -> int:
        """Bits of one element; 0 when it is scalable."""
        return self.bits * max(self.lanes, 0)


class AllocEntry(NamedTuple):
    """One allocation of the function, as the planner sees it."""

    name: str  # The buffer's name, for messages
    scope: StorageScope  # Where it lives
    element: ElementType  # The type of its elements
    is_symbolic: bool  # Whether an extent is not constant
    const_nbits: int  # Its size in bits; 0 when that is not known before the program runs
    # Rank of the allocation's shape; only flat (rank 1) memory is shared.
    num_physical_dimensions: int
    is_volatile: bool  # Whether something other than the program reads or writes it


class StmtKind(Enum):
    """The role of a statement of the linear sequence for the planner."""

    STORE = "store"
    LEAF = "leaf"
    NEST = "nest"
    OPAQUE = "opaque"
    PARALLEL = "parallel"
    THREAD = "thread"


@dataclass(slots=True, eq=False)
class StmtEntry:
    """A point of the linear access sequence.

    A leaf statement has one entry. A statement with a body has two, before and
    after its body; what it touched stands in the second.
    """

    key: int  # Tells statements apart: the entries of one statement have one key
    kind: StmtKind  # Its role for the planner
    touched: list[int]  # Allocations that it reads or writes, by index, in order, with repeats
    # The accesses inside it, as a half-open range of the list of all accesses; of a statement with
    # a body, the first entry has them.
    first_access: int
    last_access: int
    # 0 for a leaf; else the way from this entry to its other half, in entries.
    scope_pair_offset: int = 0


@dataclass(slots=True)
class EventEntry:
    """The allocations, by index, whose life begins (gen) or ends (kill) at a statement."""

    gen: list[int] = field(default_factory=list)
    kill: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class StorageEntry:
    """One piece of memory, shared by the allocations that live in it one after the other."""

    # Position of the thread scope that owns the memory; None for the whole function.
    attach_scope: int | None
    scope: StorageScope  # Where it lives
    element: ElementType  # The type of the allocation that it was made for
    const_nbits: int  # Size in bits; 0 when symbolic
    # The allocations in it, by index, in the order in which they came.
    allocs: list[int] = field(default_factory=list)
    is_volatile: bool = False  # Whether any of them is
    # The entry into which this one is packed: memory of a special tag is one allocation.
    parent: StorageEntry | None = None
    bits_offset: int = 0  # Where it begins in `parent`, in bits
    children: list[StorageEntry] = field(default_factory=list)  # The entries packed into this one
    packed_nbits: int = 0  # Size in bits with all `children`; 0 when there are none


@dataclass(frozen=True)
class StoragePlan:
    """The storage entry of each allocation."""

    entries: list[StorageEntry]  # In the order in which they were made
    entry_of: dict[int, StorageEntry]  # Entry of each allocation that the program uses, by index
