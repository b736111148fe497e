# SPDX-License-Identifier: Apache-2.0
"""Ranges of one axis, a slice each, and the ranges that follow from them through layers' maps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from passes.layer_group.planning.network import AxisMap, Range

_Ends = NDArray[np.int64]
_NOWHERE = 1 << 40
"""Begin of an empty range; its end is the negative, so that a union needs no special case."""


def even_ranges(length: int, count: int, unit: int = 1) -> tuple[Range, ...]:
    """Cut ``[0, length)`` into ranges whose sizes differ by one unit at most, larger ones first.

    `unit` is in elements; every range but the last is a multiple of it.
    """
    units = -(-length // unit)
    if not 1 <= count <= units:
        raise ValueError(f"cannot cut {length} elements in units of {unit} into {count} ranges")
    size, more = divmod(units, count)
    begins = [(size * i + min(i, more)) * unit for i in range(count + 1)]
    return tuple((a, min(b, length)) for a, b in pairwise(begins))


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges, one a slice, as two arrays; an empty range begins beyond all and ends before all.

    Spans that follow from these are remembered here: a search asks for them again and again.
    """

    begin: _Ends
    end: _Ends
    _known: dict[object, Spans] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, ranges: tuple[Range, ...]) -> Spans:
        """Return the spans of ranges."""
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])._marked()

    def _marked(self) -> Spans:
        empty = self.begin >= self.end
        if not empty.any():
            return self
        return Spans(np.where(empty, _NOWHERE, self.begin), np.where(empty, -_NOWHERE, self.end))

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges; empty ones are ``(0, 0)``."""
        pairs = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        return tuple((a, b) if a < b else (0, 0) for a, b in pairs)

    @cached_property
    def sizes(self) -> _Ends:
        """The elements of each range."""
        sizes: _Ends = np.maximum(self.end - self.begin, 0)
        return sizes

    @cached_property
    def longest(self) -> int:
        """The elements of the longest range."""
        return int(self.sizes.max())

    @cached_property
    def repeated(self) -> int:
        """How many more elements all ranges have than there are indices in any of them."""
        order = np.argsort(self.begin, kind="stable")
        begin, end = self.begin[order], self.end[order]
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        return int(self.sizes.sum()) - int(np.maximum(end - np.maximum(begin, before), 0).sum())

    def union(self, other: Spans) -> Spans:
        """Return the hulls of each two ranges."""
        if other is self:
            return self
        if other not in self._known:
            self._known[other] = Spans(
                np.minimum(self.begin, other.begin), np.maximum(self.end, other.end)
            )
        return self._known[other]

    def needed(self, m: AxisMap, extent: int) -> Spans:
        """Return the ranges needed through a map, of an input's axis of `extent` elements."""
        key = (m.stride, m.divide, m.first, m.last, extent)
        if key not in self._known:
            begin, end = self.begin * m.stride + m.first, (self.end - 1) * m.stride + m.last
            if m.divide > 1:
                begin, end = begin // m.divide, end // m.divide
            # Empty ranges are far out: they stay empty.
            begin, end = np.maximum(begin, 0), np.minimum(end + 1, extent)
            same = np.array_equal(begin, self.begin) and np.array_equal(end, self.end)
            self._known[key] = self if same else Spans(begin, end)._marked()
        return self._known[key]

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
            self._known["held", run] = Spans(first.ravel(), last.ravel())._marked()
            self._known["made", run] = Spans(made.ravel(), last.ravel())._marked()
        return self._known["held", run], self._known["made", run]
