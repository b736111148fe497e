# SPDX-License-Identifier: Apache-2.0
"""`lmem`: the allocation of local memory of LayerGroup's document, as a planner.

Buffers are placed in the order of the operators that first need them; of those, the one that is
live for the most time steps comes first, then the larger one. So weights that stay for all slices
come before all else. Each takes the lowest gap that lies within one bank, if it is no larger than
a bank and there is such a gap, else the lowest gap. (tpu-mlir, ``LmemAllocator``, first versions;
there, activations could lie in the bytes of resident weights of later layers.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from passes.planning import Budget, Plan, Problem, register
from passes.planning.engine import BlockList
from target_hw.memory import ByteRange, round_up, settle


@register("lmem")
def lmem(problem: Problem, budget: Budget) -> Plan:
    """Place buffers by the begin of their lives, then by length of life, then by size.

    Each slot is a buffer of its own. In-place pairs and penalties are not looked at.
    """
    block_list, memory = BlockList(problem), problem.memory
    begins, ends, owners = block_list.pieces
    steps = np.bincount(owners, ends - begins, len(block_list))
    order = np.lexsort((-block_list.size_array, -steps, block_list.spans[0]))
    banks = dict(memory.facts).get("banks", 0)
    bank = (memory.capacity or 0) // banks if banks else 0
    sizes, offsets = block_list.sizes, dict(block_list.pinned)
    for block in order.tolist():
        if block in offsets:
            continue
        met = (other for other in block_list.interference[block].tolist() if other in offsets)
        taken = [*memory.reserved, *((offsets[o], offsets[o] + sizes[o]) for o in met)]
        taken.sort()
        size, alignment = sizes[block], block_list.alignments[block]
        within = _within_a_bank(size, alignment, taken, bank, memory.capacity or 0)
        offsets[block] = settle(0, size, alignment, taken) if within is None else within
    return block_list.plan([offsets[block] for block in range(len(block_list))], "lmem")


def _within_a_bank(
    size: int, alignment: int, taken: Sequence[ByteRange], bank: int, capacity: int
) -> int | None:
    """Return the lowest free offset at which `size` bytes lie in one bank, if there is one."""
    if not 0 < size <= bank:
        return None
    offset = settle(0, size, alignment, taken)
    while offset + size <= capacity:
        if offset // bank == (offset + size - 1) // bank:
            return offset
        offset = settle(round_up(offset + 1, bank), size, alignment, taken)
    return None
