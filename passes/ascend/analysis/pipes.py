# SPDX-License-Identifier: Apache-2.0
"""Which hardware pipeline runs each statement, and how each buffer meets the pipelines.

An Ascend core runs its instructions on pipelines that work side by side: three that transfer
(MTE1, MTE2, MTE3), one that drains the accumulator (FIX), the vector unit (V), the cube unit (M)
and the scalar unit (S). Which one an instruction runs on follows from the memories that it reads
and writes. Source: AscendNPU-IR, developer guide "Plan Memory" and ``PlanMemory.cpp`` of the HIVM
dialect, which sort buffers by the pipelines that touch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from passes.ascend.analysis.computations import (
    FILLS_FROM_GLOBAL,
    Computation,
    IfElse,
    Memory,
    Node,
    Repeat,
)
from passes.ascend.analysis.find_computations import find_computations
from passes.planning import PipelineUse
from passes.prim_func import FunctionProblems
from passes.simulation import Alternative, Loop, Statement, Step

PIPES = ("MTE1", "MTE2", "MTE3", "FIX", "V", "M", "S")  # What a pipe can be called
DRAINS = ("MTE3", "FIX")  # The pipes that drain on-chip memory

_TRANSFERS = ("MTE1", "MTE2", "MTE3", "FIX")
_UNIQUE = "mem_unique"  # The annotation of an allocation that shares bytes with no other


@dataclass(frozen=True, eq=False)
class Pipelines:
    """A function as the pipelines see it. Allocations are told by index in ``access.allocs``."""

    # The statements, with the loops and branches around. Of buffers it names those that are
    # planned, as the function's problems do.
    program: tuple[Step, ...]
    uses: Mapping[int, PipelineUse]  # Of the planned allocations
    # The pipes that read and that write a planned allocation.
    readers: Mapping[int, set[str]]
    writers: Mapping[int, set[str]]
    # The statements on planned memory of which neither the program nor the memories say where they
    # run, by name. They are taken to be the scalar unit's.
    guesses: tuple[str, ...]
    unique: frozenset[int]  # The planned allocations annotated to share bytes with no other
    # The stores, by handle, that are each a computation of the vector unit, or would be if their
    # operators were not run element by element by the scalar unit.
    elementwise: frozenset[int]
    # The planned allocations that are read before anything has written them, in order.
    read_first: tuple[int, ...]


def find_pipelines(found: FunctionProblems) -> Pipelines:
    """Find the pipe of each statement of a flat function, and what buffers have to do with them.

    A statement runs on the pipe that the program names, with ``T.attr({"pipe": ...})`` or a loop's
    annotation of that key; else on the pipe that `computations.route` says. Of what would run on
    the vector unit, the scalar unit runs what writes one element only, or has an operator that the
    vector unit lacks. Raises `ValueError` when a named pipe is not in `PIPES`.
    """
    return _Builder(found).build()


def _pipe_of(computation: Computation) -> str:
    """Return the pipe that runs a computation: the scalar unit where nothing decides it.

    Raises `ValueError` when the program names a pipe that there is not.
    """
    if computation.pipe is not None:
        if computation.pipe not in PIPES:
            touched = ", ".join(
                f"{memory.name!r} in {memory.scope}"
                for memory in computation.writes or computation.reads
            )
            raise ValueError(
                f"unknown pipe {computation.pipe!r} of a statement on {touched}; "
                f"there are: {', '.join(PIPES)}"
            )
        return computation.pipe
    pipe = computation.pipe_by_scopes or "S"
    is_scalar = computation.elements <= 1 or computation.scalar_loop
    return "S" if pipe == "V" and is_scalar else pipe


class _Builder:
    """Numbers the loops, makes the statements and gathers who uses what."""

    def __init__(self, found: FunctionProblems) -> None:
        self._found = found
        self._names = {
            allocation.index: name
            for attached in found.problems
            for name, allocation in attached.allocations.items()
        }
        self._runs = dict.fromkeys(self._names, 1)
        self._readers: dict[int, set[str]] = {index: set() for index in self._names}
        self._writers: dict[int, set[str]] = {index: set() for index in self._names}
        self._elementwise: set[int] = set()
        self._guesses: list[str] = []
        self._numbers: dict[int, int] = {}  # of the loops, by handle

    def build(self) -> Pipelines:
        nodes, read_first = find_computations(self._found, self._names)
        program = tuple(self._steps(nodes, 1))
        return Pipelines(
            program,
            {index: self._use(index) for index in self._names},
            self._readers,
            self._writers,
            tuple(dict.fromkeys(self._guesses)),
            frozenset(index for index in self._names if self._is_unique(index)),
            frozenset(self._elementwise),
            read_first,
        )

    def _steps(self, nodes: Sequence[Node], runs: int) -> Iterator[Step]:
        for node in nodes:
            if isinstance(node, Repeat):
                number = len(self._numbers)
                self._numbers[node.loop.__chandle__()] = number
                body = tuple(self._steps(node.body, runs * node.trips))
                yield Loop(number, node.trips, body)
            elif isinstance(node, IfElse):
                then = tuple(self._steps(node.then, runs))
                yield Alternative(then, tuple(self._steps(node.otherwise, runs)))
            else:
                yield self._statement(node, runs)

    def _statement(self, node: Computation, runs: int) -> Statement:
        pipe, by_scopes = _pipe_of(node), node.pipe_by_scopes
        if len(node.stores) == 1 and "V" in (pipe, by_scopes if node.scalar_loop else ""):
            self._elementwise.add(node.stores[0].__chandle__())
        reads, writes = self._planned(node.reads), self._planned(node.writes)
        for touched, pipes in ((reads, self._readers), (writes, self._writers)):
            for index in touched:
                self._runs[index] = max(self._runs[index], runs)
                pipes[index].add(pipe)
        written = ", ".join(memory.name for memory in node.writes) or "scalar"
        read = ", ".join(memory.name for memory in node.reads)
        name = f"{written} from {read}" if read else written
        if (reads or writes) and node.pipe is None and node.elements > 1 and by_scopes is None:
            self._guesses.append(name)
        operand_bits = max((memory.bits for memory in node.operands), default=node.element_bits)
        return Statement(
            name,
            pipe,
            tuple(self._names[index] for index in reads),
            tuple(self._names[index] for index in writes),
            -(-node.moved_bits // 8) if pipe in _TRANSFERS else node.elements,
            # The accumulator that a product is added to may be wider than what is multiplied.
            operand_bits if pipe == "M" else node.element_bits,
        )

    def _planned(self, memories: Sequence[Memory]) -> list[int]:
        return [m.index for m in memories if m.index is not None and m.index in self._names]

    def _is_unique(self, index: int) -> bool:
        value = self._found.access.alloc_stmts[index].annotations.get(_UNIQUE, False)
        return bool(getattr(value, "value", value))

    def _use(self, index: int) -> PipelineUse:
        loop, reads, writes = (
            self._found.uses[index].loop,
            self._readers[index],
            self._writers[index],
        )
        return PipelineUse(
            dma=FILLS_FROM_GLOBAL in writes or not reads.isdisjoint(DRAINS),
            scalar="S" in reads | writes,
            # Without slots of its own it takes turns with the loop around its allocation, too.
            loop=None if loop is None else self._numbers.get(loop.__chandle__()),
            runs=self._runs[index],
        )
