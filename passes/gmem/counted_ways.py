# SPDX-License-Identifier: Apache-2.0
"""A placement of one function, and the blocks that the pool takes for it at each of some sizes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from passes.gmem.planning.pool import (
    PAGE,
    Blocks,
    Placement,
    PoolAllocation,
    blocks_taken,
    bytes_of_blocks,
)
from passes.planning import LiveRange
from target_hw.memory import round_up

SIZES = (*range(1, 65), 96, 128, 256, 1024, 4096, 1 << 20)
"""Values of dimensions without a bound at which what the pool takes is always compared, first."""

MOST = 1 << 40  # Bytes; no device has as many for one tensor, and no dimension is as large


def sizes_of_equal_pages(
    count: int, unit: Callable[[int], int], constants: Iterable[int]
) -> Iterable[int]:
    """Yield where bytes that grow with a dimension begin and cease to fill as many pages as others.

    They are `count` for each of `unit`, a function of the dimension that never falls; `constants`
    are the bytes of constant storages. There the pool may serve one with what another gave back.
    """
    for constant in constants:
        pages = whole_pages(constant)
        first = bisect_left(range(MOST), pages - PAGE + 1, key=lambda size: count * unit(size))
        last = bisect_right(range(MOST), pages, key=lambda size: count * unit(size)) - 1
        if 0 < first <= last:
            yield from (first, last)


@dataclass(frozen=True)
class Taken:
    """The blocks that the pool takes for one function: at each of some sizes, on each path."""

    calls: tuple[tuple[Blocks, ...], ...]

    @cached_property
    def once(self) -> tuple[Blocks, ...]:
        """The blocks for calls on all paths, at each size."""
        return tuple(map(union, self.calls))

    @cached_property
    def every(self) -> Blocks:
        """The blocks for calls of all of `SIZES`, one after the other."""
        return union(self.once[: len(SIZES)])

    def is_never_above(self, other: Taken) -> bool:
        """Return whether no call takes more, nor calls of growing sizes from one pool."""
        pairs = zip(chain(*self.calls), chain(*other.calls), strict=True)
        return all(bytes_of_blocks(one) <= bytes_of_blocks(two) for one, two in pairs) and (
            most_above([(self, other)]) <= 0
        )


def union(each: Iterable[Blocks]) -> Blocks:
    """Return the blocks that serve each of some needs, one after the other."""
    result = Blocks()
    for blocks in each:
        _serve_also(result, blocks)
    return result


def _serve_also(pool: Blocks, blocks: Blocks) -> int:
    """Let a pool serve some needs, too, and return the bytes that it takes for that."""
    taken = 0
    for block, count in blocks.items():
        more = count - pool[block]
        if more > 0:
            pool[block] = count
            taken += more * block[1]
    return taken


def most_above(both: Sequence[tuple[Taken, Taken]], others: int = 0) -> int:
    """Return the most bytes by which one pool for functions takes more than another, or 0.

    They are called in turns, all at one size, or at one after the other of `SIZES`. Other functions
    need as many blocks as `others`, of any sizes: each by chance that of one that only stock has.
    """
    worst = 0
    for (one, mine), (two, its) in zip(*map(_pooled, zip(*both, strict=True)), strict=True):
        few = Counter(dict.fromkeys(two if others else (), others))
        only = sorted((size for _, size in ((two & few) - (one & few)).elements()), reverse=True)
        by_chance = bytes_of_blocks(one) - bytes_of_blocks(two) + sum(only[:others])
        worst = max(worst, by_chance, mine - its)
    return worst


def _pooled(functions: Sequence[Taken]) -> Iterator[tuple[Blocks, int]]:
    """Yield a pool after calls at each size, and its bytes after those of `SIZES` up to it."""
    so_far, total = Blocks(), 0
    for number in range(max(len(taken.once) for taken in functions)):
        once = Blocks()
        for taken in functions:
            _serve_also(once, taken.once[min(number, len(taken.once) - 1)])
        total += _serve_also(so_far, once) if number < len(SIZES) else 0
        yield once, total


def whole_pages(nbytes: int) -> int:
    """Return the bytes of an allocation in whole pages."""
    return round_up(nbytes, PAGE)


@dataclass(frozen=True, eq=False)
class Way:
    """A placement of one function, and what the pool takes for it."""

    placement: Placement
    known: Sequence[PoolAllocation]  # Its allocations of constant sizes
    unknown: Sequence[PoolAllocation]  # And of sizes that only the running program knows
    paths: Sequence[Sequence[LiveRange]]  # The live ranges that each path skips
    values: Sequence[Sequence[int]]  # Of units, at each of the sizes that are tried
    held: Blocks  # By unit, of a function that shares as stock does: its dimensions are not tried

    @cached_property
    def stored(self) -> int:
        """Bytes of all storages and tensors of constant size, as a server adds them up."""
        return sum(one.count for one in self.known if one.unit)

    @cached_property
    def taken(self) -> Taken:
        """The blocks that the pool takes for it, at each size."""
        return self._of([*self.known, *self.unknown], self.values)

    @cached_property
    def apart(self) -> tuple[Blocks, Blocks]:
        """The blocks that the pool takes for constant sizes, and for all values of others."""
        known, unknown = self._of(self.known, self.values[:1]), self._of(self.unknown, self.values)
        return known.every, unknown.every

    def _of(self, made: Sequence[PoolAllocation], at: Sequence[Sequence[int]]) -> Taken:
        return Taken(tuple(tuple(blocks_taken(made, v, by) for by in self.paths) for v in at))

    def is_open(self, stock: Way, most_stored: int) -> bool:
        """Return whether it never takes more than `stock`, nor stores above `most_stored` bytes."""
        return self.stored <= most_stored and self.taken.is_never_above(stock.taken)
