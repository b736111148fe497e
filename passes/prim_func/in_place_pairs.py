# SPDX-License-Identifier: Apache-2.0
"""Results that may be written in place of an operand that dies in the same statement.

TVM's `InplaceOpVerifier` checks that a store reads the source at the index at which it writes the
destination. It assumes that no element is written twice and that nothing else accesses either
buffer. Here each access to the source is compared with each store to the destination in the
statement: wherever they meet, it must come first. A pair is refused unless that is shown.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from passes.ir import (
    AllocationUses,
    ElementAccess,
    ElementAccesses,
    FunctionAccesses,
    LinearAccess,
    MemoryAccess,
    has_any,
    items,
    tir,
)
from passes.prim_func.element_order import comes_first
from passes.prim_func.thread_races import is_shared


def may_be_in_place(
    access: LinearAccess,
    found: FunctionAccesses,
    position: int,
    destination: AllocationUses,
    source: AllocationUses,
) -> bool:
    """Say whether an allocation may take the offset of another within a statement.

    `position` is that of the statement in which the life of `destination` begins and that of
    `source` ends; of one with a body, its first entry. No access to an element of the source
    follows a store to its place in the destination:

    - every touch of either there is a load or a store by its own name, and no address is taken;
    - both have elements of one width, or the source's are a multiple as wide;
    - each access to the source comes before each store to its place (`comes_first`), or is a load,
      and the store writes there what stands there;
    - no other thread runs the statement on the same memory.
    """
    stmt = access.sequence[position]
    touched = access.sequence[position + stmt.scope_pair_offset].touched
    if not {destination.index, source.index} <= {*touched}:
        return False
    written, read = (uses.alloc.element for uses in (destination, source))
    if written.lanes != read.lanes or written.bits % 8 or read.bits % written.bits:
        return False
    if any(map(_is_used_at_any_time, (destination, source))):
        return False
    around = next((at for s in destination.stores if (at := _place(s, stmt.key))), None)
    if around is None:
        return False
    inside = [
        [each for each in uses.accesses if _place(each, stmt.key) == around]
        for uses in (source, destination)
    ]
    for uses, accesses in zip((source, destination), inside, strict=True):
        if not accesses or any(
            each.is_address or not each.buffer.same_as(uses.buffer) for each in accesses
        ):
            return False
    elements = ElementAccesses(found, len(around) - 1)
    others, writing = ([*elements.of(accesses)] for accesses in inside)
    return all(
        comes_first(other, store, read.bits // written.bits)
        or (isinstance(other.op, tir.Load) and _stores_what_it_loads(store, source.buffer))
        for other, store in product(others, writing)
        if isinstance(store.op, tir.Store)
    )


def _is_used_at_any_time(uses: AllocationUses) -> bool:
    """Return whether not all uses are seen in their order."""
    return uses.escapes or uses.alloc.is_volatile or is_shared(uses)


def _stores_what_it_loads(store: ElementAccess, source: tir.Var) -> bool:
    """Return whether a store writes the element of `source` that has the same index."""
    value, indices = store.op.value, items(store.op.indices)
    return (
        isinstance(value, tir.Load)
        and value.source.same_as(source)
        and bool(tir.expr_deep_equal(items(value.indices)[0], indices[0]))
        and not has_any(indices[0], tir.Load, tir.Call)
    )


def _place(access: MemoryAccess, key: int) -> tuple[Any, ...] | None:
    """Return what tells the visit of a statement around an access from others; None for others."""
    numbers = [each.number for each in access.around if isinstance(each.op, tir.Statement)]
    for depth, each in enumerate(access.around):
        if each.op.__chandle__() == key:
            return (*numbers[: depth + 1],)
    if access.statement.__chandle__() == key:
        return (*numbers, key)
    return None
