# SPDX-License-Identifier: Apache-2.0
"""The axis map that fits what is read of an axis: the linear rule behind a table of indices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

import numpy as np

from passes.layer_group.analysis.axis_reads import AxisReads
from passes.layer_group.planning.network import AxisMap

_SMALL_PART = 8
"""Steps after which a staircase may repeat, and parts of slopes that are tried at the end."""


def fit_axis_map(reads: AxisReads, extent: int) -> AxisMap | None:
    """Return the tightest axis map that covers what is read.

    The map covers at least what is read of an axis of `extent` elements, for every range of the
    output. It is None where every index of the output needs the whole axis, or nothing does.
    """
    indices = np.flatnonzero(reads.first <= reads.last)
    if not len(indices):
        return None
    first, last = reads.first[indices], reads.last[indices]
    if bool((first == 0).all()) and bool((last == extent - 1).all()):
        return None
    best: tuple[int, int, AxisMap] | None = None
    for slope in _slopes(indices, first, last, len(reads.first), extent):
        stride, divide = slope.numerator, slope.denominator
        low = int((divide * first + divide - 1 - indices * stride).min())
        high = int((divide * last - indices * stride).max())
        axis_map = AxisMap(reads.axis, stride, divide, low, high)
        begin, end = (np.clip(end, 0, extent - 1) for end in _ends(axis_map, indices))
        slack = int((first - begin).sum() + (end - last).sum())
        if best is None or (slack, divide) < best[:2]:
            best = (slack, divide, axis_map)
        if slack == 0:
            break
    assert best is not None, "there is always the slope of the two extents"
    begin, end = _ends(best[2], np.arange(len(reads.first)))
    return None if bool((begin <= 0).all()) and bool((end >= extent - 1).all()) else best[2]


def _ends(axis_map: AxisMap, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last index that a map needs for each index of the output."""
    at = indices * axis_map.stride
    return (at + axis_map.first) // axis_map.divide, (at + axis_map.last) // axis_map.divide


def _slopes(
    indices: np.ndarray, first: np.ndarray, last: np.ndarray, rows: int, extent: int
) -> Iterator[Fraction]:
    """Yield input indices an output index, as the table and the extents suggest them.

    From one step of a staircase to a later one it is as many indices as the slope says, if the
    steps repeat by then. Steps at the border may be cut short.
    """
    suggested = [Fraction(extent, rows), Fraction(1)]
    for table in (first, last):
        inside = (table > 0) & (table < extent - 1)
        for keep in (inside, np.ones(len(table), dtype=bool)):
            at, values = indices[keep], table[keep]
            steps = np.flatnonzero(np.diff(values)) + 1
            for later in (*range(1, _SMALL_PART + 1), len(steps) // 2, len(steps) - 1):
                if 0 < later < len(steps):
                    one, other = steps[0], steps[later]
                    rise = int(values[other] - values[one])
                    suggested.append(Fraction(rise, int(at[other] - at[one])))
    small = range(1, _SMALL_PART + 1)
    near = (
        slope.limit_denominator(divisor)
        for slope in suggested
        for divisor in (1, 2, 3, 4, 8, 16, 64, rows)
    )
    parts = (Fraction(stride, divisor) for divisor in small for stride in small)
    tried: set[Fraction] = set()
    for slope in chain(near, parts):
        if slope > 0 and slope not in tried:
            tried.add(slope)
            yield slope
