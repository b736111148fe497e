# SPDX-License-Identifier: Apache-2.0
"""Skylines of many blocks, one after the other: where one ended too high weighs more in the next.

Squeaky wheel optimization (D. E. Joslin, D. P. Clements, "Squeaky Wheel Optimization", Journal of
Artificial Intelligence Research 10, 1999): the greedy is fast, and what it puts first is searched.
Here positions weigh more the more bytes are live there, at first, and then the higher the skylines
so far have ended there; blocks whose lives weigh most go first. Which valleys are shallow is tried
out meanwhile, and what did well so far is used most.

The top of the lowest skyline is then made again and again, above a cut that rises: ruin and
recreate (G. Schrimpf and others, "Record Breaking Optimization Results Using the Ruin and Recreate
Principle", Journal of Computational Physics 159, 2000), with weights varied a little.
"""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt

from passes.planning.engine.blocks import UNPLACED, BlockList, Ints, live_at
from passes.planning.engine.coalesce import better, cost_free, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.skyline.place import place_by_skyline, tops
from passes.planning.problem import Problem

Logs = npt.NDArray[np.float64]

PLACED_A_NODE = 8  # Blocks that are placed in a skyline in about the time of one node of the search
NODES_EACH = 100  # Nodes of the search in the time that a skyline takes apart from that
LEAST_WEIGHT = 1e-4  # What is added to the weight of each position, of which the greatest is 1
ONE = 1 << 16  # The greatest weight in the sums by which blocks are ordered
FEW_BLOCKS = 1000  # Blocks up to which the top is not made again: other searches do better then
SHALLOWS = (0.01, 0.02, 0.005, 0.04, 0.0)
"""How deep a shallow valley is: bytes for each byte of the block that a byte is in on average. What
is best most often is tried first."""
STEEPNESS = 20.0
"""How fast weights fall at first: to 1 / e where a `STEEPNESS`-th less of the bound is live."""
GAIN = 30.0  # The same for what a skyline ended above the bound
TURNS = 100  # Skylines with weights of their own, at most
CUTS, TURNS_A_CUT = 20, 50
"""How often the top is cut off, and how often it is made again each time, at most."""
VARIED, PIECES, SHARE_VARIED = 0.3, 8, 0.7
"""Logarithms of weights vary so much, as lines between so many points; and those of shares."""


@register("skyline")
def skyline(problem: Problem, budget: Budget) -> Plan:
    """Make one skyline after the other, and keep the lowest.

    Sharing that costs something is avoided altogether, then, if that is worse, ignored.
    """
    tracker = BudgetTracker(budget)

    def run(block_list: BlockList) -> Plan:
        lists = [BlockList(cost_free(block_list.problem))] if block_list.soft else []
        plans = (
            block_list.plan(lowest_skyline(each, tracker), "skyline")
            for each in (*lists, block_list)
        )
        return better(problem, plans, tracker)

    return on_each_coalescing(problem, run)


def lowest_skyline(block_list: BlockList, tracker: BudgetTracker) -> list[int]:
    """Return the offsets, in bytes, of the lowest of several skylines.

    Ends at the lower bound, when all cuts brought nothing, or when the tracker is used up; the
    first skyline is finished all the same. Penalties play no part.
    """
    skylines = Skylines(block_list, tracker)
    _weigh(skylines, tracker.share(2))
    rng = random.Random(0)
    is_lower = len(block_list) > FEW_BLOCKS
    while is_lower:
        is_lower = _recreate(skylines, tracker, rng)
    found: list[int] = skylines.offsets.tolist()
    return found


def _weigh(skylines: Skylines, tracker: BudgetTracker) -> None:
    """Make skylines with weights that each depth of shallow valleys learns for itself."""
    bound = max(1, skylines.block_list.bound)
    first = STEEPNESS * (skylines.load / bound - 1)
    learned = dict.fromkeys(SHALLOWS, first)
    turns = dict.fromkeys(SHALLOWS, 0)
    lowest = dict.fromkeys(SHALLOWS, 0)
    for turn in range(TURNS):
        if turn and (skylines.is_over or tracker.left == 0):
            break
        # Those not tried yet come first; one tried often has to be better to be tried again.
        shallow = min(SHALLOWS, key=lambda s: (lowest[s] - bound) * math.sqrt(1 + turns[s]))
        offsets = skylines.weighed(learned[shallow], shallow)
        peak = skylines.block_list.peak(offsets)
        lowest[shallow] = min(lowest[shallow], peak) if turns[shallow] else peak
        turns[shallow] += 1
        above = tops(skylines.block_list, offsets) - bound
        learned[shallow] = learned[shallow] + GAIN / bound * above


def _recreate(skylines: Skylines, tracker: BudgetTracker, rng: random.Random) -> bool:
    """Cut off the top and make it again, above a cut that rises; return whether it became lower."""
    before = skylines.peak
    for cut in range(CUTS):
        share = tracker.share(CUTS - cut)
        offsets, height = skylines.offsets, skylines.peak * cut // CUTS
        is_kept = (offsets < height) | (skylines.start != UNPLACED)
        kept: Ints = np.where(is_kept, offsets, UNPLACED)
        for _ in range(TURNS_A_CUT):
            if skylines.is_over or share.left == 0:
                break
            shallow = skylines.shallow * math.exp(rng.uniform(-SHARE_VARIED, SHARE_VARIED))
            skylines.weighed(_varied(skylines.logs, rng), shallow, kept)
    return skylines.peak < before


def _varied(logs: Logs, rng: random.Random) -> Logs:
    """Return logarithms of weights plus a random line through points that lie evenly."""
    places = np.linspace(0, len(logs), PIECES + 1) + rng.random() * len(logs) / PIECES
    points = [rng.uniform(-VARIED, VARIED) for _ in places]
    varied: Logs = logs + np.interp(np.arange(len(logs)), places, points)
    return varied


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
        self.shallow = 0.0
        begins, ends, positions = block_list.span_places
        self.logs: Logs = np.zeros(max(0, positions - 1))
        self.load = live_at(begins, ends, block_list.size_array, len(self.logs))
        self._begins, self._ends = begins, ends
        sizes = block_list.size_array.astype(np.float64)
        self._size = float((sizes * sizes).sum() / max(1.0, sizes.sum()))
        self.start = self.offsets.copy()  # Pinned blocks, and those of zero bytes
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

    def weighed(self, logs: Logs, shallow: float, kept: Ints | None = None) -> Ints:
        """Make a skyline in which blocks whose positions weigh most in all go first.

        `logs` are the logarithms of these weights. Blocks that have an offset in `kept`, in bytes,
        stay below all others. The skyline is kept if it is the lowest.
        """
        before = self._meter.rest().seconds
        weights = np.exp(logs - logs.max(initial=0)) + LEAST_WEIGHT
        weights = np.minimum(np.round(weights * ONE), ONE).astype(np.int64)
        sums = np.append(0, np.cumsum(weights))
        order = np.lexsort((self._begins, sums[self._begins] - sums[self._ends]))
        start: Ints = self.start if kept is None else kept
        order = order[start[order] == UNPLACED]
        floor = 0 if kept is None else self._floor(kept)
        depth = int(shallow * self._size)
        found = place_by_skyline(self.block_list, order, self._meter, start, floor, depth)
        self._meter.spend(NODES_EACH + len(order) // PLACED_A_NODE)
        peak = self.block_list.peak(found)
        if self.peak < 0 or peak < self.peak:
            self.offsets, self.peak, self.shallow, self.logs = found, peak, shallow, logs
        after = self._meter.rest().seconds
        if before is not None and after is not None:
            self._seconds = before - after
        return found

    def _floor(self, kept: Ints) -> Ints:
        """Return the bytes below which nothing is placed: those of kept blocks, if not pinned."""
        standing = kept.copy()
        standing[list(self.block_list.pinned)] = UNPLACED
        return tops(self.block_list, standing)
