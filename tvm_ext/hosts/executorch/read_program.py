# SPDX-License-Identifier: Apache-2.0
"""The memory of a program that ExecuTorch has written: its plan, read back, beside ours.

A ``.pte`` file lists the instructions of each method and the values that they use, from which live
ranges follow; a tensor that was planned has an arena, an offset and bytes.

Source: ``exir/schema.py`` of ExecuTorch 1.5, and how its emitter writes control flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from passes.ir import first_line
from passes.planning import Buffer, Plan, Problem, Status
from target_hw.memory import MemoryScope, round_up
from tvm_ext.hosts import quiet
from tvm_ext.named_planners import STOCK
from tvm_ext.report.memory_view import Axis, BufferNote, MemoryView, PlannedProblem, written

SUFFIX = ".pte"
WRITTEN = "executorch"
"""The name of the plan in the file, in the place of a planner's name."""

ALIGNMENT = 16
"""Bytes to which ExecuTorch rounds sizes and offsets, by default."""


@dataclass
class _Piece:
    """Bytes of an arena that one value has, or several that are views of one another."""

    begin: int
    end: int
    first: int
    last: int
    values: list[int]

    def meets(self, other: _Piece) -> bool:
        """Return whether both hold bytes at one position."""
        bytes_meet = max(self.begin, other.begin) < min(self.end, other.end)
        return bytes_meet and max(self.first, other.first) <= min(self.last, other.last)

    def join(self, other: _Piece) -> None:
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.values += other.values


@quiet()
def read_program(path: str | PathLike[str]) -> tuple[MemoryView, ...]:
    """Read the arenas of a ``.pte`` file in which something lies, each with the file's own plan.

    Raises ValueError if it cannot be read.
    """
    name = fspath(path)
    if not Path(path).is_file():
        raise ValueError(f"{name}: no such file")
    try:
        from executorch.exir._serialize._program import deserialize_pte_binary
    except ImportError as error:
        raise ValueError(
            f"{name}: reading a program of ExecuTorch needs the package 'executorch' "
            f"(pip install executorch): {error}"
        ) from error
    try:
        program = deserialize_pte_binary(Path(path).read_bytes()).program
    except Exception as error:  # The reader raises whatever it stumbles on.
        raise ValueError(f"{name}: is no program of ExecuTorch: {first_line(error)}") from error
    return tuple(arena for method in program.execution_plan for arena in _Method(method).arenas())


class _Method:
    """One method: its values by their numbers, its instructions by their positions, from 1.

    Position 0 is before the first instruction, where inputs are written; the last one is after all
    instructions, where outputs are read.
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        code = [one.instr_args for chain in method.chains for one in chain.instructions]
        self.steps = [_read_step(one, method.operators) for one in code]
        self.end = len(self.steps) + 1
        self.tensors = {
            value: entry.val
            for value, entry in enumerate(method.values)
            if getattr(entry.val, "allocation_info", None) is not None
        }
        self.spans = {value: _bytes_of(tensor) for value, tensor in self.tensors.items()}
        self.names = self.value_names()
        self.lives = self.live_ranges()

    def arenas(self) -> Iterator[MemoryView]:
        """Yield the arenas in which something lies."""
        lines = [self.line(step) for step in self.steps] or ["(no instructions)"]
        text, method = ("inputs", *lines, "outputs"), self.method.name
        axis = Axis(text, tuple(range(len(text))), name=method)
        for arena in range(len(self.method.non_const_buffer_sizes)):
            buffers, offsets, notes, peak = [], {}, {}, 0
            for piece in self.pieces(arena):
                own, *others = (self.names[value] for value in piece.values)
                live = ((piece.first, piece.last + 1),)
                unit = 1 if piece.begin % ALIGNMENT else ALIGNMENT
                buffers.append(Buffer(own, piece.end - piece.begin, live, alignment=unit))
                offsets[own], peak = (piece.begin,), max(peak, piece.end)
                tensor = self.tensors[piece.values[0]]
                kind = f"{tensor.scalar_type.name.lower()} {'×'.join(map(str, tensor.sizes))}"
                views = f"also {', '.join(others)}" if others else ""
                notes[own] = BufferNote(type=kind.rstrip(), what=views)
            if buffers:
                memory = MemoryScope(f"global.arena{arena}")
                problem = Problem(tuple(buffers), memory, name=f"{memory.name} of {method}")
                plan = Plan(offsets, peak, 0, WRITTEN, Status.FEASIBLE)
                planned = PlannedProblem(STOCK, problem, plan, has_offsets=True)
                yield MemoryView(method, (planned,), written(axis, notes))

    def pieces(self, arena: int) -> list[_Piece]:
        """Return the pieces of an arena; views, and results in place, are joined."""
        pieces: list[_Piece] = []
        for value, (begin, end) in self.spans.items():
            if self.arena_of(value) == arena and value in self.lives and begin < end:
                piece = _Piece(begin, end, *self.lives[value], [value])
                while met := next((other for other in pieces if other.meets(piece)), None):
                    pieces.remove(met)
                    met.join(piece)
                    piece = met
                pieces.append(piece)
        return pieces

    def arena_of(self, value: int) -> int:
        return int(self.tensors[value].allocation_info.memory_id)

    def live_ranges(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last position at which each planned value is in use."""
        touched: dict[int, list[int]] = {}
        written: set[tuple[int, int]] = set()
        before = _Step("inputs", self.method.inputs, self.method.inputs)
        after = _Step("outputs", self.method.outputs)
        for position, step in enumerate((before, *self.steps, after)):
            for value in self.leaves(step.named):
                touched.setdefault(value, []).append(position)
            written.update((value, position) for value in self.leaves(step.results))
        lives = {v: (at[0], at[-1]) for v, at in touched.items() if v in self.tensors}
        # A tensor whose state the file initialises lives all the time.
        states = {value for value, tensor in self.tensors.items() if tensor.data_buffer_idx}
        lives |= dict.fromkeys(states, (0, self.end))
        for value in sorted(lives, key=lambda v: (lives[v], v)):
            # A value that is read before anything has written it is a view of the value that last
            # had its bytes. That lives as long: a view has no instruction of its own.
            first, (begin, end) = lives[value][0], self.spans[value]
            if (value, first) in written or value in states:
                continue
            earlier = [
                (max(at for at in touched[other] if at < first), other)
                for other in lives
                if other != value
                and touched.get(other, (first,))[0] < first
                and self.arena_of(other) == self.arena_of(value)
                and max(self.spans[other][0], begin) < min(self.spans[other][1], end)
            ]
            if earlier:
                _, base = max(earlier)
                lives[base] = (lives[base][0], max(lives[base][1], lives[value][1]))
                lives[value] = (lives[base][0], lives[value][1])
        for step in reversed(self.steps):
            # A tensor lives as long as the value that it is moved to: both have its bytes.
            if step.what == "Move" and lives.keys() >= {*step.named}:
                source, target = step.named
                lives[source] = (lives[source][0], max(lives[source][1], lives[target][1]))
        for first, last in self.loops():
            for value, (begin, until) in lives.items():
                if begin < first <= until or begin <= last < until:
                    lives[value] = (min(begin, first), max(until, last))
        return lives

    def leaves(self, values: Iterable[int]) -> Iterator[int]:
        """Yield values, and those in lists of tensors among them."""
        for value in values:
            yield value
            entry: Any = self.method.values[value].val
            if type(entry).__name__ in ("TensorList", "OptionalTensorList"):
                yield from (item for item in entry.items if item >= 0)

    def value_names(self) -> dict[int, str]:
        """Name each value by the operator that writes it first, and its number in the file."""
        made: dict[int, str] = dict.fromkeys(self.method.inputs, "input")
        for step in self.steps:
            maker = "delegate" if step.what == "Delegate" else step.what.split(".")[0]
            for value in self.leaves(step.results if step.what != "Move" else ()):
                made.setdefault(value, maker)
        return {value: f"{made.get(value, 'value')} {value}" for value in self.tensors}

    def line(self, step: _Step) -> str:
        """Write an instruction."""
        if step.goes_to is not None:
            return f"if not value {step.named[0]}: go to {step.goes_to}"
        used = dict.fromkeys(self.names[value] for value in step.named if value in self.names)
        return f"{step.what}({', '.join(used)})"

    def loops(self) -> list[tuple[int, int]]:
        """Return the first and the last position of each loop, inner ones first."""
        steps = enumerate(self.steps, 1)
        jumps = [(at, step.goes_to) for at, step in steps if step.goes_to is not None]
        found = [(begin + 1, at) for at, begin in jumps if begin < at]
        return sorted(found, key=lambda loop: loop[1] - loop[0])


class _Step(NamedTuple):
    """An instruction: its operator, or else its kind; and values by their numbers."""

    what: str
    named: Sequence[int]  # Those that it names
    results: Sequence[int] = ()  # Those that it writes
    goes_to: int | None = None  # Of a jump


def _read_step(instruction: Any, operators: Sequence[Any]) -> _Step:
    kind = type(instruction).__name__.removesuffix("Call")
    if kind == "Kernel":  # Its last argument is what it returns: one tensor, or a list of them.
        operator, args = operators[instruction.op_index], instruction.args
        name = f"{operator.name.split('::')[-1]}.{operator.overload}".rstrip(".")
        return _Step(name, args, args[-1:])
    if kind == "Delegate":  # The file does not say which arguments it writes: it may be each.
        return _Step(kind, instruction.args, instruction.args)
    if kind == "Move":
        return _Step(kind, (instruction.move_from, instruction.move_to), (instruction.move_to,))
    if kind == "JumpFalse":
        goes_to = instruction.destination_instruction
        return _Step(kind, (instruction.cond_value_index,), goes_to=goes_to)
    return _Step(kind, (instruction.value_index,))


def _bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the first byte of a planned tensor in its arena, and the one after its last."""
    from executorch.exir.tensor import enum_to_scalar_map, num_bytes_from_shape_and_dtype

    dtype = enum_to_scalar_map[tensor.scalar_type]
    size = round_up(num_bytes_from_shape_and_dtype(tensor.sizes, dtype), ALIGNMENT)
    begin = int(tensor.allocation_info.memory_offset)
    return begin, begin + size
