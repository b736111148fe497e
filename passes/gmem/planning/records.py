# SPDX-License-Identifier: Apache-2.0
"""Which record of a table comes first among those that are free and large enough, quickly.

A record is an address and a size; its index says when it was made. Records of one address are free
or taken together.
"""

from __future__ import annotations

_NONE = -1


class ReusableRecords:
    """The records whose value has ended, by the order in which they were made.

    A tree of maxima over the indices finds the first that is large enough in logarithmic time. Of
    the records of one address, one that comes after another that is not smaller can never be the
    first, so it is forgotten; that leaves one, as a rule, to be freed and taken.
    """

    def __init__(self, count: int) -> None:
        self._width = 1 << max(count - 1, 0).bit_length()
        # A node holds the largest size below it; what is not free has none.
        self._largest = [_NONE] * (2 * self._width)
        self._at: dict[int, dict[int, int]] = {}

    def add(self, index: int, address: int, size: int, is_free: bool) -> None:
        """Enter a record whose value has ended."""
        known = self._at.setdefault(address, {})
        if any(other < index and known[other] >= size for other in known):
            return
        for other in [o for o in known if o > index and known[o] <= size]:
            del known[other]
            self._set(other, _NONE)
        known[index] = size
        if is_free:
            self._set(index, size)

    def free(self, address: int) -> None:
        """Say that nothing is at an address any more."""
        for index, size in self._at.get(address, {}).items():
            self._set(index, size)

    def take(self, address: int) -> None:
        """Say that something is at an address now."""
        for index in self._at.get(address, {}):
            self._set(index, _NONE)

    def first(self, size: int, start: int = 0) -> int:
        """Return the lowest index from `start` up of a free record of `size` bytes or more."""
        largest, node = self._largest, start + self._width
        if start >= self._width:
            return _NONE
        while largest[node] < size:
            while node & 1:  # All below the parent to the right of `start` has been looked at.
                node >>= 1
            if node == 0:
                return _NONE
            node += 1
        while node < self._width:
            node *= 2
            if largest[node] < size:
                node += 1
        return node - self._width

    def _set(self, index: int, size: int) -> None:
        largest, node = self._largest, index + self._width
        largest[node] = size
        while node > 1:
            node >>= 1
            most = max(largest[2 * node], largest[2 * node + 1])
            if largest[node] == most:
                break
            largest[node] = most
