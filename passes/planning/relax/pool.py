"""What TVM's pooled allocator takes from the device for allocations that come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Allocation = tuple[int, int, int]
"""Bytes, the position at which it is made, and the one at which it is given back."""


def bytes_taken(allocations: Iterable[Allocation], page: int = 1) -> int:
    """Return the bytes that the allocator takes from the device while a program runs once.

    What is given back is handed out again to a request of as many pages, and to no other. So of
    each number of pages there are as many blocks as are in use at one time.

    Parameters
    ----------
    allocations : iterable of (int, int, int)
        Each in use from its position until the second one, which does not count.
    page : int
        Bytes that a request is rounded up to.
    """
    changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for size, begin, end in allocations:
        changes[-(-size // page) * page] += [(begin, 1), (end, -1)]
    taken = 0
    for size, of_size in changes.items():
        used = most = 0
        for _, change in sorted(of_size):
            used += change
            most = max(most, used)
        taken += size * most
    return taken
