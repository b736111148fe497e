# SPDX-License-Identifier: Apache-2.0
"""Which hardware pipeline runs each statement, and how each buffer meets the pipelines.

An Ascend core runs its instructions on pipelines that work side by side: three that transfer
(MTE1, MTE2, MTE3), one that drains the accumulator (FIX), the vector unit (V), the cube unit (M)
and the scalar unit (S). Which one an instruction runs on follows from the memories that it reads
and writes. Source: AscendNPU-IR, developer guide "Plan Memory" and ``PlanMemory.cpp`` of the HIVM
dialect, which sort buffers by the pipelines that touch them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvm.tirx import PrimFunc

from passes.ascend.analysis.computations import Computation, IfElse, Memory, Node, Repeat
from passes.ascend.analysis.find_computations import find_computations
from passes.planning import PipelineUse
from passes.prim_func import FunctionProblems
from passes.simulation import Branch, Loop, Statement, Step

PIPES = ("MTE1", "MTE2", "MTE3", "FIX", "V", "M", "S")  # What a pipe can be called
FILLS_FROM_GLOBAL = "MTE2"  # The pipe that fills on-chip memory from global memory
DRAINS = ("MTE3", "FIX")  # The pipes that drain on-chip memory

_TRANSFERS = ("MTE1", "MTE2", "MTE3", "FIX")
_GM, _UB, _L1, _L0C = "global", "local.UB", "local.L1", "local.L0C"
_REGISTER = "local"
_CUBE_OPERANDS = ("local.L0A", "local.L0B", "local.BT")
_FROM_L1 = (*_CUBE_OPERANDS, "local.FP")
_UNIQUE = "mem_unique"  # The annotation of an allocation that shares bytes with no other


def route(reads: Iterable[str], writes: Iterable[str]) -> str | None:
    """Return the pipe that moves or computes from some memories to others, if these decide it.

    ================================= ==================== ====
    reads                             writes               pipe
    ================================= ==================== ====
    L0A, L0B, BT, L1; or nothing      L0C                  M
    L0C, with or without others       all but L0C          FIX
    global                            on chip              MTE2
    L1                                L0A, L0B, BT, FP     MTE1
    UB                                global, L1           MTE3
    UB; or nothing                    UB                   V
    nothing                           L1                   MTE2
    nothing                           L0A, L0B, BT, FP     MTE1
    any                               a register           S
    any                               nothing              S
    any other                                              none
    ================================= ==================== ====

    A product that reads L1 itself is an instruction that loads L0A and L0B on its way. Memories are
    storage scopes, of which ``global`` stands for all of that rank. Registers do not count among
    `reads`, nor does what is written and only added to.
    """
    sources, targets = (
        {_GM if scope.startswith(f"{_GM}.") else scope for scope in scopes}
        for scopes in (reads, writes)
    )
    sources -= {_REGISTER}
    if targets <= {_REGISTER}:
        return "S"
    if len(targets) != 1:
        return None
    (target,) = targets
    if target == _L0C and sources <= {*_CUBE_OPERANDS, _L1}:
        return "M"
    if _L0C in sources and target != _L0C:
        return "FIX"
    if target in (_UB, _L1, _L0C, *_FROM_L1) and sources == {_GM}:
        return FILLS_FROM_GLOBAL
    if target in _FROM_L1 and sources <= {_L1}:
        return "MTE1"
    if target in (_GM, _L1) and sources == {_UB}:
        return "MTE3"
    if target == _UB and sources <= {_UB}:
        return "V"
    if target == _L1 and not sources:
        return FILLS_FROM_GLOBAL
    return None


@dataclass(frozen=True)
class StoreContext:
    """The computation that a store is part of."""

    pipe: str  # The pipe that runs it
    stores: int  # How many stores it consists of
    # Whether the vector unit runs it, or would if its operators were not run element by element by
    # the scalar unit.
    is_elementwise: bool


@dataclass(frozen=True, eq=False)
class Pipelines:
    """A function as the pipelines see it."""

    # The statements, with the loops and branches around. Of buffers it names those that are
    # planned, as the function's problems do.
    program: tuple[Step, ...]
    # By the index of the allocation in ``access.allocs``, for those that are planned.
    uses: Mapping[int, PipelineUse]
    # The pipes that read and that write a planned allocation, by index.
    readers: Mapping[int, frozenset[str]]
    writers: Mapping[int, frozenset[str]]
    # The statements on planned memory of which neither the program nor the memories say where they
    # run, by name. They are taken to be the scalar unit's.
    guesses: tuple[str, ...]
    # The planned allocations that are annotated to share bytes with no other, by index.
    unique: frozenset[int]
    stores: Mapping[int, StoreContext]  # What each store is part of, by the store's handle


def find_pipelines(func: PrimFunc, found: FunctionProblems) -> Pipelines:
    """Find the pipe of each statement of a flat function, and what buffers have to do with them.

    A statement runs on the pipe that the program names, with ``T.attr({"pipe": ...})`` or a loop's
    annotation of that key; else on that of `route`. Of what would run on the vector unit, the
    scalar unit runs what writes one element only, or has an operator that the vector unit lacks.
    Raises `ValueError` when a named pipe is not in `PIPES`.
    """
    names = {
        allocation.index: name
        for attached in found.problems
        for name, allocation in attached.allocations.items()
    }
    nodes = find_computations(found, names, _route)
    return _Builder(names, found).build(nodes)


def _by_scopes(computation: Computation) -> str | None:
    written = {memory.key for memory in computation.writes}
    sources = [memory.scope for memory in computation.reads if memory.key not in written]
    return route(sources, [memory.scope for memory in computation.writes])


def _route(computation: Computation) -> str:
    return _by_scopes(computation) or "S"


def pipe_of(computation: Computation) -> str:
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
    pipe = _route(computation)
    is_scalar = computation.elements <= 1 or computation.scalar_loop
    return "S" if pipe == "V" and is_scalar else pipe


@dataclass
class _Seen:
    """The statements that touch one allocation."""

    runs: int = 1
    # The pipes on which they read it, and write it.
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


class _Builder:
    """Numbers the loops, makes the statements and gathers who uses what."""

    def __init__(self, names: Mapping[int, str], found: FunctionProblems) -> None:
        self._names = names
        self._found = found
        self._seen = {index: _Seen() for index in names}
        self._stores: dict[int, StoreContext] = {}
        self._guesses: list[str] = []
        self._numbers: dict[int, int] = {}  # of the loops, by handle

    def build(self, nodes: Sequence[Node]) -> Pipelines:
        program = tuple(self._steps(nodes, 1))
        return Pipelines(
            program,
            {index: self._use(index, seen) for index, seen in self._seen.items()},
            {index: frozenset(seen.reads) for index, seen in self._seen.items()},
            {index: frozenset(seen.writes) for index, seen in self._seen.items()},
            tuple(dict.fromkeys(self._guesses)),
            frozenset(index for index in self._seen if self._is_unique(index)),
            self._stores,
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
                yield Branch(then, tuple(self._steps(node.otherwise, runs)))
            else:
                yield self._statement(node, runs)

    def _statement(self, node: Computation, runs: int) -> Statement:
        pipe = pipe_of(node)
        is_elementwise = pipe == "V" or (node.scalar_loop and _by_scopes(node) == "V")
        for store in node.stores:
            self._stores[store.__chandle__()] = StoreContext(pipe, len(node.stores), is_elementwise)
        planned = False
        for memories, is_read in ((node.reads, True), (node.writes, False)):
            for memory in memories:
                if memory.index in self._seen:
                    planned, seen = True, self._seen[memory.index]
                    seen.runs = max(seen.runs, runs)
                    (seen.reads if is_read else seen.writes).add(pipe)
        if planned and node.pipe is None and node.elements > 1 and _by_scopes(node) is None:
            self._guesses.append(_described(node))
        return Statement(
            _described(node),
            pipe,
            self._named(node.reads),
            self._named(node.writes),
            -(-node.moved_bits // 8) if pipe in _TRANSFERS else node.elements,
            _operand_bits(node) if pipe == "M" else node.element_bits,
        )

    def _named(self, memories: Sequence[Memory]) -> tuple[str, ...]:
        indices = (m.index for m in memories if m.index is not None)
        return tuple(self._names[index] for index in indices if index in self._names)

    def _is_unique(self, index: int) -> bool:
        value = self._found.access.alloc_stmts[index].annotations.get(_UNIQUE, False)
        return bool(getattr(value, "value", value))

    def _use(self, index: int, seen: _Seen) -> PipelineUse:
        loop = self._found.uses[index].loop
        return PipelineUse(
            dma=FILLS_FROM_GLOBAL in seen.writes or any(pipe in seen.reads for pipe in DRAINS),
            scalar="S" in seen.reads or "S" in seen.writes,
            # Without slots of its own it takes turns with the loop around its allocation, too.
            loop=None if loop is None else self._numbers.get(loop.__chandle__()),
            runs=seen.runs,
        )


def _operand_bits(node: Computation) -> int:
    """Return the width of what is multiplied: the accumulator that is added to may be wider."""
    written = {memory.key for memory in node.writes}
    bits = (memory.bits for memory in node.reads if memory.key not in written)
    return max(bits, default=node.element_bits)


def _described(node: Computation) -> str:
    """Return a name for a statement: what it writes, and from what."""
    written = ", ".join(memory.name for memory in node.writes) or "scalar"
    read = ", ".join(memory.name for memory in node.reads)
    return f"{written} from {read}" if read else written
