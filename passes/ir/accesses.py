# SPDX-License-Identifier: Apache-2.0
"""Each access of a function to memory: what it reads and writes, and what is around it.

One walk lists the loads, the stores and the addresses that are handed on, in program order, by
allocation and by statement. Its enclosures say whether an access happens in each round of a loop,
or only where a condition holds. All other questions about accesses are asked of this record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from passes.ir import tir
from passes.ir.buffers import asked_alignment, items
from passes.ir.operators import is_tvm_access_ptr, masked_index
from passes.ir.storage_entries import AllocEntry
from passes.ir.symbolic_bounds import does_not_wrap

VECTOR_ALIGNMENT = 64
"""The most alignment in bytes that a wide access asks for: that of a cache line."""


@dataclass(frozen=True, eq=False, slots=True)
class Enclosure:
    """One part of a loop, a branch, an attribute or a choice, around an access.

    Of a branch and of a choice, part 0 is the condition, part 1 is evaluated where it holds, and
    part 2 where it does not; of a `For` part 3 is the body, and of an attribute part 1.
    """

    op: Any
    part: int
    number: int  # Counts visits of nodes: one object may stand in several places


Enclosures = tuple[Enclosure, ...]
"""The enclosures of something, outermost first."""


@dataclass(frozen=True, eq=False, slots=True)
class MemoryAccess:
    """One access to memory; one that may read and write reads first."""

    buffer: tir.Var  # The name by which it is accessed
    op: Any  # The load or store, or the call or name by which its address is handed on
    reads: bool
    writes: bool
    # The index of its first element, which may be a vector; None where any may be accessed.
    index: Any
    extent: Any  # Number of elements that it accesses from there on; None for one
    dtype: Any  # The type of one element
    around: Enclosures
    statement: Any  # The innermost statement that it stands in: of a loop, in its bounds
    order: int  # Its number in the order of the program: a store comes after what it reads
    is_whole: bool  # Whether a write is of all elements that it names
    is_address: bool  # Whether its address is handed on, or an operand under a mask
    is_kept: bool  # Whether the address may be kept beyond the statement
    is_copied: bool  # Whether an asynchronous copy, which a thread waits for, is given it
    goes_on: bool  # Whether something may go on there after the statement

    @property
    def escapes(self) -> bool:
        """Whether the memory may be accessed after the statement."""
        return self.is_kept or self.is_copied or self.goes_on

    @property
    def bits(self) -> int:
        """The bits of one element."""
        return int(self.dtype.bits * max(self.dtype.lanes, 1))

    @property
    def loop_of_bounds(self) -> int | None:
        """The index in `around` of the loop in whose bounds it stands; None for others."""
        if not isinstance(self.statement, tir.Loop):
            return None
        return max(at for at, e in enumerate(self.around) if e.op.same_as(self.statement))

    @property
    def accessed(self) -> Any:
        """The type of what is loaded or stored; None where an address is handed on otherwise."""
        if type(self.op) is tir.Var or is_tvm_access_ptr(self.op):
            return None
        is_store = type(self.op) is tir.Store
        value = self.op.value if is_store else self.op
        return (self.op.args[1] if masked_index(self.op) == 2 else value).ty.dtype

    @property
    def indices(self) -> list[Any]:
        """Its indices, or the offset of a pointer."""
        if type(self.op) is tir.Var:
            return []
        return [self.index] if type(self.op) is tir.Call else items(self.op.indices)


@dataclass(eq=False)
class AllocationUses:
    """One allocation of a function, and how its memory is used."""

    index: int  # In ``LinearAccess.allocs``
    statement: tir.Allocation
    alloc: AllocEntry
    # The enclosures of each place of the body in which its statement stands.
    made: list[Enclosures] = field(default_factory=list)
    # The handle of the innermost parallel loop, parallel region or thread extent around it: each
    # iteration or thread has memory of its own. None for the whole function.
    owner: int | None = None
    # Whether its owner has several threads that run at the same time on this memory. A block of one
    # thread has memory of its own.
    by_threads: bool = False
    # The outermost loop around it that may carry a value in it from one round to the next.
    carrying: tir.Loop | tir.While | None = None
    aliases: list[tir.Var] = field(default_factory=list)  # Buffers declared on its memory
    accesses: list[MemoryAccess] = field(default_factory=list)  # In program order

    @property
    def buffer(self) -> tir.Var:
        """The buffer with which it is made."""
        return self.statement.buffer

    @property
    def scope(self) -> str:
        """Its storage scope."""
        return str(self.alloc.scope)

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The values of its statement's annotations, by name."""
        given = self.statement.annotations.items()
        return {str(name): getattr(value, "value", value) for name, value in given}

    @cached_property
    def loop(self) -> tir.Loop | tir.While | None:
        """The innermost loop around it, whose iterations take turns with its slots."""
        around = (enclosure.op for enclosure in reversed(self.made[-1]))
        return next((op for op in around if isinstance(op, (tir.Loop, tir.While))), None)

    @cached_property
    def stores(self) -> list[MemoryAccess]:
        """The accesses that are stores."""
        return [each for each in self.accesses if isinstance(each.op, tir.Store)]

    @cached_property
    def escapes(self) -> bool:
        """Whether something may keep its address beyond a statement, or go on accessing it."""
        return any(each.escapes for each in self.accesses)

    @cached_property
    def dtypes(self) -> list[Any]:
        """The element types by which indices count: those of its names and of pointers into it."""
        names = (name.ty.dtype.dtype for name in (self.buffer, *self.aliases))
        return list(dict.fromkeys([*names, *(each.dtype for each in self.accesses)]))

    @property
    def widths(self) -> list[int]:
        """The bits of the elements that an index of the memory can count, in order."""
        return sorted({dtype.bits * dtype.lanes for dtype in self.dtypes})

    @property
    def has_movable_indices(self) -> bool:
        """Whether something may be added to each index: narrow and unsigned types would wrap."""
        indices = (index for each in self.accesses for index in each.indices)
        return all(does_not_wrap(index.ty.dtype) for index in indices)

    def alignment(self, growth: Callable[[Any], int] = lambda _dtype: 1) -> int:
        """Return the bytes that an offset of its memory is a multiple of.

        `growth` says how many times as wide as declared the elements of a type are.
        """
        alignment = asked_alignment(self.buffer) or 1
        for dtype in self.dtypes:
            nbytes = -(-dtype.bits * growth(dtype) * dtype.lanes // 8)
            alignment = math.lcm(alignment, max(1, nbytes))
        accessed = dict.fromkeys(d for each in self.accesses if (d := each.accessed) is not None)
        for dtype in accessed:
            width = -(-dtype.bits * growth(dtype) * max(dtype.lanes, 1) // 8)
            power_of_two = 1 << max(width - 1, 0).bit_length()
            alignment = math.lcm(alignment, min(power_of_two, VECTOR_ALIGNMENT))
        return alignment


@dataclass(frozen=True, eq=False)
class FunctionAccesses:
    """All accesses of a function's statements to memory."""

    of: tuple[AllocationUses, ...]  # By index in `LinearAccess.allocs`
    # By the handle of the statement that each stands in, also those to memory from outside.
    by_statement: dict[int, list[MemoryAccess]]
    # By the number of an enclosure, the number of accesses up to its end.
    ends: dict[int, int]
    # Values of bound variables, with their enclosures, by the variable's handle. Of one that is
    # bound to several values the value is None; of one that is bound in several places these are.
    values: dict[int, Any]
    bound_in: dict[int, Enclosures | None]
    jumps: set[int]  # The numbers of the enclosures in which control may leave a statement
    threaded: set[int]  # The owners, by handle, whose memory several threads have at once
