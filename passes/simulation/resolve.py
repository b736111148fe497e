# SPDX-License-Identifier: Apache-2.0
"""A program, its plans and a machine, as instructions that name cells of memory.

A cell is the bytes of one slot of one buffer. Two cells overlap where a plan lets them share bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from passes.planning import Plan, Problem
from passes.simulation.simulated_program import Loop, Statement, Step, statements_of
from target_hw.machine import Machine


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
    # The statement, and the row of the timeline that it is on.
    name: str
    pipe: str
    cycles: int  # How long it takes, at least one
    # Buffers without bytes are left out.
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]


@dataclass(frozen=True)
class TimedLoop:
    """A loop, of at least one iteration."""

    # As in `Loop`.
    number: int
    extent: int
    steps: tuple[TimedStatement | TimedLoop, ...]  # Branches are decided
    # After so many iterations the slots that take turns with this loop are at the first again.
    turns: int
    # The pipes that the steps use. Pipes in different groups never wait for each other here.
    groups: tuple[tuple[str, ...], ...]
    cells: tuple[int, ...]  # All that the steps touch, and what overlaps these


@dataclass(frozen=True)
class Resolved:
    """What is simulated."""

    steps: tuple[TimedStatement | TimedLoop, ...]  # The program
    pipes: tuple[str, ...]  # Those that are used, in the machine's order
    # For each cell those that share bytes with it, itself included.
    overlaps: tuple[tuple[int, ...], ...]
    owner: tuple[str, ...]  # For each cell its buffer


def resolve(
    program: Sequence[Step], placed: Sequence[tuple[Problem, Plan]], machine: Machine
) -> Resolved:
    """Look up every name of a program; see `passes.simulation.simulate` for what is refused."""
    resolver = _Resolver(program, placed, machine)
    steps = tuple(resolver.steps(program, ()))
    used = {instruction.pipe for instruction in _instructions(steps)}
    # A pipe can have one row of the timeline, or one for each core.
    cores = ("", *(f" {core}" for core, _ in machine.cores))
    rows = (pipe.name + core for pipe in machine for core in cores)
    used_rows = tuple(row for row in rows if row in used)
    return Resolved(steps, used_rows, resolver.overlaps, tuple(resolver.owner))


class _Resolver:
    """Gives slots their cells, statements their rows of the timeline, and loops their facts."""

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
                if buffer.name in self._scopes:
                    raise ValueError(f"{problem.name}: buffer {buffer.name!r} is in two problems")
                self._scopes[buffer.name] = problem.memory.name
                offsets = plan.offsets.get(buffer.name, ())
                loop = None if buffer.use is None else buffer.use.loop
                where = f"{problem.name}: buffer {buffer.name!r}"
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

    def _core(self, statement: Statement) -> str | None:
        names = (*statement.writes, *statement.reads)
        return self._machine.core_of(tuple(self._scopes.get(name, "") for name in names))

    def _row(self, statement: Statement) -> str:
        core = self._core(statement)
        is_one = core is None or statement.pipe not in self._on_several_cores
        return statement.pipe if is_one else f"{statement.pipe} {core}"

    def steps(
        self, steps: Sequence[Step], loops: tuple[int, ...]
    ) -> Iterator[TimedStatement | TimedLoop]:
        """Yield the steps in their order; `loops` are the numbers of the loops around."""
        for step in steps:
            if isinstance(step, Statement):
                yield self._instruction(step, loops)
            elif isinstance(step, Loop):
                yield from self._loop(step, loops)
            else:
                # Both are resolved, so that a wrong name in either is found.
                bodies = [tuple(self.steps(body, loops)) for body in (step.then, step.otherwise)]
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
        scopes = tuple(self._scopes[name] for name in statement.writes)
        return TimedStatement(
            next(self._index),
            statement.name,
            self._row(statement),
            pipe.cycles(statement.work, statement.element_bits, scopes),
            self._operands(statement.reads),
            self._operands(statement.writes),
        )

    def _operands(self, names: Sequence[str]) -> tuple[Operand, ...]:
        operands = (self._buffers[name] for name in dict.fromkeys(names))
        return tuple(operand for operand in operands if operand.cells)

    def _loop(self, loop: Loop, loops: tuple[int, ...]) -> Iterator[TimedLoop]:
        if loop.number in self._numbers:
            raise ValueError(f"loop {loop.number} is in the program twice")
        if loop.extent < 0:
            raise ValueError(f"loop {loop.number}: its extent must not be negative: {loop.extent}")
        self._numbers.add(loop.number)
        steps = tuple(self.steps(loop.body, (*loops, loop.number)))
        instructions = list(_instructions(steps))
        if loop.extent == 0 or not instructions:
            return
        operands = [o for i in instructions for o in (*i.reads, *i.writes)]
        slots = [len(o.cells) for o in operands if o.loop == loop.number]
        cells = {other for o in operands for c in o.cells for other in self.overlaps[c]}
        yield TimedLoop(
            loop.number,
            loop.extent,
            steps,
            math.lcm(*slots),
            _groups(instructions, self.overlaps),
            tuple(sorted(cells)),
        )


def _groups(
    instructions: Sequence[TimedStatement], overlaps: tuple[tuple[int, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    """Return pipes in groups: together where one writes bytes that the other touches."""
    touched: dict[int, dict[str, None]] = {}
    for instruction in instructions:
        for operand in (*instruction.reads, *instruction.writes):
            for cell in operand.cells:
                touched.setdefault(cell, {})[instruction.pipe] = None
    group: dict[str, tuple[str, ...]] = {one.pipe: (one.pipe,) for one in instructions}
    for instruction in instructions:
        cells = (cell for operand in instruction.writes for cell in operand.cells)
        for other in dict.fromkeys(other for cell in cells for other in overlaps[cell]):
            for pipe in touched.get(other, {}):
                one, two = group[pipe], group[instruction.pipe]
                if one is not two:
                    group |= dict.fromkeys((*one, *two), (*one, *two))
    return tuple(dict.fromkeys(group.values()))


def _instructions(steps: Sequence[TimedStatement | TimedLoop]) -> Iterator[TimedStatement]:
    for step in steps:
        if isinstance(step, TimedStatement):
            yield step
        else:
            yield from _instructions(step.steps)


def _work(steps: Sequence[TimedStatement | TimedLoop]) -> int:
    """Return the cycles of all instructions, one after the other."""
    return sum(
        step.cycles if isinstance(step, TimedStatement) else step.extent * _work(step.steps)
        for step in steps
    )
