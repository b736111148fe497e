# SPDX-License-Identifier: Apache-2.0
"""Cuts of a group: its slices, the parts of its layers, the shares of cores; cuts to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

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

    # Number of slices along each of `LETTERS`. All rows come before the next columns.
    numbers: tuple[int, ...] = (1,) * len(LETTERS)
    keep_rows: bool = False  # Whether halos of rows stay in local memory; else they are recomputed
    # Bytes a lane of the parts of tensors, for each layer in parts (see `loops`); 0 where none is
    part_bytes: int = 0
    # Cores that share the slices equally; or, by channels, the parts of each slice.
    cores: int = 1
    by_channels: bool = False

    def __post_init__(self) -> None:
        if not self.can_share(self.cores):
            raise ValueError(f"{self.cores} cores cannot have equally many slices each: {self}")

    @classmethod
    def of(
        cls,
        *,
        keep_rows: bool = False,
        part_bytes: int = 0,
        cores: int = 1,
        by_channels: bool = False,
        **numbers: int,
    ) -> Cut:
        """Return a cut, given the number of slices along letters; one along the others."""
        every = tuple(numbers.pop(letter, 1) for letter in LETTERS)
        if numbers:
            raise ValueError(f"no axis with the letter {min(numbers)!r} is cut, but {LETTERS!r}")
        return cls(every, keep_rows, part_bytes, cores, by_channels)

    def along(self, **numbers: int) -> Cut:
        """Return the same cut with other numbers of slices along some letters."""
        every = self.counts | numbers
        return replace(self, numbers=tuple(every[letter] for letter in LETTERS))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Slices on the axes with each letter, outermost first."""
        return dict(zip(LETTERS, self.numbers, strict=True))

    @cached_property
    def runs(self) -> dict[str, int]:
        """Slices on the axes with each letter that follow each other on one core."""
        shared = self.shared
        return {x: n // self.cores if x == shared else n for x, n in self.counts.items()}

    @cached_property
    def steps(self) -> int:
        """Number of slices in all."""
        return prod(self.numbers)

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

    def can_share(self, cores: int) -> bool:
        """Return whether so many cores have equally many slices each."""
        return self.by_channels or self.counts[self.outermost or LETTERS[0]] % cores == 0


@lru_cache(maxsize=1 << 10)
def cuts_to_try(most: tuple[int, ...], cores: int = 1) -> tuple[tuple[Cut, ...], ...]:
    """Return rows of cuts, given how many slices there are along each of `LETTERS` at most.

    The first row has ever more slices of the batch, then of the rows. Each other one is for more
    slices along the other letters, and has ever fewer slices of the rows.
    """
    most_of = dict(zip(LETTERS, most, strict=True))
    rows = most_of[ROWS]
    found = [_shared_by(cores, _ever_more(most_of, FIRST))]
    tall = [n for n in reversed(slice_counts(rows)) if 8 * n >= rows]
    for further in list(_ever_more(most_of, FURTHER))[1:]:
        wide = further.along(n=most_of["n"])
        found.append(_shared_by(cores, [wide.along(**{ROWS: count}) for count in tall]))
    return tuple(found)


def _ever_more(most: Mapping[str, int], letters: str) -> Iterator[Cut]:
    """Yield cuts along the first letter up to its most slices, then along the next one, too."""
    cut = Cut()
    yield cut
    for letter in letters:
        for count in slice_counts(most[letter])[1:]:
            yield (cut := cut.along(**{letter: count}))


def _shared_by(cores: int, every: Iterable[Cut]) -> tuple[Cut, ...]:
    """Return cuts with as many slices, or a few more, shared equally by the cores."""
    letters = ((cut, cut.outermost or ROWS) for cut in every)
    more = (cut.along(**{x: -(-cut.counts[x] // cores) * cores}) for cut, x in letters)
    return tuple(replace(cut, cores=cores) for cut in dict.fromkeys(more))


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
