# SPDX-License-Identifier: Apache-2.0
"""`rec_tbl`: Sophgo's allocation of global memory, as a planner and step by step.

The rules are those of the AddressAssign pass in the first versions of TPU-MLIR; later versions keep
no such table. The strategy visits positions in order. At each position some buffers begin, which
the original calls the results of an op, and the lives of others end, its operands. A result takes
the first record of the table that meets the conditions, or new memory if none does. Operands are
released after the first result is placed, and none of their addresses goes to a result of the same
op. Names of the original are kept where they mean the same:

- ``rec_tbl``, the records (buffer, offset, size) in the order in which they were made. A slot that
  a smaller buffer takes stays in the table with its full size, so that its size is remembered.
- ``hold_edges``, the buffers that are placed and not yet released.
- ``in_using_addr``, the offsets at which they stand.

The original counts the references of a value. A live range says the same of all names of a buffer
together. Counted by name instead, the end of one name gives the address away though another is
still to be read; `tests/gmem/planning/graph_oracles.py` shows that hazard of the original.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from passes.planning import Budget, Plan, Problem, register
from passes.planning.engine import BlockList, NewMemory


class Condition(Enum):
    """What a record must meet to be reused, in the words of the original."""

    HOLD_EDGES = "its value is not in hold_edges"
    """The original also asks that no reads are to come; a live range says both at once."""
    IN_USING_ADDR = "its address is not in in_using_addr"
    SIZE = "it is as large as the result, or larger"
    OPERANDS = "its address is that of no operand"
    """A buffer that must be kept apart from the result counts as an operand here."""


class Record(NamedTuple):
    """A line of ``rec_tbl``: a block, its offset and its size in bytes."""

    block: int
    offset: int
    size: int


@dataclass(frozen=True)
class PlacedRecord:
    """How one buffer of a problem was placed, and how things stand after it."""

    position: int  # At which it begins
    buffer: str  # Its name, with its slot where it has several
    offset: int  # In bytes
    source: str | None  # The buffer whose record was reused; None where the memory is new
    # The buffers whose records come before in the table, and the first condition that each failed.
    # For new memory these are all records.
    passed_over: tuple[tuple[str, Condition], ...]
    held: tuple[str, ...]  # ``hold_edges``, in the order in which the buffers were placed

    @property
    def decision(self) -> str:
        """Where the bytes come from, in the original's words: ``new`` or ``reuse``."""
        return "new" if self.source is None else "reuse"


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
        table.release(() if op.results else op.operands)
        for index in range(len(op.results)):
            table.place(op, index)
    offsets = {**table.offsets, **block_list.pinned}
    return block_list.plan([offsets[b] for b in range(len(block_list))], "rec_tbl")


def trace(problem: Problem) -> Iterator[PlacedRecord]:
    """Yield what the planner `rec_tbl` does, a step for each buffer.

    A step lists all that is held and each record that was passed over, so this takes quadratic
    time.
    """
    block_list = BlockList(problem)
    table = _RecordTable(block_list)
    names = [
        name if buffer.slots == 1 else f"{name}[{slot}]"
        for name, buffer in ((buffer.name, buffer) for buffer in problem.buffers)
        for slot in range(buffer.slots)
    ]
    for op in _ops(block_list):
        table.release(() if op.results else op.operands)
        for index, block in enumerate(op.results):
            passed_over = [(names[b], failed) for b, failed in table.passed_over(op, block)]
            source = table.place(op, index)
            yield PlacedRecord(
                op.position,
                names[block],
                table.offsets[block],
                None if source is None else names[source],
                tuple(passed_over),
                tuple(names[held] for held in table.hold_edges),
            )


class _Op(NamedTuple):
    """What begins and what ends at one position: blocks, each in the problem's order."""

    position: int
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
        made = set(begin.get(position, ()))
        ended = last.get(position, [])
        yield _Op(
            position,
            tuple(block for block in ended if block not in made),
            tuple(begin.get(position, ())),
            tuple(block for block in ended if block in made),
        )


class _RecordTable:
    """The state of the strategy."""

    def __init__(self, block_list: BlockList) -> None:
        self.rec_tbl: list[Record] = []
        self.hold_edges: dict[int, None] = {}
        self.in_using_addr: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        self._sizes, self._alignments = block_list.sizes, block_list.alignments
        self._memory = NewMemory(0, block_list.problem.memory.alignment, block_list.taken)
        self._apart = block_list.separated
        self._line_of: dict[int, int] = {}
        # By offset, line and size of the records whose value has ended. A record behind another
        # that is as large can never be the first, so it is left out. `_free` has the offsets that
        # are in no use.
        self._ended: dict[int, list[tuple[int, int]]] = {}
        self._free: dict[int, None] = {}

    def place(self, op: _Op, index: int) -> int | None:
        """Place a result, and return whose record is reused."""
        block, source = op.results[index], None
        line = self._find_reusable(op, block)
        if line is None:
            offset = self._memory.open(self._sizes[block], self._alignments[block])
        else:
            source, offset, _ = self.rec_tbl[line]
        self.in_using_addr[offset] = self.in_using_addr.get(offset, 0) + 1
        self._free.pop(offset, None)
        self._line_of[block] = len(self.rec_tbl)
        self.rec_tbl.append(Record(block, offset, self._sizes[block]))
        self.hold_edges[block] = None
        self.offsets[block] = offset
        if index == 0:
            self.release(op.operands)
        if index == len(op.results) - 1:
            self.release(op.unread)
        return source

    def _find_reusable(self, op: _Op, block: int) -> int | None:
        """Return the line of the first record that meets the conditions, and is aligned."""
        forbidden, wanted = self._forbidden(op, block), self._sizes[block]
        lines = (
            next((line for line, size in self._ended[offset] if size >= wanted), None)
            for offset in self._free
            if offset not in forbidden and offset % self._alignments[block] == 0
        )
        return min((line for line in lines if line is not None), default=None)

    def _forbidden(self, op: _Op, block: int) -> set[int]:
        """Return the offsets of the operands, and of what must be kept apart."""
        others = (*op.operands, *self._apart.get(block, ()))
        return {self.offsets[other] for other in others if other in self.offsets}

    def passed_over(self, op: _Op, block: int) -> Iterator[tuple[int, Condition]]:
        """Yield the records before the one that `_find_reusable` finds, read off the table."""
        forbidden = self._forbidden(op, block)
        for record in self.rec_tbl:
            meets = {
                Condition.HOLD_EDGES: record.block not in self.hold_edges,
                Condition.IN_USING_ADDR: record.offset not in self.in_using_addr,
                Condition.SIZE: record.size >= self._sizes[block],
                Condition.OPERANDS: record.offset not in forbidden,
            }
            failed = next((condition for condition, is_met in meets.items() if not is_met), None)
            if failed is not None:
                yield record.block, failed
            elif record.offset % self._alignments[block] == 0:
                return

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks whose life is over."""
        for block in blocks:
            offset = self.offsets[block]
            left = self.in_using_addr.pop(offset) - 1
            if left:
                self.in_using_addr[offset] = left
            else:
                self._free[offset] = None
            del self.hold_edges[block]
            known = sorted(
                [*self._ended.get(offset, ()), (self._line_of[block], self._sizes[block])]
            )
            largest = accumulate((size for _, size in known), max, initial=-1)
            self._ended[offset] = [
                one for one, before in zip(known, largest, strict=False) if one[1] > before
            ]
