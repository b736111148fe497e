"""Skylines of many blocks, one after the other: what ended too high comes earlier in the next.

Squeaky wheel optimization (D. E. Joslin, D. P. Clements, "Squeaky Wheel Optimization", Journal of
Artificial Intelligence Research 10, 1999): the greedy is fast and the order is searched. Blocks
that ended above the lower bound move one tier up each time, and a tier goes before all lower ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.engine.orders import Measures, ordered
from passes.planning.engine.skyline.rise import risen
from passes.planning.engine.skyline.steps import UNPLACED
from passes.planning.planner import Meter

ORDERS_FIRST = ("load, life", "area", "life", "size by root of life")
"""The orders that are tried before tiers are used."""
TURNS = 24
"""Skylines with tiers, at most."""


def lowest_skyline(block_list: BlockList, meter: Meter) -> list[int]:
    """Return the offsets, in bytes, of the lowest of several skylines.

    Ends at the lower bound, after `TURNS`, or when the meter is used up: a node is one block.

    Parameters
    ----------
    block_list : BlockList
        What to place; penalties play no part.
    meter : Meter
        The first skyline is finished all the same.
    """
    start = [0 if size == 0 else UNPLACED for size in block_list.sizes]
    for block, offset in block_list.pinned.items():
        start[block] = offset
    tiers = np.zeros(len(block_list), dtype=np.int64)
    best, lowest = start, -1
    for order in _orders(Measures(block_list), tiers):
        before = meter.rest().seconds
        offsets = risen(block_list, order, meter, start)
        meter.spend(len(offsets))
        tops = np.array(offsets, dtype=np.int64) + block_list.size_array
        peak = int(tops.max(initial=0))
        if lowest < 0 or peak < lowest:
            best, lowest = offsets, peak
        if meter.left == 0 or lowest <= block_list.bound:
            break
        after = meter.rest().seconds
        if before is not None and after is not None and after < before - after:
            break  # there is no time for another one
        tiers[tops > block_list.bound] += 1
    return best


def _orders(measures: Measures, tiers: Ints) -> Iterator[list[int]]:
    """Yield orders of all blocks; `tiers` changes from one to the next."""
    for name in ORDERS_FIRST:
        yield ordered(measures, name)
        tiers[:] = 0
    for _ in range(TURNS):
        keys = (measures.begin, -measures.life, -measures.load, -tiers)
        yield np.lexsort(keys).tolist()
