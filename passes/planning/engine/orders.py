"""Orders in which heuristics place blocks, by name, and what they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from passes.planning.engine.blocks import BlockList, Ints


class Measures:
    """What an order can look at, for each block.

    Attributes
    ----------
    size : list of int
        Bytes.
    life : list of int
        Positions at which it is live.
    load : list of int
        The most bytes live at one position of its life.
    """

    def __init__(self, block_list: BlockList) -> None:
        self.begin = [live[0][0] for live in block_list.live]
        self.size = block_list.sizes
        self.life = [sum(end - begin for begin, end in live) for live in block_list.live]
        self.load = _loads(block_list)


Key = Callable[[Measures, int], tuple[float, ...]]

ORDERS: dict[str, Key] = {
    "size": lambda m, b: (-m.size[b],),
    "load, size": lambda m, b: (-m.load[b], -m.size[b]),
    "size by root of life": lambda m, b: (-m.size[b] * math.sqrt(m.life[b]),),
    "size by log of life": lambda m, b: (-m.size[b] * math.log2(1 + m.life[b]),),
    "load, life": lambda m, b: (-m.load[b], -m.life[b]),
    "life": lambda m, b: (-m.life[b], -m.size[b]),
    "area": lambda m, b: (-m.size[b] * m.life[b],),
    "time": lambda m, b: (m.begin[b],),
}
"""Sort keys; the first in an order is placed first. Ties go to the block that begins first.

"size" is that of TensorFlow Lite's arena planner (Pisarchyk and Lee, arXiv:2001.03288), "load,
size" is close to Arm Vela's urgency, and "time" is what an allocator at run time would see.
"""

FAST_ORDERS = ("size", "load, size", "size by root of life")
"""The orders to try where there is no time for all."""


def ordered(measures: Measures, order: str) -> list[int]:
    """Return all blocks in the order called `order`."""
    key = ORDERS[order]
    blocks = range(len(measures.size))
    return sorted(blocks, key=lambda b: (*key(measures, b), measures.begin[b], b))


def _loads(block_list: BlockList) -> list[int]:
    """Return, for each block, the most bytes live at one position of its life."""
    positions = np.unique([p for live in block_list.live for piece in live for p in piece])
    owners = [b for b, live in enumerate(block_list.live) for _ in live]
    begins = np.searchsorted(positions, [begin for live in block_list.live for begin, _ in live])
    ends = np.searchsorted(positions, [end for live in block_list.live for _, end in live])
    sizes = np.array(block_list.sizes, dtype=np.int64)[owners]
    change = np.zeros(len(positions), dtype=np.int64)
    np.add.at(change, begins, sizes)
    np.subtract.at(change, ends, sizes)
    most = _range_maxima(np.cumsum(change), begins, ends)
    loads = [0] * len(block_list)
    for owner, load in zip(owners, most.tolist(), strict=True):
        loads[owner] = max(loads[owner], load)
    return loads


def _range_maxima(values: Ints, begins: Ints, ends: Ints) -> Ints:
    """Return max(values[begin:end]) for each pair, from maxima over powers of two."""
    result = np.zeros(len(begins), dtype=np.int64)
    widths = ends - begins
    maxima, width = values, 1
    while len(maxima):
        here = (widths >= width) & (widths < 2 * width)
        result[here] = np.maximum(maxima[begins[here]], maxima[ends[here] - width])
        maxima = np.maximum(maxima[:-width], maxima[width:])
        width *= 2
    return result
