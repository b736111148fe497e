# SPDX-License-Identifier: Apache-2.0
"""All groups that end with one layer and have one cut, the shortest group first.

They take their slices from one `Slicer`. The bound of a group is the price if its layers compute
while its transfers run, and nothing waits. No order of time steps costs less, so a group whose
bound is too high need not be drafted. The slices of a cut together move and compute no less than
one slice, but for rows that nothing reads: a group whose one slice costs too much is not cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from passes.layer_group.planning.cost import TRANSFERS, layer_cycles
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.local_memory import working_bytes
from passes.layer_group.planning.network import Kind, NetworkIndex
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.planning.slicing import GroupSlices, Slicer
from passes.layer_group.planning.time_steps import LOAD, STORE


@dataclass(frozen=True)
class Step:
    """The facts about a group before it is drafted."""

    moving: int  # Cycles of all its transfers
    computing: int  # Cycles of all its layers on one core
    moved: int  # Bytes between global and local memory
    fits: bool  # Whether each layer has room beside the weights that stay
    overlap: bool  # Whether any two slices share rows

    def bound(self, cores: int) -> int:
        """Return what the price is at least, if so many cores share what is computed."""
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
        # Bytes of all slices of a tensor that is loaded or stored, and cycles of all transfers.
        self._moves: dict[tuple[str, str], tuple[int, int]] = {}
        self._moved = self._moving = 0  # Their sums
        self._stay: dict[str, int] = {}  # Bytes a lane of weights that stay for all slices
        self._most = 0  # Bytes a lane, at most, that one layer needs beside these

    def to(self, number: int) -> Step | None:
        """Return the facts of the group that begins here; None if it cannot be cut so."""
        while len(self._steps) <= self.last - number:
            able = None not in self._steps[-1:] and self._add(self.last - len(self._steps))
            self._steps.append(self._step() if able else None)
        return self._steps[self.last - number]

    def _step(self) -> Step:
        fits = self._most + sum(self._stay.values()) <= self._chip.capacity
        return Step(self._moving, self._computing, self._moved, fits, self._overlap)

    def slices(self, first: int) -> GroupSlices:
        """Return the slices of the group that begins with layer `first`, the longest so far."""
        self.to(first)
        return self._slicer.slices(self._index.group(first, self.last), {})

    def _add(self, number: int) -> bool:
        """Put the layer of this number before the others; False if it cannot be cut so."""
        index, chip, lanes = self._index, self._chip, self._chip.lanes
        layer = index.network.layers[number]
        stored = index.leaves(layer.output, self.last)
        if not lanes.can_be_cut(index, layer, self.cut, stored=stored):
            return False
        self._slicer.add(layer, stored=stored)
        made, several = self._slicer.tensors[layer.output], self.cut.turns > 1
        self._computing += layer_cycles(chip.machine, lanes, index, layer, made.made_elements)
        self._move((layer.output, LOAD), 0, False)  # It is made here.
        if stored:
            self._move((layer.output, STORE), index.bytes[layer.output], False)
        needed = working_bytes(layer, made, lanes)
        if not layer.in_place:
            needed += lanes.tensor_bytes(made.tensor, made.window)
        read = [self._slicer.tensors[name] for name in dict.fromkeys(layer.inputs)]
        for one in read:
            stays = one.is_whole and several
            nbytes = lanes.tensor_bytes(one.tensor, one.window)
            if stays and one.tensor.kind is Kind.WEIGHT:
                self._stay[one.tensor.name] = nbytes
            else:
                needed += nbytes
            loaded = -(-one.made_elements * one.tensor.bits // 8)
            self._move((one.tensor.name, LOAD), loaded, stays)
        self._overlap = self._overlap or any(one.repeated_rows for one in (made, *read))
        self._most = max(self._most, needed)
        return not self._strict or not any(one.is_made_too_often for one in (made, *read))

    def _move(self, what: tuple[str, str], nbytes: int, at_once: bool) -> None:
        """Move so many bytes of a tensor, slice by slice or at once; none any more if it is 0."""
        times, cores = 1 if at_once else self.cut.turns, self.cut.cores
        before, took = self._moves.pop(what, (0, 0))
        takes = self._pipe.cycles(-(-nbytes // (times * cores))) * cores * times if nbytes else 0
        self._moved, self._moving = self._moved + nbytes - before, self._moving + takes - took
        if nbytes:
            self._moves[what] = nbytes, takes
