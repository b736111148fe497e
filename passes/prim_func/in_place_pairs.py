# SPDX-License-Identifier: Apache-2.0
"""Results that may be written in place of an operand that dies in the same statement.

TVM's `InplaceOpVerifier` checks that a store reads the source at the index at which it writes the
destination. It assumes that no element is written twice and that nothing else accesses either
buffer. Here each access to the source is compared with each store to the destination in the
statement: wherever they meet, it must come first. A pair is refused unless that is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from passes.ir import FunctionAccesses, LinearAccess, MemoryAccess, has_any, items, tir
from passes.prim_func.element_accesses import ElementAccess, ElementAccesses
from passes.prim_func.element_order import comes_first
from passes.prim_func.memory_uses import AllocationUses


class InPlacePairs:
    """Decides whether one allocation may take the place of another within a statement."""

    def __init__(
        self, access: LinearAccess, found: FunctionAccesses, uses: Sequence[AllocationUses]
    ) -> None:
        self._access, self._found, self._uses = access, found, uses

    def allows(self, position: int, destination: int, source: int) -> bool:
        """Say whether `destination` may have the offset of `source`: two allocations, by index.

        `position` is that of the statement in which the life of `destination` begins and that of
        `source` ends; of one with a body, its first entry. No access to an element of the source
        follows a store to its place in the destination:

        - every touch of either there is a load or a store by its own name, and no address is taken;
        - both have elements of one width, or the source's are a multiple as wide;
        - each access to the source comes before each store to its place (`comes_first`), or is a
          load, and the store writes there what stands there;
        - no other thread runs the statement on the same memory.
        """
        stmt = self._access.sequence[position]
        touched = self._access.sequence[position + stmt.scope_pair_offset].touched
        if not {destination, source} <= {*touched} or not self._have_plain_uses(
            destination, source
        ):
            return False
        key = stmt.key
        around = next((at for s in self._uses[destination].stores if (at := _place(s, key))), None)
        if around is None:
            return False
        depth = len(around) - 1
        found = []
        for index in (source, destination):
            name = self._access.alloc_stmts[index].buffer
            inside = [a for a in self._found.of[index].accesses if _place(a, key) == around]
            if not inside or any(a.is_address or not a.buffer.same_as(name) for a in inside):
                return False
            found.append(inside)
        elements = ElementAccesses(self._found, depth)
        others = [*elements.of(found[0])]
        stores = [each for each in elements.of(found[1]) if isinstance(each.op, tir.Store)]
        allocs, over = self._access.allocs, self._access.alloc_keys[source]
        ratio = allocs[source].element.bits // allocs[destination].element.bits
        return all(
            comes_first(other, store, ratio)
            or (isinstance(other.op, tir.Load) and _stores_what_it_loads(store, over))
            for other, store in product(others, stores)
        )

    def _have_plain_uses(self, destination: int, source: int) -> bool:
        """Return whether both have elements of whole bytes that divide, and all uses are seen.

        Memory that is volatile, that threads share or whose address is kept is used at any time.
        """
        allocs = [self._access.allocs[index] for index in (destination, source)]
        written, read = (alloc.element for alloc in allocs)
        if written.lanes != read.lanes or written.bits % 8 or read.bits % written.bits:
            return False
        both = zip((self._uses[destination], self._uses[source]), allocs, strict=True)
        return not any(
            uses.escapes
            or alloc.is_volatile
            or (uses.by_threads and alloc.scope.is_shared_by_threads)
            for uses, alloc in both
        )


def _stores_what_it_loads(store: ElementAccess, source: int) -> bool:
    """Return whether a store writes the element of `source` that has the same index."""
    value, indices = store.op.value, items(store.op.indices)
    return (
        isinstance(value, tir.Load)
        and value.source.__chandle__() == source
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
