"""Choose plans that take no more memory from the device than the stock pass's plan does.

Both are run through a model of the virtual machine's memory (`passes.planning.relax.machine`), on
each path of each function that a caller can call, each alone and all of them one after the other.
Where a size is known at run time only, they are run at a number of sizes: those at which a storage
begins to need another page, and a very large one, which shows bytes without pages. Between these a
plan's pages do not change, except where two dimensions change apart from one another.

A function begins with the stock pass's own sharing, as far as our live ranges and paths accept it:
that one takes as much as stock does, and where stock's plan is wrong, no more than it would if it
were right. Our plans take its place where none of the runs takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from passes.planning.relax.machine import (
    Allocate,
    Body,
    Branch,
    Function,
    Taken,
    UnknownMemoryError,
    paths,
)
from passes.planning.relax.piece import PAGE

MOST_PATHS = 128
"""Paths through one function that are followed; one with more keeps the stock pass's sharing."""

MOST_SIZES = 40
"""Sizes that a symbolic program is run at."""

_LARGE = 1 << 20
"""A size at which pages hardly count."""

_PAGES = (1, 2, 4, 8)
"""Numbers of pages of one storage at which a program is run."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The plans that one function may have, in the machine's model, made when they are asked for.

    Attributes
    ----------
    name : str
        The function's.
    plans : int
        How many there are, the one that is liked best first; the last one is the stock pass's.
    machine : callable
        From the index of a plan to the function with that plan.
    """

    name: str
    plans: int
    machine: Callable[[int], Function]


def choose(
    choices: Sequence[Choice], entries: Sequence[str], bounds: Mapping[str, int], host: int | None
) -> dict[str, int]:
    """Choose a plan for each function.

    Parameters
    ----------
    choices : sequence of Choice
        One for each function, callees first.
    entries : sequence of str
        The functions that a caller can call.
    bounds : mapping of str to int
        The most that symbolic dimensions are, by name.
    host : int or None
        As `passes.planning.relax.machine.Run` takes it.

    Returns
    -------
    dict of str to int
        By the function's name, the index of its plan.
    """
    stock = {choice.name: choice.plans - 1 for choice in choices}
    judge = _Judge(choices, entries, bounds, host)
    chosen = {choice.name: 0 for choice in choices}
    if judge.accepts(chosen):
        return chosen
    chosen = dict(stock)
    for choice in choices:
        for index in range(choice.plans - 1):
            if judge.accepts({**chosen, choice.name: index}):
                chosen[choice.name] = index
                break
    return chosen


class _Judge:
    """Compares what programs take, at the same sizes and on the same paths."""

    def __init__(
        self,
        choices: Sequence[Choice],
        entries: Sequence[str],
        bounds: Mapping[str, int],
        host: int | None,
    ) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._entries, self._bounds, self._host = entries, bounds, host
        self._machines: dict[tuple[str, int], Function | None] = {}
        self._stock = {choice.name: choice.plans - 1 for choice in choices}
        self._taken: dict[int, list[dict[tuple[bool, ...], Taken | None]]] = {}

    def accepts(self, chosen: Mapping[str, int]) -> bool:
        """Whether nothing takes more than it does with the stock pass's sharing."""
        if chosen == self._stock:
            return True
        stock, ours = self._program(self._stock), self._program(chosen)
        if stock is None or ours is None:
            return False
        try:
            return all(self._is_not_above(ours, stock, size) for size in self._sizes(stock, ours))
        except UnknownMemoryError:
            return False

    def _is_not_above(
        self, ours: Mapping[str, Function], stock: Mapping[str, Function], size: int
    ) -> bool:
        if size not in self._taken:
            self._taken[size] = [self._paths(stock, entry, size) for entry in self._entries]
        both = []
        for entry, of_stock in zip(self._entries, self._taken[size], strict=True):
            of_ours = self._paths(ours, entry, size)
            pairs = [(of_ours.get(path), taken) for path, taken in of_stock.items()]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            if any(_above(one, other) for one, other in known):
                return False
            both.append(known)
        if len(both) < 2:
            return True
        count = 1
        for known in both:
            count *= max(len(known), 1)
        if count > MOST_PATHS:
            return False
        return not any(
            _above(_together([one for one, _ in way]), _together([other for _, other in way]))
            for way in product(*(known for known in both if known))
        )

    def _paths(
        self, program: Mapping[str, Function], entry: str, size: int
    ) -> dict[tuple[bool, ...], Taken | None]:
        sizes = {name: min(size, most) for name, most in self._bounds.items()}
        return paths(program, entry, sizes, MOST_PATHS, size, self._host)

    def _program(self, chosen: Mapping[str, int]) -> dict[str, Function] | None:
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

    def _sizes(self, *programs: Mapping[str, Function]) -> list[int]:
        """Return the sizes of symbolic dimensions to compare at: 1 where there are none."""
        extents = [
            step.nbytes
            for program in programs
            for function in program.values()
            for step in _allocations(function.body)
        ]
        symbolic = [one for one in extents if one(_Everywhere(1)) != one(_Everywhere(_LARGE))]
        if not symbolic:
            return [1]
        sizes = {1, _LARGE}
        for pages in _PAGES:
            for nbytes in symbolic:
                # Sizes grow with dimensions; where one does not, this is one size among others.
                low, high = 1, _LARGE
                while low < high:
                    middle = (low + high) // 2
                    if nbytes(_Everywhere(middle)) > pages * PAGE:
                        high = middle
                    else:
                        low = middle + 1
                sizes |= {max(low - 1, 1), low}
        ordered = sorted(sizes)
        stride = -(-len(ordered) // MOST_SIZES)
        return [*ordered[:-1:stride], ordered[-1]]


class _Everywhere(dict[int, int]):
    """The same value for each symbolic dimension."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self._value = value

    def __missing__(self, key: int) -> int:
        return self._value


def _allocations(body: Body) -> list[Allocate]:
    found = []
    for step in body.steps:
        if isinstance(step, Allocate):
            found.append(step)
        elif isinstance(step, Branch):
            found += [one for way in step.ways for one in _allocations(way)]
    return found


def _above(ours: Taken, stock: Taken) -> bool:
    return ours.pooled > stock.pooled


def _together(runs: Sequence[Taken]) -> Taken:
    result = Taken()
    for run in runs:
        result = result.then(run)
    return result
