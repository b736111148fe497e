# SPDX-License-Identifier: Apache-2.0
"""Which layers of a network form groups: the searches, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from passes.layer_group.planning.dependencies import by_dependencies
from passes.layer_group.planning.group import NetworkIndex, bytes_of
from passes.layer_group.planning.network import Network
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.reasons import why_left
from passes.layer_group.planning.search import (
    KEEPS,
    SEARCHES,
    GroupSearch,
    Progress,
    silent,
)
from passes.layer_group.planning.spans import Spans

HALOS = tuple(KEEPS)
"""What can happen to rows that two slices need."""


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups."""

    network: Network  # What was cut, its layers in the order in which they run
    groups: tuple[PlannedGroup, ...]  # In the order in which they run
    left: Mapping[str, str]  # Names of the layers in no group, and why
    cycles: int  # Of all groups, and of the layers that are left
    price: int  # The same; see `GroupCost`
    # Bytes between global and local memory if every layer loads its inputs and stores its output,
    # each once.
    moved_before: int
    moved_after: int  # Bytes with the groups
    # Bytes of `moved_before` and of `moved_after` that layers move which make weights of weights
    # alone: what a deployment does once.
    folded_before: int
    folded_after: int
    # Bytes if every output of the network moves once, and what is read of inputs and weights.
    moved_least: int
    # Bytes that each layer moves in no group, with those that lay out its weights, by its name.
    moved_alone: Mapping[str, int]


def plan_layer_groups(
    network: Network,
    chip: Chip,
    *,
    search: str = "dynamic_programming",
    halo: str = "recompute",
    progress: Progress = silent,
) -> LayerGroups:
    """Cut a network into groups whose slices stay in local memory.

    `search` is ``dynamic_programming``, which finds the groups of the lowest price, or
    ``tail_to_head``, which takes the longest group that fits, beginning with the last layer.
    `progress` is told how far the search is.

    Raises ValueError if an option is unknown or the network is not well formed.
    """
    for what, value, names in (("search", search, SEARCHES), ("halo", halo, HALOS)):
        if value not in names:
            known = ", ".join(repr(name) for name in names)
            raise ValueError(f"LayerGroup: {what} must be one of {known}, got {value!r}")
    network = by_dependencies(network)
    index = NetworkIndex(network)
    group_search = GroupSearch(index, chip, halo, progress)
    parts: list[PlannedGroup | int] = []
    for first, last in _runs(network):
        parts += SEARCHES[search](group_search, first, last)
    groups = [part for part in parts if isinstance(part, PlannedGroup)]
    left = {x.name: x.reason for x in network.layers if x.reason and not x.lays_out}
    left |= {
        network.layers[number].name: why_left(index, chip, number)
        for number in parts
        if isinstance(number, int)
    }
    moved = sum(group.cost.moved for group in groups)
    cycles = sum(group.cost.cycles for group in groups)
    price = sum(group.cost.price for group in groups)
    for layer, alone in zip(network.layers, group_search.alone, strict=True):
        if layer.name in left:
            moved, cycles, price = moved + alone.moved, cycles + alone.cycles, price + alone.price
    before = sum(alone.moved for alone in group_search.alone)
    reasons = with_layouts(index, left)
    folded = {
        layer.name: sum(bytes_of(index.tensors[name]) for name in (*layer.inputs, layer.output))
        for layer in network.layers
        if layer.lays_out
    }
    return LayerGroups(
        network=network,
        groups=tuple(groups),
        left=reasons,
        cycles=cycles,
        price=price,
        moved_before=before,
        moved_after=moved,
        folded_before=sum(folded.values()),
        folded_after=sum(folded[name] for name in reasons if name in folded),
        moved_least=_moved_least(index),
        moved_alone={
            layer.name: alone.moved
            for layer, alone in zip(network.layers, group_search.alone, strict=True)
        },
    )


def with_layouts(index: NetworkIndex, left: Mapping[str, str]) -> dict[str, str]:
    """Return why layers are left, in their order, with those that lay out weights of them."""
    layers = [layer for layer in index.network.layers if not layer.lays_out]
    wanted = [one.name for x in layers if x.name in left for one in index.layouts(x.inputs)]
    reasons = {layer.name: layer.reason for layer in index.network.layers} | dict(left)
    names = {*left, *wanted}
    return {x.name: reasons[x.name] for x in index.network.layers if x.name in names}


def _runs(network: Network) -> list[tuple[int, int]]:
    """Return the first and last numbers of layers that follow each other and can be grouped."""
    runs: list[tuple[int, int]] = []
    for number, layer in enumerate(network.layers):
        if layer.reason:
            continue
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _moved_least(index: NetworkIndex) -> int:
    """Return the bytes of what comes from outside and is read, and of all outputs, each once."""
    ends = [n for n in index.maker if n in index.outputs or not index.readers[n]]
    moved = sum(bytes_of(index.tensors[name]) for name in ends)
    every = cache(_all)
    needs = {name: [every(extent) for extent in index.tensors[name].shape] for name in ends}
    for layer in reversed(index.network.layers):
        made = needs[layer.output]
        for name, axis_maps in zip(layer.inputs, layer.maps, strict=True):
            extents = index.tensors[name].shape
            read = [
                # One by one: a slice of one row reads no row between those that it needs.
                every(n) if m is None else made[m.axis].singly().needed(m, n)
                for m, n in zip(axis_maps, extents, strict=True)
            ]
            needs[name] = _both(needs.get(name, read), read)
    for name, tensor in index.tensors.items():
        if name not in index.maker and index.readers[name] and tensor.is_known:
            moved += -(-prod(axis.covered for axis in needs[name]) * tensor.bits // 8)
    return moved


def _both(one: list[Spans], other: list[Spans]) -> list[Spans]:
    """Return what two readers need, or less: where they differ on two axes, the larger need.

    They may read a row and a column; then what spans both would be more than either reads.
    """
    joined = [a.joined(b) for a, b in zip(one, other, strict=True)]
    sizes = [[axis.covered for axis in needs] for needs in (one, other, joined)]
    differ = sum(len({*counts}) > 1 for counts in zip(*sizes, strict=True))
    return joined if differ <= 1 else max(one, other, key=lambda n: prod(a.covered for a in n))


def _all(extent: int) -> Spans:
    at = np.arange(extent)
    return Spans(at, at + 1)
