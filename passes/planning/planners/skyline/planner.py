# SPDX-License-Identifier: Apache-2.0
"""Skyline greedy: always place what can go lowest.

The first descent of `planners.branch_and_bound`, without a capacity to turn back at: the
placed blocks form a skyline over time, and the block that can sit deepest in it comes next.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from passes.planning.engine.blocks import BlockList, settle
from passes.planning.engine.coalesce import cost_free
from passes.planning.engine.orders import Measures, ordered
from passes.planning.engine.ranking import better, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.skyline.squeaky_wheel import ORDERS, lowest_skyline
from passes.planning.problem import Problem


@register("skyline")
def skyline(problem: Problem, budget: Budget) -> Plan:
    """Place the block that can go lowest, again and again, under several orders for ties.

    Sharing that costs something is avoided altogether, then, if that is worse, ignored.
    """
    return on_each_coalescing(
        problem, lambda block_list: best_skyline(block_list, BudgetTracker(budget))
    )


def best_skyline(block_list: BlockList, tracker: BudgetTracker) -> Plan:
    """Return the best skyline plan of a block list."""
    if not block_list.is_listed:
        return block_list.plan(lowest_skyline(block_list, tracker), "skyline")
    measures = Measures(block_list)
    lists = [BlockList(cost_free(block_list.problem))] if block_list.soft else []
    plans = (
        block_list.plan(_skyline(each, ordered(measures, order)), "skyline")
        for order in ORDERS
        for each in (*lists, block_list)
    )
    return better(block_list.problem, plans, tracker)


def _skyline(block_list: BlockList, order: Sequence[int]) -> list[int]:
    """Return an offset for each block; blocks of one reach are placed in `order`."""
    rows = block_list.interference
    obstacles = [block_list.obstacles(block) for block in range(len(block_list))]
    sizes, alignments = block_list.sizes, block_list.alignments
    rank = {block: i for i, block in enumerate(order)}
    reach = np.zeros(len(block_list), dtype=np.int64)
    waiting = np.ones(len(block_list), dtype=bool)
    for block, offset in block_list.pinned.items():
        reach[block], waiting[block] = offset, False

    def entry(block: int) -> tuple[int, int, int]:
        low = settle(int(reach[block]), sizes[block], alignments[block], obstacles[block])
        return low, rank[block], block

    heap = [entry(block) for block in order if waiting[block]]
    heapq.heapify(heap)
    while heap:
        offset, _, block = heap[0]
        if reach[block] > offset:  # raised since it was entered
            heapq.heapreplace(heap, entry(block))
            continue
        heapq.heappop(heap)
        reach[block], waiting[block] = offset, False
        met = rows[block][waiting[rows[block]]]
        reach[met] = np.maximum(reach[met], offset + sizes[block])
    return [int(offset) for offset in reach]
