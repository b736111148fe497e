# SPDX-License-Identifier: Apache-2.0
"""Choice of a placement for each function, so that the pool never takes more than for TVM's.

A function's ways are those of `passes.gmem.storages`, and the sharing of `StaticPlanBlockMemory`. A
way is open to a function where no call of it takes more than under that pass, from an empty pool.
Functions share what the pool has got: blocks of equal size. So of the open ways those are taken for
which all functions together take the least, and storages are made as large as those of others where
that saves a block. Where one pool for several functions would still take more than under that pass,
functions share as it does, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, pairwise

from passes.gmem.allocations import allocations_of, unit_values
from passes.gmem.options import LOGGER, GMEMOptions
from passes.gmem.planning.pool import (
    PAGE,
    Blocks,
    Placement,
    PoolAllocation,
    blocks_taken,
    bytes_of_blocks,
    skipped_on_paths,
)
from passes.gmem.solvers import Solvers
from passes.gmem.storages import (
    as_stock_shares,
    cheapest,
    slots_of_units,
    ways_of_group,
    with_own_storages,
)
from passes.planning import LiveRange
from passes.relax import RelaxMemory, UnknownSizeError
from target_hw.memory import round_up

_SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is compared."""

_MOST_MOVES = 200  # Ways and sizes that are changed, one at a time


@dataclass(frozen=True)
class _Taken:
    """The blocks that the pool takes for one function: at each of some sizes, on each path."""

    calls: tuple[tuple[Blocks, ...], ...]

    @cached_property
    def growing(self) -> tuple[Blocks, ...]:
        """The blocks for calls of the first size, for those of the first two sizes, and so on."""
        return tuple(accumulate(map(_union, self.calls), lambda one, two: _union((one, two))))

    def above(self, other: _Taken) -> list[bool]:
        """Return, for each size, whether a call takes more than another function's."""
        return [
            any(_bytes(one) > _bytes(two) for one, two in zip(ours, theirs, strict=True))
            for ours, theirs in zip(self.calls, other.calls, strict=True)
        ]

    def is_never_above(self, other: _Taken) -> bool:
        """Return whether no call takes more, nor calls of growing sizes from one pool."""
        return not any(self.above(other)) and all(
            _bytes(one) <= _bytes(two) for one, two in zip(self.growing, other.growing, strict=True)
        )


def _union(each: Iterable[Blocks]) -> Blocks:
    """Return the blocks that serve each of some needs, one after the other."""
    result = Blocks()
    for blocks in each:
        for block, count in blocks.items():
            if count > result[block]:
                result[block] = count
    return result


_bytes = bytes_of_blocks


@dataclass(frozen=True, eq=False)
class _Way:
    """A placement of one function, and what the pool takes for it."""

    placement: Placement
    known: Sequence[PoolAllocation]  # What it allocates of constant sizes
    unknown: Sequence[PoolAllocation]  # And of sizes that only the running program knows
    paths: Sequence[Sequence[LiveRange]]  # What is skipped on each path
    values: Sequence[Sequence[int]]  # Of units, at each of the sizes that are tried

    @cached_property
    def stored(self) -> int:
        """Bytes of all storages and tensors of constant size, as a server adds them up."""
        return sum(one.count for one in self.known if one.unit)

    @cached_property
    def of_known(self) -> _Taken:
        """The blocks that the pool takes for constant sizes."""
        return self._taken(self.known, self.values[:1])

    @cached_property
    def of_unknown(self) -> _Taken:
        """The blocks that the pool takes for sizes that are not constant."""
        return self._taken(self.unknown, self.values)

    @cached_property
    def of_all(self) -> _Taken:
        """The blocks that the pool takes for all sizes."""
        return self._taken([*self.known, *self.unknown], self.values)

    def _taken(self, made: Sequence[PoolAllocation], at: Sequence[Sequence[int]]) -> _Taken:
        return _Taken(tuple(tuple(blocks_taken(made, v, by) for by in self.paths) for v in at))

    def is_open(self, stock: _Way, most_stored: int) -> bool:
        """Return whether it never takes more than `stock`, nor stores above `most_stored` bytes.

        A tensor of unknown size may by chance have as many pages as a storage of constant size that
        was given back. That is left out of account where it is so at one size, and not at the next.
        """
        if self.stored > most_stored:
            return False
        if not (self.unknown or stock.unknown):
            return self.of_known.is_never_above(stock.of_known)
        if self.of_known.is_never_above(stock.of_known) and (
            self.of_unknown.is_never_above(stock.of_unknown)
        ):
            above = self.of_all.above(stock.of_all)
            return not any(first and second for first, second in pairwise(above))
        return self.of_all.is_never_above(stock.of_all)


@dataclass(frozen=True, eq=False)
class _Served:
    """A function that runs in turns with others."""

    memory: RelaxMemory
    stock: _Way  # What the stock pass writes; where that is wrong, what is right of it
    most_stored: int  # Bytes; what a packed function may keep counts by itself
    right: _Way  # As far as it is right; always open
    ways: tuple[_Way, ...]  # The open ones
    measure: Callable[[Placement], _Way]


def choose_placements(
    memories: Sequence[RelaxMemory],
    callers: Mapping[str, frozenset[str]],
    stock: Mapping[str, Placement | None],
    options: GMEMOptions,
    solvers: Solvers,
) -> dict[str, Placement]:
    """Return a placement of each function for which the pool takes no more than for stock's.

    One that calls another, that others call (`callers`) or that has too many paths to follow shares
    as the stock pass does. One that transforms weights is judged by itself: it runs once, and what
    it returns stays. Storages that CUDA graphs keep from call to call are not the pool's, and ours
    in any case. Where the stock pass fails (`stock` has None), nothing is compared.
    """
    handed_on = any(memory.hands_on for memory in memories)
    chosen: dict[str, Placement] = {}
    served: dict[str, _Served] = {}
    for memory in memories:
        name, theirs = memory.name, stock[memory.name]
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        paths = skipped_on_paths(memory.branches)
        if theirs is None:
            chosen[name] = with_own_storages(memory, _cheapest(memory, options, solvers), None)
            continue
        right = as_stock_shares(memory, theirs)
        if memory.keeps_storages:
            own = _cheapest(memory, options, solvers)
            theirs, right = (_kept_as(memory, own, shared) for shared in (theirs, right))
        chosen[name] = right
        if not is_known or callers[name] or paths is None:
            continue
        try:
            measure = _measure(memory, paths, options.host_device())
            function = _open_ways(memory, theirs, right, measure, options, solvers)
        except UnknownSizeError:
            continue
        if memory.transforms_weights:
            chosen[name] = min(function.ways, key=lambda way: way.stored).placement
        else:
            served[name] = function
    for (name, function), way in zip(served.items(), _serve(list(served.values())), strict=True):
        chosen[name] = way.placement
        if way is function.right and len(function.ways) > 1:
            LOGGER.info("function %r: tensors share as StaticPlanBlockMemory shares them", name)
    return chosen


def _cheapest(memory: RelaxMemory, options: GMEMOptions, solvers: Solvers) -> Placement:
    groups = memory.groups
    return tuple(cheapest(g, ways_of_group(memory, g, options, solvers)) for g in groups)


def _kept_as(memory: RelaxMemory, own: Placement, shared: Placement) -> Placement:
    """Return a placement with our storages of constant size, which CUDA graphs keep."""
    pairs = zip(memory.groups, own, shared, strict=True)
    placement = tuple(ours if g.unit is None else theirs for g, ours, theirs in pairs)
    return with_own_storages(memory, placement, shared)


def _measure(
    memory: RelaxMemory, paths: Sequence[Sequence[LiveRange]], host: int | None
) -> Callable[[Placement], _Way]:
    """Return a function that counts what the pool takes for a placement.

    Raises UnknownSizeError where a size has no value at one of the sizes that are tried.
    """
    constant = {0} | {n for n, group in enumerate(memory.groups, 1) if group.unit is None}
    sizes = _SIZES if len(constant) <= len(memory.groups) else _SIZES[:1]

    def values_at(size: int) -> tuple[int, ...]:
        return unit_values(memory, lambda _variable: size)

    values = list(map(values_at, sizes))

    def measure(placement: Placement) -> _Way:
        made = list(allocations_of(memory, placement, host))
        known, unknown = (
            [one for one in made if (one.unit in constant) is is_known]
            for is_known in (True, False)
        )
        return _Way(placement, known, unknown, paths, values)

    return measure


def _open_ways(
    memory: RelaxMemory,
    theirs: Placement,
    right: Placement,
    measure: Callable[[Placement], _Way],
    options: GMEMOptions,
    solvers: Solvers,
) -> _Served:
    """Return a function with the ways in which no call takes more than under the stock pass."""
    shared, stock = measure(right), measure(theirs)
    most_stored = max(shared.stored, stock.stored)
    stock = stock if shared.is_open(stock, most_stored) else shared
    of_groups = [ways_of_group(memory, group, options, solvers) for group in memory.groups]
    best = tuple(cheapest(g, ways) for g, ways in zip(memory.groups, of_groups, strict=True))
    ways: list[_Way] = []
    for form in _forms(memory, best, right, solvers):
        first, *rest = form
        for pieces in (first, *(way for way in of_groups[0] if way != first)):
            way = measure(with_own_storages(memory, (pieces, *rest), theirs))
            if way.is_open(stock, most_stored):
                ways.append(way)
        if ways:
            break
    return _Served(memory, stock, most_stored, shared, (*ways, shared), measure)


def _forms(
    memory: RelaxMemory, best: Placement, right: Placement, solvers: Solvers
) -> Iterator[Placement]:
    """Yield the cheapest way of each group, then with unknown sizes in slots, then as stock has."""
    yield best
    if any(group.unit is not None for group in memory.groups):
        yield slots_of_units(memory, best, solvers)
        pairs = zip(memory.groups, best, right, strict=True)
        yield tuple(own if group.unit is None else shared for group, own, shared in pairs)


# ------------------------------------------------------------------------ functions in turns


def _serve(functions: Sequence[_Served]) -> Sequence[_Way]:
    """Return a way of each function so that all together take little, and never more than stock."""
    if not functions:
        return []
    starts = (
        [function.ways[0] for function in functions],
        [function.ways[min(1, len(function.ways) - 1)] for function in functions],
        [function.right for function in functions],
    )
    found = [_improved(functions, start) for start in starts]
    stock = [function.stock for function in functions]
    best = min(found, key=lambda ways: (max(_excess(ways, stock), 0), _together(ways)))
    while _excess(best, stock) > 0:
        attempts = [
            [*best[:at], function.right, *best[at + 1 :]]
            for at, function in enumerate(functions)
            if best[at] is not function.right
        ]
        if not attempts:
            break  # What is right of the stock pass's sharing takes more than that pass.
        best = min(attempts, key=lambda attempt: _excess(attempt, stock))
    return best


def _together(ways: Sequence[_Way]) -> int:
    """Return what all functions take from one pool, over all sizes one after the other."""
    known = _union(way.of_known.growing[-1] for way in ways)
    return _bytes(known) + _bytes(_union(way.of_unknown.growing[-1] for way in ways))


def _improved(functions: Sequence[_Served], start: Sequence[_Way]) -> list[_Way]:
    """Change ways and sizes of storages as long as all functions together take less."""
    chosen, least = list(start), _together(start)
    for _ in range(_MOST_MOVES):
        moved = next(
            (one for one in _moves(functions, chosen) if _together(one) < least),
            None,
        )
        if moved is None:
            break
        chosen, least = moved, _together(moved)
    return chosen


def _moves(functions: Sequence[_Served], chosen: Sequence[_Way]) -> Iterator[list[_Way]]:
    """Yield choices in which one function has another way, or some have larger storages."""
    for at, function in enumerate(functions):
        for way in function.ways:
            if way is not chosen[at]:
                yield [*chosen[:at], way, *chosen[at + 1 :]]
    blocks = _union(way.of_known.growing[-1] for way in chosen)
    for size, larger in combinations(sorted({size for _, size in blocks}), 2):
        pairs = zip(functions, chosen, strict=True)
        moved = [_enlarged(function, way, size, larger) for function, way in pairs]
        if any(new is not old for new, old in zip(moved, chosen, strict=True)):
            yield moved


def _enlarged(function: _Served, way: _Way, size: int, larger: int) -> _Way:
    """Return a way with storages of one size made larger, or the same where that is not open."""
    placement = tuple(
        tuple(
            replace(piece, size=larger)
            if group.unit is None
            and round_up(piece.size, PAGE) == size
            and not any(group.uses[name].is_result for name in piece.offsets)
            else piece
            for piece in pieces
        )
        for group, pieces in zip(function.memory.groups, way.placement, strict=True)
    )
    if placement == way.placement:
        return way
    attempt = function.measure(placement)
    return attempt if attempt.is_open(function.stock, function.most_stored) else way


def _excess(ours: Sequence[_Way], stock: Sequence[_Way]) -> int:
    """Return the most bytes by which one pool for several functions takes more than for stock's.

    Sizes that are known are held against each other, and so are unknown ones; or else all.
    """
    apart = max(
        _excess_of([way.of_known for way in ours], [way.of_known for way in stock]),
        _excess_of([way.of_unknown for way in ours], [way.of_unknown for way in stock]),
    )
    if apart <= 0:
        return apart
    return min(apart, _excess_of([way.of_all for way in ours], [way.of_all for way in stock]))


def _excess_of(ours: Sequence[_Taken], stock: Sequence[_Taken]) -> int:
    """Return it for all functions at the first size, the first two, and so on, and for each two."""
    differences = [0]
    for size in range(max(len(taken.growing) for taken in ours)):
        mine, theirs = (
            _bytes(_union(taken.growing[min(size, len(taken.growing) - 1)] for taken in each))
            for each in (ours, stock)
        )
        differences.append(mine - theirs)
    for first, second in combinations(range(len(ours)), 2):
        mine, theirs = (
            _bytes(_union((each[first].growing[-1], each[second].growing[-1])))
            for each in (ours, stock)
        )
        differences.append(mine - theirs)
    return max(differences)
