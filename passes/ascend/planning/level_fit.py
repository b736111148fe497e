# SPDX-License-Identifier: Apache-2.0
"""First fit with levels as costs: entries one by one, each where the pipelines wait least.

An entry looks at the bottom of the memory and at the end of each slot that is placed. The costs of
what a slot would share bytes with are the difference of two running sums, over the slots by their
begins and by their ends, so that all places of an entry are weighed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from passes.ascend.planning.levels import LevelCosts
from passes.ascend.planning.mirror_entries import Entry
from passes.planning import Problem

Ints = npt.NDArray[np.int64]

FAR = 1 << 62
FORBIDDEN = 1 << 46  # More than all costs of an entry, and small enough for sums of 2**16 of it

ORDERS = ("time", "size", "size by root of life", "life")
"""Orders in which entries are placed: as they begin, or the greatest first."""


def fit_levels(
    problem: Problem,
    costs: LevelCosts,
    entries: Sequence[Entry],
    order: str,
    *,
    apart: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Place entries in one of the `ORDERS`; return offsets in bytes by buffer.

    Where nothing else fits, bytes above the capacity are taken. With `apart`, what has a cost is
    not shared.
    """
    life = [sum(e - b for member in each.members for b, e in member.live) for each in entries]
    by_order: dict[str, list[float]] = {
        "time": [0.0] * len(entries),
        "size": [-entry.size for entry in entries],
        "size by root of life": [
            -e.size * math.sqrt(n) for e, n in zip(entries, life, strict=True)
        ],
        "life": [-length for length in life],
    }
    keys = by_order[order]
    begins = [min(member.live[0][0] for member in entry.members) for entry in entries]
    numbers = sorted(range(len(entries)), key=lambda n: (keys[n], begins[n], -entries[n].size))
    return _LevelFit(problem, costs, entries, apart).place(numbers)


class _LevelFit:
    """Entries of a problem that have been placed, and places for the next one."""

    def __init__(
        self, problem: Problem, costs: LevelCosts, entries: Sequence[Entry], apart: bool
    ) -> None:
        self._problem, self._costs, self._entries = problem, costs, entries
        self._apart = apart
        self._capacity = FAR if problem.capacity is None else problem.capacity
        self._of = np.zeros(len(problem.buffers), dtype=np.int64)  # The entry of each buffer
        for number, entry in enumerate(entries):
            self._of[[problem.index[member.name] for member in entry.members]] = number
        self._offsets: dict[int, list[int]] = {}  # Of each placed entry
        self._counts = np.zeros(len(entries) + 1, dtype=np.int64)  # Of them
        reserved = problem.memory.reserved
        # The slots that are placed, and reserved bytes as if of one more entry, by their begins and
        # by their ends: rows of (low, high, entry, slot).
        slots = len(reserved) + sum(max(entry.slots, 1) for entry in entries)
        self._rows = np.zeros((2, 4, slots), dtype=np.int64)
        self._placed = self._rows[:, :, :0]
        for low, high in reserved:
            self._add(low, high, len(entries), 0)

    def place(self, numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """Place entries one after the other, pinned ones first; return offsets by buffer."""
        pins = {n: pins for n, entry in enumerate(self._entries) if (pins := entry.pinned)}
        for number in dict.fromkeys([*pins, *numbers]):
            offsets = list(pins[number]) if number in pins else self._find(number)
            self._offsets[number], self._counts[number] = offsets, len(offsets)
            self._add_all(number, offsets)
        return {
            member.name: tuple(self._offsets[number])
            for number, entry in enumerate(self._entries)
            for member in entry.members
        }

    def _add_all(self, number: int, offsets: Iterable[int]) -> None:
        size = self._entries[number].size
        for slot, low in enumerate(offsets if size else ()):
            self._add(low, low + size, number, slot)

    def _add(self, *row: int) -> None:
        count = self._placed.shape[2]
        if count == self._rows.shape[2]:  # Widened entries have more offsets than slots.
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=2)
        for by, rows in enumerate(self._rows):
            at = int(np.searchsorted(rows[by, :count], row[by]))
            rows[:, at + 1 : count + 1] = rows[:, at:count]
            rows[:, at] = row
        self._placed = self._rows[:, :, : count + 1]

    def _take_back(self, number: int) -> None:
        left = self._placed[:, 2] != number
        count = int(left[0].sum())
        self._rows[:, :, :count] = np.stack(
            [rows[:, is_left] for rows, is_left in zip(self._placed, left, strict=True)]
        )
        self._placed = self._rows[:, :, :count]

    def _find(self, number: int) -> list[int]:
        """Return the offsets of least cost for the slots of an entry, then the lowest."""
        entry = self._entries[number]
        if not entry.size:
            return [0] * entry.slots
        self._row = self._costs.row(entry.members, self._of, len(self._entries), self._apart)
        self._row.hard[[number, len(self._entries)]] = True
        unit = math.lcm(*map(self._problem.alignment_of, entry.members))
        found = [self._cheapest(entry, 0, unit)]
        for slot in range(1, entry.slots):
            self._add(found[-1], found[-1] + entry.size, number, slot - 1)
            found.append(self._cheapest(entry, slot, unit))
        if entry.slots > 1:
            self._take_back(number)
        cost = 0 if self._apart else self._cost(entry, found)
        for wide in self._wider(entry, found) if cost else ():
            if self._is_free(entry, wide, unit) and self._cost(entry, wide) < cost:
                found, cost = wide, self._cost(entry, wide)
        return found

    def _cheapest(self, entry: Entry, slot: int, unit: int) -> int:
        """Return the lowest offset of a slot among those that add the least cost."""
        by_begin, by_end = self._placed
        begins = np.concatenate(([0], by_end[1]))
        if unit > 1:
            begins = -(-begins // unit) * unit
        begins = begins[np.concatenate(([True], begins[1:] > begins[:-1]))]
        full = self._row.cost + FORBIDDEN * self._row.hard
        in_step = full + self._row.in_step - self._row.cost

        def sums(rows: Ints) -> Ints:
            """Return the running sum of what it costs to share bytes with slots in one order."""
            entries = rows[2]
            weights = full[entries]
            if entry.slots > 1:  # Of two that have one slot each, the wait is the same.
                is_in_step = (rows[3] == slot) & (self._counts[entries] == entry.slots)
                weights = np.where(is_in_step, in_step[entries], weights)
            return np.concatenate(([0], np.cumsum(weights)))

        first = np.searchsorted(by_begin[0], begins + entry.size, side="left")
        last = np.searchsorted(by_end[1], begins, side="right")
        cost = sums(by_begin)[first] - sums(by_end)[last]
        # Above all that is placed nothing is forbidden; beyond the memory is worse than any cost.
        beyond = (begins + entry.size > self._capacity) * (FORBIDDEN - 1)
        return int(begins[np.maximum(cost, beyond).argmin()])

    def _shared(self, entry: Entry, offsets: Sequence[int]) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the entries that an entry would share bytes with, and whether each is in step."""
        lows, highs, entries, slots = self._placed[0]
        found = [np.flatnonzero((lows < low + entry.size) & (low < highs)) for low in offsets]
        met = np.concatenate(found)
        own = np.repeat(np.arange(len(offsets)), [len(each) for each in found])
        others = entries[met]
        return others, (slots[met] == own) & (self._counts[others] == len(offsets))

    def _cost(self, entry: Entry, offsets: Sequence[int]) -> int:
        """Return what an entry at some offsets costs, each other one once."""
        others, in_step = self._shared(entry, offsets)
        cost = np.zeros_like(self._row.cost)
        cost[others] = self._row.in_step[others]
        crossed = others[~in_step]
        cost[crossed] = self._row.cost[crossed]
        return int(cost.sum())

    def _is_free(self, entry: Entry, offsets: Sequence[int], unit: int) -> bool:
        fits = all(low % unit == 0 and low + entry.size <= self._capacity for low in offsets)
        apart = all(high - low >= entry.size for low, high in pairwise(sorted(offsets)))
        return fits and apart and not self._row.hard[self._shared(entry, offsets)[0]].any()

    def _wider(self, entry: Entry, offsets: Sequence[int]) -> list[list[int]]:
        """Return offsets of what an entry shares with, more than its own, that it could take.

        A loop then moves both from one to the next, in step.
        """
        if not all(member.may_widen for member in entry.members):
            return []
        others, _ = self._shared(entry, offsets)
        return [
            self._offsets[other]
            for other in dict.fromkeys(others[self._counts[others] > len(offsets)].tolist())
            if all(self._entries[other].members[0].rotates_with(one) for one in entry.members)
        ]
