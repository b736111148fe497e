# SPDX-License-Identifier: Apache-2.0
"""No reuse: every block gets bytes of its own."""

from __future__ import annotations

from passes.planning.engine.blocks import BlockList, NewMemory
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
    memory = NewMemory(0, 1, block_list.taken)
    offsets = [
        block_list.pinned.get(block, 0)
        if block in block_list.pinned or size == 0
        else memory.open(size, block_list.alignments[block])
        for block, size in enumerate(block_list.sizes)
    ]
    return block_list.plan(offsets, "bump")
