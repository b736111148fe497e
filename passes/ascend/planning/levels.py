# SPDX-License-Identifier: Apache-2.0
"""Reuse levels: the sharing that makes pipelines wait, its cost, and the cost of a plan.

The levels are those of AscendNPU-IR's PlanMemory, by its public document: at level 2 no bytes are
shared across pipelines, at level 1 a buffer may take all slots of a multi-buffered one, at level 0
any two may share that are not live together. Here a level is a set of penalties, so that every
planner can weigh them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from passes.planning import (
    Buffer,
    Penalty,
    PipelineUse,
    Plan,
    Problem,
    Reuse,
    charge,
    live_together,
)

Ints = npt.NDArray[np.int64]

_Price = tuple[Buffer, Buffer, int, int]
"""Two buffers, and the costs of a `Penalty` of them."""

DEPENDENCE = 1  # Cost of one wait of a pipeline for another, because of bytes that both use
STALL = 2  # Cost on top of it of one iteration in which a multi-buffered buffer waits for a slot
MOST_RUNS = 1 << 24  # More count as so many where costs are weighed, so that sums do not overflow


def pipes_conflict(one: PipelineUse | None, two: PipelineUse | None) -> bool:
    """Return whether sharing bytes makes one pipeline wait for another; not where a use is unknown.

    The original's rule: buffers that the scalar unit uses go together, and so do those that only
    vector and cube units use; one that a transfer uses goes with no other. Pipes are not compared.
    """
    if one is None or two is None:
        return False
    if one.scalar or two.scalar:
        return one.scalar != two.scalar
    return one.dma or two.dma


LISTED = 20_000
"""Pairs of buffers up to which a problem lists the penalties of levels."""


def with_level_penalties(problem: Problem) -> Problem:
    """Return `problem` with a penalty for each pair that two pipelines would wait at.

    Sharing costs `DEPENDENCE` for each time that it makes a pipeline wait: in one loop, once in
    each round of it; across loops and outside of them, once. In one loop it costs `STALL` as often
    on top where one of the two is multi-buffered, unless they share in step: then the wait is for
    an iteration long past. Buffers whose use is not known cost nothing, nor do those that go in
    place with one another, directly or over others. A pair that has a penalty keeps it; so an
    in-place pair that would stall is no reason for the pairs around it to be free.

    Where there are more than `LISTED` pairs of buffers, the problem stays as it is: see
    `with_penalties_due`.
    """
    if math.comb(len(problem.buffers), 2) > LISTED:
        return problem
    costs, numbers = LevelCosts(problem), np.arange(len(problem.buffers))
    found = (p for n in numbers.tolist() for p in costs.at(n, numbers > n))
    return _with_penalties(problem, found)


def with_penalties_due(problem: Problem, offsets: Mapping[str, tuple[int, ...]]) -> Problem:
    """Return `problem` with the penalties of levels that a plan pays, if it does not list them."""
    if math.comb(len(problem.buffers), 2) <= LISTED:
        return problem
    return _with_penalties(problem, _sharing_at_a_cost(problem, offsets))


def priced(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """Return a problem that lists all penalties that a plan pays, and the plan with their sum."""
    due = with_penalties_due(problem, plan.offsets)
    return due, replace(plan, penalty=sum(charge(due, plan, each) for each in due.penalties))


def _with_penalties(problem: Problem, prices: Iterable[_Price]) -> Problem:
    """Return `problem` with penalties of the pairs that have none."""
    listed = {frozenset((p.first, p.second)) for p in problem.penalties}
    added = [
        Penalty(one.name, two.name, *costs)
        for one, two, *costs in prices
        if frozenset((one.name, two.name)) not in listed
    ]
    return replace(problem, penalties=(*problem.penalties, *added))


@dataclass(frozen=True, eq=False)
class CostRow:
    """The price for some buffers to share bytes with each of a number of others."""

    hard: npt.NDArray[np.bool_]  # Whether they may not
    cost: Ints
    in_step: Ints  # The cost where equal slots share


class LevelCosts:
    """The prices at which buffers of a problem share bytes: its penalties, and those of levels."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        buffers, uses = problem.buffers, [buffer.use or PipelineUse() for buffer in problem.buffers]
        loops = dict.fromkeys([None, *(use.loop for use in uses)])
        loops = {loop: number for number, loop in enumerate(loops)}
        groups = _in_place_groups(problem)
        kinds = [buffer.use and (buffer.use.dma, buffer.use.scalar) for buffer in buffers]
        uses_of = {kind: buffer.use for kind, buffer in zip(kinds, buffers, strict=True)}
        numbers = {kind: number for number, kind in enumerate(uses_of)}
        self._kind = np.array([numbers[kind] for kind in kinds], dtype=np.int64)
        # For each kind of use, which buffers are of one that it waits for.
        self._waits = {
            number: np.array([pipes_conflict(uses_of[kind], use) for use in uses_of.values()])[
                self._kind
            ]
            for kind, number in numbers.items()
        }
        self._loop = np.array([loops[use.loop] for use in uses], dtype=np.int64)
        self._slots = problem.columns.slots
        self._classes = lru_cache(maxsize=64)(self._of_class)
        self._runs = np.array([min(use.runs, MOST_RUNS) for use in uses], dtype=np.int64)
        self._groups = np.array([groups[buffer.name] for buffer in buffers], dtype=np.int64)
        self._listed: list[dict[int, tuple[int, int]]] = [{} for _ in buffers]
        for penalty in problem.penalties:
            pair = problem.index[penalty.first], problem.index[penalty.second]
            cost = min(penalty.cost, MOST_RUNS), min(penalty.cost_if_slots_match, MOST_RUNS)
            for one, two in (pair, pair[::-1]):
                self._listed[one][two] = cost
        self._separated: list[list[int]] = [[] for _ in buffers]
        for names in problem.separations:
            one, two = (problem.index[name] for name in names)
            self._separated[one].append(two)
            self._separated[two].append(one)

    def _of_class(self, kind: int, loop: int, runs: int, slots: int) -> tuple[Ints, Ints]:
        """Return `_prices` as they are for buffers of one use and number of slots, all apart."""
        in_loop = (self._loop == loop) & bool(loop)
        several = in_loop & (np.maximum(self._slots, slots) > 1)
        waits = self._waits[kind] * np.where(in_loop, np.minimum(self._runs, runs), 1)
        return waits * (DEPENDENCE + STALL * several), waits * DEPENDENCE

    def _prices(self, number: int, together: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the cost of sharing bytes with each buffer, and that where equal slots share.

        `together` are the buffers that are live together with the one that is asked about.
        """
        key = tuple(int(each[number]) for each in (self._kind, self._loop, self._runs, self._slots))
        free = together | (self._groups == self._groups[number])
        free[self._separated[number]] = True
        cost, in_step = (np.where(free, 0, each) for each in self._classes(*key))
        for other, listed in self._listed[number].items():
            cost[other], in_step[other] = listed
        return cost, in_step

    def at(self, number: int, among: npt.NDArray[np.bool_]) -> Iterator[_Price]:
        """Yield what it costs a buffer to share bytes with some others, where it costs anything."""
        buffers = self._problem.buffers
        cost, in_step = self._prices(number, self._together(number))
        for other in np.flatnonzero(among & (cost > 0)).tolist():
            one, two = buffers[number], buffers[other]
            prices = int(cost[other]), int(in_step[other])
            runs = min(use.runs if use else 1 for use in (one.use, two.use))
            in_loop = self._loop[number] == self._loop[other] > 0
            if runs > MOST_RUNS and in_loop and other not in self._listed[number]:
                prices = prices[0] // MOST_RUNS * runs, prices[1] // MOST_RUNS * runs
            yield one, two, *prices

    def _together(self, number: int) -> npt.NDArray[np.bool_]:
        columns, found = self._problem.columns, np.zeros(len(self._kind), dtype=bool)
        if len(columns.owners) == len(found):  # Each has one live range.
            begin, end = columns.begins[number], columns.ends[number]
            found |= (columns.begins < end) & (begin < columns.ends)
            return found
        for begin, end in self._problem.buffers[number].live:
            found[columns.owners[(columns.begins < end) & (begin < columns.ends)]] = True
        return found

    def row(self, members: Sequence[Buffer], groups: Ints, count: int, apart: bool) -> CostRow:
        """Return the row of buffers in place against `count` groups of buffers, and one more.

        They may not share where that has a cost, if they are to be `apart`.
        """
        hard = np.zeros(count + 1, dtype=bool)
        totals = np.zeros((2, count + 1), dtype=np.int64)
        for member in members:
            number = self._problem.index[member.name]
            together = self._together(number)
            hard[groups[together]] = True
            hard[groups[self._separated[number]]] = True
            prices = self._prices(number, together)
            if apart:
                hard[groups[prices[0] > 0]] = True
                continue
            for total, price in zip(totals, prices, strict=True):
                total += np.bincount(groups, price, count + 1).astype(np.int64)
        return CostRow(hard, *totals)


def _in_place_groups(problem: Problem) -> dict[str, int]:
    """Return for each buffer a number that those in place with it have, too."""
    members = {buffer.name: [buffer.name] for buffer in problem.buffers}
    for pair in problem.sharing.pairs:
        small, large = sorted((members[name] for name in pair.names), key=len)
        if not pair.cost and small is not large:
            large += small
            members.update(dict.fromkeys(small, large))
    numbers: dict[int, int] = {}
    return {name: numbers.setdefault(id(group), len(numbers)) for name, group in members.items()}


def reuse_of(
    problem: Problem, offsets: Mapping[str, tuple[int, ...]], without: str = ""
) -> dict[str, Reuse]:
    """Return the level of each buffer under a plan: that of the worst sharing that it began.

    Of two buffers that share, it is the one that becomes live later. Buffers of different loops may
    share across pipelines at level 2. Reasons also say what is known of plans `without` that.
    """
    penalized = {frozenset((p.first, p.second)) for p in problem.penalties}
    known = f"; {without}" if without else ""
    worst = {buffer.name: Reuse(2) for buffer in problem.buffers}
    for one, two, *_ in _sharing_at_a_cost(problem, offsets):
        first, second = (one, two) if one.live[0][0] <= two.live[0][0] else (two, one)
        paid = frozenset((first.name, second.name)) in penalized
        level, why = _level(first, second, offsets, paid)
        before = worst[second.name]
        if why and (level < before.level or not before.reason):
            reason = f"takes bytes of {first.name!r}, {why}{known if level < 2 else ''}"
            worst[second.name] = Reuse(level, reason)
    return worst


def _level(
    first: Buffer, second: Buffer, offsets: Mapping[str, tuple[int, ...]], paid: bool
) -> tuple[int, str]:
    """Return the level at which `second` takes bytes of `first`, and why; no reason if none."""
    if live_together(first.live, second.live):
        return 0, "in place although both are multi-buffered"
    if not pipes_conflict(first.use, second.use):
        return (0, "at a cost") if paid else (2, "")
    is_looped = first.use is not None and first.use.loop is not None
    if not first.rotates_with(second):
        return 2, "which another loop uses" if is_looped else "which is used outside of its loop"
    where = "in the same loop on another pipeline" if is_looped else "on another pipeline"
    return (1, f"slot by slot, {where}") if _in_step(first, second, offsets) else (0, where)


def _in_step(one: Buffer, two: Buffer, offsets: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether two buffers rotate through several offsets and meet in equal slots only."""
    count = len(offsets[one.name])
    slots = product(enumerate(offsets[one.name]), enumerate(offsets[two.name]))
    crossed = any(
        a != b and max(low, high) < min(low + one.size, high + two.size)
        for (a, low), (b, high) in slots
    )
    return 1 < count == len(offsets[two.name]) and not crossed


def _sharing_at_a_cost(
    problem: Problem, offsets: Mapping[str, tuple[int, ...]]
) -> Iterator[_Price]:
    """Yield what is paid where two buffers share a byte, in the order of the buffers."""
    buffers, costs = problem.buffers, LevelCosts(problem)
    places = [(at, n) for n, b in enumerate(buffers) if b.size for at in offsets[b.name]]
    low, owner = np.array(places, dtype=np.int64).reshape(-1, 2).T
    high = low + problem.columns.sizes[owner]
    for number, one in enumerate(buffers):
        met = np.zeros(len(low), dtype=bool)
        for at in offsets[one.name] if one.size else ():
            met |= (low < at + one.size) & (at < high)
        shared = np.zeros(len(buffers), dtype=bool)
        shared[owner[met]] = True
        shared[: number + 1] = False
        yield from costs.at(number, shared)
