# SPDX-License-Identifier: Apache-2.0
"""What TVM's pooled allocator takes from the device for the allocations of functions.

The allocator (``src/runtime/memory/pooled_allocator.h``) rounds a request up to pages, keeps what
is given back, and hands it out again to a request of as many pages, and to no other. So it takes,
of each number of pages, as many blocks as are in use at one time; what calls take one after the
other is, block by block, the most that one of them takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from passes.gmem.planning.pieces import PAGE
from passes.planning import LiveRange

MOST_PATHS = 128  # Paths through one function that are followed

Blocks = Counter[tuple[int, int]]
"""By device and bytes of whole pages, how many such blocks there are."""


@dataclass(frozen=True)
class Allocation:
    """One allocation of a function: a storage, or a tensor by itself."""

    device: int
    count: int  # Bytes, or bytes for each of the unit
    unit: int  # Number of the symbolic product that `count` is multiplied with; 0 is the number 1
    begin: int  # The position of the binding that allocates it
    end: int  # The position from which on nothing refers to it


def blocks_taken(
    allocations: Iterable[Allocation], units: Sequence[int], skipped: Sequence[LiveRange] = ()
) -> Blocks:
    """Return the blocks that one call takes from an empty pool.

    Parameters
    ----------
    allocations : iterable of Allocation
        What the function allocates, on all of its paths.
    units : sequence of int
        The value of each symbolic product in the call; the first is 1.
    skipped : sequence of LiveRange
        Positions of the branches that the call does not take.
    """
    changes: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in allocations:
        if not any(begin <= one.begin < end for begin, end in skipped):
            pages = -(-one.count * units[one.unit] // PAGE)
            changes[one.device, pages * PAGE] += [(one.begin, 1), (one.end, -1)]
    # At one position, ends come first.
    most = {key: max(accumulate(by for _, by in sorted(all_))) for key, all_ in changes.items()}
    return Counter(most)


def bytes_of_blocks(blocks: Blocks) -> int:
    """Return the bytes that pools take from devices for some blocks."""
    return sum(size * count for (_, size), count in blocks.items())


def skipped_on_paths(
    branches: Mapping[int, tuple[LiveRange, LiveRange]],
) -> list[tuple[LiveRange, ...]] | None:
    """Return for each path through a function the branches that it does not take.

    `branches` has the two sides of each `if`, by its position. None where there are more than
    `MOST_PATHS` paths.
    """
    paths: list[tuple[LiveRange, ...]] = [()]
    for position in sorted(branches):
        longer = []
        for path in paths:
            if any(begin <= position < end for begin, end in path):
                longer.append(path)
            else:
                longer += [(*path, side) for side in branches[position] if side[0] < side[1]]
                if any(side[0] == side[1] for side in branches[position]):
                    longer.append(path)
        paths = list(dict.fromkeys(longer))
        if len(paths) > MOST_PATHS:
            return None
    return paths


@dataclass(frozen=True)
class Call:
    """One function's allocations under the plan that is judged, and under the stock pass's."""

    ours: Sequence[Allocation]
    stock: Sequence[Allocation]
    paths: Sequence[tuple[LiveRange, ...]]  # What each path skips
    units: Sequence[Sequence[int]]  # The values of its symbolic products, at each of some sizes


def never_above(calls: Sequence[Call]) -> bool:
    """Whether the pool takes no more under our plans than under the stock pass's.

    It is asked of each call on each path and at each size from an empty pool; and of one pool after
    all functions have run on all paths at the first size, at the first two, and so on.
    """
    ours_after: Blocks = Counter()
    stock_after: Blocks = Counter()
    for at in range(len(calls[0].units) if calls else 0):
        for call in calls:
            for skipped in call.paths:
                ours = blocks_taken(call.ours, call.units[at], skipped)
                stock = blocks_taken(call.stock, call.units[at], skipped)
                if bytes_of_blocks(ours) > bytes_of_blocks(stock):
                    return False
                ours_after |= ours
                stock_after |= stock
        if bytes_of_blocks(ours_after) > bytes_of_blocks(stock_after):
            return False
    return True
