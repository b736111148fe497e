# SPDX-License-Identifier: Apache-2.0
"""The memory of a program that ExecuTorch has written: its plan, read back, beside ours.

A ``.pte`` file lists the values of each method and the instructions that use them in order; a
tensor that was planned has an arena, an offset and bytes. From these follow the live ranges, and so
the problem that the plan in the file solves.

Source: ``exir/schema.py`` of ExecuTorch 1.5, and how its emitter writes control flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from passes.planning import Buffer, Plan, Problem, Status
from target_hw.memory import MemoryScope, round_up
from tvm_ext.hosts import quiet
from tvm_ext.map.memory_map import BufferNote, Listing, ScopeMap
from tvm_ext.planned.placements import PlannedProblem

SUFFIX = ".pte"
WRITTEN = "executorch"
"""What the plan in the file is called where the name of a planner stands."""

ALIGNMENT = 16
"""Bytes to which ExecuTorch rounds sizes and offsets, unless it is told otherwise."""


@dataclass
class _Piece:
    """Bytes of an arena that one value has, or several that are views of one another."""

    begin: int
    end: int
    first: int
    last: int
    values: list[int]

    def meets(self, other: _Piece) -> bool:
        """Whether both hold bytes at one position."""
        bytes_meet = max(self.begin, other.begin) < min(self.end, other.end)
        return bytes_meet and max(self.first, other.first) <= min(self.last, other.last)

    def join(self, other: _Piece) -> None:
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.values += other.values


@quiet()
def read_program(path: str | PathLike[str]) -> tuple[ScopeMap, ...]:
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
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{name}: is no program of ExecuTorch: {text}") from error
    return tuple(arena for method in program.execution_plan for arena in _Method(method).arenas())


class _Method:
    """One method: its values by their numbers, its instructions by their positions, from 1.

    Position 0 is before the first instruction, where inputs are written; the last one is behind all
    instructions, where outputs are read.
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        self.code = [one.instr_args for chain in method.chains for one in chain.instructions]
        self.end = len(self.code) + 1
        self.operators = [
            f"{o.name.split('::')[-1]}.{o.overload}".rstrip(".") for o in method.operators
        ]
        self.tensors = {
            value: entry.val
            for value, entry in enumerate(method.values)
            if getattr(entry.val, "allocation_info", None) is not None
        }
        self.spans = {value: _bytes_of(tensor) for value, tensor in self.tensors.items()}
        self.names = self.value_names()
        self.lives = self.live_ranges()

    def arenas(self) -> Iterator[ScopeMap]:
        """Yield the arenas in which something lies."""
        lines = [self.line(instruction) for instruction in self.code] or ["(no instructions)"]
        text, method = ("inputs", *lines, "outputs"), self.method.name
        listing = Listing(text, tuple(range(len(text))), name=method)
        for arena in range(len(self.method.non_const_buffer_sizes)):
            buffers, offsets, notes, peak = [], {}, {}, 0
            for piece in self.pieces(arena):
                own, *others = (self.names[value] for value in piece.values)
                live = ((piece.first, piece.last + 1),)
                unit = 1 if piece.begin % ALIGNMENT else ALIGNMENT
                buffers.append(Buffer(own, piece.end - piece.begin, live, alignment=unit))
                offsets[own], peak = (piece.begin,), max(peak, piece.end)
                tensor = self.tensors[piece.values[0]]
                shape = ", ".join(map(str, tensor.sizes))
                views = f"; also {', '.join(others)}" if others else ""
                notes[own] = BufferNote(what=f"{tensor.scalar_type.name.lower()}[{shape}]{views}")
            if buffers:
                memory = MemoryScope(f"global.arena{arena}")
                problem = Problem(tuple(buffers), memory, name=f"{memory.name} of {method}")
                plan = Plan(offsets, peak, 0, WRITTEN, Status.FEASIBLE)
                yield ScopeMap(method, (PlannedProblem(WRITTEN, problem, plan),), listing, notes)

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
        steps = [(0, self.method.inputs, self.method.inputs)]
        steps += [(at, _arguments(one), _results(one)) for at, one in enumerate(self.code, 1)]
        for position, named, results in [*steps, (self.end, self.method.outputs, ())]:
            for value in self.leaves(named):
                touched.setdefault(value, []).append(position)
            written.update((value, position) for value in self.leaves(results))
        lives = {v: (at[0], at[-1]) for v, at in touched.items() if v in self.tensors}
        # What has a state that the file initialises lives all the time.
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
        for move in reversed([i for i in self.code if _kind(i) == "MoveCall"]):
            # A tensor lives as long as the value that it is moved to: both have its bytes.
            if move.move_from in lives and move.move_to in lives:
                begin, end = lives[move.move_from]
                lives[move.move_from] = (begin, max(end, lives[move.move_to][1]))
        for first, last in _loops(self.code):
            for value, (begin, until) in lives.items():
                if begin < first <= until or begin <= last < until:
                    lives[value] = (min(begin, first), max(until, last))
        return lives

    def leaves(self, values: Iterable[int]) -> Iterator[int]:
        """Yield values, and those in lists of tensors among them."""
        for value in values:
            yield value
            entry: Any = self.method.values[value].val
            if _kind(entry) in ("TensorList", "OptionalTensorList"):
                yield from (item for item in entry.items if item >= 0)

    def value_names(self) -> dict[int, str]:
        """Name each value by the operator that writes it first, and its number in the file."""
        made: dict[int, str] = dict.fromkeys(self.method.inputs, "input")
        for one in self.code:
            if _kind(one) in ("KernelCall", "DelegateCall"):
                is_kernel = _kind(one) == "KernelCall"
                maker = self.operators[one.op_index].split(".")[0] if is_kernel else "delegate"
                for value in self.leaves(_results(one)):
                    made.setdefault(value, maker)
        return {value: f"{made.get(value, 'value')} {value}" for value in self.tensors}

    def line(self, instruction: Any) -> str:
        """Write an instruction."""
        kind = _kind(instruction)
        if kind == "JumpFalseCall":
            target = instruction.destination_instruction
            return f"if not value {instruction.cond_value_index}: go to {target}"
        what = kind.removesuffix("Call")
        if kind == "KernelCall":
            what = self.operators[instruction.op_index]
        used = dict.fromkeys(self.names[v] for v in _arguments(instruction) if v in self.names)
        return f"{what}({', '.join(used)})"


def _kind(node: Any) -> str:
    return type(node).__name__


def _bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the first byte of a planned tensor in its arena, and the one behind its last."""
    from executorch.exir.tensor import enum_to_scalar_map, num_bytes_from_shape_and_dtype

    dtype = enum_to_scalar_map[tensor.scalar_type]
    size = round_up(num_bytes_from_shape_and_dtype(tensor.sizes, dtype), ALIGNMENT)
    begin = int(tensor.allocation_info.memory_offset)
    return begin, begin + size


def _loops(code: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the first and the last position of each loop, inner ones first."""
    found = [
        (one.destination_instruction + 1, position)
        for position, one in enumerate(code, 1)
        if _kind(one) == "JumpFalseCall" and one.destination_instruction < position
    ]
    return sorted(found, key=lambda loop: loop[1] - loop[0])


def _arguments(instruction: Any) -> tuple[int, ...]:
    """Return the values that an instruction names."""
    if hasattr(instruction, "args"):
        return tuple(instruction.args)
    names = ("move_from", "move_to", "cond_value_index", "value_index")
    return tuple(getattr(instruction, name) for name in names if hasattr(instruction, name))


def _results(instruction: Any) -> tuple[int, ...]:
    """Return the values that an instruction writes.

    A kernel's last argument is what it returns: one tensor, or a list of them. A call of a delegate
    does not say which of its arguments are results, so all that nothing has written yet may be.
    """
    kind = _kind(instruction)
    if kind in ("KernelCall", "DelegateCall"):
        return tuple(instruction.args[-1:] if kind == "KernelCall" else instruction.args)
    return (instruction.move_to,) if kind == "MoveCall" else ()
