# SPDX-License-Identifier: Apache-2.0
"""Choose plans that take no more memory from the device than the stock pass's plan does.

Both are run through a model of the virtual machine's memory (`passes.gmem.planning.machine`), on
each path of each function that a caller can call, each alone and all of them one after the other.

Sizes that are known at run time only make pages a matter of degree: which plan is lower may change
at each size at which a storage begins to need another page, and nowhere else. So programs are run
right below and right at such sizes, up to some pages, and at a very large one, where bytes decide
and pages do not. One dimension grows while the others are 1, and then all of them together. Between
these runs nothing changes as long as sizes are multiples of one product; dimensions that grow apart
from one another are a sample.

A function begins with the stock pass's own sharing, as far as our live ranges and paths accept it:
that one takes as much as stock does, and where stock's plan is wrong, no more than it would if it
were right. Our plans take its place where none of the runs takes more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_

from passes.gmem.planning.machine import (
    Blocks,
    Extent,
    Function,
    UnknownMemoryError,
    paths,
    pooled,
)
from passes.gmem.planning.pieces import PAGE

MOST_PATHS = 128
"""Paths through one function that are followed; one with more keeps the stock pass's sharing."""

MOST_RUNS = 800  # Runs of a program; one with many paths is run at fewer sizes
LEAST_SIZES = 12  # Sizes that a program of many paths is run at
_LARGE = 1 << 20  # A size at which pages hardly count
_PAGES = (1, 2, 3, 4, 6, 8, 16)  # Numbers of pages of one storage at which a program is run


Indices = tuple[int, ...]
"""For each part of a function's plan, the index of the way in which it is made."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The plans that one function may have, each made when it is asked for."""

    name: str  # The function's
    # How many ways each part of its plan can be made, the one that is liked best first; the last
    # one is the stock pass's.
    ways: tuple[int, ...]
    # From the index of a way for each part to the function with that plan.
    machine: Callable[[Indices], Function]


def choose(
    choices: Sequence[Candidates],
    entries: Sequence[str],
    bounds: Mapping[str, int],
    host: int | None,
) -> dict[str, Indices]:
    """Choose a plan for each function."""
    judge = _Judge(choices, entries, bounds, host)
    best = {choice.name: (0,) * len(choice.ways) for choice in choices}
    if judge.accepts(best):
        return best
    chosen = dict(judge.stock)
    for choice in choices:
        name = choice.name
        if len(choices) > 1 and judge.accepts({**chosen, name: best[name]}):
            chosen[name] = best[name]
            continue
        for part, ways in enumerate(choice.ways):
            for index in range(ways - 1):
                plan = (*chosen[name][:part], index, *chosen[name][part + 1 :])
                if judge.accepts({**chosen, name: plan}):
                    chosen[name] = plan
                    break
    return chosen


@dataclass(frozen=True)
class _Sizes:
    """A size for one symbolic dimension, while the others are 1; or for all of them."""

    value: int
    alone: str | None = None

    def of(self, name: str, most: int | None) -> int:
        wanted = self.value if self.alone in (None, name) else 1
        return wanted if most is None else min(wanted, most)


class _Judge:
    """Compares what programs take, at the same sizes and on the same paths."""

    def __init__(
        self,
        choices: Sequence[Candidates],
        entries: Sequence[str],
        bounds: Mapping[str, int],
        host: int | None,
    ) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._entries, self._bounds, self._host = entries, bounds, host
        self._machines: dict[tuple[str, Indices], Function | None] = {}
        self.stock = {c.name: tuple(ways - 1 for ways in c.ways) for c in choices}
        self._taken: dict[tuple[str, _Sizes], _Paths] = {}
        self._above: tuple[_Sizes, ...] = ()  # Where the last plan took more, others may too.

    def accepts(self, chosen: Mapping[str, Indices]) -> bool:
        """Whether nothing takes more than it does with the stock pass's sharing."""
        if chosen == self.stock:
            return True
        stock, ours = self._program(self.stock), self._program(chosen)
        if stock is None or ours is None:
            return False
        try:
            for one in (*self._above, *self._sizes(stock, ours)):
                if not self._is_not_above(ours, stock, one):
                    self._above = (one,)
                    return False
        except UnknownMemoryError:
            return False
        return True

    def _is_not_above(
        self, ours: Mapping[str, Function], stock: Mapping[str, Function], sizes: _Sizes
    ) -> bool:
        both = []
        for entry in self._entries:
            of_stock, of_ours = self._of_stock(stock, entry, sizes), self._paths(ours, entry, sizes)
            pairs = [(of_ours.get(path), taken) for path, taken in of_stock.items()]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            if any(pooled(one) > pooled(other) for one, other in known):
                return False
            if known:
                both.append(known)
        if len(both) < 2:
            return True
        if math.prod(map(len, both)) > MOST_PATHS:
            return False
        together = (
            [reduce(or_, taken) for taken in zip(*way, strict=True)] for way in product(*both)
        )
        return all(pooled(one) <= pooled(other) for one, other in together)

    def _of_stock(self, stock: Mapping[str, Function], entry: str, sizes: _Sizes) -> _Paths:
        if (entry, sizes) not in self._taken:
            self._taken[entry, sizes] = self._paths(stock, entry, sizes)
        return self._taken[entry, sizes]

    def _paths(self, program: Mapping[str, Function], entry: str, sizes: _Sizes) -> _Paths:
        known = {
            name: sizes.of(name, self._bounds.get(name)) for name in program[entry].symbols.values()
        }
        return paths(program, entry, known, MOST_PATHS, sizes.value, self._host)

    def _program(self, chosen: Mapping[str, Indices]) -> dict[str, Function] | None:
        program = {}
        for name, index in chosen.items():
            key = name, index
            if key not in self._machines:
                try:
                    self._machines[key] = self._choices[name].machine(index)
                except UnknownMemoryError:
                    self._machines[key] = None
            machine = self._machines[key]
            if machine is None:
                return None
            program[name] = machine
        return program

    def _sizes(self, stock: Mapping[str, Function], ours: Mapping[str, Function]) -> list[_Sizes]:
        """Return the sizes of symbolic dimensions to compare at: 1 where there are none."""
        functions = [function for program in (stock, ours) for function in program.values()]
        extents = [nbytes for function in functions for nbytes in function.storages]
        values = _values(extents)
        if len(values) > 1:
            count = sum(len(self._of_stock(stock, one, _Sizes(1))) for one in self._entries)
            names = sorted({name for one in functions for name in one.symbols.values()})
            alone = [None, *names] if len(names) > 1 else [None]
            most = max(MOST_RUNS // (count * len(alone)), LEAST_SIZES)
            stride = -(-len(values) // most)
            values = [*values[:-1:stride], values[-1]]
            return [_Sizes(value, name) for name in alone for value in values]
        return [_Sizes(1)]


_Paths = dict[tuple[bool, ...], Blocks | None]


def _values(extents: Sequence[Extent]) -> list[int]:
    """Return the sizes right below which, and at which, one of some extents takes another page."""
    found = {1}
    symbolic = {}
    for extent in extents:
        looks = tuple(extent(_everywhere(value)) for value in (1, 2, 3, _LARGE))
        if looks[0] != looks[-1]:
            symbolic[looks] = extent
    for nbytes in symbolic.values():
        for pages in _PAGES:
            above = _first_above(nbytes, pages * PAGE)
            found |= {max(above - 1, 1), above}
    return sorted(found | {_LARGE}) if symbolic else [1]


def _first_above(nbytes: Extent, most: int) -> int:
    """Return the least size at which a storage has more than so many bytes."""
    sizes = range(_LARGE)
    return bisect_left(sizes, True, lo=1, key=lambda size: nbytes(_everywhere(size)) > most)


def _everywhere(value: int) -> dict[int, int]:
    """Return the same value for each symbolic dimension."""
    return defaultdict(lambda: value)
