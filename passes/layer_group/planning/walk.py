# SPDX-License-Identifier: Apache-2.0
"""All groups that end with one layer and have one cut, the shortest group first.

They take their slices from one `Slicer`. The bound of a group is the price if its layers compute
while its transfers run, and nothing waits. No order of time steps costs less, so a group whose
bound is too high need not be drafted.
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

    bound: int  # Its price is at least this
    moved: int  # Bytes between global and local memory
    overlap: bool  # Whether any two slices share rows
    again: bool  # Whether a tensor is made too often: see `TensorSlices.is_made_too_often`


class Walk:
    """A group that grows by the layer before it; `last` is the number of its last layer."""

    def __init__(self, index: NetworkIndex, chip: Chip, last: int, cut: Cut) -> None:
        self._index, self._chip, self._last, self.cut = index, chip, last, cut
        self._pipe = chip.machine[TRANSFERS]
        self._first = last + 1  # The first layer of the group as it is now
        self._overlap = self._again = False
        self._slicer = Slicer(index, cut)
        self._cycles = 0  # In which the layers compute a slice
        # By the tensor: bytes of all slices, cycles of one transfer, and whether one does for all.
        self._loads: dict[str, tuple[int, int, bool]] = {}
        self._stores: dict[str, tuple[int, int, bool]] = {}
        self._resident = 0  # Bytes a lane of weights that stay for all slices
        self._most = 0  # Bytes a lane, at most, that one layer needs beside these

    def to(self, number: int) -> Step | None:
        """Put all layers from this number on before the others; None if no such group can be."""
        while self._first > number:
            self._first -= 1
            if not self._add(self._first):
                return None
        moved = sum(
            nbytes for moves in (self._loads, self._stores) for nbytes, *_ in moves.values()
        )
        return Step(self._bound(), moved, self._overlap, self._again)

    def slices(self, first: int) -> GroupSlices:
        """Return the slices of the group that begins with layer `first`."""
        self.to(first)
        return self._slicer.slices(self._index.group(first, self._last), {})

    def _add(self, number: int) -> bool:
        """Put the layer of this number before the others.

        False if no group with it can have this cut, or fits: each layer's tensors, its working
        memory and all resident weights are in local memory at once.
        """
        index, chip, lanes = self._index, self._chip, self._chip.lanes
        layer = index.network.layers[number]
        stored = index.leaves(layer.output, self._last)
        if not lanes.can_be_cut(index, layer, self.cut, stored=stored):
            return False
        self._slicer.add(layer, stored=stored)
        made = self._slicer.tensors[layer.output]
        every = layer_cycles(chip.machine, lanes, index, layer, made.made_elements)
        self._cycles += -(-every // self.cut.steps)
        self._loads.pop(layer.output, None)
        if stored:
            self._stores[layer.output] = self._transfer(index.bytes[layer.output], False)
        needed = working_bytes(layer, made, lanes)
        if not layer.in_place:
            needed += lanes.tensor_bytes(made.tensor, made.window)
        for name in dict.fromkeys(layer.inputs):
            tensor = self._slicer.tensors[name]
            is_held = tensor.is_whole and self.cut.turns > 1
            nbytes = lanes.tensor_bytes(tensor.tensor, tensor.window)
            is_weight = tensor.tensor.kind is Kind.WEIGHT
            if is_held and is_weight:
                self._resident += 0 if name in self._loads else nbytes
            else:
                needed += nbytes
            loaded = -(-tensor.made_elements * tensor.tensor.bits // 8)
            self._loads[name] = self._transfer(loaded, is_held)
        touched = [made, *map(self._slicer.tensors.__getitem__, layer.inputs)]
        self._overlap = self._overlap or any(tensor.repeated_rows for tensor in touched)
        self._again = self._again or any(tensor.is_made_too_often for tensor in touched)
        self._most = max(self._most, needed)
        return self._most + self._resident <= chip.capacity

    def _transfer(self, nbytes: int, is_held: bool) -> tuple[int, int, bool]:
        times = 1 if is_held else self.cut.turns
        cores = self.cut.cores
        return nbytes, self._pipe.cycles(-(-nbytes // (times * cores))) * cores, is_held

    def _bound(self) -> int:
        """Return the price if the transfers run while the layers compute, and nothing waits."""
        turns, every = self.cut.turns, [*self._loads.values(), *self._stores.values()]
        moving = sum(cycles * (1 if held else turns) for _, cycles, held in every)
        return moving + max(moving, self._cycles * turns)
