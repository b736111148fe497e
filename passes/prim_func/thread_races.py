# SPDX-License-Identifier: Apache-2.0
"""Allocations that may not share bytes: no barrier would stand between their threads.

Threads of a block run at their own pace. When memory that they share holds one value after
another, all of them must have read the first before any writes the second. TVM's `ThreadSync`
places these barriers after storage planning, in ``shared``, ``shared.dyn`` and ``warp``, and in
no scope with a tag of a chip's own. It goes by the buffer and compares the indices of loads and
stores, so it does not see that

- two allocations with an address have the same bytes,
- equal indices are different bytes where elements differ in width: thread 4 writes the fourth
  byte of an array of ``int8`` while thread 1 has still to read its element of ``float32``,
- a call writes an element that is its operand, or what it is given the address of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from passes.ir import AllocationUses

_SYNCHRONIZED = ("shared", "shared.dyn", "warp")
"""The storage scopes in which TVM places barriers between the threads of a block."""


def racing_pairs(allocations: Mapping[str, AllocationUses]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a problem's buffers that would race if they had addresses in common."""
    return combinations([name for name, uses in allocations.items() if is_shared(uses)], 2)


def races_with_any(uses: AllocationUses) -> bool:
    """Return whether an allocation would race with any other of its element type in its bytes."""
    is_seen = len(uses.widths) == 1 and not any(each.is_address for each in uses.accesses)
    return is_shared(uses) and not (is_seen and uses.scope in _SYNCHRONIZED)


def is_shared(uses: AllocationUses) -> bool:
    """Return whether several threads have an allocation's memory at once."""
    return uses.by_threads and uses.alloc.scope.is_shared_by_threads
