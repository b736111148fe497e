# SPDX-License-Identifier: Apache-2.0
"""The groups of a network that fit, and their plans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from passes.layer_group.planning.cost import TRANSFERS, Alone, GroupCost, layer_cycles
from passes.layer_group.planning.cuts import Cuts, shared_by
from passes.layer_group.planning.group import Group, NetworkIndex
from passes.layer_group.planning.local_memory import LocalMemory
from passes.layer_group.planning.planned_group import (
    Chip,
    PlannedGroup,
    can_be_cut,
    draft_slices,
    place,
    sliced,
)
from passes.layer_group.planning.repeats import Repeats, memory_content
from passes.layer_group.planning.slicing import Cut, GroupSlices
from passes.layer_group.planning.walk import Step, Walk
from passes.planning import Plan

PATIENCE = 2
"""How many cuts, or groups in parts, may win nothing in a row before the search stops."""

PARTS = 16
"""Share of a lane's memory that the weights of one layer may take, where they come in parts."""

CUTS_IN_PARTS = 4
"""How many cuts are tried, of few slices, where layers are made in parts."""

Progress = Callable[[int, int], object]
"""Is told how many layers a search has looked at, and how many there are."""


def silent(_done: int, _layers: int) -> None:
    """Show no progress."""


KEEPS = {"recompute": ("",), "keep": ("h",), "cheapest": ("", "h")}
"""For each way with halos, the letters of the cuts along which the search may keep them."""


class GroupSearch:
    """The groups of a network on a chip: what fits, what it costs, where it lies.

    Groups that are alike but for names are drafted and placed once.
    """

    def __init__(
        self, index: NetworkIndex, chip: Chip, halo: str, progress: Progress = silent
    ) -> None:
        self.index, self.chip = index, chip
        numbers = range(len(index.network.layers))
        self.alone = [Alone.of(index, chip.machine, chip.lanes, number) for number in numbers]
        self._repeats = Repeats(index)
        self.cuts, self.keeps, self._progress = Cuts(index, chip.lanes), KEEPS[halo], progress
        self._most = chip.capacity // PARTS
        # By numbers of `Repeats`: the cost of a group, None if it does not fit; and the cuts of a
        # run of layers in parts.
        self._steps: dict[int, Step | None] = {}
        self._costs: dict[int, GroupCost | None] = {}
        self._in_parts: dict[int, tuple[Cut, ...]] = {}
        self._alone: dict[int, tuple[int, Cut | None]] = {}
        self._places: dict[Hashable, tuple[Plan, list[tuple[int, ...]]] | None] = {}
        # Cycles of each layer that computes all of its output on one core.
        self._cycles = [
            layer_cycles(chip.machine, chip.lanes, index, layer, elements)
            for n, layer in enumerate(index.network.layers)
            for elements in [index.elements[layer.output]]
        ]

    def cheapest(
        self, last: int, lowest: Mapping[int, int], below: int, first: int
    ) -> tuple[int, PlannedGroup | None]:
        """Return the group that ends with a layer and costs least together with what comes before.

        Parameters
        ----------
        last : int
            The number of the layer.
        lowest : mapping of int to int
            The least price of all layers before the layer of a number, for each number with which
            the group may begin.
        below : int
            The price that is to be undercut.
        first : int
            The smallest number in `lowest`.

        Returns
        -------
        int, PlannedGroup or None
            The price with the group; `below` and None where no group has a lower price.
        """
        self._progress(last + 1, len(self.index.network.layers))
        while True:
            search = _Cheapest(self, last, first, lowest, below)
            for cores in sorted({1, self.chip.cores}, reverse=True):
                for keep in self.keeps:
                    search.in_slices(cores, keep)
            search.in_parts()
            if search.found is None:
                return below, None
            alike, slices = search.found
            planned = self.plan(alike, slices())
            if planned is not None:
                return search.price, planned

    def alone_in_slices(self, number: int) -> tuple[int, Cut | None]:
        """Return what a layer in no group costs if it runs in slices that fit, and these.

        `Alone` counts as if no transfer and no slice of a layer waited for any other. Where no
        slice fits, that is its price, and the cut is None.
        """
        run = self._repeats.run(number, number)
        if run not in self._alone:
            group = self.index.group((number,))
            found: list[tuple[int, Cut | None]] = []
            cuts = self.cuts.slices(number)
            for cut in (replace(cuts[0], part_bytes=self._most), *cuts):
                if can_be_cut(group, cut, self.chip) and self._fits(group, cut):
                    cost = self._costs[self.alike(number, number, cut, "")]
                    found += [] if cost is None else [(cost.price, cut)]
                prices = [price for price, _ in found]
                if len(prices) > PATIENCE + 1 and min(prices[-PATIENCE:]) > min(prices):
                    break
            without = self.alone[number].price, None
            self._alone[run] = min(found, key=lambda one: one[0], default=without)
        return self._alone[run]

    def longest(self, last: int, first: int) -> PlannedGroup | None:
        """Return the longest group that ends with a layer and fits, in the fewest slices.

        It begins with layer `first` or later, and has two layers at least.
        """
        found, begin = None, last
        for cores in sorted({1, self.chip.cores}, reverse=True):
            by_columns = [cuts[0] for cuts in self.cuts.columns(last, cores)]
            for cut in (*self.cuts.slices(last, cores), *by_columns):
                for keep in self.keeps if cut.h > 1 else self.keeps[:1]:
                    walk = Walk(self.index, self.chip, last, cut, keep)
                    steps = (n for n in range(last, first - 1, -1) if walk.to(n) is None)
                    reached = next(steps, first - 1) + 1
                    for number in range(reached, begin):
                        alike = self.alike(number, last, cut, keep)
                        group = self.index.group(tuple(range(number, last + 1)))
                        slices = partial(sliced, group, cut, self.chip, keep)
                        if self.cost(alike, slices) is not None:
                            planned = self.plan(alike, slices())
                            if planned is not None:
                                found, begin = planned, number
                                break
        return found

    def _placed(self, local: LocalMemory) -> Plan | None:
        """Return the offsets of the items, those of a memory of the same content if any."""
        key = memory_content(local)
        names = [item.name for item in local.items]
        if key not in self._places:
            plan = place(local, self.chip.planner)
            self._places[key] = (
                None if plan is None else (plan, [plan.offsets[name] for name in names])
            )
        known = self._places[key]
        if known is None:
            return None
        plan, offsets = known
        return replace(plan, offsets=dict(zip(names, offsets, strict=True)))

    def least(self, first: int, last: int) -> tuple[int, int]:
        """Return the bytes that a group of these layers moves at least, and its lowest price."""
        group = self.index.group(tuple(range(first, last + 1)))
        moved = sum(self.index.bytes[name] for name in (*group.loaded, *group.outputs))
        moving = self.chip.machine[TRANSFERS].cycles(moved)
        cycles = sum(self._cycles[first : last + 1]) // self.chip.cores
        return moved, moving + max(moving, cycles)

    def alike(self, first: int, last: int, cut: Cut, keep: str) -> int:
        """Return a number, equal for groups that are alike."""
        return self._repeats.group(first, last, cut, keep)

    def step(self, alike: int, walk: Walk, number: int) -> Step | None:
        """Return what is known of the group of a walk that begins with this layer."""
        if alike not in self._steps:
            self._steps[alike] = walk.to(number)
        return self._steps[alike]

    def cost(self, alike: int, slices: Callable[[], GroupSlices]) -> GroupCost | None:
        """Return the cost of a group, whose slices are asked for once; None if it does not fit."""
        if alike not in self._costs:
            draft = draft_slices(slices(), self.chip)
            self._costs[alike] = None if draft is None else draft.cost
        return self._costs[alike]

    def plan(self, alike: int, slices: GroupSlices) -> PlannedGroup | None:
        """Return a group with addresses; None if it finds no place in local memory."""
        draft = draft_slices(slices, self.chip)
        plan = None if draft is None else self._placed(draft.local)
        if draft is None or plan is None:
            self._costs[alike] = None
            return None
        return draft.placed(plan)

    def in_parts(self, first: int, last: int) -> tuple[Cut, ...]:
        """Return the cuts of a group whose layers are made in parts, of the fewest slices that fit.

        There are up to three: on one core, on all cores that share slices, and on all cores that
        share channels.
        """
        run = self._repeats.run(first, last)
        if run not in self._in_parts:
            self._in_parts[run] = tuple(self._fewest(first, last))
        return self._in_parts[run]

    def _fewest(self, first: int, last: int) -> Iterator[Cut]:
        cuts = [replace(cut, part_bytes=self._most) for cut in self.cuts.slices(last)]
        uncut, cores = cuts[:CUTS_IN_PARTS], self.chip.cores
        ways = [[shared_by(cut, cores) for cut in uncut]]
        if cores > 1:
            ways.append([replace(cut, cores=cores, by_channels=True) for cut in uncut])
        group = self.index.group(tuple(range(first, last + 1)))
        for way in ways:
            able = [cut for cut in way if can_be_cut(group, cut, self.chip)]
            slices = sliced(group, able[0], self.chip) if able else None
            if slices is None or not slices.streams:
                continue
            whole = (n for n in group.numbers if self._name(n) not in slices.streams)
            if able[0].by_channels and any(map(self._takes_long, whole)):
                continue
            # Where the most slices do not fit, fewer need not be looked at.
            if self._fits(group, able[0], slices):
                yield able[0]
            elif len(able) > 1 and self._fits(group, able[-1]):
                yield next((cut for cut in able[1:-1] if self._fits(group, cut)), able[-1])

    def _name(self, number: int) -> str:
        return self.index.network.layers[number].name

    def _takes_long(self, number: int) -> bool:
        """Whether each core had better load the result of a layer than make all of it."""
        nbytes = self.index.bytes[self.index.network.layers[number].output]
        loading = self.chip.machine[TRANSFERS].cycles(nbytes)
        return self._cycles[number] > (self.chip.cores + 1) * loading

    def _fits(self, group: Group, cut: Cut, slices: GroupSlices | None = None) -> bool:
        """Whether a group fits; its slices may be given."""

        def found() -> GroupSlices:
            return sliced(group, cut, self.chip) if slices is None else slices

        return (
            self.cost(self.alike(group.numbers[0], group.numbers[-1], cut, ""), found) is not None
        )


class _Cheapest:
    """The cheapest group that ends with one layer, as far as it is found."""

    def __init__(
        self, search: GroupSearch, last: int, first: int, lowest: Mapping[int, int], below: int
    ) -> None:
        self.search, self.last, self.lowest = search, last, lowest
        self.price = below
        # The number in `Repeats`, and the slices, of the cheapest group.
        self.found: tuple[int, Callable[[], GroupSlices]] | None = None
        self.overlap = False  # Whether any two slices share rows
        self.numbers = range(last, first - 1, -1)
        alone = 0
        # By the first layer: the least price of the group with what comes before, and the fewest
        # bytes that it was found to move.
        self.least: dict[int, int] = {}
        self.moved: dict[int, int] = {}
        for number in self.numbers:
            alone += search.alone[number].moved
            _, price = search.least(number, last)
            self.least[number] = lowest[number] + price
            # A layer alone is a group only where it moves less, by laying out its own weights.
            self.moved[number] = alone - (number == last)
        # By the first layer: the fewest bytes of a group in slices that lowered the price.
        self.fewest = dict(self.moved)

    def in_slices(self, cores: int, keep: str) -> None:
        """Try ever more slices, as long as a promising group does not fit or the price falls."""
        if keep != self.search.keeps[0] and not self.overlap:
            return  # The groups are those whose halos are made again.
        vain, unfit = 0, False
        for cut in self.search.cuts.slices(self.last, cores):
            if cut.h == 1 and keep != self.search.keeps[0]:
                continue  # Without cut rows there is no halo.
            won, unfit = self.walk(cut, keep)
            vain = 0 if won or unfit else vain + 1
            if vain == PATIENCE:
                break
        if unfit:
            self.in_columns(cores, keep)

    def in_columns(self, cores: int, keep: str) -> None:
        """Try to cut the columns, too, where promising groups do not fit in single rows.

        A slice has few rows then: fewer columns at a time are more columns that two slices need.
        """
        for cuts in self.search.cuts.columns(self.last, cores):
            unfit = False
            for cut in cuts:
                won, unfit_now = self.walk(cut, keep)
                unfit = unfit or unfit_now
                if not won:
                    break
            if not unfit:
                return

    def walk(self, cut: Cut, keep: str) -> tuple[bool, bool]:
        """Try all groups of one cut.

        Returns whether one costs less than all before, and whether a promising group did not fit.
        """
        search, won, unfit = self.search, False, False
        walk = Walk(search.index, search.chip, self.last, cut, keep)
        for number in range(self.last, self.longest() - 1, -1):
            alike = search.alike(number, self.last, cut, keep)
            step = search.step(alike, walk, number)
            if step is None:
                return won, number > self.longest() or self.least[number] < self.price
            self.overlap = self.overlap or step.overlap
            least = self.lowest[number] + step.bound
            if least >= self.price or step.moved > self.moved[number]:
                continue
            cost = search.cost(alike, partial(walk.slices, number))
            unfit = unfit or cost is None
            group = search.index.group(tuple(range(number, self.last + 1)))
            anew = partial(sliced, group, cut, search.chip, keep)  # The walk goes on.
            if cost is not None and self.take(number, cost, alike, anew):
                won, self.fewest[number] = True, min(cost.moved, self.fewest[number])
        return won, unfit

    def longest(self) -> int:
        """Return the first layer of the longest group that could lower the price."""
        return min((n for n in self.numbers if self.least[n] < self.price), default=self.last + 1)

    def take(
        self, number: int, cost: GroupCost | None, alike: int, slices: Callable[[], GroupSlices]
    ) -> bool:
        """Take a group that begins with this layer if it lowers the price; whether it does."""
        if cost is None or cost.moved > self.moved[number]:
            return False  # It moves more than its layers alone.
        price = self.lowest[number] + cost.price
        if price >= self.price:
            return False
        self.price, self.found = price, (alike, slices)
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
            cuts = search.in_parts(number, self.last)
            group = search.index.group(tuple(range(number, self.last + 1)))
            for cut in cuts:
                alike = search.alike(number, self.last, cut, "")
                slices = partial(sliced, group, cut, search.chip)
                self.take(number, search.cost(alike, slices), alike, slices)
            vain = 0 if cuts else vain + 1
            if vain == PATIENCE:
                return
