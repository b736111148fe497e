# SPDX-License-Identifier: Apache-2.0
"""Tensors that pass through local memory part by part while their layer computes.

A layer whose weights are large makes its channels in parts. The weights of a part are loaded into
one of two buffers while the part before computes from the other one, anew for each slice. So a
weight takes two parts of itself, and only as long as its layer computes. The same holds for an
input of which a part of the result needs the same channels alone, such as the other operand of an
addition, and for a result that nothing else in the group reads: its parts are stored. Working
memory is that of a part, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from passes.layer_group.planning.network import Range


@dataclass(frozen=True)
class Parts:
    """An axis of a tensor in parts."""

    axis: int
    extent: int  # Its elements
    chunk: int  # Elements of a part
    cores: int = 1  # They share the parts: each has as many, one after the other.

    @property
    def count(self) -> int:
        """How many parts there are."""
        return -(-self.extent // self.chunk)

    @property
    def turns(self) -> int:
        """How many parts a core has."""
        return self.count // self.cores

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What each part has of the axis."""
        begins = range(0, self.extent, self.chunk)
        return tuple((begin, min(begin + self.chunk, self.extent)) for begin in begins)

    @property
    def window(self) -> int:
        """Elements of the axis that are there at once where parts are moved: those of two."""
        return min(min(2, self.turns) * self.chunk, self.extent)


@dataclass(frozen=True)
class LayerRun:
    """Layers in one loop over parts, part by part: mostly one layer alone.

    All axes that are in parts have as many parts, which as many cores share.
    """

    layers: tuple[str, ...]  # Their names, in order
    # By name, for each layer that makes its result in parts: the axis of the result.
    made: Mapping[str, Parts]
    # The axis that the last layer reads of all that it sums, if it sums over the parts. Its result
    # is whole; it is begun with the first part and finished with the last one.
    summed: Parts | None
    # By name, for each tensor of which only parts are there.
    loads: Mapping[str, Parts] = field(default_factory=dict)
    stores: Mapping[str, Parts] = field(default_factory=dict)
    between: Mapping[str, Parts] = field(default_factory=dict)  # Made and read in the loop alone
    # The axis of the result along which the sum is finished in a loop of its own over parts, if it
    # is; and each tensor that is loaded in these parts.
    finish: Parts | None = None
    late: Mapping[str, Parts] = field(default_factory=dict)

    @cached_property
    def parts(self) -> Parts:
        """One of the axes that are in parts."""
        return self.summed or next(iter(self.made.values()))

    def sums(self, layer: str) -> bool:
        """Whether a layer of this name sums over the parts."""
        return self.summed is not None and layer == self.layers[-1]

    @cached_property
    def held(self) -> dict[str, tuple[Parts, int]]:
        """The axis in parts of each tensor of which only parts are there, and how many elements."""
        moved = (*self.loads.items(), *self.stores.items(), *self.late.items())
        found = {name: (parts, parts.chunk) for name, parts in self.between.items()}
        return found | {name: (parts, parts.window) for name, parts in moved}


def streamed_by(runs: Mapping[str, LayerRun]) -> dict[str, tuple[Parts, int]]:
    """Return what all runs hold of what only parts are there; see `LayerRun.held`."""
    found: dict[str, tuple[Parts, int]] = {}
    for run in runs.values():
        found |= run.held
    return found


def window_of(shape: tuple[int, ...], axis: int, window: int) -> tuple[int, ...]:
    """Return extents with another one on one axis."""
    return (*shape[:axis], window, *shape[axis + 1 :])
