# SPDX-License-Identifier: Apache-2.0
"""Planners of other systems, written anew from reading them, to be measured beside ours.

`first_fit_by_size` is the arena planner of TensorFlow Lite Micro (and of Pisarchyk and Lee,
arXiv:2001.03288). `hill_climb` is the one of TVM's Unified Static Memory Planner, which TVM had in
its versions 0.9 to 0.19 (``src/tir/usmp/algo/hill_climb.cc``). Both place with the first fit of
this project, so their seconds are not those of the originals. Neither looks at penalties, or at
pairs that may be in place.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from passes.planning import Budget, Plan, Problem
from passes.planning.engine.blocks import BlockList, Ints
from passes.planning.planner import BudgetTracker
from passes.planning.planners.first_fit import fit, fit_blocks

ATTEMPTS = 500
"""Orders that the original tries, on any problem."""
FROM_FIRST_LEVEL = 26
"""Of a hundred swaps, how many are between two buffers that the topmost one meets itself."""


def first_fit_by_size(problem: Problem, budget: Budget) -> Plan:
    """Place the largest buffer first, each in the lowest gap, up to 44,000 buffers."""
    blind = replace(problem, penalties=()) if problem.penalties else problem
    plan = fit(BlockList(blind), BudgetTracker(budget), ("size",))
    if problem.penalties:
        plan = BlockList(problem).plan_of(plan.offsets, plan.planner)
    return replace(plan, planner="first_fit_by_size")


def hill_climb(problem: Problem, budget: Budget) -> Plan:
    """Place by size, then swap two buffers of the order again and again, and keep what is lower.

    Swapped are buffers placed before a topmost one: one that it meets, and another or one that
    such a one meets. A higher peak is kept with a chance that soon falls to nothing. The original
    ends with the last order that it kept, this one with the best.
    """
    block_list, tracker, rng = BlockList(problem), BudgetTracker(budget), random.Random(0)
    met = block_list.interference
    order = np.lexsort(([-len(row) for row in met], -block_list.size_array))
    turn = np.argsort(order)

    def placed() -> tuple[int, Ints]:
        offsets = np.array(fit_blocks(block_list, order.tolist()), dtype=np.int64)
        return int((offsets + block_list.size_array).max(initial=0)), offsets

    def swap(one: int, two: int) -> None:
        order[turn[one]], order[turn[two]] = two, one
        turn[one], turn[two] = turn[two], turn[one]

    best = peak, kept = placed()
    for attempt in range(1, ATTEMPTS):
        pair = _pair(met, turn, np.flatnonzero(kept + block_list.size_array == peak), rng)
        if tracker.expired or best[0] <= block_list.bound:
            break
        if pair is None:
            continue
        swap(*pair)
        found, offsets = placed()
        chance = 50 * (found - peak) // max(1, found) // attempt
        if found < peak or rng.randrange(100) < chance:
            peak, kept = found, offsets
            best = min(best, (peak, kept), key=lambda each: each[0])
        else:
            swap(*pair)
    return block_list.plan(best[1].tolist(), "hill_climb")


def _pair(met: list, turn: Ints, topmost: Ints, rng: random.Random) -> tuple[int, int] | None:
    """Return two blocks to swap in the order, None where there are no two."""
    top = rng.choice(sorted(topmost.tolist(), key=lambda block: turn[block]))
    first = [b for b in met[top] if turn[b] < turn[top]]
    second = [c for b in met[top] for c in met[b][turn[met[b]] < turn[b]]]
    if not first:
        return None
    one = rng.choice(first)
    others = first if not second or rng.randrange(100) < FROM_FIRST_LEVEL else second
    two = rng.choice(others)
    return None if one == two else (int(one), int(two))


OTHERS: dict[str, Callable[[Problem, Budget], Plan]] = {
    "first_fit_by_size": first_fit_by_size,
    "hill_climb": hill_climb,
}
"""By the name under which they stand beside our planners."""
