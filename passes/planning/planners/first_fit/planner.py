# SPDX-License-Identifier: Apache-2.0
"""First fit and best fit: blocks in a fixed order, each in a gap between those placed before.

First fit takes the lowest gap that is large enough, best fit the smallest. Both are what most
compilers do (TensorFlow Lite, XLA, Glow, ONNX Runtime differ in order and gap rule only).
Where sharing has a cost, the gap of least added cost comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from passes.planning.engine.blocks import BlockList
from passes.planning.engine.orders import FAST_ORDERS, ORDERS, Measures, ordered
from passes.planning.engine.ranking import better, on_each_coalescing
from passes.planning.plan import Plan
from passes.planning.planner import Budget, BudgetTracker, register
from passes.planning.planners.first_fit.gaps import UNPLACED, fit_blocks
from passes.planning.planners.skyline.place import place_by_skyline
from passes.planning.problem import Problem

LARGE = 20_000  # Blocks beyond which only `FAST_ORDERS` are tried


@register("first_fit")
def first_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the lowest gap that is large enough, under several orders.

    Stops at the first plan that the lower bound proves optimal.
    """
    return on_each_coalescing(
        problem, lambda block_list: fit(block_list, BudgetTracker(budget), "first")
    )


@register("best_fit")
def best_fit(problem: Problem, budget: Budget) -> Plan:
    """Take the smallest gap that is large enough, under several orders.

    Stops at the first plan that the lower bound proves optimal.
    """
    return on_each_coalescing(
        problem, lambda block_list: fit(block_list, BudgetTracker(budget), "best")
    )


def fit(
    block_list: BlockList,
    tracker: BudgetTracker,
    rule: str,
    orders: Sequence[str] | None = None,
    known: Plan | None = None,
) -> Plan:
    """Return the best plan that one gap rule, "first" or "best", gives under several orders.

    By default these are all `ORDERS`, or `FAST_ORDERS` for more than `LARGE` blocks. Where time is
    too short for one order, the plan that is `known` is returned; without it the blocks that are
    left are put on top, which takes some time more.
    """
    if orders is None:
        orders = FAST_ORDERS if len(block_list) > LARGE else tuple(ORDERS)
    measures = Measures(block_list)

    def planned(name: str, costs: bool) -> Plan:
        order = ordered(measures, name)
        offsets = fit_blocks(block_list, order, rule, costs, tracker=tracker)
        if UNPLACED in offsets:
            if known is not None and tracker.expired:
                return known
            offsets = _completed(block_list, order, offsets, tracker)
        return block_list.plan(offsets, f"{rule}_fit")

    plans = (
        planned(order, costs)
        for order in orders
        for costs in ((True, False) if block_list.soft else (False,))
    )
    return better(block_list.problem, plans, tracker)


def _completed(
    block_list: BlockList, order: Sequence[int], offsets: list[int], tracker: BudgetTracker
) -> list[int]:
    """Return the offset of each block; those that have none are put in a skyline on top."""
    ends = (o + s for o, s in zip(offsets, block_list.sizes, strict=True) if o != UNPLACED)
    floor = max(ends, default=0)
    found: list[int] = place_by_skyline(block_list, order, tracker, offsets, floor=floor).tolist()
    return found
