# SPDX-License-Identifier: Apache-2.0
"""A placement of one function, and the blocks that the pool takes for it at each of some sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

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
"""Values of dimensions without a bound at which what the pool takes is compared."""


@dataclass(frozen=True)
class Taken:
    """The blocks that the pool takes for one function: at each of some sizes, on each path."""

    calls: tuple[tuple[Blocks, ...], ...]

    @cached_property
    def growing(self) -> tuple[Blocks, ...]:
        """The blocks for calls of the first size, for those of the first two sizes, and so on."""
        return tuple(accumulate(map(union, self.calls), lambda one, two: union((one, two))))

    def above(self, other: Taken) -> list[bool]:
        """Return, for each size, whether a call takes more than another function's."""
        return [
            any(
                bytes_of_blocks(one) > bytes_of_blocks(two)
                for one, two in zip(ours, theirs, strict=True)
            )
            for ours, theirs in zip(self.calls, other.calls, strict=True)
        ]

    def is_never_above(self, other: Taken) -> bool:
        """Return whether no call takes more, nor calls of growing sizes from one pool."""
        return not any(self.above(other)) and all(
            bytes_of_blocks(one) <= bytes_of_blocks(two)
            for one, two in zip(self.growing, other.growing, strict=True)
        )


def union(each: Iterable[Blocks]) -> Blocks:
    """Return the blocks that serve each of some needs, one after the other."""
    result = Blocks()
    for blocks in each:
        for block, count in blocks.items():
            if count > result[block]:
                result[block] = count
    return result


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

    @cached_property
    def stored(self) -> int:
        """Bytes of all storages and tensors of constant size, as a server adds them up."""
        return sum(one.count for one in self.known if one.unit)

    @cached_property
    def of_known(self) -> Taken:
        """The blocks that the pool takes for constant sizes."""
        return self._taken(self.known, self.values[:1])

    @cached_property
    def of_unknown(self) -> Taken:
        """The blocks that the pool takes for sizes that are not constant."""
        return self._taken(self.unknown, self.values)

    @cached_property
    def of_all(self) -> Taken:
        """The blocks that the pool takes for all sizes."""
        return self._taken([*self.known, *self.unknown], self.values)

    def _taken(self, made: Sequence[PoolAllocation], at: Sequence[Sequence[int]]) -> Taken:
        return Taken(tuple(tuple(blocks_taken(made, v, by) for by in self.paths) for v in at))

    def is_open(self, stock: Way, most_stored: int) -> bool:
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

    def is_above(self, stock: Way) -> bool:
        """Return whether a call takes more at some of the sizes."""
        return any(self.of_all.above(stock.of_all))

    def begins_with(self, size: int, at: Collection[int]) -> list[LiveRange]:
        """Return the lives of tensors of unknown size that have some bytes `at` one of sizes."""
        values = [self.values[number] for number in at if number < len(self.values)]
        return [
            (one.begin, one.end)
            for one in self.unknown
            if any(whole_pages(one.count * units[one.unit]) == size for units in values)
        ]
