# SPDX-License-Identifier: Apache-2.0
"""Time of a kernel under a plan, on pipes that run side by side.

Each pipe runs its statements in program order, one at a time. A statement starts when its pipe is
free and the statements that it waits for have ended: those that wrote the bytes that it reads, and
those that last read or wrote the bytes that it writes. So a plan that lets two buffers share bytes
makes the second wait for the first, on whichever pipes they are.

All that a statement waits for came earlier, so one pass gives the exact times. Beyond the runs that
the timeline shows, a loop is run only until a state of the pipes returns, relative to the time; the
repetition that follows is added up. Systems like this one, where times are sums and maxima of
earlier times, become periodic: F. Baccelli et al., "Synchronization and Linearity", 1992, section
3.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from passes.planning import Plan, Problem
from passes.simulation.program import Operand, Resolved, Step, TimedLoop, TimedStatement, TimedStep
from target_hw.machine import Machine


class Cause(Enum):
    """The reason why a statement waits while its pipe is idle."""

    DATA = "data"
    """A value that it reads, or the last use of the value that it replaces: the program's own."""
    SLOT = "slot"
    """The use of its buffer by an earlier iteration; one more slot would end it."""
    REUSE = "reuse"
    """The use of the same bytes by another buffer: the plan's doing."""


@dataclass(frozen=True)
class Stall:
    """Cycles that a pipe is idle because one statement waits for another, in all."""

    # A wait that is held by several causes counts for `DATA` until the data are
    # there, then for `SLOT`, and only what is left for `REUSE`.
    cause: Cause
    pipe: str  # The pipe that is idle
    # The statement that waits, and its buffer.
    statement: str
    buffer: str
    # The statement that it waits for, and the buffer as that one knows it.
    other_statement: str
    other_buffer: str
    cycles: int  # Idle cycles over the whole run


@dataclass(frozen=True)
class PipeTime:
    """The time of one pipe over the whole run, in cycles; `busy` and `idle` make the makespan."""

    pipe: str
    busy: int
    idle: int


@dataclass(frozen=True)
class Run:
    """One statement, run once."""

    statement: str  # Its name
    index: int  # Its place among the program's statements, from 0
    pipe: str  # The pipe that it ran on
    # In cycles, half-open.
    begin: int
    end: int
    iteration: tuple[int, ...]  # That of each loop around it, from the outermost
    # The buffers that it read and wrote, and the slot of each.
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]
    # The causes of the pipe's idle time just before, in this order, with their cycles.
    waits: tuple[tuple[Cause, int], ...] = ()


@dataclass(frozen=True)
class Simulation:
    """The run of a kernel under a plan."""

    makespan: int  # Cycles from the start of the first statement to the end of the last
    pipes: tuple[PipeTime, ...]  # In the machine's order; those that have something to do
    stalls: tuple[Stall, ...]  # The longest first
    runs: int  # Number of statements that ran, repetitions counted
    timeline: tuple[Run, ...]  # The first of them, in program order

    def idle(self, pipe: str) -> int:
        """Return the cycles that a pipe is idle; all of them for a pipe with nothing to do."""
        return next((time.idle for time in self.pipes if time.pipe == pipe), self.makespan)

    def waited(self, cause: Cause) -> int:
        """Return the cycles that pipes are idle for one cause, summed over the pipes."""
        return sum(stall.cycles for stall in self.stalls if stall.cause is cause)


TIMELINE_RUNS = 2000  # Runs that a timeline holds by default


def simulate(
    program: Sequence[Step],
    placed: Sequence[tuple[Problem, Plan]],
    machine: Machine,
    *,
    timeline: int = TIMELINE_RUNS,
) -> Simulation:
    """Run a kernel's statements on the pipes of a machine, with its buffers where plans put them.

    Of a branch the body with more cycles of work runs, the first if they are equal. A plan above
    the capacity is simulated all the same. A buffer with N offsets is at offset ``i % N`` in
    iteration ``i`` of its `PipelineUse.loop`. The timeline of the result holds as many runs as
    `timeline` says; nothing else depends on it. The result is the same in every process.

    Raises `ValueError` if a statement names a pipe that the machine lacks or a buffer that no
    problem has, if a buffer is in two problems, has too few offsets, or takes turns with a loop
    that it is used outside of; the message names the statement and the buffer.
    """
    resolved = Resolved(program, placed, machine)
    state = _State(resolved, timeline)
    state.run(resolved.steps)
    makespan = max(state.free.values(), default=0)
    pipes = (PipeTime(p, state.busy[p], makespan - state.busy[p]) for p in resolved.pipes)
    stalls = [
        Stall(cause, one.pipe, one.name, buffer, other.name, resolved.owner[cell], cycles)
        for (cause, one, buffer, other, cell), cycles in state.waits.items()
    ]
    stalls.sort(key=lambda stall: -stall.cycles)
    return Simulation(makespan, tuple(pipes), tuple(stalls), state.runs, tuple(state.timeline))


_Accesses: TypeAlias = list[tuple[Operand, int]]
"""Buffers that an instruction reads or writes, and the cell of each."""


_LAST_WRITE = None
"""The key of a cell's last write, beside the pipes that have read it since."""


class _Use(NamedTuple):
    """The last read or write of a cell: until `end`, by the run number `serial`."""

    end: int
    serial: int
    instruction: TimedStatement


class _Wait(NamedTuple):
    """The key by which stalls are counted."""

    cause: Cause
    instruction: TimedStatement
    buffer: str
    other: TimedStatement
    cell: int


class _Mark(NamedTuple):
    """A state at the end of an iteration, and what had been counted by then."""

    signature: object
    iteration: int
    free: dict[str, int]
    busy: dict[str, int]
    waits: dict[_Wait, int]
    runs: int


class _State:
    """The pipes and the memory at one point of the program."""

    def __init__(self, resolved: Resolved, timeline: int) -> None:
        self._resolved, self._timeline_limit = resolved, timeline
        self.free = dict.fromkeys(resolved.pipes, 0)
        self.busy = dict.fromkeys(resolved.pipes, 0)
        # Of each cell the last write, by `_LAST_WRITE`, and the reads that came after it, by pipe.
        self.uses: list[dict[str | None, _Use]] = [{} for _ in resolved.owner]
        self.waits: dict[_Wait, int] = {}
        self.timeline: list[Run] = []
        self.runs = 0
        # Of each loop around: its iteration, and the number of the first run in it.
        self._iteration: dict[int | None, int] = {}
        self._since: dict[int | None, int] = {}

    def run(self, steps: Sequence[TimedStep]) -> None:
        """Run steps in their order."""
        for step in steps:
            if isinstance(step, TimedStatement):
                self._issue(step)
            else:
                self._repeat(step)

    def _issue(self, instruction: TimedStatement) -> None:
        pipe = instruction.pipe
        reads = [(operand, self._cell(operand)) for operand in instruction.reads]
        writes = [(operand, self._cell(operand)) for operand in instruction.writes]
        begin, waits = self._begin(instruction, reads, writes)
        end = begin + instruction.cycles
        if len(self.timeline) < self._timeline_limit:
            name, iteration = instruction.name, tuple(self._iteration.values())
            slots = _slots(reads), _slots(writes)
            run = Run(name, instruction.index, pipe, begin, end, iteration, *slots, tuple(waits))
            self.timeline.append(run)
        self.free[pipe] = end
        self.busy[pipe] += instruction.cycles
        use = _Use(end, self.runs, instruction)
        for _, cell in reads:
            self.uses[cell][pipe] = use
        for _, cell in writes:
            # Whoever waits for those that read before would wait for this write, which is later.
            self.uses[cell] = {_LAST_WRITE: use}
        self.runs += 1

    def _begin(
        self, instruction: TimedStatement, reads: _Accesses, writes: _Accesses
    ) -> tuple[int, list[tuple[Cause, int]]]:
        """Return when an instruction starts, and how long it waits on its free pipe, by cause."""
        begin = self.free[instruction.pipe]
        latest: dict[Cause, tuple[_Use, str, int]] = {}
        for cause, use, buffer, cell in self._waited_for(reads, writes):
            if cause not in latest or use.end > latest[cause][0].end:
                latest[cause] = use, buffer, cell
        waits = []
        for cause in Cause:
            if cause in latest and latest[cause][0].end > begin:
                use, buffer, cell = latest[cause]
                wait = _Wait(cause, instruction, buffer, use.instruction, cell)
                self.waits[wait] = self.waits.get(wait, 0) + use.end - begin
                waits.append((cause, use.end - begin))
                begin = use.end
        return begin, waits

    def _waited_for(
        self, reads: _Accesses, writes: _Accesses
    ) -> Iterator[tuple[Cause, _Use, str, int]]:
        """Yield what an instruction waits for: why, whom, and which buffer and cell are at odds."""
        overlaps, owner = self._resolved.overlaps, self._resolved.owner
        for operand, cell in reads:
            for other in overlaps[cell]:
                use = self.uses[other].get(_LAST_WRITE)
                if use is not None:
                    cause = Cause.DATA if owner[other] == operand.buffer else Cause.REUSE
                    yield cause, use, operand.buffer, other
        for operand, cell in writes:
            # A use of the buffer before this iteration of its loop is that of another value.
            since = self._since.get(operand.loop, -1)
            for other in overlaps[cell]:
                own = owner[other] == operand.buffer
                for use in self.uses[other].values():
                    earlier = Cause.SLOT if use.serial < since else Cause.DATA
                    yield (earlier if own else Cause.REUSE), use, operand.buffer, other

    def _cell(self, operand: Operand) -> int:
        return operand.cells[self._iteration.get(operand.loop, 0) % len(operand.cells)]

    def _repeat(self, loop: TimedLoop) -> None:
        entered, iteration = self.runs, 0
        mark: _Mark | None = None
        while iteration < loop.extent:
            self._iteration[loop.number] = iteration
            self._since[loop.number] = self.runs
            self.run(loop.body)
            iteration += 1
            if len(self.timeline) < self._timeline_limit or iteration == loop.extent:
                continue
            signature = self._signature(loop, iteration, entered)
            if mark is not None and mark.signature == signature:
                iteration += self._skip(loop, mark, iteration, entered)
            elif mark is None or iteration >= 2 * mark.iteration:
                # Brent's cycle detection: hold each state against the last one at a power of two.
                before = dict(self.free), dict(self.busy), dict(self.waits), self.runs
                mark = _Mark(signature, iteration, *before)
        del self._iteration[loop.number], self._since[loop.number]

    def _signature(self, loop: TimedLoop, iteration: int, entered: int) -> object:
        """Return all that decides how the rest of a loop runs, relative to the time.

        Two ends of iterations with equal signatures are followed by the same runs, each group of
        pipes as much later as its pipes are. Uses before the loop are not waited for any more: as
        many iterations as there are turns lie before the first of the two ends, and they come by
        all cells.
        """
        base = {p: max(self.free[q] for q in group) for group in loop.groups for p in group}
        parts: list[object] = [iteration % loop.turns]
        parts += [self.free[pipe] - base[pipe] for pipe in base]
        for cell in loop.cells:
            for key, use in self.uses[cell].items():
                if use.serial >= entered:
                    late = use.end - base[use.instruction.pipe]
                    parts.append((cell, key is _LAST_WRITE, use.instruction.index, late))
        return tuple(parts)

    def _skip(self, loop: TimedLoop, mark: _Mark, iteration: int, entered: int) -> int:
        """Add up whole periods that follow, as many as the loop has; return their iterations."""
        period = iteration - mark.iteration
        times = (loop.extent - iteration) // period
        pipes = [pipe for group in loop.groups for pipe in group]
        later = {pipe: times * (self.free[pipe] - mark.free[pipe]) for pipe in pipes}
        for pipe, cycles in later.items():
            self.free[pipe] += cycles
            self.busy[pipe] += times * (self.busy[pipe] - mark.busy[pipe])
        for wait, cycles in self.waits.items():
            self.waits[wait] += times * (cycles - mark.waits.get(wait, 0))
        for cell in loop.cells:
            for key, use in self.uses[cell].items():
                if use.serial >= entered:
                    end = use.end + later[use.instruction.pipe]
                    self.uses[cell][key] = use._replace(end=end)
        self.runs += times * (self.runs - mark.runs)
        return times * period


def _slots(accesses: _Accesses) -> tuple[tuple[str, int], ...]:
    return tuple((operand.buffer, operand.cells.index(cell)) for operand, cell in accesses)
