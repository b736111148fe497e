# SPDX-License-Identifier: Apache-2.0
"""The layers of a network that form groups, and the reasons why others are in none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, product
from typing import Any

from passes.layer_group.planning.cost import Cost, total
from passes.layer_group.planning.cut import ROWS, Cut
from passes.layer_group.planning.local_memory import in_banks, lane_bytes
from passes.layer_group.planning.network import Kind, Network, NetworkIndex
from passes.layer_group.planning.planned_group import PORTFOLIO, Chip, PlannedGroup, sliced
from passes.layer_group.planning.saved import SavedGroup, in_order_of, plan_saved
from passes.layer_group.planning.search import (
    HALOS,
    GroupSearch,
    Known,
    Progress,
    dynamic_programming,
    silent,
)

FEW_LAYERS, NEAR = 48, 1.05
"""Other orders than a network's own are tried if it has no more layers than the first, and its
groups cost more than the second times what any groups would."""


def tail_to_head(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last`, taking the longest group that fits from the end.

    It is cut into the fewest slices, shared by all cores if they can be: the batch is cut before
    the rows. (tpu-mlir, ``GroupMethod``: "simple".) The result is as `dynamic_programming` has it.
    """
    parts: list[PlannedGroup | int] = []
    end = last
    while end >= first:
        group = _longest(search, end, max(first, end + 1 - search.most_layers))
        parts.append(end if group is None else group)
        end = (end if group is None else group.group.first) - 1
    return parts[::-1]


def _longest(search: GroupSearch, last: int, first: int) -> PlannedGroup | None:
    """Return the longest group that ends with a layer and fits, in the fewest slices.

    It begins with layer `first` or later, and has two layers at least. Where halos may be kept or
    not, it is the longer group, or else the one of fewer cycles.
    """
    found, begin = None, last
    for cut in (cut for cores in search.sharing for cut in search.cuts(last, cores)):
        fitting = list[PlannedGroup]()
        for keep_rows in search.keeps if cut.counts[ROWS] > 1 else search.keeps[:1]:
            walk = search.walk(last, replace(cut, keep_rows=keep_rows))
            number = last
            while number >= first and (step := search.step(walk, number)) and step.fits:
                number -= 1
            plans = (search.plan(n, last, walk.cut) for n in range(number + 1, begin))
            fitting += islice(filter(None, plans), 1)
        if fitting:
            found = min(fitting, key=lambda x: (x.group.first, x.cost.cycles))
            begin = found.group.first
    return found


SEARCHES = {"dynamic_programming": dynamic_programming, "tail_to_head": tail_to_head}
"""The searches, by name."""


@dataclass(frozen=True)
class LayerGroups:
    """A network cut into groups."""

    network: Network  # The network that was cut, its layers in the order in which they run
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
        """The cost of the network if every layer runs alone."""
        return total(self.alone.values())

    @property
    def after(self) -> Cost:
        """The cost of the network with the groups."""
        left = (cost for name, cost in self.alone.items() if name in self.left)
        return total([*(group.cost for group in self.groups), *left])

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
    most_layers: int | None = None,
    given: Sequence[SavedGroup] | None = None,
    progress: Progress = silent,
) -> LayerGroups:
    """Cut a network into groups whose slices stay in local memory.

    `search` is one of `SEARCHES`, `halo` one of `HALOS`; a group has `most_layers` at most;
    `progress` is called with how far the search is. With `given` groups nothing is searched; raises
    ValueError if they cannot be.
    """
    network, known = by_dependencies(network), Known()
    if given is not None:
        orders = [in_order_of(network, given)]
    else:
        few = len(network.layers) <= FEW_LAYERS
        orders = [*dict.fromkeys(orders_of(network))] if few else [network]
    # The original's search compares cycles, and keeps halos or not in a network as a whole, too.
    longest = search == "tail_to_head" and halo == "cheapest" and given is None
    found: list[LayerGroups] = []
    below = 1 << 62
    for one, way in product(orders, HALOS if longest else (halo,)):
        how = GroupSearch(
            NetworkIndex(one),
            chip,
            way,
            most_layers=most_layers,
            # The cost model says what rows that are made again cost, where it is asked.
            strict=halo == "recompute" or search == "tail_to_head",
            progress=progress,
            known=known,
            below=below,
        )
        found.append(_planned(how, search, given))
        below = min(below, how.price or below)
        if 0 < how.price <= NEAR * how.floor:
            break
    counts = "cycles" if search == "tail_to_head" else "price"
    best = min(found, key=lambda x: getattr(x.after, counts))
    if chip.planner != PORTFOLIO:
        return best
    groups = (replace(x, plan=in_banks(x.local, x.steps, x.plan)) for x in best.groups)
    return replace(best, groups=tuple(groups))


def _planned(
    groups_of: GroupSearch, search: str, given: Sequence[SavedGroup] | None
) -> LayerGroups:
    """Return a network in groups, its layers in their order."""
    index, chip = groups_of.index, groups_of.chip
    network = index.network
    numbers = range(len(network.layers))
    parts: list[PlannedGroup | int] = []
    for is_left, run in groupby(numbers, lambda n: bool(network.layers[n].reason)):
        if not is_left and given is None:
            first, *others = run
            parts += SEARCHES[search](groups_of, first, others[-1] if others else first)
    parts += plan_saved(index, chip, given or ())
    groups = tuple(part for part in parts if isinstance(part, PlannedGroup))
    left = {x.name: x.reason for x in network.layers if x.reason}
    if given is not None:
        inside = {n for group in groups for n in group.group.numbers}
        alone = (n for n in numbers if n not in inside and not network.layers[n].reason)
        left |= {network.layers[n].name: "it is in no group of the plan" for n in alone}
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
            for layer in network.layouts
        },
    )


def orders_of(network: Network) -> Iterator[Network]:
    """Yield a network in its own order, breadth first, and in one that frees bytes early.

    They are those of `by_dependencies`, which decides first.
    """
    yield network
    index, layers = NetworkIndex(network), network.layers
    makers = [index.makers(number) for number in range(len(layers))]
    depth: list[int] = []
    for reads in makers:
        depth.append(max((depth[n] + 1 for n in reads), default=0))
    yield by_dependencies(network, depth)
    waiting, order = [*range(len(layers))], list[int]()

    def grows(number: int) -> int:
        """Return by how many bytes more is there after a layer than before."""
        others = {*waiting} - {number}
        names = dict.fromkeys(layers[number].inputs)
        freed = (name for name in names if others.isdisjoint(index.readers[name]))
        return index.bytes[layers[number].output] - sum(index.bytes[name] for name in freed)

    while waiting:
        able = [number for number in waiting if {*waiting}.isdisjoint(makers[number])]
        order.append(min(able, key=grows))
        waiting.remove(order[-1])
    yield by_dependencies(network, [order.index(number) for number in range(len(layers))])


def by_dependencies(network: Network, rank: Sequence[int] | None = None) -> Network:
    """Return a network in an order in which layers that cannot be grouped part few others.

    Layers that can be are in the order of their `rank`, by default their own. Layers have a stage:
    it grows by one where a layer that cannot be grouped reads what one that can makes. Within a
    stage the former come first, so that no path leaves any run of the others and comes back.
    """
    index, layers = NetworkIndex(network), network.layers
    keys: list[tuple[int, bool, int, int]] = []
    for number, layer in enumerate(layers):
        able = not layer.reason
        makers = index.makers(number)
        stage = max((keys[n][0] + (not able and not layers[n].reason) for n in makers), default=0)
        keys.append((stage, able, rank[number] if rank and able else 0, number))
    return replace(network, layers=tuple(layers[number] for *_, number in sorted(keys)))


def with_layouts(index: NetworkIndex, left: Mapping[str, str]) -> dict[str, str]:
    """Return why layers are left, in their order, with those that lay out weights of them."""
    found: dict[str, str] = {}
    for layer in index.network.layers:
        if layer.name in left:
            found |= {one.name: one.reason for one in index.layouts(layer.inputs)}
            found[layer.name] = left[layer.name]
    return found


def _does_not_fit(index: NetworkIndex, chip: Chip, number: int) -> str:
    """Return what a layer needs alone, if its smallest slice needs more than the capacity."""
    layer, group = index.network.layers[number], index.group(number, number)
    most: dict[str, Any] = chip.lanes.most_slices(index, layer)
    cut = Cut(part_bytes=1, **most)
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
    near = [*dict.fromkeys((*index.makers(number), *index.readers[layers[number].output]))]
    # Those that can be grouped, with no other layer between that cannot.
    between = {n: layers[min(n, number) : max(n, number) + 1] for n in near}
    free = [n for n in near if not any(layer.reason for layer in between[n])]
    if not near:
        return "no other layer makes what it reads, or reads what it makes"
    names = ", ".join(repr(layers[n].name) for n in free or near)
    if not free:
        return f"its neighbours {names} cannot be grouped, or layers that run between cannot"
    return f"no group with {names} fits and costs less than the layers alone"
