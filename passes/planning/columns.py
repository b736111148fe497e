# SPDX-License-Identifier: Apache-2.0
"""Buffers as arrays: a table is read, bounded, planned, verified and written as columns alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from passes.planning.buffer import Buffer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Columns:
    """A problem's buffers as arrays, for what looks at all of them at once."""

    names: Sequence[str]  # Of each buffer: its name, bytes of a slot, alignment, slots
    sizes: Ints
    alignments: Ints
    slots: Ints
    begins: Ints  # Of each live range, buffer by buffer: where it begins and ends, whose it is
    ends: Ints
    owners: Ints

    @classmethod
    def of(cls, buffers: Sequence[Buffer]) -> Columns:
        """Return the columns of some buffers."""
        rows = [(b.size, b.alignment, b.slots, len(b.live)) for b in buffers]
        sizes, alignments, slots, ranges = np.array(rows, np.int64).reshape(-1, 4).T.copy()
        bounds = np.array([live for b in buffers for live in b.live], np.int64).reshape(-1, 2)
        owners = np.repeat(np.arange(len(rows)), ranges)
        begins, ends = bounds.T.copy()
        return cls([b.name for b in buffers], sizes, alignments, slots, begins, ends, owners)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return buffers of a slot and a live range each."""
        lives = zip(self.begins.tolist(), self.ends.tolist(), strict=True)
        numbers = self.sizes.tolist(), lives, self.alignments.tolist()
        rows = zip(self.names, *numbers, strict=True)
        return tuple(Buffer(name, size, (live,), unit) for name, size, live, unit in rows)

    @cached_property
    def places(self) -> tuple[Ints, Ints, Ints]:
        """The distinct positions, sorted; of each live range, those of its begin and its end."""
        bounds = np.concatenate((self.begins, self.ends))
        positions, places = np.unique(bounds, return_inverse=True)
        return positions, places[: len(self.begins)], places[len(self.begins) :]

    def lives_of(self, counts: Ints) -> tuple[Ints, Ints]:
        """Return the lives of all slots, slot by slot, of buffers with so many slots each.

        Of each life, these are the live range and the number of the slot.
        """
        if len(self.owners) == len(counts) and (counts == 1).all():
            return self.owners, self.owners
        owner = np.repeat(np.arange(len(counts)), counts)
        first, stop = (np.searchsorted(self.owners, owner, side) for side in ("left", "right"))
        slots = np.repeat(np.arange(len(owner)), stop - first)
        return np.arange(len(slots)) + np.repeat(
            stop - np.cumsum(stop - first), stop - first
        ), slots
