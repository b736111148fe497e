# SPDX-License-Identifier: Apache-2.0
"""`rec_tbl`: Sophgo's allocation of global memory, as a planner.

The rules are those of the AddressAssign pass in the first versions of TPU-MLIR; docs/gmem.md has
them. At each position some buffers begin, which the original calls the results of an op, and the
lives of others end, its operands. A result takes the first record of the table that meets the
conditions, or new memory if none does. Operands are released after the first result is placed, and
none of their addresses goes to a result of the same op. Names of the original are kept:

- ``rec_tbl``, the records (buffer, offset, size) in the order in which they were made. A slot that
  a smaller buffer takes stays in the table with its full size.
- ``hold_edges``, the buffers that are placed and not yet released.
- ``in_using_addr``, the offsets at which they stand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from passes.planning import Budget, Plan, Problem, register
from passes.planning.engine import BlockList, NewMemory


@register("rec_tbl")
def rec_tbl(problem: Problem, budget: Budget) -> Plan:
    """Reuse whole slots, the first made first, as Sophgo's GMEM allocation does.

    Buffers that begin at one position are placed in the problem's order. A buffer with several
    live ranges holds its slot from the first to the last, and each slot is a buffer of its own.
    A separated buffer takes no offset that one of its partners has had; pinned buffers share with
    none. In-place pairs and penalties are not looked at. The time grows with the buffers and
    with the offsets that are free at one time.
    """
    block_list = BlockList(problem)
    table = _RecordTable(block_list)
    for op in _ops(block_list):
        if not op.results:
            table.release(op.operands)
        for index, block in enumerate(op.results):
            table.place(op, block)
            if index == 0:
                table.release(op.operands)
        table.release(op.unread)
    offsets = {**table.offsets, **block_list.pinned}
    return block_list.plan([offsets[b] for b in range(len(block_list))], "rec_tbl")


class _Op(NamedTuple):
    """What begins and what ends at one position: blocks, each in the problem's order."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    unread: tuple[int, ...]
    """The results that also end here."""


def _ops(block_list: BlockList) -> Iterator[_Op]:
    """Yield the positions at which blocks begin or end; pinned blocks are left out."""
    begin: defaultdict[int, list[int]] = defaultdict(list)
    last: defaultdict[int, list[int]] = defaultdict(list)
    for block, live in enumerate(block_list.live):
        if block not in block_list.pinned:
            begin[live[0][0]].append(block)
            last[live[-1][1] - 1].append(block)
    for position in sorted({*begin, *last}):
        results, ended = begin[position], last[position]
        yield _Op(
            tuple(block for block in ended if block not in results),
            tuple(results),
            tuple(block for block in ended if block in results),
        )


class _RecordTable:
    """The records, by what may still come of them."""

    def __init__(self, block_list: BlockList) -> None:
        self.offsets: dict[int, int] = {}
        self._sizes, self._alignments = block_list.sizes, block_list.alignments
        self._memory = NewMemory(0, block_list.problem.memory.alignment, block_list.taken)
        self._apart = block_list.separated
        self._line_of: dict[int, int] = {}
        self._in_using_addr: Counter[int] = Counter()
        # By offset, line and size of the records that are not in ``hold_edges``. A record behind
        # another that is as large can never be the first, so it is left out. `_free` has the
        # offsets that are not in ``in_using_addr``.
        self._ended: dict[int, list[tuple[int, int]]] = {}
        self._free: dict[int, None] = {}

    def place(self, op: _Op, block: int) -> None:
        """Place a result: where the first record that meets the conditions stands, or behind all.

        That record has ended, is as large or larger and aligned, and stands at the address of no
        operand and of nothing that must be kept apart from the result.
        """
        size, alignment = self._sizes[block], self._alignments[block]
        others = (*op.operands, *self._apart.get(block, ()))
        forbidden = {self.offsets[other] for other in others if other in self.offsets}
        found = (
            next(((line, at) for line, ended in self._ended[at] if ended >= size), None)
            for at in self._free
            if at not in forbidden and at % alignment == 0
        )
        first = min((record for record in found if record is not None), default=None)
        offset = self._memory.open(size, alignment) if first is None else first[1]
        self._in_using_addr[offset] += 1
        self._free.pop(offset, None)
        self._line_of[block] = len(self.offsets)
        self.offsets[block] = offset

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks whose life is over."""
        for block in blocks:
            offset = self.offsets[block]
            self._in_using_addr[offset] -= 1
            if not self._in_using_addr[offset]:
                self._free[offset] = None
            record = self._line_of[block], self._sizes[block]
            known = sorted([*self._ended.get(offset, ()), record])
            largest = accumulate((size for _, size in known), max, initial=-1)
            self._ended[offset] = [
                one for one, before in zip(known, largest, strict=False) if one[1] > before
            ]
