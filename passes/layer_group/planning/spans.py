# SPDX-License-Identifier: Apache-2.0
"""Ranges of one axis: which part of it each index of another axis needs, or each slice has.

Both are tables of ranges, `Spans`. An `AxisMap` has a range of an input's axis for each index of an
axis of the output, an `AxisPart` a range of an axis for each slice. The part of an input that
slices need is the second table looked up in the first one (BackwardN and BackwardH of tpu-mlir's
LayerGroup, for any axis); and so is what a kernel needs of a buffer through a buffer between them.

All ranges are half-open. Nothing here knows TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
"""Half-open range of indices on one axis, ``(begin, end)``; empty if both are equal."""

Ints = NDArray[np.int64]

NOWHERE = 1 << 40
"""Begin of an empty range; its end is the negative, so that a union needs no special case."""


@lru_cache(maxsize=1 << 14)
def even_spans(length: int, count: int) -> Spans:
    """Cut ``[0, length)`` into ranges whose sizes differ by one at most, larger ones first."""
    if not 1 <= count <= length:
        raise ValueError(f"cannot cut {length} elements into {count} ranges")
    size, more = divmod(length, count)
    return Spans.of(tuple(pairwise(size * i + min(i, more) for i in range(count + 1))))


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges as two arrays; those that hold the same ranges are equal.

    An empty range begins at `NOWHERE` and ends at its negative. Spans that follow from these are
    remembered here: a search asks for them again and again.
    """

    begin: Ints
    end: Ints
    _known: dict[object, Spans] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> Spans:
        """Return the spans of ranges."""
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        return cls.between(pairs[:, 0], pairs[:, 1])

    @classmethod
    def between(cls, begin: Ints, end: Ints) -> Spans:
        """Return the spans with these ends; a range is empty where it does not end after both."""
        empty = begin >= end
        if not empty.any():
            return cls(begin, end)
        return cls(np.where(empty, NOWHERE, begin), np.where(empty, -NOWHERE, end))

    @classmethod
    def identity(cls, extent: int) -> Spans:
        """Return the spans of an axis, each of its indices alone."""
        indices = np.arange(extent + 1)
        return cls(indices[:-1], indices[1:])

    @cached_property
    def _content(self) -> tuple[bytes, bytes]:
        return self.begin.tobytes(), self.end.tobytes()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Spans) and self._content == other._content)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._content)

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges; empty ones are ``(0, 0)``."""
        pairs = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        return tuple((a, b) if a < b else (0, 0) for a, b in pairs)

    @cached_property
    def sizes(self) -> Ints:
        """The elements of each range."""
        sizes: Ints = np.maximum(self.end - self.begin, 0)
        return sizes

    @cached_property
    def longest(self) -> int:
        """The elements of the longest range."""
        return int(self.sizes.max())

    @cached_property
    def hull(self) -> Range:
        """The range from the first element of any range to the last one; ``(0, 0)`` if none."""
        begin, end = int(self.begin.min()), int(self.end.max())
        return (begin, end) if begin < end else (0, 0)

    @cached_property
    def repeated(self) -> int:
        """The sum of the ranges' lengths, less the number of indices in their union."""
        order = np.argsort(self.begin, kind="stable")
        begin, end = self.begin[order], self.end[order]
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        return int(self.sizes.sum()) - int(np.maximum(end - np.maximum(begin, before), 0).sum())

    @cached_property
    def is_rising(self) -> bool:
        """Whether no range begins or ends before an earlier one does: none or all are empty."""
        begins_rise = (self.begin[1:] >= self.begin[:-1]).all()
        return bool(begins_rise and (self.end[1:] >= self.end[:-1]).all())

    def union(self, other: Spans) -> Spans:
        """Return the hulls of each two ranges."""
        if other is self:
            return self
        if other not in self._known:
            self._known[other] = Spans(
                np.minimum(self.begin, other.begin), np.maximum(self.end, other.end)
            )
        return self._known[other]

    def needed(self, table: Spans) -> Spans:
        """Return what the indices in each range need by a table, which has a range for each."""
        key = "needed", table
        if key not in self._known:
            found = self._looked_up(table)
            self._known[key] = self if found == self else found
        return self._known[key]

    def _looked_up(self, table: Spans) -> Spans:
        some = self.begin < self.end
        begin, end = np.where(some, self.begin, 0), np.where(some, self.end, 1)
        if table.is_rising:
            first, last = table.begin[begin], table.end[end - 1]
        else:
            # Ranges of the table, each followed by one up to the next range, which is left out.
            ends = np.column_stack((begin, end)).ravel()
            first = np.minimum.reduceat(np.append(table.begin, NOWHERE), ends)[::2]
            last = np.maximum.reduceat(np.append(table.end, -NOWHERE), ends)[::2]
        if some.all():
            return Spans(first, last)
        return Spans(np.where(some, first, NOWHERE), np.where(some, last, -NOWHERE))

    def kept(self, run: int) -> tuple[Spans, Spans]:
        """Return what is held and what is made if none of `run` slices makes an element twice.

        Held is all from the first element that this or a later slice needs to the last one that
        this or an earlier slice needs; made is the part of it that no earlier slice has made.
        """
        if ("held", run) not in self._known:
            begin, end = self.begin.reshape(-1, run), self.end.reshape(-1, run)
            first = np.minimum.accumulate(begin[:, ::-1], axis=1)[:, ::-1]
            last = np.maximum.accumulate(end, axis=1)
            made = first.copy()
            made[:, 1:] = np.maximum(first[:, 1:], last[:, :-1])
            self._known["held", run] = Spans.between(first.ravel(), last.ravel())
            self._known["made", run] = Spans.between(made.ravel(), last.ravel())
        return self._known["held", run], self._known["made", run]


@lru_cache(maxsize=1 << 14)
def needs_parts(spans: Spans, extent: int) -> bool:
    """Return whether parts of the indices need parts of an axis of `extent` elements, none twice.

    Parts are the smallest that divide both axes into a whole number of parts.
    """
    count = gcd(len(spans.begin), extent)
    made, read = (even_spans(n, count) for n in (len(spans.begin), extent))
    return made.needed(spans) == read


class AxisMap(NamedTuple):
    """The range of a buffer's axis that a layer, or a stage of its kernel, reads for its output."""

    axis: int  # The axis of the result that it follows
    spans: Spans  # The spans that each index of that axis needs


AxisMaps = tuple[AxisMap | None, ...]
"""The map of each axis of a buffer; None where each index of a result may need the whole axis."""


class AxisPart(NamedTuple):
    """The part of an axis that each slice holds, makes or reads."""

    letter: str  # Letter of the cut that the axis follows; empty where each slice has the same part
    spans: Spans  # A range for each slice along the letter; one range without a letter

    def needed(self, m: AxisMap) -> AxisPart:
        """Return the part of an input's axis that each slice needs for this part of a result."""
        return AxisPart(self.letter, self.spans.needed(m.spans))


Region = tuple[AxisPart, ...]
"""The part of each axis of a tensor that each slice has."""


@cache
def whole(extent: int) -> AxisPart:
    """Return all of an axis."""
    return AxisPart("", Spans.of(((0, extent),)))
