# SPDX-License-Identifier: Apache-2.0
"""The search for groups: what a group costs, and how a network is cut into groups that fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter

from passes.layer_group.planning import cuts
from passes.layer_group.planning.cost import TRANSFERS, Cost, cost_alone, layer_cycles
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.network import Group, NetworkIndex
from passes.layer_group.planning.planned_group import (
    Chip,
    PlannedGroup,
    can_be_cut,
    draft_slices,
    place,
    plan_group,
    sliced,
)
from passes.layer_group.planning.repeats import Repeats, memory_content
from passes.layer_group.planning.runs import LayerRun, streams_of
from passes.layer_group.planning.slicing import GroupSlices, streamed_by
from passes.layer_group.planning.walk import Step, Walk
from passes.planning import Plan

MOST_LAYERS = 32
"""Layers of a group at most: a kernel of more is too much for the compiler that gets it."""

PATIENCE = 2
"""How many cuts, or groups in parts, may win nothing in a row before the search stops."""

PARTS = 16
"""Share of a lane's memory that the weights of one layer may take, where they come in parts."""

SLICES_IN_PARTS = 4
"""Slices of a group at most where layers are made in parts, if there are as few as cores."""

Progress = Callable[[int, int], object]
"""Is told how many layers a search has looked at, and how many there are."""


def silent(_done: int, _layers: int) -> None:
    """Show no progress."""


HALOS = {"recompute": (False,), "keep": (True,), "cheapest": (False, True)}
"""For each way with rows that two slices need, whether the search may keep them."""


class GroupSearch:
    """The groups of a network on a chip: which fit, their costs and their addresses.

    A group is the layers from number `first` to number `last`. Groups that are alike but for names
    are drafted and placed once.
    """

    def __init__(
        self, index: NetworkIndex, chip: Chip, halo: str, progress: Progress = silent
    ) -> None:
        self.index, self.chip = index, chip
        self.keeps, self.progress = HALOS[halo], progress
        numbers = range(len(index.network.layers))
        self.alone = [cost_alone(index, chip.machine, chip.lanes, number) for number in numbers]
        # Cycles of each layer that computes all of its output on one core.
        self._cycles = [
            layer_cycles(chip.machine, chip.lanes, index, layer, index.elements[layer.output])
            for layer in index.network.layers
        ]
        self._part_bytes = chip.capacity // PARTS
        self._repeats = Repeats(index)
        # By numbers of `Repeats`: what a walk says of a group; its cost, None if it does not fit.
        self._steps: dict[int, Step | None] = {}
        self._costs: dict[int, Cost | None] = {}
        # Of layers in parts, also by whether cores share channels: the cut of the fewest slices.
        self._fewest: dict[tuple[int, bool], list[Cut]] = {}
        self._places: dict[Hashable, tuple[Plan | None, list[tuple[int, ...]]]] = {}

    def least(self, first: int, last: int) -> tuple[int, int]:
        """Return the bytes that a group of these layers moves at least, and its lowest price."""
        group = self.index.group(first, last)
        moved = sum(self.index.bytes[name] for name in (*group.loaded, *group.outputs))
        moving = self.chip.machine[TRANSFERS].cycles(moved)
        cycles = sum(self._cycles[first : last + 1]) // self.chip.cores
        return moved, moving + max(moving, cycles)

    def step(self, walk: Walk, first: int, last: int) -> Step | None:
        """Return what a walk says of a group; None if it does not fit, or cannot be cut so."""
        alike = self._repeats.group(first, last, walk.cut)
        if alike not in self._steps:
            self._steps[alike] = walk.to(first)
        return self._steps[alike]

    def cost(
        self, first: int, last: int, cut: Cut, slices: Callable[[], GroupSlices] | None = None
    ) -> Cost | None:
        """Return the cost of a group that can be cut so; None if it does not fit.

        `slices` returns the slices of the group, where they can be had from what is known of it.
        """
        alike = self._repeats.group(first, last, cut)
        if alike not in self._costs:
            found = slices() if slices else sliced(self.index.group(first, last), cut, self.chip)
            draft = draft_slices(found, self.chip)
            self._costs[alike] = None if draft is None else draft.cost
        return self._costs[alike]

    def plan(self, first: int, last: int, cut: Cut) -> PlannedGroup | None:
        """Return a group with addresses; None if it finds no place in local memory."""
        planned = plan_group(self.index.group(first, last), cut, self.chip, self._placed)
        if planned is None:
            self._costs[self._repeats.group(first, last, cut)] = None
        return planned

    def _placed(self, local: LocalMemory, planner: str) -> Plan | None:
        """Return offsets, those of a memory of the same content if any."""
        key = memory_content(local)
        if key not in self._places:
            plan = place(local, planner)
            offsets = [] if plan is None else [plan.offsets[name] for name in local.sizes]
            self._places[key] = plan, offsets
        plan, offsets = self._places[key]
        return plan and replace(plan, offsets=dict(zip(local.sizes, offsets, strict=True)))

    def waiting(self, number: int) -> Cost:
        """Return what a layer takes in no group if it runs in slices and waits for them.

        `cost_alone` counts as if no transfer and no slice of a layer waited for any other.
        """
        group, alone = self.index.group(number, number), self.alone[number]
        every = cuts.in_slices(self.index, self.chip.lanes, number)
        in_parts = replace(every[0], part_bytes=self._part_bytes)
        able = (cut for cut in (in_parts, *every) if can_be_cut(group, cut, self.chip))
        costs = [cost for cut in able if (cost := self.cost(number, number, cut)) is not None]
        by_price = attrgetter("price")
        return max(alone, min(costs, key=by_price, default=alone), key=by_price)

    def in_parts(self, first: int, last: int, below: int) -> list[Cut] | None:
        """Return the cuts of a group whose layers are made in parts, of the fewest slices that fit.

        There are up to two: all cores share slices, or they share channels. A way that cannot cost
        less than `below` is left out. None if no layer can be made in parts, or nothing fits.
        """
        run, group = self._repeats.run(first, last), self.index.group(first, last)
        found, dear = [], False
        for by_channels in (False, True) if self.chip.cores > 1 else (False,):
            key, cores = (run, by_channels), self.chip.cores if by_channels else 1
            if key not in self._fewest:
                streams = streams_of(group, self.chip.lanes, self._part_bytes, cores)
                if streams and self._bound(group, by_channels, streams) >= below:
                    dear = True
                    continue
                self._fewest[key] = self._fewest_slices(group, by_channels, streams)
            found += self._fewest[key]
        return found if found or dear else None

    def _bound(self, group: Group, by_channels: bool, streams: Mapping[str, LayerRun]) -> int:
        """Return the lowest price of a group in parts; see `least`.

        Each core computes and loads what the cores do not share.
        """
        cores, passing = self.chip.cores, streamed_by(streams)
        moved = sum(self.index.bytes[name] for name in group.outputs)
        for name in group.loaded:
            letters = self.index.tensors[name].axes
            alone = name not in passing if by_channels else not {"n", "h"}.intersection(letters)
            moved += self.index.bytes[name] * (cores if alone else 1)
        cycles = sum(
            self._cycles[number] // (1 if by_channels and layer.name not in streams else cores)
            for number, layer in zip(group.numbers, group.layers, strict=True)
        )
        moving = self.chip.machine[TRANSFERS].cycles(moved)
        return moving + max(moving, cycles)

    def _fewest_slices(
        self, group: Group, by_channels: bool, streams: Mapping[str, LayerRun]
    ) -> list[Cut]:
        """Return the one cut of the fewest slices with which a group in parts fits, if any."""
        cores, lanes = self.chip.cores, self.chip.lanes
        sharing = 1 if by_channels else cores
        ways = (
            replace(cut, part_bytes=self._part_bytes, cores=cores, by_channels=by_channels)
            for cut in cuts.in_slices(self.index, lanes, group.last, sharing)
            if streams and cut.steps <= max(SLICES_IN_PARTS, sharing)
        )
        able = [cut for cut in ways if can_be_cut(group, cut, self.chip)]

        def fits(cut: Cut) -> bool:
            slices = partial(sliced, group, cut, self.chip, streams)
            return self.cost(group.first, group.last, cut, slices) is not None

        # Where the most slices do not fit, fewer need not be looked at.
        if not any(map(fits, (able[0], able[-1]) if able else ())):
            return []
        return [next(filter(fits, able))]


class _Cheapest:
    """The group from layer `first` or later to `last` that costs least with what comes before.

    `lowest` has the least price of all layers before each layer, `below` is the price to undercut.
    """

    def __init__(
        self, search: GroupSearch, last: int, first: int, lowest: Mapping[int, int], below: int
    ) -> None:
        self.search, self.last, self.lowest = search, last, lowest
        self.price = below
        self.found: tuple[int, Cut] | None = None  # Its first layer, and its cut
        self.overlap = False  # Whether any two slices share rows
        self.numbers = range(last, first - 1, -1)
        alone = 0
        # By the first layer: the least price of the group with what comes before, and the bytes
        # that its layers move alone.
        self.least: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        for number in self.numbers:
            alone += search.alone[number].moved
            _, price = search.least(number, last)
            self.least[number] = lowest[number] + price
            # A layer alone is a group only where it moves less, by laying out its own weights.
            self.moved[number] = alone - (number == last)
        self.fewest = dict(self.moved)  # The same, of groups in slices that lowered the price, too
        for cores in sorted({1, search.chip.cores}, reverse=True):
            for keep_rows in search.keeps:
                self.in_slices(cores, keep_rows)
        self.in_parts()

    def in_slices(self, cores: int, keep_rows: bool) -> None:
        """Try ever more slices, as long as a promising group does not fit or the price falls."""
        again = keep_rows != self.search.keeps[0]
        if again and not self.overlap:
            return  # The groups are those whose halos are made again.
        where = self.search.index, self.search.chip.lanes, self.last, cores
        vain, unfit = 0, False
        for cut in cuts.in_slices(*where):
            if cut.h == 1 and again:
                continue  # Without cut rows there is no halo.
            won, unfit = self.walk(replace(cut, keep_rows=keep_rows))
            vain = 0 if won or unfit else vain + 1
            if vain == PATIENCE:
                break
        # Where promising groups do not fit in single rows, the columns are cut, too. A slice has
        # few rows then: fewer columns at a time are more columns that two slices need.
        for ways in cuts.in_columns(*where) if unfit else ():
            unfit = False
            for cut in ways:
                won, unfit_now = self.walk(replace(cut, keep_rows=keep_rows))
                unfit = unfit or unfit_now
                if not won:
                    break
            if not unfit:
                break

    def walk(self, cut: Cut) -> tuple[bool, bool]:
        """Try all groups of a cut; whether the price fell, and if a promising one did not fit."""
        search, won, unfit = self.search, False, False
        walk = Walk(search.index, search.chip, self.last, cut)
        for number in range(self.last, self.longest() - 1, -1):
            step = search.step(walk, number, self.last)
            if step is None:
                return won, number > self.longest() or self.least[number] < self.price
            self.overlap = self.overlap or step.overlap
            if self.lowest[number] + step.bound < self.price and step.moved <= self.moved[number]:
                slices = partial(walk.slices, number)
                unfit = search.cost(number, self.last, cut, slices) is None or unfit
                won = self.take(number, cut) or won
        return won, unfit

    def longest(self) -> int:
        """Return the first layer of the longest group that could lower the price."""
        return min((n for n in self.numbers if self.least[n] < self.price), default=self.last + 1)

    def take(self, number: int, cut: Cut) -> bool:
        """Take a group that begins with this layer if it lowers the price; whether it does."""
        cost = self.search.cost(number, self.last, cut)
        if cost is None or cost.moved > self.moved[number]:
            return False  # It moves more than its layers alone.
        price = self.lowest[number] + cost.price
        if price >= self.price:
            return False
        self.price, self.found = price, (number, cut)
        self.fewest[number] = min(cost.moved, self.fewest[number])
        return True

    def in_parts(self) -> None:
        """Try to make layers in parts, in groups that move fewer bytes so."""
        search, vain = self.search, 0
        for number in self.numbers:
            if self.least[number] >= self.price:
                continue
            moved, _ = search.least(number, self.last)
            if moved >= self.fewest[number] and search.chip.cores == 1:
                continue  # Parts move fewer bytes, or share the work between cores.
            ways = search.in_parts(number, self.last, self.price - self.lowest[number])
            for cut in ways or ():
                self.take(number, cut)
            vain = vain + 1 if ways is None else 0
            if vain == PATIENCE:
                return


def dynamic_programming(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last` into the groups of the lowest price together.

    It is the shortest path: all layers up to one cost least with the best group that ends with it,
    or with the layer alone, and the best cut of what comes before. The result is in the layers'
    order, with the number of a layer that is in no group.
    """
    lowest = {first: 0}  # The price of all layers before the layer of this number
    chosen: dict[int, PlannedGroup | None] = {}  # The last group of all layers up to this one
    for end in range(first, last + 1):
        search.progress(end + 1, len(search.index.network.layers))
        alone = lowest[end] + search.waiting(end).price
        chosen[end] = None
        while chosen[end] is None:
            found = _Cheapest(search, end, max(first, end + 1 - MOST_LAYERS), lowest, alone)
            lowest[end + 1] = found.price
            if found.found is None:
                break
            begin, cut = found.found
            chosen[end] = search.plan(begin, end, cut)  # None: it is not tried again.
    return _from_the_end(first, last, chosen.__getitem__)


def tail_to_head(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last`, taking the longest group that fits from the end.

    It is cut into the fewest slices, shared by all cores if they can be: the batch is cut before
    the rows. (tpu-mlir, ``GroupMethod``: "simple".) The result is as `dynamic_programming` has it.
    """
    return _from_the_end(first, last, lambda end: _longest(search, end, first))


def _from_the_end(
    first: int, last: int, group_of: Callable[[int], PlannedGroup | None]
) -> list[PlannedGroup | int]:
    """Return groups that follow each other up to `last`, given the group that ends with a layer."""
    parts: list[PlannedGroup | int] = []
    end = last
    while end >= first:
        group = group_of(end)
        parts.append(end if group is None else group)
        end = (end if group is None else group.group.first) - 1
    return parts[::-1]


def _longest(search: GroupSearch, last: int, first: int) -> PlannedGroup | None:
    """Return the longest group that ends with a layer and fits, in the fewest slices.

    It begins with layer `first` or later, and has two layers at least.
    """
    found, begin, first = None, last, max(first, last + 1 - MOST_LAYERS)
    for cores in sorted({1, search.chip.cores}, reverse=True):
        where = search.index, search.chip.lanes, last, cores
        by_columns = (ways[0] for ways in cuts.in_columns(*where))
        for cut in (*cuts.in_slices(*where), *by_columns):
            for keep_rows in search.keeps if cut.h > 1 else search.keeps[:1]:
                tried = replace(cut, keep_rows=keep_rows)
                walk = Walk(search.index, search.chip, last, tried)
                too_long = (n for n in range(last, first - 1, -1) if walk.to(n) is None)
                for number in range(next(too_long, first - 1) + 1, begin):
                    planned = search.plan(number, last, tried)
                    if planned is not None:
                        found, begin = planned, number
                        break
    return found


SEARCHES = {"dynamic_programming": dynamic_programming, "tail_to_head": tail_to_head}
"""The searches, by name."""
