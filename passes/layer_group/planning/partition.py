# SPDX-License-Identifier: Apache-2.0
"""Where to cut a network into groups: dynamic programming, and from the tail to the head."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, chain, groupby

from passes.layer_group.planning.cost import TRANSFERS
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.search import LEAST_GAIN, GroupSearch
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.sweep import Estimate

WINDOW = 16
"""Groups of more layers than this are made of smaller ones: see `dynamic_programming`."""

MOST_LAYERS = 32
"""Layers of a group at most: a kernel of more is too much for the compiler that gets it."""

WEIGHT = 3
"""How often transfers are added to prices, to find groups that cost as much and move less."""

ROUNDS = 16
"""How often groups are chosen at most before it is among those alone that are drafted."""


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
            without = {
                end: {
                    at: [one for one in ways if not one.cut.sums] for at, ways in by_first.items()
                }
                for end, by_first in known.items()
            }
            plain = _cheapest(search, without, first, last)
            parts = min(parts, plain, key=lambda one: (search.moved(one), search.total(one)))
        found = [part if isinstance(part, int) else part.numbers[0] for part in parts]
        if len(begins) <= WINDOW or len(found) >= len(begins) or len(found) == 1:
            break
        begins = found
    fewer = _cheapest_drafts(search, known, first, last, WEIGHT)
    if search.total(fewer) <= search.total(parts) * (1 + LEAST_GAIN):
        parts = min(parts, fewer, key=search.moved)
    return parts


def _estimate(
    search: GroupSearch, known: dict[int, dict[int, list[Estimate]]], begins: list[int], last: int
) -> None:
    """Find the groups that begin and end where `begins` says, of at most `WINDOW` such parts."""
    moved = [0, *accumulate(one.moved for one in search.alone)]
    for at, begin in enumerate(begins):
        end = begins[at + 1] - 1 if at + 1 < len(begins) else last
        furthest = max(begins[max(0, at + 1 - WINDOW)], end + 1 - MOST_LAYERS)
        by_first = known.setdefault(end, {})
        fresh: dict[int, list[Estimate]] = {}
        for estimate in search.ending_with(end, furthest, search.parts):
            where = bisect_left(begins, estimate.first)
            alone = moved[end + 1] - moved[estimate.first]
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
) -> list[PlannedGroup | int]:
    """Return the cheapest groups, all planned.

    Drafts correct the estimates, so the choice is made again until all of it is drafted and finds
    its place in local memory, or for `ROUNDS`; then it is one of drafts alone.
    """
    for _ in range(ROUNDS):
        chosen = _choose(search, known, first, last)
        groups = [part for part in chosen if isinstance(part, Estimate)]
        drafted = all(map(search.is_drafted, groups))
        missing = [one for one in groups if (search.plan if drafted else search.cost)(one) is None]
        if drafted and not missing:
            break
        for group in missing:
            ways = known[group.last][group.first]
            if all(search.price(way) is None for way in ways):
                finest = max(ways, key=lambda way: way.cut.steps)
                ways += [way for way in search.finer(finest) if not search.is_drafted(way)]
    return _cheapest_drafts(search, known, first, last)


def _cheapest_drafts(
    search: GroupSearch,
    known: dict[int, dict[int, list[Estimate]]],
    first: int,
    last: int,
    weight: int = 0,
) -> list[PlannedGroup | int]:
    """Return the cheapest of the groups that are drafted and find their place in local memory."""
    while True:
        chosen = _choose(search, known, first, last, only_drafted=True, weight=weight)
        planned = [part if isinstance(part, int) else search.plan(part) for part in chosen]
        parts = [part for part in planned if part is not None]
        if len(parts) == len(planned):
            return parts


def _choose(
    search: GroupSearch,
    known: dict[int, dict[int, list[Estimate]]],
    first: int,
    last: int,
    *,
    only_drafted: bool = False,
    weight: int = 0,
) -> list[Estimate | int]:
    """Return the cheapest groups as far as is known, and the layers that are in none.

    Transfers are added to prices so many times more as `weight` says.
    """
    options: dict[tuple[int, int], Estimate] = {}
    costs: dict[tuple[int, int], int] = {}
    # By the groups that there are to choose from, which may be fewer or others for a run of layers
    # that is alike.
    found: dict[tuple[int, ...], tuple[int | None, int | None]] = {}
    pipe = search.chip.machine[TRANSFERS]

    def weighed(price: int, moved: int) -> int:
        return price + weight * pipe.cycles(moved) if weight else price

    def cheapest(estimates: list[Estimate]) -> tuple[int | None, int | None]:
        """Return which of the ways of a group costs least, if any, and the cost."""
        ways, best, least = list(enumerate(estimates)), None, None
        first, last = estimates[0].first, estimates[0].last
        if first == last:
            # A group of one is none, but where it moves less, by laying out its own weights.
            ways = [(at, e) for at, e in ways if e.moved < search.alone[last].moved]
            # A layer alone is on one core.
            sliced = [weighed(e.price, e.moved) for e in estimates if e.cut.cores == 1]
            one = search.alone[last]
            least = min(sliced, default=weighed(one.price, one.moved))
        if ways and ways[0][1].run not in search.tried:
            ways = ways[:1]
        skip = only_drafted
        for at, estimate in ways:
            if not search.is_drafted(estimate):
                if skip:
                    continue
                skip = True  # Of those that are not drafted, the first one is the cheapest.
            price = search.price(estimate)
            if price is None:
                continue
            cost = weighed(price, estimate.moved)
            if best is None or least is None or cost < least:
                best, least = at, cost
        return best, least

    for end, by_first in known.items():
        for start, estimates in by_first.items():
            if not estimates:
                continue
            alike = tuple(estimate.group for estimate in estimates)
            if alike not in found:
                found[alike] = cheapest(estimates)
            option, cost = found[alike]
            if option is not None:
                options[start, end] = estimates[option]
            if cost is not None:
                costs[start, end] = cost
    # Where a layer alone is run, it is sliced, too, but that is not for us to write.
    alone = {n: search.alone[n] for n in range(first, last + 1)}
    costs = {(n, n): weighed(one.price, one.moved) for n, one in alone.items()} | costs
    return [options.get(part, part[0]) for part in shortest_path(first, last, costs)]


def shortest_path(
    first: int, last: int, costs: Mapping[tuple[int, int], int]
) -> list[tuple[int, int]]:
    """Cut the numbers from `first` to `last` into the parts that cost least together.

    Each number has a cost alone. The result is the first and last number of each part, in order.
    """
    starts: dict[int, list[int]] = {}
    for start, end in costs:
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
