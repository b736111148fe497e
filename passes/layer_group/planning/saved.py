# SPDX-License-Identifier: Apache-2.0
"""Groupings in files: written, read by a person, changed, and given back.

A file is JSON: for each block of a function, by its number there, the groups in their order. A
group is the names of its layers and its cut; what a cut does not say is as it is in no cut. A block
that is not in the file is searched as usual; of one that is there, a layer in no group is left.

    {"blocks": [{"function": "main", "block": 0, "groups": [
        {"layers": ["conv2d:lv", "relu:lv1"], "slices": {"h": 4}, "halo": "keep"},
        {"layers": ["matmul:lv2", "add:lv3"], "part_bytes": 1024, "cores": 2, "share": "channels"}
    ]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from passes.layer_group.planning.cut import CHANNELS, LETTERS, Cut
from passes.layer_group.planning.network import Group, Network, NetworkIndex
from passes.layer_group.planning.planned_group import (
    Chip,
    PlannedGroup,
    can_be_cut,
    plan_group,
)

BlockKey = tuple[str, int]
"""The name of a function, and the number of a block in it."""

_DEFAULTS = {"slices": {}, "halo": "recompute", "part_bytes": 0, "cores": 1, "share": "slices"}
"""The fields of a group beside its layers, and what they are where they are not there."""
_KNOWN = {"halo": ["recompute", "keep"], "share": ["slices", "channels"]}


@dataclass(frozen=True)
class SavedGroup:
    """A group as a file has it."""

    where: str  # The file and the group's place in it, for messages
    layers: tuple[str, ...]  # Names, in any order
    cut: Cut


def as_text(blocks: Iterable[tuple[BlockKey, Sequence[PlannedGroup]]]) -> str:
    """Return what a file says of the groups of blocks."""
    every = []
    for (function, block), groups in blocks:
        found = [_as_data(group) for group in groups]
        every.append({"function": function, "block": block, "groups": found})
    return json.dumps({"blocks": every}, indent=1) + "\n"


def _as_data(group: PlannedGroup) -> dict[str, Any]:
    cut = group.cut
    return {
        "layers": [layer.name for layer in group.group.layers],
        "slices": {letter: count for letter, count in cut.counts.items() if count > 1},
        "halo": "keep" if cut.keep_rows else "recompute",
        "part_bytes": cut.part_bytes,
        "cores": cut.cores,
        "share": "channels" if cut.shared == CHANNELS else "slices",
    }


def read_groups(path: str | Path) -> dict[BlockKey, tuple[SavedGroup, ...]]:
    """Read a file.

    Raises ValueError, which names the file and the place in it, when it cannot be read, or a part
    of it is not as `as_text` writes it.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"LayerGroup: the plan {str(path)!r} cannot be read: {error}") from error
    where = f"LayerGroup: plan {str(path)!r}"
    found: dict[BlockKey, tuple[SavedGroup, ...]] = {}
    for at, block in enumerate(_of_type(_only(data, where, "blocks")["blocks"], list, where)):
        here = f"{where}, block {at}"
        _only(block, here, "function", "block", "groups")
        key = _of_type(block["function"], str, here), _of_type(block["block"], int, here)
        if key in found:
            raise ValueError(f"{here}: block {key[1]} of function {key[0]!r} is there twice")
        groups = enumerate(_of_type(block["groups"], list, here))
        found[key] = tuple(_read_group(x, f"{here}, group {number}") for number, x in groups)
    return found


def _read_group(data: Any, where: str) -> SavedGroup:
    given = _DEFAULTS | _only(data, where, "layers", optional=tuple(_DEFAULTS))
    layers = _of_type(given["layers"], list, where)
    if not layers or not all(isinstance(name, str) for name in layers):
        raise ValueError(f'{where}: "layers" must be names of one layer or more, got {layers!r}')
    slices = _only(given["slices"], f'{where}, "slices"', optional=tuple(LETTERS))
    numbers = slices | {name: given[name] for name in ("cores", "part_bytes")}
    for name, value in numbers.items():
        least = int(name != "part_bytes")
        if type(value) is not int or value < least:
            text = f"{name!r} must be a whole number from {least} up, got {value!r}"
            raise ValueError(f"{where}: {text}")
    for name, known in _KNOWN.items():
        if given[name] not in known:
            raise ValueError(f"{where}: {name!r} must be one of {known}, got {given[name]!r}")
    how = {"keep_rows": given["halo"] == "keep", "by_channels": given["share"] == "channels"}
    try:
        return SavedGroup(where, tuple(layers), Cut(**numbers, **how))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _only(data: Any, where: str, *needed: str, optional: Sequence[str] = ()) -> Any:
    """Return an object of JSON; ValueError unless it has the fields that it should have."""
    fields = _of_type(data, dict, where)
    for name in needed:
        if name not in fields:
            raise ValueError(f"{where}: {name!r} is missing")
    for name in fields:
        if name not in (*needed, *optional):
            known = ", ".join(map(repr, (*needed, *optional)))
            raise ValueError(f"{where}: {name!r} is not known; there may be {known}")
    return data


def _of_type(data: Any, kind: type, where: str) -> Any:
    if type(data) is not kind:
        raise ValueError(f"{where}: {data!r} should be of type {kind.__name__}")
    return data


def in_order_of(network: Network, groups: Sequence[SavedGroup]) -> Network:
    """Return a network in an order in which the layers of each group follow each other.

    They are in the order of the group where they can run in it, else in that of the network.

    Raises ValueError when a group has a layer that is not there, that cannot be grouped or that
    another one has, and when a path between layers of a group leaves it.
    """
    number = {layer.name: at for at, layer in enumerate(network.layers)}
    unit = list(range(len(network.layers)))  # By the layer: the first layer of its group
    taken: dict[str, str] = {}
    for at, group in enumerate(groups):
        for name in group.layers:
            if name not in number:
                raise ValueError(f"{group.where}: {network.name!r} has no layer {name!r}")
            if reason := network.layers[number[name]].reason:
                raise ValueError(f"{group.where}: layer {name!r} cannot be grouped: {reason}")
            if name in taken:
                raise ValueError(f"{group.where}: layer {name!r} is in {taken[name]}, too")
            taken[name] = f"group {at}"
        first = min(number[name] for name in group.layers)
        for name in group.layers:
            unit[number[name]] = first
    index = NetworkIndex(network)
    before: dict[int, dict[int, None]] = {one: {} for one in unit}
    for at, one in enumerate(unit):
        before[one] |= {unit[n]: None for n in index.makers(at) if unit[n] != one}
    try:
        order = {one: at for at, one in enumerate(TopologicalSorter(before).static_order())}
    except CycleError as error:
        group = next(x for x in groups if unit[number[x.layers[0]]] in error.args[1])
        message = f"{group.where}: a path between its layers leaves it, and comes back"
        raise ValueError(message) from error
    place = list(range(len(unit)))  # By the layer: its place in its group
    for group in groups:
        given = {number[name]: at for at, name in enumerate(group.layers)}
        if all(given.get(n, -1) < given[at] for at in given for n in index.makers(at)):
            for at in given:
                place[at] = given[at]
    ordered = sorted(range(len(unit)), key=lambda at: (order[unit[at]], place[at]))
    return replace(network, layers=tuple(network.layers[at] for at in ordered))


def plan_saved(index: NetworkIndex, chip: Chip, groups: Sequence[SavedGroup]) -> list[PlannedGroup]:
    """Return groups with addresses, of a network in their order; ValueError if one does not fit."""
    number = {layer.name: at for at, layer in enumerate(index.network.layers)}
    found = [_planned(index, chip, saved, number) for saved in groups]
    return sorted(found, key=lambda planned: planned.group.first)


def _planned(
    index: NetworkIndex, chip: Chip, saved: SavedGroup, number: Mapping[str, int]
) -> PlannedGroup:
    numbers = [number[name] for name in saved.layers]
    group, cut = index.group(min(numbers), max(numbers)), saved.cut
    planned = plan_group(group, cut, chip)
    if planned is None or cut.cores not in (1, chip.cores):
        raise ValueError(f"{saved.where}: {_why_not(group, cut, chip)}")
    return planned


def _why_not(group: Group, cut: Cut, chip: Chip) -> str:
    """Return what a group with a cut needs that is not there."""
    if cut.cores not in (1, chip.cores):
        return f"the chip has {chip.cores} cores, not {cut.cores}"
    tight = [
        (most, layer.name, letter)
        for layer in group.layers
        for letter, most in chip.lanes.most_slices(group.index, layer).items()
        if cut.counts[letter] > most
    ]
    if tight and not can_be_cut(group, cut, chip):
        most, name, letter = min(tight)
        counted = f"{most} slices along {letter!r} at most, not {cut.counts[letter]}"
        return f"layer {name!r} has {counted}"
    roomy = replace(chip, memory=replace(chip.memory, capacity=1 << 60))
    planned = plan_group(group, cut, roomy)
    if planned is None:
        return f"{cut} would part entries of the batch that lie in the same bytes"
    live = planned.local.most_live
    room = "are available" if live > chip.capacity else "are there, but no places were found"
    taken = f"its tensors take {live} bytes a lane of {chip.memory.name} at once"
    return f"{taken}, {chip.capacity} {room}"
