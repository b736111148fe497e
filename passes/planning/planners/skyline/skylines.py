# SPDX-License-Identifier: Apache-2.0
"""Skylines of one block list, one after the other, and the lowest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.planner import BudgetTracker
from passes.planning.planners.skyline.loop import ONE, UNPLACED
from passes.planning.planners.skyline.place import Shallow, place_by_skyline, tops

Logs = npt.NDArray[np.float64]

PLACED_A_NODE = 8
"""Blocks that are placed in a skyline in about the time of one node of the search."""
NODES_EACH = 100
"""Nodes of the search in the time that a skyline takes apart from that."""
LEAST_WEIGHT = 1e-4
"""What is added to the weight of each position, of which the greatest is 1."""


@dataclass(frozen=True)
class Setting:
    """How deep a shallow valley is, as a share of a block, and where."""

    # The bytes of `Shallow.nbytes` for each byte of the block that a byte is in on average.
    share: float
    eased: bool  # Whether valleys are deeper and shallow still where positions weigh little


class Skylines:
    """Makes skylines and keeps the lowest; penalties play no part."""

    def __init__(self, block_list: BlockList, tracker: BudgetTracker) -> None:
        self.block_list = block_list
        self.offsets: Ints = np.full(len(block_list), UNPLACED)
        self.offsets[block_list.size_array == 0] = 0
        for block, offset in block_list.pinned.items():
            self.offsets[block] = offset
        self.peak = -1  # Of the lowest skyline so far, in bytes; `offsets` are its offsets
        # What it was made with: `logs` has the logarithm of the weight of each position.
        self.setting = Setting(0, False)
        begins, ends, positions = block_list.span_places
        self.logs: Logs = np.zeros(max(0, positions - 1))
        self.load = _load(begins, ends, block_list.size_array, len(self.logs))
        self._begins, self._ends = begins, ends
        sizes = block_list.size_array.astype(np.float64)
        self._size = float((sizes * sizes).sum() / max(1.0, sizes.sum()))
        self._start = self.offsets.copy()
        self._meter = tracker
        self._seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the bound is reached, or nothing is left, or too little for one more."""
        seconds = self._meter.rest().seconds
        return (
            0 <= self.peak <= self.block_list.bound
            or self._meter.left == 0
            or (seconds is not None and seconds < self._seconds)
        )

    def ordered(self, order: Sequence[int]) -> Ints:
        """Make a skyline in which blocks of an equal reach are placed in some order."""
        return self._made(order, None, None, Setting(0, False), self.logs)

    def weighed(self, logs: Logs, setting: Setting, kept: Ints | None = None) -> Ints:
        """Make a skyline in which blocks whose positions weigh most in all go first.

        `logs` are the logarithms of these weights. Blocks that have an offset in `kept`, in bytes,
        stay below all others.
        """
        weights = np.exp(logs - logs.max(initial=0)) + LEAST_WEIGHT
        weights = np.minimum(np.round(weights * ONE), ONE).astype(np.int64)
        before = np.append(0, np.cumsum(weights))
        order = np.lexsort((self._begins, before[self._begins] - before[self._ends]))
        if kept is not None:
            order = order[kept[order] == UNPLACED]
        eased = weights if setting.eased else np.full_like(weights, ONE)
        shallow = Shallow(int(setting.share * self._size), eased)
        return self._made(order, kept, shallow, setting, logs)

    def _made(
        self,
        order: Sequence[int] | Ints,
        kept: Ints | None,
        shallow: Shallow | None,
        setting: Setting,
        logs: Logs,
    ) -> Ints:
        """Make a skyline, and keep it if it is the lowest."""
        before = self._meter.rest().seconds
        start: Ints = self._start if kept is None else kept
        floor = 0 if kept is None else self._floor(kept)
        found = place_by_skyline(self.block_list, order, self._meter, start, floor, shallow)
        self._meter.spend(NODES_EACH + len(order) // PLACED_A_NODE)
        peak = self.block_list.peak(found)
        if self.peak < 0 or peak < self.peak:
            self.offsets, self.peak, self.setting, self.logs = found, peak, setting, logs
        after = self._meter.rest().seconds
        if before is not None and after is not None:
            self._seconds = before - after
        return found

    def _floor(self, kept: Ints) -> Ints:
        """Return the bytes below which nothing is placed: those of kept blocks, if not pinned."""
        standing = kept.copy()
        standing[list(self.block_list.pinned)] = UNPLACED
        return tops(self.block_list, standing)


def _load(begins: Ints, ends: Ints, sizes: Ints, positions: int) -> Ints:
    """Return the bytes live at each of some positions."""
    change = np.zeros(positions + 1, dtype=np.int64)
    np.add.at(change, begins, sizes)
    np.subtract.at(change, ends, sizes)
    return np.cumsum(change)[:positions]
