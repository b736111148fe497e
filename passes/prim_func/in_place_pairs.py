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

from passes.ir import LinearAccess, MemoryAccess, has_any, items, tir
from passes.ir.storage_entries import StmtEntry
from passes.prim_func.element_accesses import ElementAccess, element_accesses
from passes.prim_func.element_order import comes_first
from passes.prim_func.memory_uses import AllocationUses


class InPlacePairs:
    """Decides whether one allocation may take the place of another within a statement."""

    def __init__(self, access: LinearAccess, uses: Sequence[AllocationUses]) -> None:
        self._access = access
        self._uses = uses
        self._accesses: dict[int, list[ElementAccess]] = {}

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
        if not self._have_plain_uses(destination, source):
            return False
        written_at = self._uses[destination].stores
        sites = [site for site in written_at if stmt.key in _handles(_statements(site))]
        if not sites:
            return False
        keys, allocs = self._access.alloc_keys, self._access.allocs
        found = self._accesses_in(stmt, sites[0])
        last = self._access.sequence[position + stmt.scope_pair_offset]
        if not all(self._sees_all(found, last, index) for index in (destination, source)):
            return False
        written = [access for access in found if _key(access) == keys[destination]]
        stores = [access for access in written if isinstance(access.op, tir.Store)]
        others = [access for access in found if _key(access) == keys[source]]
        ratio = allocs[source].element.bits // allocs[destination].element.bits
        return all(
            comes_first(other, store, ratio)
            or (isinstance(other.op, tir.Load) and _stores_what_it_loads(store, keys[source]))
            for other, store in product(others, stores)
        )

    def _accesses_in(self, stmt: StmtEntry, site: MemoryAccess) -> list[ElementAccess]:
        """Return the accesses in a statement that has a store at `site`."""
        if stmt.key not in self._accesses:
            at = next(at for at in _statements(site) if at.__chandle__() == stmt.key)
            self._accesses[stmt.key] = element_accesses(at)
        return self._accesses[stmt.key]

    def _sees_all(self, found: Sequence[ElementAccess], stmt: StmtEntry, index: int) -> bool:
        """Return whether all touches of an allocation in a statement are among `found` accesses.

        Touches by another name are not, nor is what a call does with an address. `stmt` is the last
        entry of the statement, which lists the touches.
        """
        if any(stmt.key in _handles(_statements(at)) for at in self._uses[index].handed_on):
            return False
        key = self._access.alloc_keys[index]
        seen = sum(_key(access) == key and not access.is_repeated for access in found)
        return 0 < seen == stmt.touched.count(index)

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


def _key(access: ElementAccess) -> int:
    return int(access.buffer.__chandle__())


def _statements(access: MemoryAccess) -> list[Any]:
    """Return what encloses an access, outermost first, and what makes it."""
    return [*(enclosure.op for enclosure in access.around), access.op]


def _handles(statements: Sequence[Any]) -> list[int]:
    return [statement.__chandle__() for statement in statements]
