# SPDX-License-Identifier: Apache-2.0
"""Which layers of a network form groups, and why the others are in none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np
from numpy.typing import NDArray

from passes.layer_group.planning.cost import Cost, total
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.group_search import SEARCHES, GroupSearch, Progress, silent
from passes.layer_group.planning.local_memory import lane_bytes
from passes.layer_group.planning.network import Kind, Network
from passes.layer_group.planning.planned_group import Chip, PlannedGroup, sliced
from passes.layer_group.planning.spans import Spans


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups."""

    network: Network  # What was cut, its layers in the order in which they run
    groups: tuple[PlannedGroup, ...]  # In the order in which they run
    left: Mapping[str, str]  # Names of the layers in no group, and why
    # By name, what each layer takes in no group, with those that lay out its weights; in cycles,
    # in slices that wait for each other.
    alone: Mapping[str, Cost]
    # By name, the bytes that layers move which make weights of weights alone: what a deployment
    # does once.
    folded: Mapping[str, int]
    moved_least: int  # Bytes if each output moves once, and what is read of inputs and weights

    @property
    def before(self) -> Cost:
        """What the network takes if every layer runs alone."""
        return total(self.alone.values())

    @property
    def after(self) -> Cost:
        """What the network takes with the groups."""
        return total(
            [*(group.cost for group in self.groups), *map(self.alone.__getitem__, self.left)]
        )

    @property
    def folded_before(self) -> int:
        """Bytes of those that are moved without groups that lay out weights."""
        return sum(self.folded.values())

    @property
    def folded_after(self) -> int:
        """Bytes of those that are moved with the groups that lay out weights."""
        return sum(self.folded.get(name, 0) for name in self.left)


def plan_layer_groups(
    network: Network,
    chip: Chip,
    *,
    search: str = "dynamic_programming",
    halo: str = "recompute",
    progress: Progress = silent,
) -> LayerGroups:
    """Cut a network into groups whose slices stay in local memory.

    `search` is one of `SEARCHES`, `halo` one of `HALOS`; `progress` is told how far the search is.
    Raises ValueError if the network is not well formed.
    """
    network = by_dependencies(network)
    index = NetworkIndex(network)
    groups_of = GroupSearch(index, chip, halo, progress)
    parts: list[PlannedGroup | int] = []
    for is_left, run in groupby(
        range(len(network.layers)), lambda n: bool(network.layers[n].reason)
    ):
        if not is_left:
            first, *others = run
            parts += SEARCHES[search](groups_of, first, others[-1] if others else first)
    groups = tuple(part for part in parts if isinstance(part, PlannedGroup))
    left = {x.name: x.reason for x in network.layers if x.reason and not x.lays_out}
    for n in (part for part in parts if isinstance(part, int)):
        left[network.layers[n].name] = _does_not_fit(index, chip, n) or _of_neighbours(index, n)
    return LayerGroups(
        network=network,
        groups=groups,
        left=with_layouts(index, left),
        alone={
            x.name: cost if x.reason else replace(cost, cycles=groups_of.waiting(number).cycles)
            for number, (x, cost) in enumerate(zip(network.layers, groups_of.alone, strict=True))
        },
        folded={
            layer.name: sum(index.bytes[name] for name in (*layer.inputs, layer.output))
            for layer in network.layers
            if layer.lays_out
        },
        moved_least=_moved_least(index),
    )


def by_dependencies(network: Network) -> Network:
    """Return a network in an order in which layers that cannot be grouped part few others.

    Layers have a stage: it grows by one where a layer that cannot be grouped reads what one that
    can makes. Within a stage the former come first, so that all others of the stage follow each
    other, and any run of these is convex: no path leaves it and comes back. Layers of a stage keep
    their order.

    Raises ValueError if the network is not well formed.
    """
    index = NetworkIndex(network)
    stage: list[int] = []
    for layer in network.layers:
        earlier = (*layer.inputs, *layer.behind)
        makers = [index.maker[name] for name in earlier if name in index.maker]
        steps = (stage[n] + bool(layer.reason and not network.layers[n].reason) for n in makers)
        stage.append(max(steps, default=0))
    order = sorted(
        range(len(network.layers)), key=lambda n: (stage[n], not network.layers[n].reason, n)
    )
    return replace(network, layers=tuple(network.layers[n] for n in order))


def with_layouts(index: NetworkIndex, left: Mapping[str, str]) -> dict[str, str]:
    """Return why layers are left, in their order, with those that lay out weights of them."""
    layers = [layer for layer in index.network.layers if not layer.lays_out]
    wanted = [one.name for x in layers if x.name in left for one in index.layouts(x.inputs)]
    reasons = {layer.name: layer.reason for layer in index.network.layers} | dict(left)
    names = {*left, *wanted}
    return {x.name: reasons[x.name] for x in index.network.layers if x.name in names}


def _moved_least(index: NetworkIndex) -> int:
    """Return the bytes of what comes from outside and is read, and of all outputs, each once."""
    ends = [n for n in index.maker if n in index.outputs or not index.readers[n]]
    moved = sum(index.bytes[name] for name in ends)
    # By tensor: which indices of each axis are needed.
    needs = {name: [np.ones(n, bool) for n in index.tensors[name].shape] for name in ends}
    for layer in reversed(index.network.layers):
        made = needs[layer.output]
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            extents = index.tensors[name].shape
            read = [
                np.ones(n, bool) if m is None else _read_through(m.spans, made[m.axis], n)
                for m, n in zip(maps, extents, strict=True)
            ]
            needs[name] = _both(needs.get(name, read), read)
    for name, tensor in index.tensors.items():
        if name not in index.maker and index.readers[name] and tensor.is_known:
            moved += -(-prod(int(axis.sum()) for axis in needs[name]) * tensor.bits // 8)
    return moved


_Needed = NDArray[np.bool_]


def _read_through(spans: Spans, made: _Needed, extent: int) -> _Needed:
    """Return which indices of an input's axis some indices of the output need, one by one."""
    at = np.flatnonzero(made & (spans.sizes > 0))
    steps = np.zeros(extent + 1, int)
    np.add.at(steps, spans.begin[at], 1)
    np.add.at(steps, spans.end[at], -1)
    read: _Needed = np.cumsum(steps[:-1]) > 0
    return read


def _both(one: list[_Needed], other: list[_Needed]) -> list[_Needed]:
    """Return what two readers need, or less: where they differ on two axes, the larger need.

    They may read a row and a column; then what spans both would be more than either reads.
    """
    differ = sum(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    if differ <= 1:
        return [a | b for a, b in zip(one, other, strict=True)]
    return max(one, other, key=lambda axes: prod(int(axis.sum()) for axis in axes))


def _does_not_fit(index: NetworkIndex, chip: Chip, number: int) -> str:
    """Return what a layer needs alone, if its smallest slice needs more than the capacity."""
    layer, group = index.network.layers[number], index.group(number, number)
    batch, rows, columns = chip.lanes.most_slices(index, layer.output)
    cut = Cut(batch, rows, columns if layer.by_columns else 1, part_bytes=1)
    slices = sliced(group, cut, chip)
    sizes = lane_bytes(slices, chip.lanes)
    needed, working = sum(sizes.values()), sizes[layer.name]
    if needed <= chip.capacity:
        return ""
    held = {
        name: -(-prod(slices.window(name)) * group.tensor(name).bits // (8 * chip.lanes.count))
        for name in group.names
    }
    weights = sum(held[name] for name in held if group.tensor(name).kind is Kind.WEIGHT)
    others = sum(held.values()) - weights
    padding = needed - working - weights - others
    return (
        f"needs {needed} bytes a lane of {chip.memory.name} at its smallest slice, {weights} of "
        f"weights, {others} of other tensors, {working} of working memory and {padding} of padding "
        f"and lanes without channels; {chip.capacity} are available"
    )


def _of_neighbours(index: NetworkIndex, number: int) -> str:
    """Return what keeps a layer apart from the layers that make its inputs or read its output."""
    layers = index.network.layers
    makers = (index.maker[name] for name in layers[number].inputs if name in index.maker)
    near = list(dict.fromkeys((*makers, *index.readers[layers[number].output])))
    near = [n for n in near if not layers[n].lays_out]
    if not near:
        return "no other layer makes what it reads, or reads what it makes"
    able = [n for n in near if not layers[n].reason]
    if not able:
        return f"{_named(index, near)} cannot be grouped"
    free = [n for n in able if not _refused_between(index, n, number)]
    if not free:
        between = layers[_refused_between(index, able[0], number)[0]].name
        neighbour = _named(index, able[:1])
        return f"{between!r}, which cannot be grouped, runs between it and {neighbour}"
    return f"no group with {_named(index, free)} fits and costs less than the layers alone"


def _refused_between(index: NetworkIndex, one: int, other: int) -> list[int]:
    numbers = range(min(one, other), max(one, other))
    return [n for n in numbers if index.network.layers[n].reason]


def _named(index: NetworkIndex, numbers: list[int]) -> str:
    names = ", ".join(repr(index.network.layers[number].name) for number in numbers)
    return f"its neighbour{'s' if len(numbers) > 1 else ''} {names}"
