# SPDX-License-Identifier: Apache-2.0
"""The cuts that a search tries for groups that end with one layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from passes.layer_group.planning.group import NetworkIndex, rows_of
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.slicing import Cut


class Cuts:
    """The cuts to try in a network, by the number of a group's last layer."""

    def __init__(self, index: NetworkIndex, lanes: Lanes) -> None:
        self._index = index
        self._lanes = lanes

    def slices(self, last: int, uncut: Cut) -> list[Cut]:
        """Return the cuts to try: ever more slices, where more make the largest one smaller."""
        batch, rows, _ = self._sizes(last)
        by_batch = [replace(uncut, n=count) for count in counts(batch)]
        return [*by_batch, *(replace(uncut, n=batch, h=count) for count in counts(rows)[1:])]

    def columns(self, last: int, uncut: Cut) -> list[list[Cut]]:
        """Return cuts of the columns, fewer first; for each its cuts of the rows, more first."""
        if not self._index.network.layers[last].by_columns:
            return []
        batch, rows, columns = self._sizes(last)
        tall = [count for count in reversed(counts(rows)) if 8 * count >= rows]
        return [[replace(uncut, n=batch, h=h, w=w) for h in tall] for w in counts(columns)[1:]]

    def finer(self, last: int, than: Cut) -> Iterator[Cut]:
        """Yield cuts of more slices, fewer first, but the columns last."""
        uncut = Cut(part_bytes=than.part_bytes)
        by_columns = (cut for cuts in self.columns(last, uncut) for cut in cuts[:1])
        every = chain(self.slices(last, uncut), by_columns)
        return (cut for cut in every if cut.steps > than.steps)

    def _sizes(self, last: int) -> tuple[int, int, int]:
        """Return how many slices a layer's batch, rows and columns can be cut into."""
        layer = self._index.network.layers[last]
        output = self._index.tensors[layer.output]
        sizes = dict(zip(reversed(output.axes), reversed(output.shape), strict=True))
        unit = self._lanes.batch_unit(output.bits)
        return -(-sizes.get("n", 1) // unit), rows_of(self._index, layer), sizes.get("w", 1)


def counts(extent: int) -> list[int]:
    """Return numbers of slices to try for an axis: 1 to 4, then steps of a half, up to all.

    Of numbers with slices of one size only the smallest is there.
    """
    found: list[int] = []
    count = 1
    while count <= extent:
        size = -(-extent // count)
        if not found or size < -(-extent // found[-1]):
            found.append(-(-extent // size))
        count = max(count + 1, count * 3 // 2)
    if found[-1] != extent:
        found.append(extent)
    return found
