# SPDX-License-Identifier: Apache-2.0
"""Tables of what is read of an axis of a buffer for each index of an axis of a kernel's output.

`fit_axis_map` returns the linear rule behind a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import chain

import numpy as np
import numpy.typing as npt

from passes.layer_group.planning.network import AxisMap, Range

Ints = npt.NDArray[np.int64]

NOWHERE = 1 << 40
"""First index of an empty range; its last one is the negative, so that a union needs no test."""


@dataclass(frozen=True, eq=False)
class AxisReads:
    """Which indices of an input's axis are read for each index of an axis of the output."""

    axis: int  # The output's axis
    # One entry an index of the output's axis: the first and the last index that is read, both
    # included; `NOWHERE` and its negative where nothing is read.
    first: Ints
    last: Ints

    @property
    def width(self) -> float:
        """Indices that a slice of an eighth of the axis reads, on average of those that read."""
        count = len(self.first)
        begins = np.linspace(0, count, min(count, 8), endpoint=False, dtype=int)
        first = np.minimum.reduceat(self.first, begins)
        last = np.maximum.reduceat(self.last, begins)
        read = (last - first + 1)[first <= last]
        return float(read.mean()) if len(read) else 0.0

    @property
    def is_identity(self) -> bool:
        """Whether each index of the output's axis needs the same index alone."""
        at = np.arange(len(self.first))
        return bool((self.first == at).all()) and bool((self.last == at).all())

    @property
    def has_no_gaps(self) -> bool:
        """Whether a range of the output's axis reads every index between its first and its last."""
        first, last = self._read()
        return bool(
            (np.maximum(first[1:], first[:-1]) <= np.minimum(last[1:], last[:-1]) + 1).all()
        )

    @property
    def is_ordered(self) -> bool:
        """Whether all indices read some, and first and last both only grow, or both only shrink."""
        first, last = np.diff(self.first), np.diff(self.last)
        return bool((self.first <= self.last).all()) and any(
            bool((sign * first >= 0).all()) and bool((sign * last >= 0).all()) for sign in (1, -1)
        )

    @property
    def most(self) -> Fraction:
        """Indices that a range of the output's axis needs for each of its own, at most."""
        first, last = self._read()
        if not len(first):
            return Fraction(1)
        at = np.flatnonzero(self.first <= self.last)
        grown = np.maximum(np.diff(last), 0) + np.maximum(-np.diff(first), 0)
        steps = dict.fromkeys(zip(grown.tolist(), np.diff(at).tolist(), strict=True))
        rates = [Fraction(more, rows) for more, rows in steps]
        return max(*rates, Fraction(int((last - first).max()) + 1))

    def _read(self) -> tuple[Ints, Ints]:
        """Return the first and last indices of those of the output that need any."""
        some = self.first <= self.last
        return self.first[some], self.last[some]

    def union(self, other: AxisReads) -> AxisReads:
        """Return what one or the other reads for the same axis of the output."""
        first, last = np.minimum(self.first, other.first), np.maximum(self.last, other.last)
        return AxisReads(self.axis, first, last)

    def of(self, output: Range) -> Range:
        """Return the range that is read for a range of the output's axis; ``(0, 0)`` if none."""
        begin, end = output
        if begin >= end:
            return (0, 0)
        first, last = int(self.first[begin:end].min()), int(self.last[begin:end].max())
        return (first, last + 1) if first <= last else (0, 0)

    def after(self, reads: AxisReads) -> AxisReads:
        """Return the reads for the axis of `reads`, whose indices are those of this output."""
        if bool((reads.first == reads.last).all()):
            return AxisReads(reads.axis, self.first[reads.first], self.last[reads.first])
        first = np.full(len(reads.first), NOWHERE)
        last = np.full(len(reads.first), -NOWHERE)
        for i, (a, b) in enumerate(zip(reads.first.tolist(), reads.last.tolist(), strict=True)):
            if a <= b:
                first[i], last[i] = self.first[a : b + 1].min(), self.last[a : b + 1].max()
        return AxisReads(reads.axis, first, last)


BufferReads = tuple["AxisReads | None", ...]
"""For each axis of a buffer what is read of it; None where all of the axis may be."""


def identity(axis: int, extent: int) -> AxisReads:
    """Return the table of an axis of the output itself."""
    indices = np.arange(extent, dtype=np.int64)
    return AxisReads(axis, indices, indices)


def united(parts: Sequence[BufferReads]) -> BufferReads:
    """Return the union of what all readers of a buffer read."""

    def unite(one: AxisReads | None, other: AxisReads | None) -> AxisReads | None:
        return one.union(other) if one and other and one.axis == other.axis else None

    return tuple(reduce(unite, column) for column in zip(*parts, strict=True))


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
