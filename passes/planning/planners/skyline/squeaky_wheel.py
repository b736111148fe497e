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

from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.engine.orders import Measures, ordered
from passes.planning.planner import BudgetTracker
from passes.planning.planners.skyline.loop import UNPLACED
from passes.planning.planners.skyline.place import tops
from passes.planning.planners.skyline.skylines import Logs, Setting, Skylines

ORDERS = ("load, life", "area", "life", "size by root of life")
"""The orders that are tried besides those by weight."""
SETTINGS = tuple(
    Setting(share, eased)
    for eased in (False, True)
    for share in (0.01, 0.02, 0.005, 0.04, 0.0)
    if share or not eased
)
"""What is tried out, beginning with what is best most often."""
STEEPNESS = 20.0
"""How fast weights fall at first: to 1 / e where a `STEEPNESS`-th less of the bound is live."""
GAIN = 30.0
"""The same for what a skyline ended above the bound."""
TURNS = 100
"""Skylines with weights of their own, at most."""
CUTS, TURNS_A_CUT = 20, 50
"""How often the top is cut off, and how often it is made again each time, at most."""
VARIED, PIECES, SHARE_VARIED = 0.3, 8, 0.7
"""Logarithms of weights vary so much, as lines between so many points; and those of shares."""


def lowest_skyline(block_list: BlockList, tracker: BudgetTracker) -> list[int]:
    """Return the offsets, in bytes, of the lowest of several skylines.

    Ends at the lower bound, when all cuts brought nothing, or when the tracker is used up; the
    first skyline is finished all the same. Penalties play no part.
    """
    skylines = Skylines(block_list, tracker)
    _weigh(skylines, tracker.share(2))
    if not skylines.is_over:
        measures = Measures(block_list)
        for name in ORDERS:
            if not skylines.is_over:
                skylines.ordered(ordered(measures, name))
    rng = random.Random(0)
    is_lower = True
    while is_lower:
        is_lower = _recreate(skylines, tracker, rng)
    found: list[int] = skylines.offsets.tolist()
    return found


def _weigh(skylines: Skylines, tracker: BudgetTracker) -> None:
    """Make skylines with weights that each setting learns for itself."""
    bound = max(1, skylines.block_list.bound)
    first = STEEPNESS * (skylines.load / bound - 1)
    learned = dict.fromkeys(SETTINGS, first)
    turns = dict.fromkeys(SETTINGS, 0)
    lowest = dict.fromkeys(SETTINGS, 0)
    for turn in range(TURNS):
        if turn and (skylines.is_over or tracker.left == 0):
            break
        # Those not tried yet come first; one tried often has to be better to be tried again.
        setting = min(SETTINGS, key=lambda s: (lowest[s] - bound) * math.sqrt(1 + turns[s]))
        offsets = skylines.weighed(learned[setting], setting)
        peak = skylines.block_list.peak(offsets)
        lowest[setting] = min(lowest[setting], peak) if turns[setting] else peak
        turns[setting] += 1
        above = tops(skylines.block_list, offsets) - bound
        learned[setting] = learned[setting] + GAIN / bound * above


def _recreate(skylines: Skylines, tracker: BudgetTracker, rng: random.Random) -> bool:
    """Cut off the top and make it again, above a cut that rises; return whether it became lower."""
    before = skylines.peak
    for cut in range(CUTS):
        share = tracker.share(CUTS - cut)
        kept = _below(skylines, skylines.peak * cut // CUTS)
        for _ in range(TURNS_A_CUT):
            if skylines.is_over or share.left == 0:
                break
            setting = Setting(
                skylines.setting.share * math.exp(rng.uniform(-SHARE_VARIED, SHARE_VARIED)),
                skylines.setting.eased,
            )
            skylines.weighed(_varied(skylines.logs, rng), setting, kept)
    return skylines.peak < before


def _below(skylines: Skylines, cut: int) -> Ints:
    """Return the offsets of the blocks that begin below a cut, all others `UNPLACED`."""
    block_list = skylines.block_list
    kept: Ints = np.where(skylines.offsets < cut, skylines.offsets, UNPLACED)
    for block, offset in block_list.pinned.items():
        kept[block] = offset
    kept[block_list.size_array == 0] = 0
    return kept


def _varied(logs: Logs, rng: random.Random) -> Logs:
    """Return logarithms of weights plus a random line through points that lie evenly."""
    places = np.linspace(0, len(logs), PIECES + 1) + rng.random() * len(logs) / PIECES
    points = [rng.uniform(-VARIED, VARIED) for _ in places]
    varied: Logs = logs + np.interp(np.arange(len(logs)), places, points)
    return varied
