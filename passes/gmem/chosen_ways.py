# SPDX-License-Identifier: Apache-2.0
"""Choice of a placement for each function, so that the pool never takes more than for TVM's.

A function's ways are those of `passes.gmem.storages`, and the sharing of `StaticPlanBlockMemory`. A
way is open to a function where no call of it takes more than under that pass, from an empty pool.
Functions share what the pool has got: blocks of equal size. So of the open ways those are taken for
which all functions together take the least, and storages are made as large as those of others where
that saves a block. Where a call, or one pool for several functions, would still take more than
under that pass, functions keep more and more of its storages, and in the end share as it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from typing import Any

from passes.gmem.allocations import allocations_of
from passes.gmem.counted_ways import (
    MOST,
    SIZES,
    Way,
    most_above,
    sizes_of_equal_pages,
    union,
    whole_pages,
)
from passes.gmem.options import LOGGER, GMEMOptions, Solvers
from passes.gmem.planning.pool import Placement, bytes_of_blocks, skipped_on_paths
from passes.gmem.storages import (
    as_stock_shares,
    cheapest,
    cheapest_ways,
    keeping_largest,
    placement_of,
    slots_of_units,
    ways_of_group,
    with_own_storages,
)
from passes.ir import nodes_in, tir
from passes.planning import LiveRange
from passes.relax import RelaxMemory, UnknownSizeError, value_of

_MOST_STARTS = 3  # Choices of a way for each function that are improved
_MOST_MOVES = 200  # Ways and sizes that are changed, one at a time


@dataclass(frozen=True, eq=False)
class _Served:
    """A function that runs in turns with others."""

    memory: RelaxMemory
    stock: Way  # The stock pass's plan, or the right part of a wrong one
    most_stored: int  # Bytes; what a packed function may keep counts by itself
    right: Way  # As far as it is right; always open
    ways: tuple[Way, ...]  # The open ones
    measure: Callable[[Placement], Way]
    kept: Callable[[], Sequence[Way]]  # Open ways that keep more and more of the stock pass's


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
    host = options.host_device()
    sizes = _sizes(memories, stock, host)
    dimensions = list(map(_dimensions, memories))
    of_one = [
        (names[0], m) for m, names in zip(memories, dimensions, strict=True) if len(names) == 1
    ]
    tensors = [name for name, m in of_one for g in m.groups if g.unit is not None for _ in g.every]
    tried = [[], [max(tensors, key=tensors.count, default="")]]
    chosen: dict[str, Placement] = {}
    served: dict[str, _Served] = {}
    for memory, names in zip(memories, dimensions, strict=True):
        name, theirs = memory.name, stock[memory.name]
        is_known = memory.has_all_allocations and not (handed_on and memory.calls_unknown)
        paths = skipped_on_paths(memory.branches)
        if theirs is None:
            chosen[name] = placement_of(memory, options, solvers)
            continue
        right = as_stock_shares(memory, theirs)
        if memory.keeps_storages:
            own = cheapest_ways(memory, options, solvers)
            theirs, right = (_kept_as(memory, own, shared) for shared in (theirs, right))
        chosen[name] = right
        if not is_known or callers[name] or paths is None:
            continue
        try:
            measure = _measure(memory, paths, sizes, host, names not in tried)
            function = _open_ways(memory, theirs, right, measure, options, solvers)
        except UnknownSizeError:
            continue
        if memory.transforms_weights:
            chosen[name] = min(function.ways, key=lambda way: way.stored).placement
        else:
            served[name] = function
    for (name, function), way in zip(served.items(), _serve(list(served.values())), strict=True):
        chosen[name] = way.placement
        if way is function.right and (way.held or len(function.ways) > 1):
            LOGGER.info("function %r: tensors share as StaticPlanBlockMemory shares them", name)
    return chosen


def _kept_as(memory: RelaxMemory, own: Placement, shared: Placement) -> Placement:
    """Return a placement with our storages of constant size, which CUDA graphs keep."""
    pairs = zip(memory.groups, own, shared, strict=True)
    placement = tuple(ours if g.unit is None else theirs for g, ours, theirs in pairs)
    return with_own_storages(memory, placement, shared)


def _sizes(
    memories: Sequence[RelaxMemory], stock: Mapping[str, Placement | None], host: int | None
) -> list[int]:
    """Return the sizes that are tried, with those at which a tensor may have a storage's pages."""
    constants: set[int] = set()
    unknown: dict[tuple[int, str], Any] = {}
    for memory in memories:
        placement = stock[memory.name]
        for one in () if placement is None else allocations_of(memory, placement, host):
            unit = memory.groups[one.unit - 1].unit if one.unit else None
            if unit is None:
                constants.add(whole_pages(one.count))
            else:
                unknown[one.count, str(unit)] = unit
    grown = [(count, cache(partial(_value_at, unit))) for (count, _), unit in unknown.items()]
    found: set[int] = set()
    for count, of in grown:
        with suppress(UnknownSizeError):
            sizes = sizes_of_equal_pages(count, of, sorted(constants))
            found |= {at for at in sizes if all(many * by(at) <= MOST for many, by in grown)}
    has_products = any(len(_variables([unit])) > 1 for unit in unknown.values())
    return [*SIZES, *sorted(found.union(SIZES) if has_products else found.difference(SIZES))]


def _value_at(unit: Any, size: int, is_dimension: bool = False) -> int:
    """Return a unit's value at a size of all its variables, or the size itself for several."""
    is_size = isinstance(unit, tir.Var) or (not is_dimension and len(_variables([unit])) > 1)
    return size if is_size else value_of(unit, lambda _variable: size)


def _variables(units: Iterable[Any]) -> list[str]:
    found = {v.__chandle__(): str(v.name) for unit in units for v in nodes_in(unit, tir.Var)}
    return sorted(found.values())


def _dimensions(memory: RelaxMemory) -> list[str]:
    """Return the unit that all sizes are multiples of, or the variables of several."""
    units = {str(group.unit): group.unit for group in memory.groups if group.unit is not None}
    return [*units] if len(units) == 1 else _variables(units.values())


def _measure(
    memory: RelaxMemory,
    paths: Sequence[Sequence[LiveRange]],
    tried: Sequence[int],
    host: int | None,
    is_held: bool,
) -> Callable[[Placement], Way]:
    """Return a function that counts what the pool takes for a placement.

    Raises UnknownSizeError where a size has no value at one of the sizes that are tried.
    """
    constant = {0} | {n for n, group in enumerate(memory.groups, 1) if group.unit is None}
    sizes = tried if len(constant) <= len(memory.groups) else tried[:1]

    units = [group.unit for group in memory.groups]
    values = [
        (1, *(u is None or max(_value_at(u, size, number < len(SIZES)), 0) for u in units))
        for number, size in enumerate(sizes)
    ]

    def measure(placement: Placement) -> Way:
        made = list(allocations_of(memory, placement, host))
        known, unknown = (
            [one for one in made if (one.unit in constant) is is_known]
            for is_known in (True, False)
        )
        named = [
            ((one.pool[0], f"{['', *units][one.unit]} {one.pool[1]}"), one.count) for one in made
        ]
        return Way(placement, known, unknown, paths, values, Counter(named if is_held else ()))

    return measure


def _open_ways(
    memory: RelaxMemory,
    theirs: Placement,
    right: Placement,
    measure: Callable[[Placement], Way],
    options: GMEMOptions,
    solvers: Solvers,
) -> _Served:
    """Return a function with the ways in which no call takes more than under the stock pass."""
    shared, stock = measure(right), measure(theirs)
    most_stored = max(shared.stored, stock.stored)
    stock = stock if shared.is_open(stock, most_stored) else shared
    if shared.held:
        return _Served(memory, stock, most_stored, shared, (shared,), measure, lambda: [shared])
    group = memory.groups[0]
    of_groups = [ways_of_group(memory, group, options, solvers) for group in memory.groups]
    best = tuple(cheapest(g, ways) for g, ways in zip(memory.groups, of_groups, strict=True))

    def opened(attempts: Iterator[Placement]) -> Iterator[Way]:
        for attempt in attempts:
            way = measure(with_own_storages(memory, attempt, theirs))
            if way.is_open(stock, most_stored):
                yield way

    @cache
    def kept() -> list[Way]:  # At each number of storages: where that is not open, the next way
        rests = [rest for _, *rest in _forms(memory, best, right, solvers)]
        found = [shared]
        for first in reversed([*keeping_largest(memory, group, right[0], options, solvers)]):
            found.append(next(opened((first, *rest) for rest in rests), found[-1]))
        return found[::-1]

    ways: list[Way] = []
    for first, *rest in _forms(memory, best, right, solvers):
        alike = (first, *(way for way in of_groups[0] if way != first))
        ways = list(opened((pieces, *rest) for pieces in alike))
        if ways:
            break
    ways = [*ways, shared] if ways else kept()
    return _Served(memory, stock, most_stored, shared, tuple(ways), measure, kept)


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


def _serve(functions: Sequence[_Served]) -> Sequence[Way]:
    """Return a way of each function so that all together take little, and never more than stock."""
    if not functions:
        return []
    stock = [function.stock for function in functions]
    starts = [
        [function.ways[0] for function in functions],
        [function.ways[min(1, len(function.ways) - 1)] for function in functions],
        [function.right for function in functions],
    ]

    def order(ways: Sequence[Way]) -> tuple[int, int]:
        return _excess(ways, stock), _together(ways)

    def mended(chosen: Sequence[Way]) -> Sequence[Way]:
        while (above := _excess(chosen, stock)) > 0:
            attempts = [
                [*chosen[:at], way, *chosen[at + 1 :]]
                for at, function in enumerate(functions)
                for way in _after(function, chosen[at])
            ]
            better = min(attempts, key=order, default=chosen)
            if _excess(better, stock) >= above:
                return [function.right for function in functions]
            chosen = better
        return chosen

    if min(_excess(_improved(functions, start), stock) for start in starts[:2]) > 0:
        every = [function.kept() for function in functions]
        for most in range(max(map(len, every)) - 1):
            starts.append([ways[min(most, len(ways) - 1)] for ways in every])
        starts.sort(key=_together)
    return min((mended(_improved(functions, s)) for s in starts[:_MOST_STARTS]), key=order)


def _after(function: _Served, way: Way) -> Sequence[Way]:
    """Return the next way that shares more as the stock pass does than one, and the last."""
    ways = function.kept()
    after = ways[ways.index(way) + 1 :] if way in ways else ways
    later = [other for other in after if other is not way]
    return later[:1] + later[1:][-1:]


def _together(ways: Sequence[Way]) -> int:
    """Return what all functions take from one pool, without what one size has by chance."""
    known, unknown = zip(*(way.apart for way in ways), strict=True)
    return bytes_of_blocks(union(known)) + bytes_of_blocks(union(unknown))


def _improved(functions: Sequence[_Served], start: Sequence[Way]) -> list[Way]:
    """Change ways and sizes of storages as long as all functions together take less."""
    chosen, least = list(start), _together(start)
    for _ in range(_MOST_MOVES):
        moved = next((one for one in _moves(functions, chosen) if _together(one) < least), None)
        if moved is None:
            break
        chosen, least = moved, _together(moved)
    return chosen


def _moves(functions: Sequence[_Served], chosen: Sequence[Way]) -> Iterator[list[Way]]:
    """Yield choices in which one function has another way, or some have larger storages."""
    for at, function in enumerate(functions):
        for way in function.ways:
            if way is not chosen[at]:
                yield [*chosen[:at], way, *chosen[at + 1 :]]
    sizes = {whole_pages(one.count) for way in chosen for one in way.known}
    for size, larger in combinations(sorted(sizes), 2):
        pairs = zip(functions, chosen, strict=True)
        moved = [_enlarged(function, way, size, larger) for function, way in pairs]
        if any(new is not old for new, old in zip(moved, chosen, strict=True)):
            yield moved


def _enlarged(function: _Served, way: Way, size: int, larger: int) -> Way:
    """Return a way with storages of one size made larger, or the same where that is not open."""
    placement = tuple(
        tuple(
            replace(piece, size=larger)
            if group.unit is None
            and whole_pages(piece.size) == size
            and not any(group.uses[name].is_result for name in piece.offsets)
            else piece
            for piece in pieces
        )
        for group, pieces in zip(function.memory.groups, way.placement, strict=True)
    )
    if placement == way.placement or way.held:
        return way
    attempt = function.measure(placement)
    return attempt if attempt.is_open(function.stock, function.most_stored) else way


def _excess(ours: Sequence[Way], stock: Sequence[Way]) -> int:
    """Return the most bytes by which one pool for all, or for any two, takes more than stock's."""
    # Functions of dimensions that are not tried need so many blocks, of any sizes, in both.
    others = union(way.held for way in stock).total()
    both = [(a.taken, b.taken) for a, b in zip(ours, stock, strict=True) if not b.held]
    above = max(most_above(some, others) for some in [both, *([one] for one in both if others)])
    if above > 0:
        return above
    of_two = (
        bytes_of_blocks(union(mine.every for mine, _ in two))
        - bytes_of_blocks(union(theirs.every for _, theirs in two))
        for two in combinations(both, 2)
    )
    return max([0, *of_two])
