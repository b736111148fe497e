# SPDX-License-Identifier: Apache-2.0
"""`rec_tbl`: Sophgo's allocation of global memory, as a planner.

The rules are those of the AddressAssign pass in the first versions of TPU-MLIR; docs/gmem.md has
them. At each position some buffers begin, which the original calls the results of an op, and the
lives of others end, its operands. Operands are released after the first result is placed, and none
of their addresses goes to a result of the same op. Names of the original are kept:

- ``rec_tbl``, the records (buffer, offset, size) in the order in which they were made. A slot that
  a smaller buffer takes stays in the table with its full size.
- ``hold_edges``, the buffers that are placed and not yet released.
- ``in_using_addr``, the offsets at which they stand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from passes.planning import Budget, Plan, Problem, register
from passes.planning.engine import BlockList, NewMemory


@register("rec_tbl")
def rec_tbl(problem: Problem, budget: Budget) -> Plan:
    """Reuse whole slots, the first made first, as Sophgo's GMEM allocation does.

    Buffers that begin at one position are placed in the problem's order. A buffer with several
    live ranges holds its slot from the first to the last, and each slot is a buffer of its own.
    A separated buffer takes no offset that one of its partners has had; pinned buffers share with
    none. In-place pairs and penalties are not looked at. Each result is held against all records.
    """
    block_list = BlockList(problem)
    table = _RecordTable(block_list)
    begin: defaultdict[int, list[int]] = defaultdict(list)
    last: defaultdict[int, list[int]] = defaultdict(list)
    for block, live in enumerate(block_list.live):
        if block not in block_list.pinned:
            begin[live[0][0]].append(block)
            last[live[-1][1] - 1].append(block)
    for position in sorted({*begin, *last}):  # The results of an op, and its operands
        results, ended = begin[position], last[position]
        operands = [block for block in ended if block not in results]
        for block in results[:1]:
            table.place(block, operands)
        table.release(operands)
        for block in results[1:]:
            table.place(block, operands)
        table.release([block for block in ended if block in results])
    offsets = {**table.offsets, **block_list.pinned}
    return block_list.plan([offsets[b] for b in range(len(block_list))], "rec_tbl")


class _RecordTable:
    """The records; a record of a block that has ended may be reused while nothing stands there."""

    def __init__(self, block_list: BlockList) -> None:
        self.offsets: dict[int, int] = {}
        self._blocks, count = block_list, len(block_list)
        self._memory = NewMemory(0, block_list.problem.memory.alignment, block_list.taken)
        self._in_using_addr: Counter[int] = Counter()
        # By line of the table; of the lines that are not made yet, the size is -1.
        self._line_of: dict[int, int] = {}
        self._offsets = np.zeros(count, np.int64)
        self._sizes = np.full(count, -1, np.int64)
        self._has_ended = np.zeros(count, bool)
        self._is_free = np.zeros(count, bool)

    def place(self, block: int, operands: Sequence[int]) -> None:
        """Place a result: where the first record that meets the conditions stands, or after all.

        That record has ended, is as large or larger and aligned, and stands at the address of no
        operand and of nothing that must be kept apart from the result.
        """
        size, alignment = self._blocks.sizes[block], self._blocks.alignments[block]
        others = (*operands, *self._blocks.separated.get(block, ()))
        forbidden = [self.offsets[other] for other in others if other in self.offsets]
        fits = self._is_free & (self._sizes >= size) & (self._offsets % alignment == 0)
        lines = np.flatnonzero(fits & ~np.isin(self._offsets, forbidden))
        offset = int(self._offsets[lines[0]]) if lines.size else self._memory.open(size, alignment)
        line = len(self.offsets)
        self._line_of[block], self._offsets[line], self._sizes[line] = line, offset, size
        self._in_using_addr[offset] += 1
        self._is_free[self._offsets == offset] = False
        self.offsets[block] = offset

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks whose life is over."""
        for block in blocks:
            offset = self.offsets[block]
            self._has_ended[self._line_of[block]] = True
            self._in_using_addr[offset] -= 1
            if not self._in_using_addr[offset]:
                self._is_free |= self._has_ended & (self._offsets == offset)
