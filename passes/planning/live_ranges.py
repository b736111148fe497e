# SPDX-License-Identifier: Apache-2.0
"""Half-open ranges of positions, and the live ranges of two buffers held against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

LiveRange = tuple[int, int]
"""Half-open range of positions, ``(begin, end)``, in which a buffer holds a value."""


def join_ranges(ranges: Iterable[LiveRange]) -> tuple[LiveRange, ...]:
    """Return the same positions as sorted ranges of which no two overlap or touch."""
    result: list[LiveRange] = []
    for begin, end in sorted(ranges):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return tuple(result)


def common(first: Sequence[LiveRange], second: Sequence[LiveRange]) -> Iterator[LiveRange]:
    """Yield the ranges of positions that are in both."""
    for begin, end in first:
        for other_begin, other_end in second:
            if max(begin, other_begin) < min(end, other_end):
                yield max(begin, other_begin), min(end, other_end)


def live_together(first: Sequence[LiveRange], second: Sequence[LiveRange]) -> bool:
    """Whether some position is in both, of sorted ranges."""
    if first[-1][1] <= second[0][0] or second[-1][1] <= first[0][0]:
        return False
    return any(max(a, c) < min(b, d) for a, b in first for c, d in second)
