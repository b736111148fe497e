# SPDX-License-Identifier: Apache-2.0
"""The search for groups: which groups a network is cut into, and how each of them is cut."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from passes.layer_group.planning.cost import TRANSFERS, Cost, cost_alone, layer_cycles
from passes.layer_group.planning.cut import ROWS, Cut, cuts_to_try, slice_counts
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.loops import part_loops
from passes.layer_group.planning.network import NetworkIndex, Repeats
from passes.layer_group.planning.planned_group import (
    Chip,
    PlannedGroup,
    Step,
    Walk,
    can_be_cut,
    draft_slices,
    place,
    plan_group,
    sliced,
)
from passes.layer_group.planning.slicing import GroupSlices
from passes.planning import Plan

PATIENCE = 2
"""The number of cuts in a row that win nothing, and in which all fits, that stop the search."""

REACH = 24
"""By how many layers a group that is tried may be longer than the best one so far."""

MANY_LAYERS, FEW_AT_ONCE = 256, 24
"""Of a network of more layers than the first, groups have no more than the second, and one cut
without a win stops the search: it takes seconds for 1,000 layers then."""

PARTS = 16
"""Share of a lane's memory that the weights of one layer may take, where they come in parts."""

SLICES_IN_PARTS = 4
"""Slices of a group at most where layers are made in parts, if there are as few as cores."""

Found = TypeVar("Found")

Progress = Callable[[int, int], object]
"""Is given how many layers a search has looked at, and how many there are."""


def silent(_done: int, _layers: int) -> None:
    """Show no progress."""


HALOS = {"recompute": (False,), "keep": (True,), "cheapest": (False, True)}
"""For each way with rows that two slices need, whether the search may keep them."""


Known = dict[Hashable, Any]
"""Results for groups that are alike but for names, which searches of the orders of a network share:
by what was asked, the number of the run of layers, and the cut. It has these numbers, too."""


class GroupSearch:
    """The groups of a network on a chip: which fit, their costs and their addresses.

    A group is the layers from number `first` to number `last`. Groups that are alike but for names
    are drafted and placed once. Where it is `strict`, no group has a tensor that is made too often
    (`TensorSlices.is_made_too_often`). Groups that are looked for cost less than `below` together.
    """

    def __init__(
        self,
        index: NetworkIndex,
        chip: Chip,
        halo: str,
        *,
        most_layers: int | None = None,
        strict: bool = False,
        progress: Progress = silent,
        known: Known | None = None,
        below: int = 1 << 62,
    ) -> None:
        self.index, self.chip = index, chip
        self.keeps, self.strict, self.progress = HALOS[halo], strict, progress
        count = len(index.network.layers)
        many = count > MANY_LAYERS
        self.most_layers = most_layers or (FEW_AT_ONCE if many else count)
        self.patience = 1 if many else PATIENCE
        # Numbers of cores that may share a group.
        self.sharing = sorted({1, chip.cores}, reverse=True)
        self.alone = [cost_alone(index, chip.machine, chip.lanes, n) for n in range(count)]
        self.computing = [
            layer_cycles(chip.machine, chip.lanes, index, layer, index.elements[layer.output])
            for layer in index.network.layers
        ]
        self.part_bytes = chip.capacity // PARTS
        self.known: Known = {} if known is None else known
        self.below = below
        # Of all that `dynamic_programming` looked at: its price, and what any groups would cost
        self.price = self.floor = 0
        self._repeats = Repeats(index, self.known)
        self._cuts: dict[tuple[int, int], list[Cut]] = {}
        # The last layer of the groups that were asked for last, and these by their cut.
        self._walked, self._walks = -1, dict[Cut, Walk]()

    def cuts(self, last: int, cores: int) -> list[Cut]:
        """Return the cuts to try for groups that end with a layer: see `cuts_to_try`."""
        if (last, cores) not in self._cuts:
            index, lanes, layer = self.index, self.chip.lanes, self.index.network.layers[last]
            every = cuts_to_try(tuple(lanes.most_slices(index, layer).values()), cores)
            able = [cut for cut in every if lanes.can_be_cut(index, layer, cut, stored=True)]
            self._cuts[last, cores] = able
        return self._cuts[last, cores]

    def walk(self, last: int, cut: Cut) -> Walk:
        """Return the groups that end with a layer and have one cut."""
        if last != self._walked:
            self._walked, self._walks = last, {}
        if cut not in self._walks:
            self._walks[cut] = Walk(self.index, self.chip, last, cut, strict=self.strict)
        return self._walks[cut]

    def _once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what is found for a key, which is looked for once."""
        if key not in self.known:
            self.known[key] = find()
        found: Found = self.known[key]
        return found

    def step(self, walk: Walk, first: int) -> Step | None:
        """Return what a walk says of a group; None if it cannot be cut so."""
        run = self._repeats.run(first, walk.last)
        return self._once(("step", run, walk.cut), lambda: walk.to(first))

    def floors(self, first: int, last: int) -> dict[int, tuple[int, int]]:
        """Return what groups cost and move at least, however they are cut, by their first layer.

        They end with layer `last`. What is moved in parts may share one start-up, and rows that no
        layer reads count, too.
        """
        index, pipe, found = self.index, self.chip.machine[TRANSFERS], dict[int, tuple[int, int]]()
        moved, computing, loaded = 0, 0, set[str]()
        for number in range(last, first - 1, -1):
            layer = index.network.layers[number]
            times = index.leaves(layer.output, last) - (layer.output in loaded)
            moved += index.bytes[layer.output] * times
            for name in dict.fromkeys(layer.inputs):
                moved += 0 if name in loaded else index.bytes[name]
            loaded.update(layer.inputs)
            computing += self.computing[number]
            moving = pipe.cycles(moved)
            found[number] = moving + max(moving, computing // self.chip.cores), moved
        return found

    def cost(
        self, first: int, last: int, cut: Cut, slices: Callable[[], GroupSlices] | None = None
    ) -> Cost | None:
        """Return the cost of a group that can be cut so; None if it does not fit.

        `slices` returns the slices of the group, where they can be had from what is known of it.
        """

        def find() -> Cost | None:
            found = slices() if slices else sliced(self.index.group(first, last), cut, self.chip)
            if self.strict and any(one.is_made_too_often for one in found.tensors.values()):
                return None
            draft = draft_slices(found, self.chip)
            return None if draft is None else draft.cost

        return self._once(("cost", self._repeats.run(first, last), cut), find)

    def plan(self, first: int, last: int, cut: Cut) -> PlannedGroup | None:
        """Return a group with addresses; None if it finds no place in local memory."""
        planned = plan_group(self.index.group(first, last), cut, self.chip, self._placed)
        if planned is None:
            self.known["cost", self._repeats.run(first, last), cut] = None
        return planned

    def _placed(self, local: LocalMemory, planner: str) -> Plan | None:
        """Return offsets, those of a memory of the same content if any."""

        def find() -> tuple[Plan | None, list[tuple[int, ...]]]:
            plan = place(local, planner)
            return plan, [plan.offsets[name] for name in local.sizes] if plan else []

        plan, offsets = self._once(("place", local.content), find)
        return plan and replace(plan, offsets=dict(zip(local.sizes, offsets, strict=True)))

    def waiting(self, number: int) -> Cost:
        """Return what a layer takes in no group if it runs in slices and waits for them.

        `cost_alone` counts as if no transfer and no slice of a layer waited for any other.
        """
        alone = self.alone[number]
        cuts = [cut for cut in self.cuts(number, 1) if not cut.is_further]
        steps = [self.step(self.walk(number, cut), number) for cut in cuts]
        bounds = [(step.bound(1), at) for at, step in enumerate(steps) if step and step.fits]
        best = None
        if part_loops(self.index.group(number, number), self.chip.lanes, self.part_bytes):
            best = self.cost(number, number, replace(cuts[0], part_bytes=self.part_bytes))
        for bound, at in sorted(bounds):
            if best is not None and best.price <= max(bound, alone.price):
                break
            found = (best, self.cost(number, number, cuts[at]))
            best = min(filter(None, found), key=lambda cost: cost.price, default=None)
        return max(alone, best or alone, key=lambda cost: cost.price)

    def in_parts(self, first: int, last: int) -> list[Cut]:
        """Return the cuts of a group whose layers are made in parts, of the fewest slices that fit.

        There are up to two: all cores share slices, or they share channels.
        """

        def find() -> list[Cut]:
            ways = (False, True) if self.chip.cores > 1 else (False,)
            found = (self._fewest_slices(first, last, by_channels) for by_channels in ways)
            return [cut for cut in found if cut is not None]

        return self._once(("parts", self._repeats.run(first, last)), find)

    def _fewest_slices(self, first: int, last: int, by_channels: bool) -> Cut | None:
        """Return the cut of the fewest slices with which a group in parts fits, if any."""
        group, lanes, cores = self.index.group(first, last), self.chip.lanes, self.chip.cores
        sharing = 1 if by_channels else cores
        loops = part_loops(group, lanes, self.part_bytes, cores if by_channels else 1)
        ways = (
            replace(cut, part_bytes=self.part_bytes, cores=cores, by_channels=by_channels)
            for cut in self.cuts(last, sharing)
            if loops and not cut.is_further and cut.steps <= max(SLICES_IN_PARTS, sharing)
        )
        able = [cut for cut in ways if can_be_cut(group, cut, self.chip)]

        def fits(cut: Cut) -> bool:
            slices = partial(sliced, group, cut, self.chip, loops)
            return self.cost(first, last, cut, slices) is not None

        # Where the most slices do not fit, fewer need not be looked at.
        if not any(map(fits, (able[0], able[-1]) if able else ())):
            return None
        return next(filter(fits, able))


class _Cheapest:
    """The group from layer `first` or later to `last` that costs least with what comes before.

    `lowest` has the least price of all layers before each layer, `below` is the price to undercut.
    """

    def __init__(
        self, search: GroupSearch, last: int, first: int, lowest: Mapping[int, int], below: int
    ) -> None:
        self.search, self.last, self.first, self.lowest = search, last, first, lowest
        self.price = below
        self.found: tuple[int, Cut] | None = None  # Its first layer, and its cut
        self.overlap = False  # Whether any two slices share rows
        self.floors = search.floors(first, last)
        self.alone = {last + 1: 0}  # Bytes of all layers from this one on, alone
        for number in range(last, first - 1, -1):
            self.alone[number] = self.alone[number + 1] + search.alone[number].moved
        for cores in search.sharing:
            for keep_rows in search.keeps:
                self.in_slices(cores, keep_rows)
        self.in_parts()

    def begin(self) -> int:
        """Return the first layer of the longest group to try."""
        return max(self.first, (self.last if self.found is None else self.found[0]) - REACH)

    def most_bytes(self, number: int) -> int:
        """Return the bytes that a group may move: no more than its layers alone.

        A layer alone is a group only where it moves less, by laying out its own weights.
        """
        return self.alone[number] - (number == self.last)

    def in_slices(self, cores: int, keep_rows: bool) -> None:
        """Try ever more slices, as long as a group does not fit or the price falls.

        Where groups do not fit in single rows, other axes are cut, too.
        """
        again = keep_rows != self.search.keeps[0]
        if again and not self.overlap:
            return  # The groups are those whose halos are made again.
        vain, unfit, self.longest = 0, True, self.last
        for cut in self.search.cuts(self.last, cores):
            if again and cut.counts[ROWS] == 1:
                continue  # Without cut rows there is no halo.
            if cut.is_further and not unfit:
                return
            cut = replace(cut, keep_rows=True) if keep_rows else cut
            won, unfit = self.try_all(cut)
            # Fewer columns at a time are more of them that two slices need: with more rows?
            taller = won
            while taller and cut.is_further and cut.h > 1:
                cut = replace(cut, h=slice_counts(cut.h)[-2])
                taller, _ = self.try_all(cut)
            vain = 0 if won or unfit else vain + 1
            if vain == self.search.patience:
                return

    def try_all(self, cut: Cut) -> tuple[bool, bool]:
        """Try the groups of a cut, the least bound first.

        Return whether the price fell, and whether a group may win that does not fit. A group that
        grows does not fit in less.
        """
        search, before, unfit = self.search, self.price, False
        walk, bounds, number = search.walk(self.last, cut), list[tuple[int, int]](), self.last
        while number >= self.begin():
            step = search.step(walk, number)
            if step is None or not step.fits:
                break
            self.overlap = self.overlap or step.overlap
            if step.moved <= self.most_bytes(number):
                bounds.append((self.lowest[number] + step.bound(cut.cores), number))
            number -= 1
            if number < self.begin():
                unfit = self.draft(walk, bounds)  # Longer ones are tried if a long one wins.
        unfit = self.draft(walk, bounds) or unfit
        longer = range(number, self.begin() - 1, -1)
        # Where more slices let fewer layers fit, longer groups do not come back.
        grows, self.longest = number <= self.longest, min(number, self.longest)
        unfit = grows and (unfit or any(self.least(n)[0] < self.price for n in longer))
        return self.price < before, unfit

    def draft(self, walk: Walk, bounds: list[tuple[int, int]]) -> bool:
        """Draft the groups of a cut that may win, by their bounds; whether one does not fit."""
        unfit = False
        for bound, first in sorted(bounds):
            if bound < self.price:
                cost = self.search.cost(first, self.last, walk.cut, partial(walk.slices, first))
                unfit |= not self.take(first, walk.cut, cost)
        return unfit

    def least(self, number: int) -> tuple[int, int]:
        """Return what a group from this layer on costs and moves at least, however it is cut."""
        price, moved = self.floors[number]
        return self.lowest[number] + price, moved

    def take(self, number: int, cut: Cut, cost: Cost | None) -> bool:
        """Take a group that begins with this layer if it lowers the price; whether it fits."""
        if cost is not None and cost.moved <= self.most_bytes(number):
            price = self.lowest[number] + cost.price
            if price < self.price:
                self.price, self.found = price, (number, cut)
        return cost is not None

    def in_parts(self) -> None:
        """Try to make layers in parts."""
        search, number = self.search, self.last + 1
        while number > self.begin():
            number -= 1
            price, moved = self.least(number)
            if price >= self.price or moved > self.most_bytes(number):
                continue
            ways = search.in_parts(number, self.last)
            for cut in ways:
                self.take(number, cut, search.cost(number, self.last, cut))
            if not ways:
                return


def dynamic_programming(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last` into the groups of the lowest price together.

    It is the shortest path: all layers up to one cost least with the best group that ends with it,
    or with the layer alone, and the best cut of what comes before. The result is in the layers'
    order, with the number of a layer that is in no group.
    """
    lowest = {first: 0}  # The price of all layers before the layer of this number
    chosen: dict[int, tuple[int, Cut] | None] = {}  # The last group of all layers up to this one
    floors = {**search.floors(first, last), last + 1: (0, 0)}
    # Groups are placed when all are chosen; where one finds no place, at once, so that all do.
    for at_once in (False, True):
        for end in range(first, last + 1):
            search.progress(end + 1, len(search.index.network.layers))
            alone = lowest[end] + search.waiting(end).price
            # The layers after it cost something, too.
            most = search.below - floors[end + 1][0]
            longest = max(first, end + 1 - search.most_layers)
            while True:
                found = _Cheapest(search, end, longest, lowest, min(alone, most))
                group = chosen[end] = found.found
                if group is None or not at_once or search.plan(group[0], end, group[1]):
                    break  # Else it is not tried again.
            lowest[end + 1] = alone if group is None else found.price
        parts: list[PlannedGroup | int | None] = []
        end = last
        while end >= first:
            begin, cut = chosen[end] or (end, None)
            parts.append(end if cut is None else search.plan(begin, end, cut))
            end = begin - 1
        if None not in parts:
            break
    search.price += lowest[last + 1]
    search.floor += floors[first][0]
    return [part for part in parts[::-1] if part is not None]
