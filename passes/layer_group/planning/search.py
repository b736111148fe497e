# SPDX-License-Identifier: Apache-2.0
"""Where to cut a network into groups: dynamic programming, and from the tail to the head."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, product

from passes.layer_group.planning.cost import TRANSFERS, layer_cycles
from passes.layer_group.planning.group import NetworkIndex, bytes_of, element_count, extent_of
from passes.layer_group.planning.layer_facts import LayerFacts
from passes.layer_group.planning.planned_group import (
    PORTFOLIO,
    Chip,
    PlannedGroup,
    fit,
    place,
    plan_group,
)
from passes.layer_group.planning.run_search import RunSearch
from passes.layer_group.planning.slicing import Cut, slice_group
from passes.layer_group.planning.sweep import Estimate, Sweep

WINDOW = 16
"""Groups of more layers than this are made of smaller ones: see `dynamic_programming`."""

MOST_LAYERS = 32
"""Layers of a group at most: a kernel of more is too much for the compiler that gets it."""

ROUNDS = 16
"""How often groups are chosen before those are taken that are planned."""

PATIENCE = 2
"""How often more slices, or longer groups with more slices, win nothing before it stops."""

LEAST_GAIN = 0.01
"""Share of a group's price below which a lower one counts as nothing won."""

DOUBT = 0.03
"""Share of its estimated price that a group may turn out to cost less, once it is planned."""

QUICK = "first_fit"
"""One of the planners of the portfolio."""

PARTS = 16
"""Share of a lane's memory that the weights of one layer may take, where they come in parts."""

RUN_CUTS = 4
"""How many cuts are tried, of few slices, where layers run in one loop over parts."""

Progress = Callable[[int, int], object]
"""Is told how many layers a search has looked at, and how many there are; at times from anew."""


def silent(_done: int, _layers: int) -> None:
    """Show no progress."""


KEEPS = {"recompute": ("",), "keep": ("h",), "cheapest": ("", "h")}
"""For each way with halos, the letters of the cuts along which the search may keep them."""


@dataclass(frozen=True)
class Alone:
    """What a layer takes that is in no group: it computes while its tensors are moved."""

    moved: int  # Bytes: each tensor once
    cycles: int
    price: int  # As in `GroupCost`

    @classmethod
    def of(cls, index: NetworkIndex, chip: Chip, number: int) -> Alone:
        """Return what a layer takes, with those that lay out its weights."""
        layer = index.network.layers[number]
        if layer.lays_out:
            return cls(0, 0, 0)
        found = cls(0, 0, 0)
        for one in (layer, *index.layouts(layer.inputs)):
            names = (*dict.fromkeys(one.inputs), one.output)
            moved = sum(bytes_of(index.tensors[name]) for name in names)
            elements = element_count(index.tensors[one.output])
            group = index.group((number,))
            computing = layer_cycles(chip.machine, chip.lanes, group, one, elements)
            moving = chip.machine[TRANSFERS].cycles(moved)
            cycles = found.cycles + max(computing, moving)
            found = cls(found.moved + moved, cycles, found.price + max(computing, moving) + moving)
        return found


class GroupSearch:
    """The groups of a network that fit, and their plans."""

    def __init__(
        self, index: NetworkIndex, chip: Chip, halo: str, progress: Progress = silent
    ) -> None:
        self.index = index
        self.chip = chip
        self.keeps = KEEPS[halo]
        self._progress = progress
        self._most = most = chip.capacity // PARTS
        self.parts = (Cut(), Cut(part_bytes=most), Cut(part_bytes=most, passing=True))
        self.alone = [Alone.of(index, chip, number) for number in range(len(index.network.layers))]
        # While groups are compared it is enough that they fit; the portfolio is for the result.
        self._quick = replace(chip, planner=QUICK) if chip.planner == PORTFOLIO else chip
        self._facts = LayerFacts(index, chip)
        self._in_runs = RunSearch(index, chip)
        self._planned: dict[tuple[int, int, Cut, str], PlannedGroup | None] = {}
        self._ways: dict[tuple[int, int], tuple[Estimate, ...]] = {}
        self.tried: set[tuple[int, int]] = set()  # First and last layers of what was planned.
        # What all planned groups were estimated to cost, and what they cost.
        self._estimated = self._found = 1

    def plan(self, estimate: Estimate) -> PlannedGroup | None:
        """Return the plan of a group; None if it does not fit after all."""
        key = (estimate.first, estimate.last, estimate.cut, estimate.keep)
        if key not in self._planned:
            group = self.index.group(tuple(range(estimate.first, estimate.last + 1)))
            planned = plan_group(group, estimate.cut, self._quick, estimate.keep, fit)
            if planned is None and self._quick != self.chip:
                planned = plan_group(group, estimate.cut, self.chip, estimate.keep, fit)
            self._planned[key] = planned
            self.tried.add((estimate.first, estimate.last))
            if planned is not None and not estimate.cut.sums:
                self._estimated += estimate.price
                self._found += planned.cost.price
        return self._planned[key]

    def placed(self, planned: PlannedGroup) -> PlannedGroup:
        """Return a group of the result, with addresses from the planner that was asked for."""
        plan = place(planned.local, self.chip.planner)
        return planned if plan is None else replace(planned, plan=plan)

    def settle(self, planned: PlannedGroup) -> PlannedGroup:
        """Return a group where no single tensor's halo would better be treated the other way.

        Cores share its slices where that costs less.
        """
        return self.on_cores(self._mixed(planned) if len(self.keeps) > 1 else planned)

    def _mixed(self, planned: PlannedGroup) -> PlannedGroup:
        cut, group = planned.cut, planned.group
        candidates = slice_group(group, cut, "h").kept
        keep = {name: planned.slices.tensors[name].keep for name in group.names}
        for name in candidates:
            other = {**keep, name: "" if "h" in keep[name] else "h"}
            changed = plan_group(group, cut, self._quick, other, fit)
            if changed is not None and changed.cost.price < planned.cost.price:
                planned, keep = changed, other
        return planned

    def on_cores(self, planned: PlannedGroup) -> PlannedGroup:
        """Return a group whose slices all cores of the chip share, where that costs less.

        Each core loads weights, and rows that its first slice shares with the one before. A group
        never moves more than its layers alone.
        """
        group, cores, cut = planned.group, self.chip.cores, replace(planned.cut, passing=False)
        if cores == 1:
            return planned
        keep = {name: planned.slices.tensors[name].keep for name in group.names}
        alone = sum(self.alone[number].moved for number in group.numbers)
        rows = min(extent_of(group.tensor(name), "h") for name in group.outputs)
        # More slices, where cores cannot share as many as there are.
        more = (replace(cut, h=cut.h + at, cores=cores) for at in range(cores))
        for shared in more:
            if shared.h <= rows and shared.can_share(cores):
                other = plan_group(group, shared, self._quick, keep, fit)
                if other is not None and other.cost.moved <= alone:
                    planned = min(planned, other, key=lambda one: one.cost.price)
        return planned

    def price(self, estimate: Estimate) -> int | None:
        """Return a group's price, of its plan or the lowest that is likely.

        It is None if the group was found not to fit.
        """
        key = (estimate.first, estimate.last, estimate.cut, estimate.keep)
        if key not in self._planned:
            if estimate.cut.sums:
                return estimate.price  # It comes from slices and time steps, as that of a plan.
            return int(estimate.price * self._found / self._estimated * (1 - DOUBT))
        planned = self._planned[key]
        return None if planned is None else planned.cost.price

    def total(self, parts: Sequence[PlannedGroup | int]) -> int:
        """Return the price of groups, and of layers in none."""
        return sum(
            self.alone[part].price if isinstance(part, int) else part.cost.price for part in parts
        )

    def moved(self, parts: Sequence[PlannedGroup | int]) -> int:
        """Return the bytes that groups move, and layers in none."""
        return sum(
            self.alone[part].moved if isinstance(part, int) else part.cost.moved for part in parts
        )

    def is_planned(self, estimate: Estimate) -> bool:
        """Whether a group was planned, or found not to fit."""
        return (estimate.first, estimate.last, estimate.cut, estimate.keep) in self._planned

    def ending_with(self, last: int, first: int, parts: Sequence[Cut]) -> Iterator[Estimate]:
        """Yield the groups of layers from `first` or later to `last`, cut by cut, as they fit.

        Groups of one cut come shortest first; cuts come with fewer slices first, the batch before
        the rows, until more slices win nothing. `parts` say what comes in parts.
        """
        self._progress(last + 1, len(self.index.network.layers))
        reached: dict[Cut, int] = {}  # The first layer that was looked at.
        moved: dict[int, int] = {}  # The fewest bytes of a group, by its first layer.
        made_in_parts = any(self._facts.stream(n, self._most) for n in range(first, last + 1))
        for keep, uncut in product(self.keeps, parts):
            if uncut.part_bytes and not made_in_parts:
                continue  # The groups are those without parts.
            if keep and self.keeps[0] != keep and not self._repeats(reached[uncut], last):
                continue  # The groups are those whose halos are made again.
            best: dict[int, int] = {}
            vain = 0
            reached[uncut] = last
            for cut in self._cuts(last, uncut):
                # Columns are cut where no rows make a group of two layers fit.
                fits = min(best, default=last) < last or not self._able(last)
                if vain == PATIENCE and (cut.w == 1 or fits):
                    continue
                if cut.h == 1 and keep != self.keeps[0]:
                    continue  # Without cut rows there is nothing to keep.
                won, worse, all_fit = False, 0, min(best, default=last) == first
                sweep = Sweep(self._facts, last, cut, keep)
                for estimate in sweep.run(first):
                    fewest = moved.get(estimate.first, estimate.moved)
                    moved[estimate.first] = min(fewest, estimate.moved)
                    known = best.get(estimate.first)
                    worse += 1
                    if known is None or estimate.price < known:
                        best[estimate.first] = estimate.price
                        worse = 0
                        won = won or known is None or estimate.price < known * (1 - LEAST_GAIN)
                    yield estimate
                    if all_fit and worse == PATIENCE:
                        break  # Fewer slices do for all groups, in fewer cycles.
                reached[uncut] = min(reached[uncut], sweep.first)
                alone = min(best, default=last) == last > first
                vain = 0 if won or alone else vain + 1
        if made_in_parts and parts[-1].part_bytes:
            cuts = [cut for cut in self._cuts(last, parts[1]) if cut.w == 1][:RUN_CUTS]
            most, together = dict[int, int](), 0
            for number in range(last, first - 1, -1):
                together += self.alone[number].moved
                most[number] = min(together, moved.get(number, together))
            yield from self._in_runs.ending_with(last, most, cuts)

    def ways_to_cut(self, first: int, last: int) -> tuple[Estimate, ...]:
        """Return the group of these layers in all cuts that are tried and fit."""
        if (first, last) not in self._ways:
            found = self.ending_with(last, first, self.parts)
            self._ways[first, last] = tuple(one for one in found if one.first == first)
        return self._ways[first, last]

    def finer(self, estimate: Estimate) -> Iterator[Estimate]:
        """Yield a group in more slices than those that were estimated, a few times.

        A group whose live bytes fit may find no place for them.
        """
        uncut = Cut(part_bytes=estimate.cut.part_bytes)
        cuts = (c for c in self._cuts(estimate.last, uncut) if c.steps > estimate.cut.steps)
        for cut in islice(cuts, PATIENCE):
            found = Sweep(self._facts, estimate.last, cut, estimate.keep).run(estimate.first)
            yield from (one for one in found if one.first == estimate.first)

    def _repeats(self, first: int, last: int) -> bool:
        """Whether slices of any of these layers may need the same rows."""
        return any(self._facts.repeats_rows(number) for number in range(first, last + 1))

    def _cuts(self, last: int, uncut: Cut) -> list[Cut]:
        """Return the cuts to try: ever more slices, where more make the largest one smaller."""
        if uncut.passing:
            return [uncut]
        output = self.index.tensors[self.index.network.layers[last].output]
        sizes = dict(zip(reversed(output.axes), reversed(output.shape), strict=True))
        unit = self.chip.lanes.batch_unit(output.bits)
        batch, rows = -(-sizes.get("n", 1) // unit), sizes.get("h", 1)
        by_batch = [replace(uncut, n=count) for count in counts(batch)]
        cuts = [replace(uncut, n=batch, h=count) for count in counts(rows)[1:]]
        columns = counts(sizes.get("w", 1))[1:]
        tall = [count for count in counts(rows) if 8 * count >= rows]
        both = [replace(uncut, n=batch, h=h, w=w) for w in columns for h in tall]
        return [*by_batch, *cuts, *both]

    def _able(self, last: int) -> bool:
        """Whether a layer and the one before can be cut in columns."""
        pair = self.index.network.layers[max(0, last - 1) : last + 1]
        return all(layer.by_columns and not layer.reason for layer in pair)


def counts(extent: int) -> list[int]:
    """Return numbers of slices to try for an axis: 1 to 4, then steps of a half, up to all.

    Of numbers with slices of one size only the smallest is there.
    """
    found: list[int] = []
    count = 1
    while count <= extent:
        size = -(-extent // count)
        if not found or size < -(-extent // found[-1]):
            found.append(-(-extent // size))
        count = max(count + 1, count * 3 // 2)
    if found[-1] != extent:
        found.append(extent)
    return found


def tail_to_head(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last`, taking the longest group that fits from the end.

    Among the ways to cut the longest group, the one with the fewest slices is taken: the batch is
    cut before the rows. (tpu-mlir, ``GroupMethod``: "simple".)

    The result is in the layers' order, with the number of a layer that fits in no group.
    """
    parts: list[PlannedGroup | int] = []
    end = last
    while end >= first:
        estimates = [
            e
            for e in search.ending_with(end, max(first, end + 1 - MOST_LAYERS), (Cut(),))
            if e.first < end
        ]
        estimates.sort(key=lambda estimate: estimate.first)
        planned = None
        for _, alike in groupby(estimates, lambda estimate: estimate.first):
            *others, last_one = alike
            tried = map(search.plan, chain(others, [last_one], search.finer(last_one)))
            planned = next((plan for plan in tried if plan is not None), None)
            if planned is not None:
                break
        parts.append(end if planned is None else planned)
        end = end - 1 if planned is None else planned.numbers[0] - 1
    return parts[::-1]


def dynamic_programming(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last` into the groups of the lowest price together.

    For each layer, the best way to cut all layers up to it is the best group that ends with it
    and the best way to cut what comes before. Groups have at most `WINDOW` layers at first; then
    the groups that were found take the place of layers, as often as that wins something.

    The result is in the layers' order, with the number of a layer that fits in no group.
    """
    begins = list(range(first, last + 1))
    known: dict[int, dict[int, list[Estimate]]] = {}
    while True:
        _estimate(search, known, begins, last)
        parts = _cheapest(search, known, first, last)
        if any(isinstance(part, PlannedGroup) and part.cut.sums for part in parts):
            # What a layer alone is said to cost is lower where it sums over parts, too.
            plain = _cheapest(search, known, first, last, sums=False)
            parts = min(parts, plain, key=lambda one: (search.moved(one), search.total(one)))
        found = [part if isinstance(part, int) else part.numbers[0] for part in parts]
        if len(begins) <= WINDOW or len(found) >= len(begins) or len(found) == 1:
            return parts
        begins = found


def _estimate(
    search: GroupSearch, known: dict[int, dict[int, list[Estimate]]], begins: list[int], last: int
) -> None:
    """Find the groups that begin and end where `begins` says, of at most `WINDOW` such parts."""
    for at, begin in enumerate(begins):
        end = begins[at + 1] - 1 if at + 1 < len(begins) else last
        furthest = max(begins[max(0, at + 1 - WINDOW)], end + 1 - MOST_LAYERS)
        by_first = known.setdefault(end, {})
        fresh: dict[int, list[Estimate]] = {}
        for estimate in search.ending_with(end, furthest, search.parts):
            where = bisect_left(begins, estimate.first)
            alone = sum(one.moved for one in search.alone[estimate.first : end + 1])
            if estimate.moved > alone and estimate.first < end:
                continue
            if where < len(begins) and begins[where] == estimate.first and estimate.first <= begin:
                fresh.setdefault(estimate.first, []).append(estimate)
        for start, estimates in fresh.items():
            if start not in by_first:
                by_first[start] = sorted(estimates, key=lambda e: (e.price, e.cut.steps, e.keep))


def _cheapest(
    search: GroupSearch,
    known: dict[int, dict[int, list[Estimate]]],
    first: int,
    last: int,
    *,
    sums: bool = True,
) -> list[PlannedGroup | int]:
    """Return the cheapest groups, all planned, with runs that have `sums` or without.

    Plans correct the estimates, so the choice is made again until it has only plans; in the last
    round it is one of plans alone.
    """
    chosen: list[Estimate | int] = []
    for number in range(ROUNDS):
        only_planned = number == ROUNDS - 1
        chosen = _choose(search, known, first, last, only_planned=only_planned, sums=sums)
        groups = [part for part in chosen if isinstance(part, Estimate)]
        if all(map(search.is_planned, groups)):
            break
        for group in groups:
            search.plan(group)
    planned = [part if isinstance(part, int) else search.plan(part) for part in chosen]
    return [part for part in planned if part is not None]


def _choose(
    search: GroupSearch,
    known: dict[int, dict[int, list[Estimate]]],
    first: int,
    last: int,
    *,
    only_planned: bool,
    sums: bool,
) -> list[Estimate | int]:
    """Return the cheapest groups as far as is known, and the layers that are in none."""
    options: dict[tuple[int, int], Estimate] = {}
    costs: dict[tuple[int, int], int] = {}
    for end, by_first in known.items():
        for start, every in by_first.items():
            estimates = [e for e in every if sums or not e.cut.sums]
            if start == end and estimates:
                # A group of one is none, but where it moves less, by laying out its own weights.
                less = [e for e in estimates if e.moved < search.alone[end].moved]
                costs[end, end] = estimates[0].price
                estimates = less
            # Of those that are not planned, the first one is the cheapest.
            for estimate in estimates if (start, end) in search.tried else estimates[:1]:
                if only_planned and not search.is_planned(estimate):
                    continue
                price = search.price(estimate)
                if price is not None and ((start, end) not in options or price < costs[start, end]):
                    options[start, end], costs[start, end] = estimate, price
    # Where a layer alone is run, it is sliced, too, but that is not for us to write.
    costs = {(n, n): search.alone[n].price for n in range(first, last + 1)} | costs
    return [options.get(part, part[0]) for part in shortest_path(first, last, costs)]


def shortest_path(
    first: int, last: int, costs: Mapping[tuple[int, int], int]
) -> list[tuple[int, int]]:
    """Cut the numbers from `first` to `last` into the parts that cost least together.

    Each number has a cost alone. The result is the first and last number of each part, in order.
    """
    starts: dict[int, list[int]] = {}
    for start, end in sorted(costs):
        starts.setdefault(end, []).append(start)
    best: dict[int, int] = {first: 0}  # What all numbers before one cost.
    choice: dict[int, int] = {}
    for end in range(first, last + 1):
        options = [(best[at] + costs[at, end], at) for at in starts[end] if at >= first]
        best[end + 1], choice[end] = min(options)
    parts: list[tuple[int, int]] = []
    end = last
    while end >= first:
        parts.append((choice[end], end))
        end = choice[end] - 1
    return parts[::-1]
