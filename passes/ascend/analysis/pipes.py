# SPDX-License-Identifier: Apache-2.0
"""The hardware pipeline of each statement, and the uses of each buffer by pipelines.

An Ascend core runs its instructions on pipelines that work side by side: three that transfer (MTE1,
MTE2, MTE3), one that drains the accumulator (FIX), the vector unit (V), the cube unit (M) and the
scalar unit (S). An instruction's pipe follows from the memories that it reads and writes. Source:
AscendNPU-IR, developer guide "Plan Memory" and ``PlanMemory.cpp`` of the HIVM dialect, which sort
buffers by the pipelines that touch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from passes.ascend.analysis.computation_finder import find_computations
from passes.ascend.analysis.computations import Computation, Memory, Node
from passes.ascend.analysis.instructions import FILLS_FROM_GLOBAL, STORES_TO_GLOBAL
from passes.planning import PipelineUse
from passes.prim_func import FunctionProblems
from passes.simulation import Alternative, Loop, Statement, Step

PIPES = ("MTE1", "MTE2", "MTE3", "FIX", "V", "M", "S")  # The names of pipes

_TRANSFERS = ("MTE1", "MTE2", "MTE3", "FIX")
_DRAINS = (STORES_TO_GLOBAL, "FIX")  # The pipes that drain on-chip memory


class Pipelines:
    """A function as the pipelines see it. Buffers have the names that its problems give them.

    A statement runs on the pipe that the program names, with ``T.attr({"pipe": ...})`` or a loop's
    annotation of that key; else on the pipe that `route` says. Of what would run on the vector
    unit, the scalar unit runs what writes one element only, or has an operator that the vector unit
    lacks. Raises `ValueError` when a named pipe is not in `PIPES`.
    """

    def __init__(self, found: FunctionProblems) -> None:
        planned = {
            allocation.index: name
            for attached in found.problems
            for name, allocation in attached.allocations.items()
        }
        # The number of each loop, and how often its body runs at most, by handle.
        self._loops: dict[int, tuple[int, int]] = {}
        self._numbers = count()
        # The pipes that read and that write each planned buffer.
        self.readers: dict[str, set[str]] = {name: set() for name in planned.values()}
        self.writers: dict[str, set[str]] = {name: set() for name in planned.values()}
        # The stores, by handle, that are each a computation of the vector unit, or would be if
        # their operators were not run element by element by the scalar unit.
        self.elementwise: set[int] = set()
        # The statements on planned memory of which neither the program nor the memories say where
        # they run, by name, each once. They are taken to be the scalar unit's.
        self.guesses: tuple[str, ...] = ()
        # The statements, with the loops and branches around. Of buffers it names those that are
        # planned.
        self.program: tuple[Step, ...] = tuple(self._steps(find_computations(found, planned), 1))
        # Of the planned buffers. Without slots of its own one takes turns with the loop around its
        # allocation, too.
        self.uses = {
            name: self._use(name, found.accesses.of[index].loop) for index, name in planned.items()
        }

    def _use(self, name: str, loop: Any) -> PipelineUse:
        number, runs = self._loops.get(0 if loop is None else loop.__chandle__(), (None, 1))
        readers, writers = self.readers[name], self.writers[name]
        is_moved = FILLS_FROM_GLOBAL in writers or not readers.isdisjoint(_DRAINS)
        return PipelineUse(is_moved, "S" in readers | writers, number, max(runs, 1))

    def _steps(self, nodes: Sequence[Node], runs: int) -> Iterator[Step]:
        """Yield what the simulator runs for some nodes, which run `runs` times."""
        for node in nodes:
            if isinstance(node, Loop):
                # One statement may stand in several places.
                number, inside = next(self._numbers), runs * node.extent
                self._loops[node.number] = number, inside
                yield Loop(number, node.extent, tuple(self._steps(node.body, inside)))
            elif isinstance(node, Alternative):
                yield Alternative(
                    *(tuple(self._steps(case, runs)) for case in (node.then, node.otherwise))
                )
            else:
                yield self._statement(node)

    def _statement(self, node: Computation) -> Statement:
        by_scopes = node.pipe_by_scopes
        pipe = _pipe_of(node, by_scopes)
        is_vector = pipe == "V" or (by_scopes == "V" and node.is_scalar_loop)
        if len(node.stores) == 1 and is_vector:
            self.elementwise.add(node.stores[0].__chandle__())
        written = ", ".join(memory.name for memory in node.writes) or "scalar"
        read = ", ".join(memory.name for memory in node.reads)
        name = f"{written} from {read}" if read else written
        reads, writes = _planned(node.reads), _planned(node.writes)
        for pipes, buffers in ((self.readers, reads), (self.writers, writes)):
            for buffer in buffers:
                pipes[buffer].add(pipe)
        is_guess = node.pipe is None and by_scopes is None and node.elements > 1
        if is_guess and (reads or writes) and name not in self.guesses:
            self.guesses += (name,)
        work = -(-node.moved_bits // 8) if pipe in _TRANSFERS else node.elements
        bits = node.element_bits
        if pipe == "M":
            # The accumulator that a product is added to may be wider than what is multiplied.
            bits = max((memory.bits for memory in node.operands), default=bits)
        return Statement(name, pipe, reads, writes, work, bits)


def _planned(memories: Sequence[Memory]) -> tuple[str, ...]:
    return tuple(memory.planned for memory in memories if memory.planned is not None)


def _pipe_of(computation: Computation, by_scopes: str | None) -> str:
    """Return the pipe that runs a computation: the scalar unit where nothing decides it.

    Raises `ValueError` when the program names a pipe that there is not.
    """
    if computation.pipe is None:
        is_scalar = computation.elements <= 1 or computation.is_scalar_loop
        return "S" if by_scopes is None or (by_scopes == "V" and is_scalar) else by_scopes
    if computation.pipe not in PIPES:
        touched = computation.writes or computation.reads
        where = ", ".join(f"{memory.name!r} in {memory.scope}" for memory in touched)
        raise ValueError(
            f"unknown pipe {computation.pipe!r} of a statement on {where}; "
            f"there are: {', '.join(PIPES)}"
        )
    return computation.pipe
