# SPDX-License-Identifier: Apache-2.0
"""Runs of layers that are alike but for names: search results for one of them hold for all.

Alike are the layers with their maps, the tensors with their extents, which of these are the same
one, who else reads them, and which of them leave the run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import PlannedGroup


class Repeats:
    """Numbers of runs of layers, equal for those that are alike, in all that share `numbers`."""

    def __init__(self, index: NetworkIndex, numbers: dict[Hashable, int] | None = None) -> None:
        self._index = index
        self._numbers = {} if numbers is None else numbers
        self._layers = [self._number(self._content(n)) for n in range(len(index.network.layers))]
        # By the last layer: the numbers of the runs that end with it, shortest first, and the order
        # of their tensors.
        self._ending: dict[int, tuple[list[int], dict[str, int]]] = {}

    def run(self, first: int, last: int) -> int:
        """Return the number of the run of layers from `first` to `last`."""
        runs, order = self._ending.setdefault(last, ([], {}))
        for number in range(last - len(runs), first - 1, -1):
            layer = self._index.network.layers[number]
            names = (layer.output, *layer.inputs)
            same = tuple(order.setdefault(name, len(order)) for name in names)
            behind = self._index.leaves(layer.output, last)
            shorter = runs[-1] if runs else None
            runs.append(self._number((shorter, self._layers[number], same, behind)))
        return runs[last - first]

    def group(self, first: int, last: int, cut: Cut) -> int:
        """Return the number of a group of a run of layers with one cut."""
        return self._number((self.run(first, last), cut))

    def plan(self, planned: PlannedGroup) -> Hashable:
        """Return what a planned group is but for names: layers, slices, time steps, addresses."""
        offsets = tuple(planned.plan.offsets[name] for name in planned.local.sizes)
        run = self.run(planned.group.first, planned.group.last)
        return run, planned.cut, memory_content(planned.local), offsets, planned.plan.peak

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))

    def _content(self, number: int) -> Hashable:
        """Return what a layer is but for names."""
        index, layer = self._index, self._index.network.layers[number]
        operands, sums = [], dict(layer.sums)
        for name in layer.inputs:
            laid_out = [source for one in index.layouts((name,)) for source in one.inputs]
            own = index.readers[name] == [number], name in index.maker, name in layer.in_place
            after = tuple((axis, to) for other, axis, to in layer.after_sums if other == name)
            operands.append((own, sums.get(name), after, self._tensors((name, *laid_out))))
        alone = replace(layer, name="", inputs=(), output="", in_place=(), sums=(), after_sums=())
        return alone, tuple(operands), self._tensors((layer.output,))

    def _tensors(self, names: tuple[str, ...]) -> Hashable:
        return tuple(replace(self._index.tensors[name], name="") for name in names)


def memory_content(local: LocalMemory) -> Hashable:
    """Return what the local memory of a group is but for names."""
    at = {name: number for number, name in enumerate(local.sizes)}
    items = tuple((size, local.live[name]) for name, size in local.sizes.items())
    in_place = tuple((row, at[one], at[other]) for row, (one, other) in local.in_place)
    return items, local.rows, in_place
