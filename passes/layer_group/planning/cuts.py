# SPDX-License-Identifier: Apache-2.0
"""How a group is cut: into slices, layers into parts, and who shares them; and the cuts to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import NetworkIndex

LETTERS = "nwh"
"""Letters of the axes that are cut, outermost first."""
ROWS = "h"
"""Letter of the axis along which halos may be kept."""
CHANNELS = "c"
"""Letter of the axis along which a layer may be made in parts."""


@dataclass(frozen=True)
class Cut:
    """How a group's outputs are cut into slices, its layers into parts, and what cores share.

    Raises ValueError if cores are to share slices, and cannot have equally many.
    """

    # Slices of the batch, the rows and the columns. All rows of some columns come before the next.
    n: int = 1
    h: int = 1
    w: int = 1
    keep_rows: bool = False  # Whether halos of rows stay in local memory; else they are recomputed
    # Bytes a lane of the parts of tensors, for each layer in parts (see `runs`); zero: no layer is.
    part_bytes: int = 0
    # Cores that share the slices equally; or, by channels, the parts of each slice.
    cores: int = 1
    by_channels: bool = False

    def __post_init__(self) -> None:
        if not self.can_share(self.cores):
            raise ValueError(f"{self.cores} cores cannot have equally many slices each: {self}")

    @cached_property
    def counts(self) -> dict[str, int]:
        """Slices on the axes with each letter, outermost first."""
        return {"n": self.n, "w": self.w, "h": self.h}

    @cached_property
    def runs(self) -> dict[str, int]:
        """Slices on the axes with each letter that follow each other on one core."""
        shared = self.shared
        return {x: n // self.cores if x == shared else n for x, n in self.counts.items()}

    @cached_property
    def steps(self) -> int:
        """Number of slices in all."""
        return self.n * self.h * self.w

    @cached_property
    def turns(self) -> int:
        """Number of slices of one core."""
        return self.steps if self.by_channels else self.steps // self.cores

    @property
    def shared(self) -> str:
        """Letter of the axis that several cores share; empty if one core has all."""
        return "" if self.cores == 1 else CHANNELS if self.by_channels else self.outermost

    @property
    def outermost(self) -> str:
        """Letter of the outermost axis that is cut; empty if none is."""
        return next((letter for letter, count in self.counts.items() if count > 1), "")

    def can_share(self, cores: int) -> bool:
        """Whether so many cores have equally many slices each."""
        return self.by_channels or self.counts[self.outermost or LETTERS[0]] % cores == 0


def in_slices(index: NetworkIndex, lanes: Lanes, last: int, cores: int = 1) -> list[Cut]:
    """Return cuts of the batch and the rows: ever more slices, of ever fewer elements."""
    batch, rows, _ = lanes.most_slices(index, index.network.layers[last].output)
    every = [Cut(n) for n in slice_counts(batch)]
    every += [Cut(batch, h) for h in slice_counts(rows)[1:]]
    return list(dict.fromkeys(_shared_by(cut, cores) for cut in every))


def in_columns(index: NetworkIndex, lanes: Lanes, last: int, cores: int = 1) -> Iterator[list[Cut]]:
    """Yield, for ever more slices of the columns, cuts with ever fewer of the rows."""
    layer = index.network.layers[last]
    batch, rows, columns = lanes.most_slices(index, layer.output)
    tall = [count for count in reversed(slice_counts(rows)) if 8 * count >= rows]
    for w in slice_counts(columns)[1:] if layer.by_columns else ():
        yield list(dict.fromkeys(_shared_by(Cut(batch, h, w), cores) for h in tall))


def _shared_by(cut: Cut, cores: int) -> Cut:
    """Return a cut of as many slices, or a few more, of which each core has equally many."""
    letter = cut.outermost or ROWS
    changed: dict[str, Any] = {letter: -(-cut.counts[letter] // cores) * cores}
    return replace(cut, cores=cores, **changed)


def slice_counts(extent: int) -> list[int]:
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
