# SPDX-License-Identifier: Apache-2.0
"""The 0/1 program of a problem of several memories, and what its choices mean.

A variable says that a buffer lies in a memory all its life. Constraints say that what is live at a
position fits each memory, as if bytes could be moved about: whether there are offsets, too, is
found by placing. So the least that the program finds is a lower bound.

A buffer that moves has a home memory, which gets its value once. Between two touches it stays in a
faster memory or does not: where it does not, the later touch moves its bytes from home, as a copy
in if it stays in the faster memory from then on. A copy in takes the position before that touch,
a copy out runs beside what follows the first touch. So a stay never has one touch alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from passes.planning.buffer import Buffer, LiveRange
from passes.planning.memories.integer_program import Constraint, Floats, IntegerProgram, Load
from passes.planning.memories.memories_problem import MemoriesProblem, fits_alone, units

SHARE = 1e-6  # Values of the linear program that are no nearer to 0 and 1 are shares


@dataclass(frozen=True)
class Assignment:
    """A buffer, or one stay of it, assigned to a memory by the 0-1 solution."""

    buffer: int  # The index of the buffer
    memory: int  # The index of the memory
    variables: tuple[int, ...]
    live: tuple[LiveRange, ...]
    is_stay: bool = False


@dataclass(frozen=True)
class _Gap:
    """A variable: a buffer stays in a memory from one touch to the next."""

    variable: int
    memory: int
    touch: int  # The number of the touch before it


class Formulation:
    """A problem as a 0/1 program; with `moves`, buffers may leave a memory and come back."""

    def __init__(self, problem: MemoriesProblem, moves: bool) -> None:
        self.problem = problem
        self._costs: list[tuple[int, int]] = []  # For each variable: on which bus, how many bytes
        self._rows: list[Constraint] = []
        # For each memory: bytes in units that a variable takes from one position to another.
        self._loads: list[list[tuple[int, int, int, int]]] = [[] for _ in problem.memories]
        # For each buffer: a variable, the memory that it chooses for good, and where it may stay.
        self._options: dict[int, list[tuple[int, int, list[_Gap]]]] = {}
        self._units = [
            math.gcd(*(math.lcm(b.alignment, m.alignment) for b in problem.buffers)) or 1
            for m in problem.memories
        ]
        in_time = sorted(range(len(problem.buffers)), key=lambda i: problem.buffers[i].live[0])
        for index in in_time:
            self._add(index, moves)
        loads = [
            Load(pieces, most)
            for scope, unit, pieces in zip(problem.memories, self._units, self._loads, strict=True)
            if (most := units(scope, unit)) is not None
        ]
        levels = tuple(
            tuple(nbytes if bus == memory else 0 for bus, nbytes in self._costs)
            for memory in reversed(range(len(problem.memories)))
        )
        if moves:  # Of plans that move as many bytes, one in which the fewest buffers move
            homes = {v for found in self._options.values() for v, _, gaps in found if gaps}
            levels = (*levels, tuple(int(v in homes) for v in range(len(self._costs))))
        self.program = IntegerProgram(levels, self._rows, loads)

    def _new(self, bus: int, nbytes: int) -> int:
        """Add a variable that moves bytes over the bus of a memory if it is 1."""
        self._costs.append((bus, nbytes))
        return len(self._costs) - 1

    def _row(self, ones: Iterable[int], minus: Iterable[int], least: int | None, most: int) -> None:
        terms = (*((v, 1) for v in ones), *((v, -1) for v in minus))
        self._rows.append(Constraint(terms, least, most))

    def _add(self, index: int, moves: bool) -> None:
        """Add the variables of one buffer: exactly one memory, or one home, is chosen."""
        problem, buffer = self.problem, self.problem.buffers[index]
        possible = [k for k in problem.allowed(buffer) if fits_alone(buffer, problem.memories[k])]
        options = self._options[index] = []
        for memory in possible:
            options.append((self._new(memory, problem.cost(buffer, memory)), memory, []))
            self._load(options[-1][0], memory, buffer, buffer.live)
        homes = [k for k in possible if may_move(problem, buffer, k)] if moves else []
        options += [self._add_home(buffer, home, possible) for home in homes]
        self._row([variable for variable, _, _ in options], (), 1, 1)

    def _load(self, variable: int, memory: int, buffer: Buffer, live: Iterable[LiveRange]) -> None:
        load = buffer.slots * -(-buffer.size // self._units[memory])
        if load:
            self._loads[memory] += [(begin, end, variable, load) for begin, end in live]

    def _add_home(
        self, buffer: Buffer, home: int, possible: list[int]
    ) -> tuple[int, int, list[_Gap]]:
        """Add the variables of a buffer that moves between its home and faster memories."""
        traffic, size = self.problem.traffic_of(buffer), buffer.size
        touches = traffic.touches
        chosen = self._new(home, size)
        self._load(chosen, home, buffer, buffer.live)
        faster = [k for k in possible if k < home]
        gaps: list[_Gap] = []
        before: dict[int, int] = {}
        for number, touch in enumerate(touches):
            there = {k: self._new(home, 0) for k in faster}
            self._row(there.values(), [chosen], None, 0)
            after: dict[int, int] = {}
            if number + 1 < len(touches):
                after = {k: self._new(home, 0) for k in faster}
                missed = self._new(home, size)
                self._row([missed, *after.values()], [chosen], 0, 0)
                gaps += [_Gap(v, k, number) for k, v in after.items()]
            previous = touches[number - 1] if number else None
            is_read = previous is not None or traffic.stored_in is not None
            first = previous + 1 if previous is not None else buffer.live[0][0]
            for k in faster:
                kept = [gap[k] for gap in (before, after) if k in gap]
                for v in kept:
                    self._row([v], [there[k]], None, 0)
                self._row([there[k]], kept, None, 0)
                begin = touch
                if is_read and first < touch:
                    begin = touch - 1  # The copy in
                elif is_read:
                    self._row([there[k]], [before[k]] if k in before else [], None, 0)
                self._load(there[k], k, buffer, [(begin, touch + 1)])
                if k in before and first < begin:
                    self._load(before[k], k, buffer, [(first, begin)])
            before = after
        return chosen, home, gaps

    def chosen(self, values: Floats) -> tuple[int, ...]:
        """Return the variables at 1; a buffer that is shared out lies in its slowest memory."""
        ones: list[int] = []
        for options in self._options.values():
            variables = [v for one, _, gaps in options for v in (one, *(g.variable for g in gaps))]
            if all(min(values[v], 1 - values[v]) < SHARE for v in variables):
                ones += [v for v in variables if values[v] > SHARE]
            else:
                still = [one for one, _, gaps in options if not gaps]
                ones.append(max((one for one in still if values[one] > SHARE), default=still[-1]))
        return tuple(ones)

    def parts(self, chosen: Iterable[int]) -> list[Assignment]:
        """Return what lies in each memory, and when, under a choice."""
        ones = set(chosen)
        return [
            part
            for index, buffer in enumerate(self.problem.buffers)
            for variable, memory, gaps in self._options[index]
            if variable in ones
            for part in (
                Assignment(index, memory, (variable,), buffer.live),
                *self._stays(index, [gap for gap in gaps if gap.variable in ones]),
            )
        ]

    def _stays(self, index: int, kept: list[_Gap]) -> Iterator[Assignment]:
        """Yield runs of gaps in which a buffer stays in one memory."""
        traffic = self.problem.traffic_of(self.problem.buffers[index])
        runs: list[list[_Gap]] = []
        for gap in kept:
            if not runs or runs[-1][-1].touch + 1 != gap.touch:
                runs.append([])
            runs[-1].append(gap)
        for run in runs:
            first = run[0].touch
            is_read = first > 0 or traffic.stored_in is not None
            live = (traffic.touches[first] - is_read, traffic.touches[run[-1].touch + 1] + 1)
            variables = tuple(gap.variable for gap in run)
            yield Assignment(index, run[0].memory, variables, (live,), is_stay=True)


def may_move(problem: MemoriesProblem, buffer: Buffer, home: int) -> bool:
    """Return whether a buffer can have stays in faster memories than a home, and that could pay."""
    traffic, live = problem.traffic_of(buffer), buffer.live
    if home == 0 or buffer.slots > 1 or len(live) > 1 or buffer.size == 0 or traffic.costs:
        return False
    if traffic.stored_in is not None:
        return traffic.stored_in == problem.memories[home].name and len(traffic.touches) > 1
    touches = traffic.touches
    return len(touches) > 2 and (touches[0], touches[-1] + 1) == live[0]
