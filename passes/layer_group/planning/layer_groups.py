# SPDX-License-Identifier: Apache-2.0
"""Which layers of a network form groups, and why the others are in none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from passes.layer_group.planning.cost import Cost, total
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group_search import SEARCHES, GroupSearch, Progress, silent
from passes.layer_group.planning.local_memory import lane_bytes
from passes.layer_group.planning.network import Kind, Network, NetworkIndex
from passes.layer_group.planning.planned_group import Chip, PlannedGroup, sliced


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups."""

    network: Network  # What was cut, its layers in the order in which they run
    groups: tuple[PlannedGroup, ...]  # In the order in which they run
    left: Mapping[str, str]  # Names of the layers in no group, and why
    # By name, what each layer takes in no group, with those that lay out its weights.
    alone: Mapping[str, Cost]
    folded: Mapping[str, int]  # By name, the bytes moved by layers that lay out weights

    @property
    def moved_least(self) -> int:
        """Bytes if each input, weight and output moves once; fewer if the groups move fewer.

        They may, as they leave out rows that no layer reads.
        """
        index = NetworkIndex(self.network)
        every = index.group(0, len(self.network.layers) - 1)
        once = sum(index.bytes[name] for name in (*every.loaded, *every.outputs))
        return min(once, self.after.moved)

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
    )


def by_dependencies(network: Network) -> Network:
    """Return a network in an order in which layers that cannot be grouped part few others.

    Layers have a stage: it grows by one where a layer that cannot be grouped reads what one that
    can makes. Within a stage the former come first, so that no path leaves any run of the others
    and comes back.
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
    kinds = ((name, group.tensor(name).kind) for name in group.names)
    weights = sum(sizes[name] for name, kind in kinds if kind is Kind.WEIGHT)
    return (
        f"needs {needed} bytes a lane of {chip.memory.name} at its smallest slice, {weights} of "
        f"weights, {working} of working memory and {needed - weights - working} of other tensors; "
        f"{chip.capacity} are available"
    )


def _of_neighbours(index: NetworkIndex, number: int) -> str:
    """Return what keeps a layer apart from the layers that make its inputs or read its output."""
    layers = index.network.layers

    def between(n: int) -> list[str]:
        return [x.name for x in layers[min(n, number) : max(n, number)] if x.reason]

    def named(numbers: list[int]) -> str:
        names = ", ".join(repr(layers[n].name) for n in numbers)
        return f"its neighbour{'s' if len(numbers) > 1 else ''} {names}"

    makers = (index.maker[name] for name in layers[number].inputs if name in index.maker)
    nearest = dict.fromkeys((*makers, *index.readers[layers[number].output]))
    near = [n for n in nearest if not layers[n].lays_out]
    able = [n for n in near if not layers[n].reason]
    free = [n for n in able if not between(n)]
    if not near:
        return "no other layer makes what it reads, or reads what it makes"
    if not able:
        return f"{named(near)} cannot be grouped"
    if not free:
        parting = between(able[0])[0]
        return f"{parting!r}, which cannot be grouped, runs between it and {named(able[:1])}"
    return f"no group with {named(free)} fits and costs less than the layers alone"
