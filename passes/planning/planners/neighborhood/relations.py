# SPDX-License-Identifier: Apache-2.0
"""What each block must or should not share with, as plain lists of integers.

The form in which `neighborhood.loop` reads a block list: a row of relations for
each block, one for each other block that it may not share bytes with, or shares with at a cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from passes.planning.engine.blocks import BlockList


@dataclass(frozen=True)
class Relations:
    """The relations of all blocks, row by row.

    The relations of block `b` are those from ``begins[b]`` to ``begins[b + 1]``.
    """

    begins: list[int]  # One more than there are blocks
    others: list[int]  # The other block
    hard: list[int]  # 1 where the two may not share bytes, else 0
    partner: list[int]  # 1 where the two may all the same have one offset, in place, else 0
    # 1 where one offset for both is worth trying: in place, or where slots match at less cost.
    equal: list[int]
    crossed: list[int]  # 1 where the two are not equal slots of buffers with equally many, else 0
    penalty: list[int]  # The index of the penalty that is due where the two share bytes, or -1
    price: list[int]  # What that costs if nothing else makes it due: zero without a penalty


def relations_of(block_list: BlockList) -> Relations:
    """Return the relations of the blocks, each row sorted by the other block."""
    buffers, penalties = block_list.problem.buffers, block_list.problem.penalties
    found = Relations([], [], [], [], [], [], [], [])
    counts = []
    for block in range(len(block_list)):
        hard = set(block_list.interference[block].tolist())
        soft = dict(block_list.soft.get(block, ()))
        partners = block_list.partners[block]
        row = sorted(hard | soft.keys())
        counts.append(len(row))
        for other in row:
            penalty, is_hard = soft.get(other, -1), other in hard
            slots_match = block_list.slots_match(block, other)
            partner = other in partners
            slots = buffers[block_list.buffer_of[other]].slots
            price = 0
            if penalty >= 0:
                due = penalties[penalty]
                price = due.cost_if_slots_match if slots_match else due.cost
            found.others.append(other)
            found.hard.append(int(is_hard))
            found.partner.append(int(partner))
            found.equal.append(int(partner or (slots_match and slots > 1 and not is_hard)))
            found.crossed.append(int(not slots_match))
            found.penalty.append(penalty)
            found.price.append(price)
    found.begins.extend(accumulate(counts, initial=0))
    return found
