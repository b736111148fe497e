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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from passes.gmem.allocations import allocations_of, unit_values
from passes.gmem.counted_ways import SIZES, Taken, Way, union, whole_pages
from passes.gmem.options import LOGGER, GMEMOptions, Solvers
from passes.gmem.planning.pool import (
    Blocks,
    Placement,
    bytes_of_blocks,
    skipped_on_paths,
)
from passes.gmem.storages import (
    as_stock_shares,
    can_be_cut,
    cheapest,
    cheapest_ways,
    pieces_given_back,
    placement_of,
    slots_of_units,
    ways_of_group,
    with_own_storages,
)
from passes.planning import Buffer, LiveRange
from passes.relax import RelaxMemory, UnknownSizeError

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
    giving_back: Callable[[Way, int, Sequence[LiveRange]], Way]
    """The way with a storage of some bytes that has ended when something else begins."""


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


def _kept_as(memory: RelaxMemory, own: Placement, shared: Placement) -> Placement:
    """Return a placement with our storages of constant size, which CUDA graphs keep."""
    pairs = zip(memory.groups, own, shared, strict=True)
    placement = tuple(ours if g.unit is None else theirs for g, ours, theirs in pairs)
    return with_own_storages(memory, placement, shared)


def _measure(
    memory: RelaxMemory, paths: Sequence[Sequence[LiveRange]], host: int | None
) -> Callable[[Placement], Way]:
    """Return a function that counts what the pool takes for a placement.

    Raises UnknownSizeError where a size has no value at one of the sizes that are tried.
    """
    constant = {0} | {n for n, group in enumerate(memory.groups, 1) if group.unit is None}
    sizes = SIZES if len(constant) <= len(memory.groups) else SIZES[:1]

    def values_at(size: int) -> tuple[int, ...]:
        return unit_values(memory, lambda _variable: size)

    values = list(map(values_at, sizes))

    def measure(placement: Placement) -> Way:
        made = list(allocations_of(memory, placement, host))
        known, unknown = (
            [one for one in made if (one.unit in constant) is is_known]
            for is_known in (True, False)
        )
        return Way(placement, known, unknown, paths, values)

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
    of_groups = [ways_of_group(memory, group, options, solvers) for group in memory.groups]
    best = tuple(cheapest(g, ways) for g, ways in zip(memory.groups, of_groups, strict=True))
    ways: list[Way] = []
    for form in _forms(memory, best, right, solvers):
        first, *rest = form
        for pieces in (first, *(way for way in of_groups[0] if way != first)):
            way = measure(with_own_storages(memory, (pieces, *rest), theirs))
            if way.is_open(stock, most_stored):
                ways.append(way)
        if ways:
            break

    def giving_back(way: Way, size: int, lives: Sequence[LiveRange]) -> Way:
        if not can_be_cut(memory, memory.groups[0], options):
            return way
        end = len(memory.bindings)
        others = [Buffer(f" {n}", size, (one,)) for n, one in enumerate(lives or [(end, end + 1)])]
        first = pieces_given_back(memory.groups[0], others, solvers)
        attempt = measure(with_own_storages(memory, (first, *way.placement[1:]), theirs))
        cut = attempt.stored <= way.stored and attempt.is_open(stock, most_stored)
        return attempt if cut else way

    return _Served(memory, stock, most_stored, shared, (*ways, shared), measure, giving_back)


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
            break  # The right part of the stock pass's sharing takes more than that pass.
        best = min(attempts, key=lambda attempt: _excess(attempt, stock))
    return _without_chance(functions, best, stock)


def _without_chance(
    functions: Sequence[_Served], chosen: Sequence[Way], stock: Sequence[Way]
) -> Sequence[Way]:
    """Cut storages in two where only stock's serve a tensor of unknown size by chance.

    At one of the sizes such a tensor may have as many pages as a storage of constant size that
    stock's function, or another one, gave back. Then one piece of ours gets that size, and ends
    before: in functions that take more by themselves, and in those with storages of equal sizes.
    """
    least = _chances(chosen, stock)
    given_back = {size for way in stock for blocks in way.of_known.growing for _, size in blocks}
    for size in sorted(given_back, reverse=True):
        if not least:
            break
        lives = [way.begins_with(size, least) for way in chosen]
        if not any(lives):
            continue
        above = [way for way, of in zip(chosen, stock, strict=True) if way.is_above(of)]
        sizes = {piece.size for way in above or chosen for piece in way.placement[0]}
        attempt = [
            way
            if sizes.isdisjoint(piece.size for piece in way.placement[0])
            else function.giving_back(way, size, live)
            for function, way, live in zip(functions, chosen, lives, strict=True)
        ]
        left = _chances(attempt, stock)
        if sum(left.values()) < sum(least.values()) and _excess(attempt, stock) <= 0:
            chosen, least = attempt, left
    return chosen


def _chances(ours: Sequence[Way], stock: Sequence[Way]) -> Counter[int]:
    """Return the bytes that functions alone, or all of them, take more at some of the sizes."""
    found: Counter[int] = Counter()
    for way, other in zip(ours, stock, strict=True):
        for number, of_path in enumerate(zip(way.of_all.calls, other.of_all.calls, strict=True)):
            for one, two in zip(*of_path, strict=True):
                found[number] += max(bytes_of_blocks(one) - bytes_of_blocks(two), 0)
    mine, theirs = ([way.of_all.growing for way in each] for each in (ours, stock))
    before = 0
    for number in range(max(map(len, mine))):
        above = max(bytes_of_blocks(_at(number, mine)) - bytes_of_blocks(_at(number, theirs)), 0)
        found[number] += max(above - before, 0)
        before = above
    return +found


def _together(ways: Sequence[Way]) -> int:
    """Return what all functions take from one pool, over all sizes one after the other."""
    known = union(way.of_known.growing[-1] for way in ways)
    return bytes_of_blocks(known) + bytes_of_blocks(
        union(way.of_unknown.growing[-1] for way in ways)
    )


def _improved(functions: Sequence[_Served], start: Sequence[Way]) -> list[Way]:
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


def _moves(functions: Sequence[_Served], chosen: Sequence[Way]) -> Iterator[list[Way]]:
    """Yield choices in which one function has another way, or some have larger storages."""
    for at, function in enumerate(functions):
        for way in function.ways:
            if way is not chosen[at]:
                yield [*chosen[:at], way, *chosen[at + 1 :]]
    blocks = union(way.of_known.growing[-1] for way in chosen)
    for size, larger in combinations(sorted({size for _, size in blocks}), 2):
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
    if placement == way.placement:
        return way
    attempt = function.measure(placement)
    return attempt if attempt.is_open(function.stock, function.most_stored) else way


def _excess(ours: Sequence[Way], stock: Sequence[Way]) -> int:
    """Return the most bytes by which one pool for several functions takes more than for stock's.

    Sizes that are known are held against each other, and so are unknown ones; or else all.
    """
    apart = max(
        *_differences([way.of_known for way in ours], [way.of_known for way in stock]),
        *_differences([way.of_unknown for way in ours], [way.of_unknown for way in stock]),
    )
    if apart <= 0:
        return apart
    together = _differences([way.of_all for way in ours], [way.of_all for way in stock])
    return min(apart, max(together))


def _differences(ours: Sequence[Taken], stock: Sequence[Taken]) -> Iterator[int]:
    """Yield them for all functions at the first size, the first two, and so on, and each two."""
    yield 0
    mine, theirs = ([taken.growing for taken in each] for each in (ours, stock))
    for number in range(max(map(len, mine))):
        yield bytes_of_blocks(_at(number, mine)) - bytes_of_blocks(_at(number, theirs))
    for first, second in combinations(range(len(ours)), 2):
        one, two = (union((each[first][-1], each[second][-1])) for each in (mine, theirs))
        yield bytes_of_blocks(one) - bytes_of_blocks(two)


def _at(number: int, functions: Sequence[Sequence[Blocks]]) -> Blocks:
    """Return the blocks of all functions at the sizes up to one of them."""
    return union(growing[min(number, len(growing) - 1)] for growing in functions)
