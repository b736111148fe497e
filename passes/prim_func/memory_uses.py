# SPDX-License-Identifier: Apache-2.0
"""Uses of each allocation's memory: through which names, as which types, by which threads.

The linear access sequence says *when* memory is touched. This module finds which pointers to it are
kept beyond the statement that makes them, and where stores write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from passes.ir import (
    FunctionAccesses,
    LinearAccess,
    MemoryAccess,
    does_not_wrap,
    find_accesses,
    items,
    tir,
)
from passes.ir.operators import is_tvm_access_ptr, masked_index
from passes.prim_func.carried_values import carrying_loops

DEFAULT_ALIGNMENT = 64
"""Default alignment in bytes, for a memory that no target describes.

TVM's runtime gives every allocation this alignment (``kAllocAlignment``), and extern code may
count on it.
"""

VECTOR_ALIGNMENT = 64
"""The most alignment in bytes that a wide access asks for: that of a cache line."""


@dataclass(eq=False, slots=True)
class AllocationUses:
    """One allocation of a function, and how its memory is used."""

    index: int  # In ``access.allocs``
    statement: tir.Allocation
    count: int = 0  # In how many places of the body its statement stands
    # The handle of the innermost parallel loop, parallel region or thread extent around it: each
    # iteration or thread has memory of its own. None for the whole function.
    owner: int | None = None
    # Whether its owner has several threads that run at the same time on this memory. A block of one
    # thread has memory of its own.
    by_threads: bool = False
    # The innermost loop around it, whose iterations take turns with its slots.
    loop: tir.Loop | tir.While | None = None
    # The outermost loop around it that may carry a value in it from one round to the next.
    carrying: tir.Loop | tir.While | None = None
    # The element types by which indices count: those of its names and of pointers into it.
    dtypes: dict[Any, None] = field(default_factory=dict)
    accessed: dict[Any, None] = field(default_factory=dict)  # The types of its loads and stores
    # The types of its indices, and of the offsets of pointers into it.
    indexed: dict[Any, None] = field(default_factory=dict)
    # Its other names: buffers declared on its memory.
    aliases: list[tir.Var] = field(default_factory=list)
    stores: list[MemoryAccess] = field(default_factory=list)  # Where it is written by a store
    # Where its address is handed on, so that not all accesses are seen.
    handed_on: list[MemoryAccess] = field(default_factory=list)
    # Whether something may keep its address beyond a statement, or go on reading or writing it.
    escapes: bool = False

    def alignment(self, growth: Callable[[Any], int] = lambda _dtype: 1) -> int:
        """Return the bytes that an offset of its memory is a multiple of.

        `growth` says how many times as wide as declared the elements of a type are.
        """
        alignment = asked_alignment(self.statement.buffer) or 1
        for dtype in self.dtypes:
            nbytes = -(-dtype.bits * growth(dtype) * dtype.lanes // 8)
            alignment = math.lcm(alignment, max(1, nbytes))
        for dtype in self.accessed:
            width = -(-dtype.bits * growth(dtype) * max(dtype.lanes, 1) // 8)
            power_of_two = 1 << max(width - 1, 0).bit_length()
            alignment = math.lcm(alignment, min(power_of_two, VECTOR_ALIGNMENT))
        return alignment

    @property
    def widths(self) -> list[int]:
        """Return the bits of the elements that an index of the memory can count, in order."""
        return sorted({dtype.bits * dtype.lanes for dtype in self.dtypes})

    @property
    def has_movable_indices(self) -> bool:
        """Whether something may be added to each index: narrow and unsigned types would wrap."""
        return all(does_not_wrap(dtype) for dtype in self.indexed)


def asked_alignment(buffer: tir.Var) -> int | None:
    """Return the alignment in bytes that the program asks for; None for TVM's default.

    TVM writes `DEFAULT_ALIGNMENT` into each buffer that asks for none, so a program that asks for
    just that is no different from one that asks for nothing.
    """
    alignment = int(buffer.ty.data_alignment)
    return None if alignment == DEFAULT_ALIGNMENT else alignment


def find_memory_uses(
    access: LinearAccess, lasting: frozenset[str] = frozenset()
) -> tuple[AllocationUses, ...]:
    """List how memory is used, by the index of the allocation in ``access.allocs``.

    A pointer that is an argument of a call in an `Evaluate` statement, or in the bounds or the
    condition of a statement, is lent for the time of that statement: extern code keeps no
    pointers. Anywhere else, in a `Bind`, a `Return`, the value of a store, an attribute, a `Let`,
    or a buffer declared on a computed address, it may be kept, and the memory *escapes*. So does
    what is given to a call whose effect may end after it returns, such as an asynchronous copy,
    what is read or written where TVM makes such copies of loads and stores, and in what all threads
    of a CPU run. `lasting` is that of `is_done_on_return`.

    ValueError is raised when one name is declared for the memory of two allocations, a thread
    extent begins inside another scope of threads, or a loop is still bound to a thread.
    """
    return memory_uses(access, find_accesses(access, lasting))


def memory_uses(access: LinearAccess, found: FunctionAccesses) -> tuple[AllocationUses, ...]:
    """Return how memory is used, by the accesses of a function."""
    uses = tuple(map(partial(_uses, found), access.alloc_stmts, range(len(access.allocs))))
    in_loops = [each.index for each in uses if each.loop is not None]
    for index, loop in carrying_loops(access, found, in_loops).items():
        uses[index].carrying = loop
    return uses


def _uses(found: FunctionAccesses, statement: tir.Allocation, index: int) -> AllocationUses:
    of = found.of[index]
    uses = AllocationUses(index, statement, len(of.made), of.owner, of.owner in found.threaded)
    around = [enclosure.op for enclosure in of.made[-1]]
    loops = [op for op in around if isinstance(op, (tir.Loop, tir.While))]
    uses.loop = loops[-1] if loops else None
    uses.aliases = of.aliases
    for name in (statement.buffer, *of.aliases):
        uses.dtypes[name.ty.dtype.dtype] = None
    for each in of.accesses:
        uses.escapes |= each.escapes
        if each.is_address:
            uses.handed_on.append(each)
        if is_tvm_access_ptr(each.op):
            uses.dtypes[each.dtype] = None
            uses.indexed[each.index.ty.dtype] = None
            continue
        indices = [each.index] if type(each.op) is tir.Call else []
        value = each.op
        if isinstance(each.op, tir.Store):
            uses.stores.append(each)
            value = each.op.value
        elif masked_index(each.op) == 2:
            value = each.op.args[1]
        if not isinstance(each.op, (tir.Var, tir.Call)):
            indices = items(each.op.indices)
        if type(each.op) is not tir.Var:
            uses.accessed[value.ty.dtype] = None
            uses.indexed.update((index.ty.dtype, None) for index in indices)
    return uses
