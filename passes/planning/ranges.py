"""Half-open ranges of integers."""

from __future__ import annotations

from collections.abc import Iterable


def join_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges sorted, and joined where they overlap or touch.

    Parameters
    ----------
    ranges : iterable of (int, int)
        Half-open and not empty, in any order.
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return tuple(found)
