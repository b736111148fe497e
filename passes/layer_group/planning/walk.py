# SPDX-License-Identifier: Apache-2.0
"""All groups that end with one layer and have one cut, the shortest group first.

They take their slices from one `Slicer`. The bound of a group is the price if its layers compute
while its transfers run, and wait for nothing but the first layer's loads; the last layer's stores
follow. No order of time steps costs less, so a group whose bound is too high need not be drafted.
More slices together move and compute no less, but for rows that nothing reads: a group that costs
too much without its edges is not cut further.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.layer_group.planning.cost import TRANSFERS, layer_cycles
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.local_memory import working_bytes
from passes.layer_group.planning.network import Kind, NetworkIndex
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.planning.slicing import GroupSlices, Slicer


@dataclass(frozen=True)
class Step:
    """The facts about a group before it is drafted."""

    moving: int  # Cycles of all its transfers
    computing: int  # Cycles of all its layers on one core
    edges: int  # Cycles of a slice's first loads and last stores, beside which nothing computes
    moved: int  # Bytes between global and local memory
    fits: bool  # Whether each layer has room beside the weights that stay
    overlap: bool  # Whether any two slices share rows

    def bound(self, cores: int) -> int:
        """Return what the price is at least, if so many cores share what is computed."""
        return self.moving + max(self.moving, self.computing // cores + self.edges)

    def least(self, cores: int) -> int:
        """Return the same in any number of slices, or more; their edges may be short."""
        return self.moving + max(self.moving, self.computing // cores)


class Walk:
    """A group that grows by the layer before it; `last` is the number of its last layer.

    Where it is `strict`, it has no tensor that is made too often: see `is_made_too_often`.
    """

    def __init__(
        self, index: NetworkIndex, chip: Chip, last: int, cut: Cut, *, strict: bool = False
    ) -> None:
        self._index, self._chip, self.last, self.cut = index, chip, last, cut
        self._strict = strict
        self._pipe = chip.machine[TRANSFERS]
        self._slicer = Slicer(index, cut)
        self._steps: list[Step | None] = []  # Of each group so far, the shortest first
        self._overlap = False
        self._computing = 0  # Cycles of the layers for all slices
        # Bytes of all slices of a tensor that is loaded or stored, and cycles of these transfers
        self._moves: dict[str, tuple[int, int]] = {}
        self._moved = self._moving = 0  # Their sums
        self._last_stores = 0  # Cycles of a slice's stores of the last layer
        self._stay: dict[str, int] = {}  # Bytes a lane of weights that stay for all slices
        self._next: dict[str, int] = {}  # Bytes a lane of what else the next layer reads
        self._most = 0  # Bytes a lane, at most, that one layer needs beside what stays

    def to(self, number: int) -> Step | None:
        """Return the facts of the group that begins here; None if it cannot be cut so."""
        while len(self._steps) <= self.last - number:
            able = None not in self._steps[-1:]
            self._steps.append(self._add(self.last - len(self._steps)) if able else None)
        return self._steps[self.last - number]

    def slices(self, first: int) -> GroupSlices:
        """Return the slices of the group that begins with layer `first`, the longest so far."""
        self.to(first)
        return self._slicer.slices(self._index.group(first, self.last), {})

    def _add(self, number: int) -> Step | None:
        """Put the layer of this number before the others; None if it cannot be cut so."""
        index, chip, lanes, cut = self._index, self._chip, self._chip.lanes, self.cut
        layer, turns = index.network.layers[number], cut.turns
        stored = index.leaves(layer.output, self.last)
        if cut.steps > 1 and not lanes.can_be_cut(index, layer, cut, stored=stored):
            return None
        self._slicer.add(layer, stored=stored)
        made = self._slicer.tensors[layer.output]
        self._computing += layer_cycles(chip.machine, lanes, index, layer, made.made_elements)
        each = self._move(layer.output, index.bytes[layer.output] if stored else 0, turns)
        if number == self.last:
            self._last_stores = each
        edges, reads = self._last_stores, {}
        read = [self._slicer.tensors[name] for name in dict.fromkeys(layer.inputs)]
        for one in read:
            name, stays = one.tensor.name, turns > 1 and one.is_whole
            if stays and one.tensor.kind is Kind.WEIGHT:
                self._stay[name] = lanes.tensor_bytes(one.tensor, one.window)
            else:
                reads[name] = lanes.tensor_bytes(one.tensor, one.window)
            loaded = -(-one.made_elements * one.tensor.bits // 8)
            edges += self._move(name, loaded, 1 if stays else turns)
        # What the next layer reads is there one step before.
        held = reads | self._next
        held[layer.output] = lanes.tensor_bytes(made.tensor, made.window)
        if layer.in_place:
            del held[layer.output]
        self._next = reads
        self._most = max(self._most, sum(held.values()) + working_bytes(layer, made, lanes))
        self._overlap = self._overlap or any(one.repeated_rows for one in (made, *read))
        if self._strict and any(one.is_made_too_often for one in (made, *read)):
            return None
        fits = self._most + sum(self._stay.values()) <= chip.capacity
        return Step(self._moving, self._computing, edges, self._moved, fits, self._overlap)

    def _move(self, name: str, nbytes: int, times: int) -> int:
        """Move a tensor so often, not as before; return the cycles of each time."""
        cores = self.cut.cores
        each = self._pipe.cycles(-(-nbytes // (times * cores))) * cores if nbytes else 0
        moved, took = self._moves.get(name, (0, 0))
        self._moves[name] = nbytes, each * times
        self._moved, self._moving = self._moved + nbytes - moved, self._moving + each * times - took
        return each
