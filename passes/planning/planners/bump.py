# SPDX-License-Identifier: Apache-2.0
"""No reuse: every block gets bytes of its own."""

from __future__ import annotations

from passes.planning.engine.blocks import BlockList, settle
from passes.planning.plan import Plan
from passes.planning.planner import Budget, register
from passes.planning.problem import Problem


@register("bump")
def bump(problem: Problem, budget: Budget) -> Plan:
    """Give every buffer bytes of its own, in the problem's order.

    Nothing is shared, so nothing waits for anything: no penalty, and the highest peak. Takes time
    and memory linear in the buffers, plus the pinned and reserved ranges once.
    """
    block_list = BlockList(problem)
    taken = block_list.taken
    offsets, top = [], 0
    for block, size in enumerate(block_list.sizes):
        if block in block_list.pinned or size == 0:
            offsets.append(block_list.pinned.get(block, 0))
            continue
        offset = settle(top, size, block_list.alignments[block], taken)
        top = offset + size
        while taken and taken[0][1] <= top:
            taken.pop(0)
        offsets.append(offset)
    return block_list.plan(offsets, "bump")
