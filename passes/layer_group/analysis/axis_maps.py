# SPDX-License-Identifier: Apache-2.0
"""The axis map that fits what is read of an axis: the linear rule behind a table of indices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from passes.layer_group.analysis.axis_reads import AxisReads
from passes.layer_group.planning.network import AxisMap

_LARGEST_DIVISOR = 64
_SMALL_PART = 8
"""Slopes of parts up to this are tried where no suggested one fits exactly: short tables."""


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
        begin = np.clip((indices * stride + low) // divide, 0, extent - 1)
        end = np.clip((indices * stride + high) // divide, 0, extent - 1)
        slack = int((first - begin).sum() + (end - last).sum())
        if best is None or (slack, divide) < best[:2]:
            best = (slack, divide, axis_map)
        if slack == 0:
            break
    assert best is not None, "there is always the slope of the two extents"
    return None if _is_whole(best[2], len(reads.first), extent) else best[2]


def _slopes(
    indices: np.ndarray, first: np.ndarray, last: np.ndarray, rows: int, extent: int
) -> Iterator[Fraction]:
    """Yield input indices an output index, as the table and the extents suggest them."""
    seen: set[Fraction] = set()
    suggested = [Fraction(extent, rows), Fraction(1)]
    for table in (first, last):
        inside = (table > 0) & (table < extent - 1)
        for keep in (inside, np.ones(len(table), dtype=bool)):
            at, values = indices[keep], table[keep]
            if len(at) > 1:
                suggested.append(Fraction(int(values[-1] - values[0]), int(at[-1] - at[0])))
                suggested += [
                    Fraction(int(values[i + 1] - values[i]), int(at[i + 1] - at[i]))
                    for i in (0, len(at) // 2 - 1)
                ]
                half = len(at) // 2
                suggested.append(Fraction(int(values[half] - values[0]), int(at[half] - at[0])))
    for slope in suggested:
        for divisor in (1, 2, 3, 4, 8, 16, _LARGEST_DIVISOR):
            near = slope.limit_denominator(divisor)
            if near > 0 and near not in seen:
                seen.add(near)
                yield near
    for divisor in range(1, _SMALL_PART + 1):
        for stride in range(1, _SMALL_PART + 1):
            slope = Fraction(stride, divisor)
            if slope not in seen:
                seen.add(slope)
                yield slope


def _is_whole(axis_map: AxisMap, rows: int, extent: int) -> bool:
    """Whether a map needs the whole axis for every index."""
    begin = (np.arange(rows) * axis_map.stride + axis_map.first) // axis_map.divide
    end = (np.arange(rows) * axis_map.stride + axis_map.last) // axis_map.divide
    return bool((begin <= 0).all()) and bool((end >= extent - 1).all())
