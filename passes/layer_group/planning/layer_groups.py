# SPDX-License-Identifier: Apache-2.0
"""Which layers of a network form groups: the searches, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from passes.layer_group.planning.cost import TRANSFERS, layer_cycles
from passes.layer_group.planning.group import NetworkIndex, bytes_of, element_count, extent_of
from passes.layer_group.planning.local_memory import item_bytes
from passes.layer_group.planning.network import Network
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.search import (
    KEEPS,
    GroupSearch,
    dynamic_programming,
    tail_to_head,
)
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.spans import Spans

SEARCHES = {
    "dynamic_programming": (dynamic_programming, tail_to_head),
    "tail_to_head": (tail_to_head,),
}
"""The ways to search, by name, and whose results are compared: the fewest cycles are taken."""

HALOS = tuple(KEEPS)
"""What can happen to rows that two slices need."""


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups."""

    network: Network  # What was cut
    groups: tuple[PlannedGroup, ...]  # In the order in which they run
    left: Mapping[str, str]  # Names of the layers in no group, and why
    cycles: int  # Of all groups, and of the layers that are left
    # Bytes between global and local memory if every layer loads its inputs and stores its output,
    # each once.
    moved_before: int
    moved_after: int  # Bytes with the groups
    # Bytes if every output of the network moves once, and what is read of inputs and weights.
    moved_least: int


def plan_layer_groups(
    network: Network,
    chip: Chip,
    *,
    search: str = "dynamic_programming",
    halo: str = "recompute",
) -> LayerGroups:
    """Cut a network into groups whose slices stay in local memory.

    `search` is ``dynamic_programming``, which finds the groups of the fewest cycles, or
    ``tail_to_head``, which takes the longest group that fits, beginning with the last layer. As the
    first one looks at groups of some lengths only, the groups of the second are taken where they
    need fewer cycles.

    Raises ValueError if an option is unknown or the network is not well formed.
    """
    for what, value, names in (("search", search, SEARCHES), ("halo", halo, HALOS)):
        if value not in names:
            known = ", ".join(repr(name) for name in names)
            raise ValueError(f"LayerGroup: {what} must be one of {known}, got {value!r}")
    index = NetworkIndex(network)
    group_search = GroupSearch(index, chip, halo)
    groups: list[PlannedGroup] = []
    left = {layer.name: layer.reason for layer in network.layers if layer.reason}
    for first, last in _runs(network):
        found = [_settled(group_search, way(group_search, first, last)) for way in SEARCHES[search]]
        for part in min(found, key=lambda parts: _total(index, chip, parts)):
            if isinstance(part, int):
                left[network.layers[part].name] = _why_left(index, chip, part)
            else:
                groups.append(part)
    moved = sum(group.cost.moved for group in groups)
    cycles = sum(group.cost.cycles for group in groups)
    before = 0
    for number, layer in enumerate(network.layers):
        alone = _moved_alone(index, number)
        before += alone
        if layer.name in left:
            moved += alone
            cycles += _cycles_alone(index, chip, number)
    order = {layer.name: number for number, layer in enumerate(network.layers)}
    reasons = {name: left[name] for name in sorted(left, key=order.__getitem__)}
    least = _moved_least(index)
    return LayerGroups(network, tuple(groups), reasons, cycles, before, moved, least)


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


def _why_left(index: NetworkIndex, chip: Chip, number: int) -> str:
    """Return why a layer fits in no group, not even alone."""
    group = index.group((number,))
    output = index.tensors[index.network.layers[number].output]
    unit = chip.lanes.batch_unit(output.bits)
    cut = Cut(n=-(-extent_of(output, "n") // unit), h=extent_of(output, "h"))
    slices = slice_group(group, cut, n_unit=unit)
    needed = sum(item_bytes(slices, chip.lanes).values())
    if needed <= chip.capacity:
        return f"its slices repeat more rows than the overlap rule {chip.overlap_rule!r} allows"
    return (
        f"needs {needed} bytes a lane of {chip.memory.name} at its smallest slice, "
        f"{chip.capacity} are available"
    )


def _settled(
    search: GroupSearch, parts: Sequence[PlannedGroup | int]
) -> tuple[PlannedGroup | int, ...]:
    return tuple(part if isinstance(part, int) else search.settle(part) for part in parts)


def _total(index: NetworkIndex, chip: Chip, parts: Sequence[PlannedGroup | int]) -> int:
    """Return the cycles of groups, and of layers in none."""
    return sum(
        _cycles_alone(index, chip, part) if isinstance(part, int) else part.cost.cycles
        for part in parts
    )


def _moved_alone(index: NetworkIndex, number: int) -> int:
    """Return the bytes that a layer moves that is in no group."""
    layer = index.network.layers[number]
    return sum(bytes_of(index.tensors[n]) for n in (*dict.fromkeys(layer.inputs), layer.output))


def _cycles_alone(index: NetworkIndex, chip: Chip, number: int) -> int:
    """Return the cycles of a layer that is left: it computes while its tensors are moved."""
    layer = index.network.layers[number]
    elements = element_count(index.tensors[layer.output])
    computing = layer_cycles(chip.machine, chip.lanes, index.group((number,)), layer, elements)
    return max(computing, chip.machine[TRANSFERS].cycles(_moved_alone(index, number)))


def _moved_least(index: NetworkIndex) -> int:
    """Return the bytes of what comes from outside and is read, and of all outputs, each once."""
    ends = [n for n in index.maker if n in index.outputs or not index.readers[n]]
    moved = sum(bytes_of(index.tensors[name]) for name in ends)
    needs = {name: [_all(extent) for extent in index.tensors[name].shape] for name in ends}
    for layer in reversed(index.network.layers):
        made = needs[layer.output]
        for name, axis_maps in zip(layer.inputs, layer.maps, strict=True):
            extents = index.tensors[name].shape
            read = [
                _all(n) if m is None else made[m.axis].needed(m, n)
                for m, n in zip(axis_maps, extents, strict=True)
            ]
            known = needs.get(name, read)
            needs[name] = [one.joined(other) for one, other in zip(known, read, strict=True)]
    for name, tensor in index.tensors.items():
        if name not in index.maker and index.readers[name]:
            moved += -(-prod(axis.covered() for axis in needs[name]) * tensor.bits // 8)
    return moved


def _all(extent: int) -> Spans:
    at = np.arange(extent)
    return Spans(at, at + 1)
