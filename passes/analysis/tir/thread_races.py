"""Which allocations may not share bytes because no barrier would stand between their threads.

Threads of a block run at their own pace. When memory that they share holds one value after
another, all of them must have read the first before any writes the second. TVM's `ThreadSync`
places these barriers behind storage planning, in ``shared`` and ``shared.dyn``. It goes by the
buffer and compares indices, so it does not see that

- two allocations with an address have the same bytes,
- equal indices are different bytes where elements differ in width: thread 4 writes the fourth
  byte of an array of ``int8`` while thread 1 has still to read its element of ``float32``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from passes.analysis.storage_rewrite.linear_access import LinearAccess
from passes.analysis.tir.function_problems import Allocation
from passes.analysis.tir.memory_uses import AllocationUses

_SYNCHRONIZED = ("shared", "shared.dyn")
"""The storage scopes in which TVM places barriers between the threads of a block."""


def racing_pairs(
    allocations: Mapping[str, Allocation],
    access: LinearAccess,
    uses: Sequence[AllocationUses],
    addressed: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that would race if they had bytes in common.

    Parameters
    ----------
    allocations : mapping of str to Allocation
        The buffers of one problem.
    access : LinearAccess
        What is known of the function.
    uses : sequence of AllocationUses
        And of its memory.
    addressed : bool
        Whether offsets become addresses, rather than places in one allocation.
    """
    by_threads = {
        name: _widths(uses[allocation.index])
        for name, allocation in allocations.items()
        if uses[allocation.index].owner_is_thread
        and str(access.allocs[allocation.index].scope) in _SYNCHRONIZED
    }
    for (first, widths), (second, others) in combinations(by_threads.items(), 2):
        if addressed or len(widths | others) > 1:
            yield first, second


def _widths(uses: AllocationUses) -> frozenset[int]:
    """Return the bits of the elements that an index of the memory can count."""
    return frozenset(dtype.bits * dtype.lanes for dtype in uses.dtypes)
