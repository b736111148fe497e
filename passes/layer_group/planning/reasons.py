# SPDX-License-Identifier: Apache-2.0
"""Why a layer that can be cut is in no group: one cause, and the neighbour that it lies with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from passes.layer_group.planning.group import extent_of, rows_of
from passes.layer_group.planning.local_memory import item_bytes
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.runs import streams_of
from passes.layer_group.planning.search import GroupSearch
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.sweep import Estimate


@dataclass(frozen=True)
class Part:
    """A group of the result, or a layer in none."""

    first: int  # Numbers of its first and last layer
    last: int
    moved: int  # Bytes between global and local memory
    price: int  # As in `GroupCost`

    @classmethod
    def of(cls, search: GroupSearch, part: PlannedGroup | int) -> Part:
        """Return the facts of a planned group, or of the layer of this number."""
        if isinstance(part, int):
            alone = search.alone[part]
            return cls(part, part, alone.moved, alone.price)
        return cls(part.numbers[0], part.numbers[-1], part.cost.moved, part.cost.price)


def why_left(search: GroupSearch, parts: Sequence[PlannedGroup | int]) -> dict[str, str]:
    """Return why the layers that a search left are in no group, by their names."""
    found = [Part.of(search, part) for part in parts]
    by_layer = {number: part for part in found for number in range(part.first, part.last + 1)}
    left = [part for part in parts if isinstance(part, int)]
    return {
        search.index.network.layers[number].name: _does_not_fit(search, number)
        or _of_neighbours(search, number, by_layer)
        for number in left
    }


def _does_not_fit(search: GroupSearch, number: int) -> str:
    """Return what a layer needs alone, where its smallest slice needs more than there is."""
    index, chip = search.index, search.chip
    layer, group = index.network.layers[number], index.group((number,))
    output = index.tensors[layer.output]
    unit = chip.lanes.batch_unit(output.bits)
    columns = extent_of(output, "w") if layer.by_columns else 1
    cut = Cut(-(-extent_of(output, "n") // unit), rows_of(index, layer), columns, 1)
    streams = streams_of(group, chip.lanes, cut)
    slices = slice_group(group, cut, n_unit=unit, streams=streams)
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


def _of_neighbours(search: GroupSearch, number: int, parts: Mapping[int, Part]) -> str:
    """Return what is in the way of a group with a layer that makes what this reads, or reads it."""
    index = search.index
    layers = index.network.layers
    makers = (index.maker[name] for name in layers[number].inputs if name in index.maker)
    near = list(dict.fromkeys((*makers, *index.readers[layers[number].output])))
    near = [n for n in near if not layers[n].lays_out]
    if not near:
        return "no other layer makes what it reads, or reads what it makes"
    able = [n for n in near if not layers[n].reason]
    if not able:
        return f"{_neighbours(search, near, parts)} cannot be grouped"
    free = [n for n in able if not _refused_between(search, n, number)]
    if not free:
        between = search.index.network.layers[_refused_between(search, able[0], number)[0]].name
        neighbour = _neighbours(search, able[:1], parts)
        return f"{between!r}, which cannot be grouped, runs between it and {neighbour}"
    return _of_groups(search, number, free, parts)


def _refused_between(search: GroupSearch, one: int, other: int) -> list[int]:
    numbers = range(min(one, other), max(one, other))
    return [n for n in numbers if search.index.network.layers[n].reason]


def _of_groups(
    search: GroupSearch, number: int, near: Sequence[int], parts: Mapping[int, Part]
) -> str:
    """Return what is in the way of one group of this layer and what its neighbours are in."""
    options: list[tuple[float, int, Estimate]] = []
    without: dict[int, tuple[int, int]] = {}  # The price and bytes moved, by neighbour
    for neighbour in near:
        first, last = parts[min(number, neighbour)].first, parts[max(number, neighbour)].last
        apart = list(dict.fromkeys(parts[n] for n in range(first, last + 1)))
        without[neighbour] = sum(p.price for p in apart), sum(p.moved for p in apart)
        for estimate in search.ways_to_cut(first, last):
            price = search.price(estimate)
            if price is not None:
                options.append((price / max(1, without[neighbour][0]), neighbour, estimate))
    for _, neighbour, estimate in sorted(options, key=lambda option: option[:2]):
        planned = search.plan(estimate)
        if planned is not None:
            cost = planned.cost
            price, moved = without[neighbour]
            group = f"a group with {_neighbours(search, [neighbour], parts)} fits"
            if cost.moved > moved:
                more = f"would move {cost.moved} bytes, and {moved} move without it"
                return f"{group}, but {more}"
            if cost.price >= price:
                return f"{group}, but costs {100 * cost.price / price - 100:.1f} % more"
            return f"{group}, but is none that this search compares"
    return f"no group with {_neighbours(search, near, parts)} fits"


def _neighbours(search: GroupSearch, numbers: Sequence[int], parts: Mapping[int, Part]) -> str:
    """Return the names of neighbours; of those that are in groups, how many layers these have."""
    names = []
    for number in numbers:
        name = repr(search.index.network.layers[number].name)
        part = parts.get(number)
        together = 1 if part is None else part.last - part.first + 1
        names.append(f"{name} in a group of {together} layers" if together > 1 else name)
    return f"its neighbour{'s' if len(numbers) > 1 else ''} {', '.join(names)}"
