# SPDX-License-Identifier: Apache-2.0
"""A kernel as the pipelines see it, and with a plan and a machine as instructions on cells.

A cell is the bytes of one slot of one buffer. Two cells overlap where a plan lets them share bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeAlias, TypeVar

from passes.planning import Plan, Problem
from target_hw.machine import Machine

Part = TypeVar("Part")
Leaf = TypeVar("Leaf")


@dataclass(frozen=True)
class Statement:
    """One instruction of one pipeline."""

    name: str  # For people
    pipe: str  # MTE1, MTE2, MTE3, FIX, V, M or S
    # Planned buffers that the statement reads and writes, by their names in the kernel's problems.
    # A buffer that is read and written is in both.
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    # Bytes that it moves (MTE1, MTE2, MTE3, FIX), elements that it computes (V, S), or multiply-
    # adds (M).
    work: int
    element_bits: int = 8  # Of the elements that it computes on; for M, of those that it multiplies


@dataclass(frozen=True)
class Loop(Generic[Part]):
    """A body that runs `extent` times in a row."""

    number: int  # The loop's number in `PipelineUse.loop`
    extent: int  # Number of iterations
    body: tuple[Part, ...]  # The statements of one iteration


@dataclass(frozen=True)
class Alternative(Generic[Part]):
    """One of two bodies runs; which is not known. The longer one is simulated."""

    then: tuple[Part, ...]
    otherwise: tuple[Part, ...] = ()


Step: TypeAlias = "Statement | Loop[Step] | Alternative[Step]"


def statements_of(steps: Sequence[Leaf | Loop[Any] | Alternative[Any]]) -> Iterator[Leaf]:
    """Yield the statements in program order, those of both sides of a branch."""
    for step in steps:
        if isinstance(step, Loop):
            yield from statements_of(step.body)
        elif isinstance(step, Alternative):
            yield from statements_of((*step.then, *step.otherwise))
        else:
            yield step


@dataclass(frozen=True)
class Operand:
    """A buffer that an instruction reads or writes."""

    buffer: str  # Its name
    cells: tuple[int, ...]  # One a slot, in the order of the plan's offsets
    loop: int | None  # The loop whose iterations take turns with them, where that is known


@dataclass(frozen=True)
class TimedStatement:
    """A statement on its pipe."""

    index: int  # Its place among the program's statements
    name: str
    pipe: str  # The row of the timeline that it is on
    cycles: int  # Its duration, at least one
    # Buffers without bytes are left out.
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]


@dataclass(frozen=True)
class TimedLoop(Loop["TimedStep"]):
    """A loop, of at least one iteration, in which branches are decided."""

    # After so many iterations all slots that take turns with this loop are at the first again.
    turns: int
    # The pipes that the steps use. Pipes in different groups never wait for each other here.
    groups: tuple[tuple[str, ...], ...]
    cells: tuple[int, ...]  # All that the steps touch, and what overlaps these


TimedStep: TypeAlias = TimedStatement | TimedLoop


class Resolved:
    """A program whose names are looked up: what is simulated.

    Raises ValueError for what `passes.simulation.simulate` refuses.

    Attributes
    ----------
    steps : tuple of TimedStep
        The program.
    pipes : tuple of str
        The pipes that are used, in the machine's order. A pipe has a row of the timeline for each
        core where it works for several.
    owner : list of str
        The buffer of each cell.
    overlaps : tuple of tuple of int
        For each cell those that share bytes with it, itself included.
    """

    def __init__(
        self, program: Sequence[Step], placed: Sequence[tuple[Problem, Plan]], machine: Machine
    ) -> None:
        self._machine = machine
        self._scopes: dict[str, str] = {}
        self._buffers: dict[str, Operand] = {}
        self.owner: list[str] = []
        spans: list[tuple[str, int, int]] = []  # For each cell: its scope, from byte to byte
        for problem, plan in placed:
            for buffer in problem.buffers:
                where = f"{problem.name}: buffer {buffer.name!r}"
                if buffer.name in self._scopes:
                    raise ValueError(f"{where} is in two problems")
                self._scopes[buffer.name] = problem.memory.name
                offsets = plan.offsets.get(buffer.name, ())
                loop = None if buffer.use is None else buffer.use.loop
                if len(offsets) < buffer.slots:
                    raise ValueError(
                        f"{where} has {buffer.slots} slots, the plan has {len(offsets)} offsets "
                        "for it"
                    )
                if len(offsets) > 1 and loop is None:
                    raise ValueError(
                        f"{where} has {len(offsets)} offsets, but no loop that takes turns"
                    )
                first = len(spans)
                if buffer.size:
                    spans += [(problem.memory.name, o, o + buffer.size) for o in offsets]
                    self.owner += [buffer.name] * len(offsets)
                cells = tuple(range(first, len(spans)))
                self._buffers[buffer.name] = Operand(buffer.name, cells, loop)
        self.overlaps = tuple(
            tuple(
                other
                for other, (scope, low, high) in enumerate(spans)
                if scope == span[0] and max(low, span[1]) < min(high, span[2])
            )
            for span in spans
        )
        self._index = count()
        self._numbers: set[int] = set()
        cores: dict[str, set[str | None]] = {}
        for statement in statements_of(program):
            cores.setdefault(statement.pipe, set()).add(self._core(statement))
        self._on_several_cores = {p for p, names in cores.items() if len(names - {None}) > 1}
        self.steps = tuple(self._steps(program, ()))
        used = {instruction.pipe for instruction in statements_of(self.steps)}
        suffixes = ("", *(f" {core}" for core, _ in machine.cores))
        rows = (pipe.name + suffix for pipe in machine for suffix in suffixes)
        self.pipes = tuple(row for row in rows if row in used)

    def _core(self, statement: Statement) -> str | None:
        names = (*statement.writes, *statement.reads)
        return self._machine.core_of(tuple(self._scopes.get(name, "") for name in names))

    def _steps(self, steps: Sequence[Step], loops: tuple[int, ...]) -> Iterator[TimedStep]:
        """Yield the steps in their order; `loops` are the numbers of the loops around."""
        for step in steps:
            if isinstance(step, Statement):
                yield self._instruction(step, loops)
            elif isinstance(step, Loop):
                yield from self._loop(step, loops)
            else:
                # Both are resolved, so that a wrong name in either is found.
                bodies = [tuple(self._steps(body, loops)) for body in (step.then, step.otherwise)]
                yield from max(bodies, key=_work)

    def _instruction(self, statement: Statement, loops: tuple[int, ...]) -> TimedStatement:
        where = f"statement {statement.name!r}"
        try:
            pipe = self._machine[statement.pipe]
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if statement.work < 0 or statement.element_bits < 1:
            raise ValueError(
                f"{where}: work must not be negative and elements must have bits, got "
                f"{statement.work} and {statement.element_bits}"
            )
        for name in (*statement.reads, *statement.writes):
            operand = self._buffers.get(name)
            if operand is None:
                raise ValueError(f"{where}: no problem has a buffer {name!r}")
            if len(operand.cells) > 1 and operand.loop not in loops:
                raise ValueError(
                    f"{where} uses buffer {name!r} outside of loop {operand.loop}, whose "
                    "iterations take turns with its slots"
                )
        core = self._core(statement) if statement.pipe in self._on_several_cores else None
        scopes = tuple(self._scopes[name] for name in statement.writes)
        reads, writes = (
            tuple(o for o in map(self._buffers.__getitem__, dict.fromkeys(names)) if o.cells)
            for names in (statement.reads, statement.writes)
        )
        return TimedStatement(
            next(self._index),
            statement.name,
            statement.pipe if core is None else f"{statement.pipe} {core}",
            pipe.cycles(statement.work, statement.element_bits, scopes),
            reads,
            writes,
        )

    def _loop(self, loop: Loop[Step], loops: tuple[int, ...]) -> Iterator[TimedLoop]:
        if loop.number in self._numbers:
            raise ValueError(f"loop {loop.number} is in the program twice")
        if loop.extent < 0:
            raise ValueError(f"loop {loop.number}: its extent must not be negative: {loop.extent}")
        self._numbers.add(loop.number)
        steps = tuple(self._steps(loop.body, (*loops, loop.number)))
        instructions = list(statements_of(steps))
        if loop.extent == 0 or not instructions:
            return
        operands = [o for i in instructions for o in (*i.reads, *i.writes)]
        turns = math.lcm(*(len(o.cells) for o in operands))
        cells = {other for o in operands for c in o.cells for other in self.overlaps[c]}
        groups = self._groups(instructions)
        yield TimedLoop(loop.number, loop.extent, steps, turns, groups, tuple(sorted(cells)))

    def _groups(self, instructions: Sequence[TimedStatement]) -> tuple[tuple[str, ...], ...]:
        """Return pipes in groups: together where one writes bytes that the other touches."""
        touched: dict[int, dict[str, None]] = {}
        for instruction in instructions:
            for operand in (*instruction.reads, *instruction.writes):
                for cell in operand.cells:
                    touched.setdefault(cell, {})[instruction.pipe] = None
        group: dict[str, tuple[str, ...]] = {one.pipe: (one.pipe,) for one in instructions}
        for instruction in instructions:
            cells = (cell for operand in instruction.writes for cell in operand.cells)
            for other in dict.fromkeys(other for cell in cells for other in self.overlaps[cell]):
                for pipe in touched.get(other, {}):
                    one, two = group[pipe], group[instruction.pipe]
                    if one is not two:
                        group |= dict.fromkeys((*one, *two), (*one, *two))
        return tuple(dict.fromkeys(group.values()))


def _work(steps: Sequence[TimedStep]) -> int:
    """Return the cycles of all instructions, one after the other."""
    return sum(
        step.cycles if isinstance(step, TimedStatement) else step.extent * _work(step.body)
        for step in steps
    )
