# SPDX-License-Identifier: Apache-2.0
"""Why a layer that can be cut is in no group."""

from __future__ import annotations

from math import prod

from passes.layer_group.planning.group import NetworkIndex, extent_of
from passes.layer_group.planning.local_memory import item_bytes
from passes.layer_group.planning.planned_group import Chip, batch_unit
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.slicing import Cut, slice_group


def why_left(index: NetworkIndex, chip: Chip, number: int) -> str:
    """Return why the layer of this number, which has no reason of its own, is in no group."""
    return _does_not_fit(index, chip, number) or _of_neighbours(index, number)


def _does_not_fit(index: NetworkIndex, chip: Chip, number: int) -> str:
    """Return what a layer needs alone, if its smallest slice needs more than the capacity."""
    layer, group = index.network.layers[number], index.group((number,))
    output, unit = index.tensors[layer.output], batch_unit(group, chip)
    columns = extent_of(output, "w") if layer.by_columns else 1
    cut = Cut(-(-extent_of(output, "n") // unit), extent_of(output, "h"), columns, 1)
    slices = slice_group(group, cut, n_unit=unit, streams=streams_of(group, chip.lanes, cut))
    sizes = item_bytes(slices, chip.lanes)
    needed, working = sum(sizes.values()), sizes[layer.name]
    if needed <= chip.capacity:
        return ""
    held = {
        name: -(-prod(slices.window(name)) * group.tensor(name).bits // (8 * chip.lanes.count))
        for name in group.names
    }
    weights = sum(held[name] for name in group.weights)
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
