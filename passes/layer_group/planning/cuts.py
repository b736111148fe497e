# SPDX-License-Identifier: Apache-2.0
"""The cuts that a search tries for groups that end with one layer."""

from __future__ import annotations

from dataclasses import replace

from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.slicing import LETTERS, ROWS, Cut


def in_slices(index: NetworkIndex, lanes: Lanes, last: int, cores: int = 1) -> list[Cut]:
    """Return cuts of the batch and the rows: ever more slices, of ever fewer elements."""
    batch, rows, _ = lanes.most_slices(index, index.network.layers[last].output)
    every = (*((n, 1) for n in counts(batch)), *((batch, h) for h in counts(rows)[1:]))
    return list(dict.fromkeys(shared_by(Cut(n=n, h=h), cores) for n, h in every))


def in_columns(index: NetworkIndex, lanes: Lanes, last: int, cores: int = 1) -> list[list[Cut]]:
    """Return cuts of the columns, fewer first; for each its cuts of the rows, more first."""
    layer = index.network.layers[last]
    if not layer.by_columns:
        return []
    batch, rows, columns = lanes.most_slices(index, layer.output)
    tall = [count for count in reversed(counts(rows)) if 8 * count >= rows]
    return [
        list(dict.fromkeys(shared_by(Cut(n=batch, h=h, w=w), cores) for h in tall))
        for w in counts(columns)[1:]
    ]


def shared_by(cut: Cut, cores: int) -> Cut:
    """Return a cut of as many slices, or a few more, of which each core has equally many."""
    if cores == 1:
        return cut
    letter = cut.outermost or ROWS
    counts = {x: cut.count(x) for x in LETTERS}
    counts[letter] = -(-counts[letter] // cores) * cores
    return replace(cut, n=counts["n"], h=counts["h"], w=counts["w"], cores=cores)


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
