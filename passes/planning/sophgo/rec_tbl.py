"""`rec_tbl`: Sophgo's GMEM allocation, on a graph step by step, and as a planner.

The strategy of TPU-MLIR's AddressAssign pass: weights first, one after another; then every tensor
that lives in global memory, by life cycle. It places the results of one op after another, in three
steps an op: count down the operands' references, place the results, release the operands that have
ended. A result takes the first record of a finished tensor that meets five conditions, or new
memory. The table, and what else the original keeps, have their names here:

- ``rec_tbl``, the records (value, offset, size) in the order in which they were made. A slot that a
  smaller tensor takes stays in the table with its full size, so that its size is remembered.
- ``ref_cnt``, how often a value is still to be read.
- ``hold_edges``, the values that are placed and not yet released.
- ``in_using_addr``, the addresses that they stand at.

The rules are those of the first versions of the pass; later ones keep no such table.
The original counts references by value. Where a reshape gives a tensor a second name at the same
address, the end of one name gives the address away though the other is still to be read, and the
next tensor overwrites it. Here references are counted by storage, all names together; ``by_value``
does as the original does, for comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from passes.planning.engine.blocks import BlockList
from passes.planning.plan import Plan
from passes.planning.planner import Budget, register
from passes.planning.problem import Problem
from passes.planning.sophgo.op_sequence import Op, OpSequence, Value
from passes.planning.sophgo.records import ReusableRecords
from passes.planning.sophgo.regions import GMEM_ALIGNMENT, NewMemory, check_region


class Decision(Enum):
    """What became of a result."""

    NEW = "new"
    """No record met the conditions: it has memory that nothing had before."""
    REUSE = "reuse"
    """It has the address of a record."""
    SHARE = "share"
    """It is another name of its op's first operand."""
    NOTHING = "nothing"
    """There is nothing to place; operands are counted down and, except by some kinds, released."""


class Condition(Enum):
    """What a record must meet to be reused, in the words of the original."""

    HOLD_EDGES = "its value is not in hold_edges"
    IN_USING_ADDR = "its address is not in in_using_addr"
    END_OF_LIFE = "its value is at its end of life"
    SIZE = "it is as large as the result, or larger"
    OPERANDS = "its address is that of no operand"


class Record(NamedTuple):
    """A line of ``rec_tbl``; its fourth column, ``ref_cnt``, is kept by storage."""

    value: str
    offset: int
    size: int


@dataclass(frozen=True)
class Step:
    """What happened to one result, and how things stand after it.

    Parameters
    ----------
    op : str
        The name of the op.
    result : str, optional
        The value; None for an op that has nothing to place.
    decision : Decision
        What became of it.
    offset : int, optional
        Where it is, in bytes; None if it has no address of this memory.
    source : str, optional
        The value whose record was reused, or whose other name the result is.
    passed_over : tuple of (str, Condition)
        The values whose records came before in the table, and the first condition that each
        failed; all of the table for new memory.
    released : tuple of str
        The values that left ``hold_edges`` after the result was placed.
    held : tuple of str
        ``hold_edges`` after that.
    in_use : tuple of int
        ``in_using_addr`` after that: offsets in bytes, ascending.
    references : mapping of str to int
        ``ref_cnt`` after that, of what is held.
    """

    op: str
    result: str | None
    decision: Decision
    offset: int | None
    source: str | None
    passed_over: tuple[tuple[str, Condition], ...]
    released: tuple[str, ...]
    held: tuple[str, ...]
    in_use: tuple[int, ...]
    references: Mapping[str, int]


@dataclass(frozen=True)
class Allocation:
    """Where the values of a graph are.

    Parameters
    ----------
    offsets : mapping of str to int
        Of each value that is placed or shares a place, in bytes.
    base : int
        Where the memory begins, in bytes.
    size : int
        The bytes that it takes from there, a multiple of the alignment.
    """

    offsets: Mapping[str, int]
    base: int
    size: int


def allocate(
    sequence: OpSequence, base: int = 0, alignment: int = GMEM_ALIGNMENT, *, by_value: bool = False
) -> Allocation:
    """Place the values of a graph; about linear in its ops.

    Parameters
    ----------
    sequence : OpSequence
        What to place.
    base : int
        Where the memory begins, in bytes: behind the weights.
    alignment : int
        Every offset is a multiple of this many bytes.
    by_value : bool
        Count references by value, as the original does, not by storage. Such a plan can be wrong
        where there are reshapes or values without a byte, and loses what a reshape reads last.
        (The original never reuses address zero, which no chip's memory begins at; this does.)

    Raises
    ------
    ValueError
        If `base` is not a multiple of `alignment`.

    Examples
    --------
    >>> ops = (Op("a", "conv", (), (Value("x", 8192),)), Op("b", "conv", ("x",), (Value("y", 1),)))
    >>> allocate(OpSequence(ops)).offsets
    {'x': 0, 'y': 8192}
    """
    check_region(sequence.name, base, alignment)
    memory = NewMemory(base, alignment)
    table = RecTbl(sequence, memory, by_value=by_value)
    for op in sequence.ops:
        for _ in table.visit(op):
            pass
    return Allocation(table.offsets, base, memory.end - base)


def trace(
    sequence: OpSequence, base: int = 0, alignment: int = GMEM_ALIGNMENT, *, by_value: bool = False
) -> Iterator[Step]:
    """Yield what `allocate` does, step by step: one a result, one for an op that has none.

    The arguments are those of `allocate`. A step tells of all that is held and of each record that
    was passed over, so this takes quadratic time: it is for people.
    """
    check_region(sequence.name, base, alignment)
    table = RecTbl(sequence, NewMemory(base, alignment), by_value=by_value)
    for op in sequence.ops:
        none = True
        for placed in table.visit(op, explain=True):
            none = False
            yield _step(table, op, placed)
        if none:
            yield _step(table, op, _Placed(None, Decision.NOTHING))


def plan_of(problem: Problem, allocation: Allocation) -> Plan:
    """Return an allocation of a graph as a plan of its problem, to draw or to verify.

    Parameters
    ----------
    problem : Problem
        What `to_problem` makes of the graph.
    allocation : Allocation
        Where its values are.
    """
    offsets = [allocation.offsets[buffer.name] for buffer in problem.buffers]
    return BlockList(problem).plan(offsets, "rec_tbl")


def _step(table: RecTbl, op: Op, placed: _Placed) -> Step:
    return Step(
        op.name,
        placed.value,
        placed.decision,
        None if placed.value is None else table.offsets.get(placed.value),
        placed.source,
        placed.passed_over,
        placed.released,
        tuple(table.hold_edges),
        tuple(sorted(table.in_using_addr)),
        {value: table.references(value) for value in table.hold_edges},
    )


class _Placed(NamedTuple):
    """What `RecTbl.visit` tells of a result."""

    value: str | None
    decision: Decision
    source: str | None = None
    passed_over: tuple[tuple[str, Condition], ...] = ()
    released: tuple[str, ...] = ()


class RecTbl:
    """The state of the strategy.

    Parameters
    ----------
    sequence : OpSequence
        Whose ops are going to be visited, each once and in order.
    memory : NewMemory
        Where new memory comes from.
    by_value : bool
        Count references by value, as the original does, not by storage.
    apart : mapping of str to sequence of str
        For a value, others that it must not share an address with, whenever they live.

    Attributes
    ----------
    rec_tbl : list of Record
        All that was placed, in order.
    hold_edges : dict of str to None
        The values that are placed and not yet released, in order.
    in_using_addr : dict of int to int
        The addresses at which they stand, and how many storages are there: more than one only
        where some have no bytes. By value it is always one, as in the original's set.
    offsets : dict of str to int
        Where each value is, in bytes.
    """

    def __init__(
        self,
        sequence: OpSequence,
        memory: NewMemory,
        *,
        by_value: bool = False,
        apart: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.rec_tbl: list[Record] = []
        self.hold_edges: dict[str, None] = {}
        self.in_using_addr: dict[int, int] = {}
        self.offsets: dict[str, int] = {}
        self._sequence = sequence
        self._memory = memory
        self._by_value = by_value
        self._apart = apart or {}
        self._ref_cnt: dict[str, int] = {}
        self._uses = sequence.uses if by_value else _uses_of_storages(sequence)
        # The lines of `rec_tbl` of each counted thing, a value or a storage.
        self._lines: defaultdict[str, list[int]] = defaultdict(list)
        self._reusable = ReusableRecords(len(sequence.recorded))

    def references(self, value: str) -> int:
        """Return how often a value, or any name of its storage, is still to be read."""
        return self._ref_cnt.get(self._counted(value), 0)

    def visit(self, op: Op, *, explain: bool = False) -> Iterator[_Placed]:
        """Place the results of an op, and yield each when it is placed and the operands released.

        Parameters
        ----------
        op : Op
            The next of the sequence.
        explain : bool
            Whether to tell which records were passed over, and why.
        """
        self._adjust_life_cycle(op)
        if op.skipped:
            return
        if op.shares:
            yield from self._share(op)
            return
        for result in op.results:
            passed_over = tuple(self._passed_over(op, result)) if explain else ()
            line = self._find_reusable(op, result)
            if line is None:
                alignment = self._sequence.alignments[result.name]
                offset = self._memory.open(result.size, alignment)
                placed = _Placed(result.name, Decision.NEW, None, passed_over)
            else:
                source, offset, _ = self.rec_tbl[line]
                placed = _Placed(result.name, Decision.REUSE, source, passed_over)
            self._take(offset)
            self._record(result, offset)
            yield placed._replace(released=tuple(self._release(op)))
        if not op.results and not self._by_value:
            # The original releases within the loop over results, so here it keeps the operands.
            list(self._release(op))

    # Step 1: the life cycle

    def _adjust_life_cycle(self, op: Op) -> None:
        """Count down the references of the operands; one that is read twice is counted twice."""
        for operand in op.operands:
            counted = self._counted(operand)
            if self._ref_cnt.get(counted, 0) >= 1:
                self._ref_cnt[counted] -= 1

    def _counted(self, value: str) -> str:
        """Return what the references of a value are counted by: itself, or its storage."""
        return value if self._by_value else self._sequence.storage_of.get(value, value)

    # Step 2: a place

    def _find_reusable(self, op: Op, result: Value) -> int | None:
        """Return the line of the first record that meets the five conditions.

        Those that are in `_reusable` and free meet the first three: their value is released, it
        has ended, and nothing is at their address. It finds those that are large enough; what
        remains is the last condition, and the alignment where a result asks for one of its own.
        """
        forbidden = self._forbidden(op, result)
        alignment = self._sequence.alignments[result.name]
        line = self._reusable.first(result.size)
        while line >= 0:
            offset = self.rec_tbl[line].offset
            if offset not in forbidden and offset % alignment == 0:
                return line
            line = self._reusable.first(result.size, line + 1)
        return None

    def _forbidden(self, op: Op, result: Value) -> set[int]:
        """Return the addresses of the operands, and of what must be kept apart."""
        others = (*op.operands, *self._apart.get(result.name, ()))
        return {self.offsets[other] for other in others if other in self.offsets}

    def _passed_over(self, op: Op, result: Value) -> Iterator[tuple[str, Condition]]:
        """Yield the records before the one that `_find_reusable` finds, read off the table."""
        forbidden = self._forbidden(op, result)
        for record in self.rec_tbl:
            failed = self._first_failed(record, result, forbidden)
            if failed is None:
                return
            yield record.value, failed

    def _first_failed(self, record: Record, result: Value, forbidden: set[int]) -> Condition | None:
        """Return the first of the five conditions that a record does not meet."""
        meets = {
            Condition.HOLD_EDGES: record.value not in self.hold_edges,
            Condition.IN_USING_ADDR: record.offset not in self.in_using_addr,
            Condition.END_OF_LIFE: self.references(record.value) == 0,
            Condition.SIZE: record.size >= result.size,
            Condition.OPERANDS: record.offset not in forbidden,
        }
        return next((condition for condition, is_met in meets.items() if not is_met), None)

    def _share(self, op: Op) -> Iterator[_Placed]:
        """Give the results the address of the first operand, if that has one; release nothing."""
        for result in op.results:
            source = op.operands[0]
            if source not in self.offsets:
                continue
            offset = self.offsets[source]
            if op.nested:
                self.offsets[result.name] = offset
            else:
                if self._by_value:
                    self._take(offset)
                self._record(result, offset)
            yield _Placed(result.name, Decision.SHARE, source)

    def _record(self, value: Value, offset: int) -> None:
        """Enter a placed value into the table, and hold it."""
        counted = self._counted(value.name)
        self._lines[counted].append(len(self.rec_tbl))
        self.rec_tbl.append(Record(value.name, offset, value.size))
        self._ref_cnt.setdefault(counted, self._uses.get(counted, 0))
        self.hold_edges[value.name] = None
        self.offsets[value.name] = offset

    def _take(self, offset: int) -> None:
        before = self.in_using_addr.get(offset, 0)
        self.in_using_addr[offset] = 1 if self._by_value else before + 1
        if before == 0:
            self._reusable.take(offset)

    # Step 3: what has ended

    def _release(self, op: Op) -> Iterator[str]:
        """Let go of the operands whose life is over, and yield all their names."""
        for operand in op.operands:
            counted = self._counted(operand)
            if counted in self.hold_edges and self._ref_cnt[counted] == 0:
                offset = self.offsets[counted]
                self._leave(offset)
                for line in self._lines[counted]:
                    value, _, size = self.rec_tbl[line]
                    del self.hold_edges[value]
                    is_free = offset not in self.in_using_addr
                    self._reusable.add(line, offset, size, is_free)
                    yield value

    def _leave(self, offset: int) -> None:
        """Take one storage off an address; by value, whatever is there."""
        left = self.in_using_addr.pop(offset, 0) - 1
        if left > 0:
            self.in_using_addr[offset] = left
        else:
            self._reusable.free(offset)


def _uses_of_storages(sequence: OpSequence) -> Mapping[str, int]:
    """Return how often any name of each storage is read.

    A name that is never read counts as one more reader: it may be what the graph is for.
    """
    uses: defaultdict[str, int] = defaultdict(int)
    for value, count in sequence.uses.items():
        if value in sequence.storage_of:
            uses[sequence.storage_of[value]] += count
    for value in sequence.recorded:
        if value not in sequence.uses:
            uses[sequence.storage_of[value]] += 1
    return uses


# The planner


@register("rec_tbl")
def rec_tbl(problem: Problem, budget: Budget) -> Plan:
    """Reuse whole slots, the first made first, as Sophgo's GMEM allocation does.

    A buffer whose life begins at a position is the result of an op there, and one whose life ends
    right after it an operand that is read there for the last time. Buffers that begin together are
    placed in the problem's order. A buffer with several live ranges holds its slot from the first
    to the last, and each slot is a buffer of its own. A separated buffer takes no address that one
    of its partners has had; pinned buffers share with none. In-place pairs and penalties are not
    looked at. About linear in the buffers.
    """
    block_list = BlockList(problem)
    pins = ((offset, offset + block_list.sizes[b]) for b, offset in block_list.pinned.items())
    taken = sorted((*problem.memory.reserved, *pins))
    memory = NewMemory(0, problem.memory.alignment, taken)
    sequence = _ops_of(block_list)
    table = RecTbl(sequence, memory, apart=_separated(block_list))
    for op in sequence.ops:
        for _ in table.visit(op):
            pass
    offsets = [
        block_list.pinned[b] if b in block_list.pinned else table.offsets[str(b)]
        for b in range(len(block_list))
    ]
    return block_list.plan(offsets, "rec_tbl")


def _ops_of(block_list: BlockList) -> OpSequence:
    """Return the ops of which the blocks that are not pinned are operands and results."""
    begin: defaultdict[int, list[int]] = defaultdict(list)
    last: defaultdict[int, list[int]] = defaultdict(list)
    for block, live in enumerate(block_list.live):
        if block not in block_list.pinned:
            begin[live[0][0]].append(block)
            last[live[-1][1] - 1].append(block)
    ops = []
    for position in sorted({*begin, *last}):
        made = set(begin[position])
        old = tuple(str(block) for block in last[position] if block not in made)
        results = (
            Value(str(block), block_list.sizes[block], block_list.alignments[block])
            for block in begin[position]
        )
        ops.append(Op(str(position), "op", old, tuple(results)))
        # What ends where it begins is read by no op: one without results lets go of it.
        brief = tuple(str(block) for block in last[position] if block in made)
        if brief:
            ops.append(Op(str(position), "drop", brief))
    return OpSequence(tuple(ops), block_list.problem.name)


def _separated(block_list: BlockList) -> Mapping[str, list[str]]:
    """Return for each block of a separated buffer the blocks of its partners."""
    partners: defaultdict[str, list[str]] = defaultdict(list)
    for first, second in block_list.problem.kept_apart:
        for one in block_list.blocks_of(first):
            for two in block_list.blocks_of(second):
                partners[str(one)].append(str(two))
                partners[str(two)].append(str(one))
    return partners
