# SPDX-License-Identifier: Apache-2.0
"""Cuts of a group: its slices, the parts of its layers, the shares of cores; cuts to try."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

LETTERS = "ndwh"
"""Letters of the axes that are cut, outermost first: the batch, depth, columns, rows."""
NAMES = {"n": "batch", "d": "depth", "w": "columns", "h": "rows"}
FIRST, FURTHER = "nh", "dw"
"""The letters that a search cuts along first, and those where that is not enough, in this order."""
ROWS = "h"
"""Letter of the axis along which halos may be kept."""
CHANNELS = "c"
"""Letter of the axis along which a layer may be made in parts."""


@dataclass(frozen=True)
class Cut:
    """A division of a group's outputs into slices, of its layers into parts, and among cores.

    Raises ValueError if cores are to share slices, and cannot have equally many.
    """

    # Numbers of slices along the axes of each of `LETTERS`. All rows come before the next columns.
    n: int = 1
    d: int = 1
    w: int = 1
    h: int = 1
    keep_rows: bool = False  # Whether halos of rows stay in local memory; else they are recomputed
    # Bytes a lane of the parts of tensors, for each layer in parts (see `loops`); 0 where none is
    part_bytes: int = 0
    # Cores that share the slices equally; or, by channels, the parts of each slice.
    cores: int = 1
    by_channels: bool = False

    def __post_init__(self) -> None:
        if not self.by_channels and self.counts[self.outermost or LETTERS[0]] % self.cores:
            raise ValueError(f"{self.cores} cores cannot have equally many slices each: {self}")

    @cached_property
    def counts(self) -> dict[str, int]:
        """Slices on the axes with each letter, outermost first."""
        return {letter: getattr(self, letter) for letter in LETTERS}

    @cached_property
    def runs(self) -> dict[str, int]:
        """Slices on the axes with each letter that follow each other on one core."""
        shared = self.shared
        return {x: n // self.cores if x == shared else n for x, n in self.counts.items()}

    @cached_property
    def steps(self) -> int:
        """Number of slices in all."""
        return prod(self.counts.values())

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

    def __str__(self) -> str:
        """Say how many slices there are."""
        slices = (f"{n} of the {NAMES[x]}" for x, n in self.counts.items() if n > 1)
        cores = f" on {self.cores} cores along {self.shared}" if self.shared else ""
        return (", ".join(slices) or "one slice") + cores

    def along(self, letter: str, count: int) -> Cut:
        """Return the same cut with another number of slices along a letter."""
        changes: dict[str, Any] = {letter: count}
        return replace(self, **changes)

    @property
    def is_further(self) -> bool:
        """Whether it cuts along other axes than are cut first."""
        return any(self.counts[letter] > 1 for letter in FURTHER)


@lru_cache(maxsize=1 << 10)
def cuts_to_try(most: tuple[int, ...], cores: int = 1) -> tuple[Cut, ...]:
    """Return cuts of ever more slices, given how many there are along each of `LETTERS` at most.

    The letters follow each other as in `FIRST`, then `FURTHER`. Each cut has as many slices, or a
    few more, as `cores` can share equally.
    """
    found = [Cut()]
    for letter in FIRST + FURTHER:
        for count in slice_counts(most[LETTERS.index(letter)])[1:]:
            found.append(found[-1].along(letter, count))
    shared = []
    for cut in found:
        letter = cut.outermost or ROWS
        count = -(-cut.counts[letter] // cores) * cores
        shared.append(replace(cut.along(letter, count), cores=cores))
    return tuple(dict.fromkeys(shared))


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
