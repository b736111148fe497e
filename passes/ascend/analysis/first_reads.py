# SPDX-License-Identifier: Apache-2.0
"""Reads of memory to which nothing can have been written."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from passes.ir import AllocationUses, Enclosures, FunctionAccesses, MemoryAccess, nodes_in, tir

_BODY = 3  # The part of a loop after its bounds
_CHOICES = (tir.If, tir.Select, tir.Call)


def is_read_first(found: FunctionAccesses, uses: AllocationUses) -> bool:
    """Return whether an allocation is read before anything can have written it.

    It is not if a loop around the read writes the buffer later in its body: an earlier iteration
    may have written it. Where the read is under no condition, that loop must not be around the
    allocation, nor be one over the elements: the index of the store does not name its variable.
    Memory whose address is handed on counts as written.
    """
    writes = [access for access in uses.accesses if access.writes]
    # A statement that hands an address on may write before it reads.
    lent = [w.statement for w in writes[:1] if not isinstance(w.op, tir.Store)]
    for read in takewhile(lambda access: not access.writes, uses.accesses):
        if lent and read.statement.same_as(lent[0]):
            continue
        is_conditional = any(e.part and isinstance(e.op, _CHOICES) for e in read.around)
        own = len(_loops(uses.made[-1]))
        numbers = {loop.number for loop in _loops(read.around)[0 if is_conditional else own :]}
        if not any(
            loop.number in numbers and (is_conditional or not _names(found, write, loop.op))
            for write in writes
            for loop in _loops(write.around)
        ):
            return True
    return False


def _loops(around: Enclosures) -> Enclosures:
    """Return the loops in whose bodies something stands; a `While` reads its condition there."""
    return tuple(
        each
        for each in around
        if isinstance(each.op, tir.While) or (isinstance(each.op, tir.Loop) and each.part == _BODY)
    )


def _names(found: FunctionAccesses, write: MemoryAccess, loop: Any) -> bool:
    """Return whether the index of a store depends on the variable of a loop."""
    if not isinstance(write.op, tir.Store) or isinstance(loop, tir.While):
        return False
    waiting, seen = [*write.op.indices], set[int]()
    for expr in waiting:
        for var in nodes_in(expr, tir.Var):
            if var.same_as(loop.loop_var):
                return True
            value = found.values.get(var.__chandle__())
            if value is not None and var.__chandle__() not in seen:
                seen.add(var.__chandle__())
                waiting.append(value)
    return False
