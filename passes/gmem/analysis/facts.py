# SPDX-License-Identifier: Apache-2.0
"""What a Relax function keeps in memory, as plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm.ir import IRModule

from passes.ir.symbolic_bounds import Bound
from passes.planning import Buffer, Problem
from passes.planning.problem import LiveRange
from target_hw.memory import MemoryScope

SCOPE = "global"
"""The memory that is planned, on each device."""

MAIN_DEVICE = 0
"""The index of the device whose memory has addresses."""

Path = tuple[tuple[int, int], ...]
"""The branches that lead to a binding: the position of each `if`, and which branch was taken."""


@dataclass(frozen=True)
class Storage:
    """Memory for one tensor, or for tensors of different branches that become one value."""

    name: str  # The name of the first tensor's binding; made unique within the function
    # Bytes of the largest tensor, as its shape's upper bounds have it; in a group with a unit,
    # bytes for each of the unit.
    size: int
    live: tuple[LiveRange, ...]  # Positions from the first touch to the last, on each path
    # The names of the bindings that allocate the tensors, in program order.
    tensors: tuple[str, ...]
    path: Path = ()  # The branches that all of them stand in
    touched_at: tuple[int, ...] = ()  # The positions that read or write them, sorted

    def buffer(self) -> Buffer:
        """Return it as planners see it."""
        return Buffer(self.name, self.size, self.live)


@dataclass(frozen=True, eq=False)
class StorageGroup:
    """Storages that may share memory."""

    device: int  # The index of the device that they are on
    # What their sizes are multiples of, where that is known at run time only: a product of symbolic
    # dimensions without an upper bound. None where sizes are constant.
    unit: Any | None
    storages: tuple[Storage, ...]  # In the order in which they are first touched
    # Tensors that the function returns, of this device and unit, and of a known size: from their
    # first touch on they need memory of their own.
    returned: tuple[Storage, ...] = ()
    # Other tensors that the function returns, which the run time allocates in any case: their bytes
    # are known as an upper bound only, a branch makes them, or what is returned is a view.
    alone: tuple[Storage, ...] = ()

    @property
    def is_main(self) -> bool:
        """Whether these are the constant sizes on the main device, which have addresses."""
        return self.device == MAIN_DEVICE and self.unit is None

    def problem(self, memory: MemoryScope, function: str) -> Problem:
        """Return the storages as buffers that compete for a memory."""
        buffers = tuple(storage.buffer() for storage in self.storages)
        return Problem(buffers, memory, name=f"function {function!r}")


@dataclass(frozen=True)
class LeftToRuntime:
    """A tensor that is not planned, and why."""

    name: str  # The name of the binding, or of the parameter
    size: int | None  # Bytes, or their upper bound; None where not even that is known
    reason: str  # In a few words


@dataclass(frozen=True)
class Weight:
    """A tensor that is there before the function runs, and stays."""

    # That of the parameter (with the way into it, where it is a tuple), or ``constant_0``,
    # ``constant_1``, ... in the order in which they are first met.
    name: str
    size: int  # Bytes
    # Tells one constant's data from another's, within one process; None for a parameter.
    data: int | None = None


@dataclass(frozen=True, eq=False)
class RelaxMemory:
    """What there is to plan in one Relax function."""

    name: str  # Its global name
    mod: IRModule  # Its module
    func: relax.Function  # What was read
    groups: tuple[StorageGroup, ...]  # The main one first, also where it is empty
    left: tuple[LeftToRuntime, ...]  # In program order
    weights: tuple[Weight, ...]  # Parameters first, then constants
    bounds: tuple[Bound, ...]  # Of the symbolic dimensions that the sizes of the storages rest on
    variables: tuple[str, ...]  # The names of the symbolic dimensions of the signature, sorted
    bindings: tuple[str, ...]  # The name of the binding at each position
    calls: tuple[str, ...]  # Relax functions of the module that it calls or hands on, sorted
    hands_on: tuple[str, ...]  # Those of them that it hands on as values, sorted
    calls_unknown: bool  # Whether it calls something that may call any function that was handed on
    allocates: bool  # Whether it allocates memory of its own, which stays as it is
    branches: int  # How many ``if`` it has
    tensors: int  # How many ``R.builtin.alloc_tensor`` it has, planned or not
    # The results of operators that have yet to be lowered; they stand in `left` too.
    unlowered: tuple[LeftToRuntime, ...]
    # By handle of the variable of an allocating binding: its storage's name.
    storage_of: Mapping[int, str]

    @property
    def main(self) -> StorageGroup:
        """The storages of constant size on the main device."""
        return self.groups[0]

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Those of the main group."""
        return self.main.storages

    def all_left(self, reason: str) -> RelaxMemory:
        """Return the same with every storage left to the run time."""
        left = (
            LeftToRuntime(tensor, storage.size if group.unit is None else None, reason)
            for group in self.groups
            for storage in group.storages
            for tensor in storage.tensors
        )
        return replace(
            self,
            groups=(StorageGroup(MAIN_DEVICE, None, ()),),
            storage_of={},
            bounds=(),
            left=(*self.left, *left),
        )
