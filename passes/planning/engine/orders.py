# SPDX-License-Identifier: Apache-2.0
"""Orders in which heuristics place blocks, by name, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import BlockList, Ints, live_at, places_among


class Measures:
    """What an order can look at, for each block."""

    def __init__(self, block_list: BlockList) -> None:
        # The place of the first position at which it is live, among those where lives begin or end
        self.begin = block_list.span_places[0]
        self.size = block_list.size_array  # Bytes
        begins, ends, owners = block_list.pieces
        self.life = np.zeros(len(block_list), dtype=np.int64)  # Positions at which it is live
        np.add.at(self.life, owners, ends - begins)
        self.load = _loads(block_list)  # The most bytes live at one position of its life


Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Key = Callable[[Measures], tuple[Column, ...]]

ORDERS: dict[str, Key] = {
    "size": lambda m: (m.size,),
    "load, size": lambda m: (m.load, m.size),
    "size by root of life": lambda m: (m.size * np.sqrt(m.life),),
    "size by log of life": lambda m: (m.size * np.log2(1.0 + m.life),),
    "load, life": lambda m: (m.load, m.life),
    "life": lambda m: (m.life, m.size),
    "area": lambda m: (m.size.astype(np.float64) * m.life,),
    "time": lambda m: (-m.begin,),
}
"""Sort keys: the greatest goes first. Ties go to the block that begins first.

"size" is that of TensorFlow Lite's arena planner (Pisarchyk and Lee, arXiv:2001.03288), "load,
size" is close to Arm Vela's urgency, and "time" is what an allocator at run time would see.
"""

FAST_ORDERS = ("size", "load, size", "size by root of life")
"""The orders to try where there is no time for all."""


def ordered(measures: Measures, order: str) -> list[int]:
    """Return all blocks in the order called `order`."""
    keys = [-column for column in ORDERS[order](measures)]
    # The last key is the one that counts most; a sort by keys keeps equals as they were.
    blocks: list[int] = np.lexsort((measures.begin, *reversed(keys))).tolist()
    return blocks


def _loads(block_list: BlockList) -> Ints:
    """Return, for each block, the most bytes live at one position of its life."""
    first, last, owners = block_list.pieces
    positions = np.sort(np.concatenate((first, last)))
    begins, ends = places_among(positions, first), places_among(positions, last)
    live = live_at(begins, ends, block_list.size_array[owners], len(positions))
    loads = np.zeros(len(block_list), dtype=np.int64)
    np.maximum.at(loads, owners, _range_maxima(live, begins, ends))
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
