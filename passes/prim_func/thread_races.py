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
- a call writes an element that is its operand, or what it is given the address of,
- a thread may write what another one wrote before, with no load in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from passes.ir import AllocationUses, tir

_SYNCHRONIZED = ("shared", "shared.dyn", "warp")
"""The storage scopes in which TVM places barriers between the threads of a block."""


def racing_pairs(allocations: Mapping[str, AllocationUses]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a problem's buffers that would race if they had addresses in common."""
    return combinations([name for name, uses in allocations.items() if is_shared(uses)], 2)


def races_with_any(uses: AllocationUses) -> bool:
    """Return whether an allocation would race with any other of its element type in its bytes."""
    if not is_shared(uses):
        return False
    is_seen = len(uses.widths) == 1 and not any(each.is_address for each in uses.accesses)
    return not (
        is_seen and uses.scope in _SYNCHRONIZED and (not uses.stores or _is_read_last(uses))
    )


def _is_read_last(uses: AllocationUses) -> bool:
    """Return whether all threads load what they stored last, so that TVM looks at the stores.

    A load of another element than those that a thread stores itself has a barrier before it, which
    all stores come before; else each store needs a load of its own.
    """
    last = uses.stores[-1]
    around = {(each.number, each.part) for each in last.around}
    stored = [store.index for store in uses.stores]
    loaded = [
        access.index
        for access in uses.accesses
        if access.order > last.order
        if all((e.number, e.part) in around or _is_always_run(e.op) for e in access.around)
    ]
    own = [load for load in loaded if any(tir.expr_deep_equal(load, store) for store in stored)]
    return len(own) < len(loaded) or all(
        any(tir.expr_deep_equal(load, store) for load in own) for store in stored
    )


def _is_always_run(op: Any) -> bool:
    return isinstance(op, tir.Attribute) or (
        isinstance(op, tir.Loop) and (tir.constant(op.extent) or 0) > 0
    )


def is_shared(uses: AllocationUses) -> bool:
    """Return whether several threads have an allocation's memory at once."""
    return uses.by_threads and uses.alloc.scope.is_shared_by_threads
