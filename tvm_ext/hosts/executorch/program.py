# SPDX-License-Identifier: Apache-2.0
"""The memory of a program that ExecuTorch has written: its plan, read back, beside ours.

A ``.pte`` file lists the values of each method and the instructions that use them in order; a
tensor that was planned has an arena, an offset and bytes. From these follow the live ranges, and so
the problem that the plan in the file solves.

Source: ``exir/schema.py`` of ExecuTorch 1.5, and how its emitter writes control flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from passes.planning import Budget, Buffer, Plan, Problem, Status, check, solve
from target_hw.memory import MemoryScope, round_up
from tvm_ext.comparison.planner_results import PlannerComparison, plan_scope
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import BufferNote, Listing, Placement, ScopeMap

SUFFIX = ".pte"
WRITTEN = "executorch"
"""What the plan in the file is called where the name of a planner stands."""

ALIGNMENT = 16
"""Bytes to which ExecuTorch rounds sizes and offsets, unless it is told otherwise."""


@dataclass(frozen=True, eq=False)
class WrittenArena:
    """One arena of one method, as the file has it."""

    method: str
    problem: Problem
    plan: Plan  # The one in the file
    notes: Mapping[str, BufferNote]
    listing: Listing  # The method's instructions
    values: tuple[tuple[int, ...], ...]  # The file's values that each buffer of the problem holds


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
        return (
            max(self.begin, other.begin) < min(self.end, other.end)
            and max(self.first, other.first) <= min(self.last, other.last)
        )  # fmt: skip

    def join(self, other: _Piece) -> None:
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.values += other.values


def read_program(path: str | PathLike[str]) -> tuple[WrittenArena, ...]:
    """Read the arenas of a program, method by method.

    Parameters
    ----------
    path : str or path
        A ``.pte`` file.

    Returns
    -------
    tuple of WrittenArena
        Without the arenas in which nothing lies.

    Raises
    ------
    ValueError
        If the file is no program of ExecuTorch, or ExecuTorch is not installed.
    """
    name = fspath(path)
    program = _program(name)
    return tuple(arena for method in program.execution_plan for arena in _arenas(method, name))


def map_of_program(
    path: str | PathLike[str], planners: Sequence[str] = ("best",), budget: Budget | None = None
) -> MemoryMap:
    """Return the memory map of a program: the plan in the file, and ours beside it.

    Parameters
    ----------
    path : str or path
        A ``.pte`` file.
    planners : sequence of str
        The planners to show beside `WRITTEN`.
    budget : Budget, optional
        Limits for planners that search.

    Raises
    ------
    ValueError
        As `read_program` does.
    """
    scopes = []
    for arena in read_program(path):
        placements = [Placement(WRITTEN, arena.problem, arena.plan)]
        for planner in planners:
            plan = solve(arena.problem, planner, budget)
            check(arena.problem, plan)
            placements.append(Placement(planner, arena.problem, plan))
        scopes.append(ScopeMap(arena.method, tuple(placements), arena.listing, arena.notes))
    return MemoryMap(Path(path).name, tuple(scopes))


def compare_program(
    path: str | PathLike[str], planners: Sequence[str] = ("best",), budget: Budget | None = None
) -> PlannerComparison:
    """Hold our planners against the plan in a program, arena by arena.

    Parameters
    ----------
    path : str or path
        A ``.pte`` file.
    planners : sequence of str
        The planners to ask.
    budget : Budget, optional
        Limits for planners that search.

    Raises
    ------
    ValueError
        As `read_program` does.
    """
    results = [
        plan_scope(
            arena.method,
            arena.problem.memory.name,
            (arena.problem,),
            list(planners),
            budget or Budget(),
            arena.plan.peak,
        )[0]
        for arena in read_program(path)
    ]
    note = "stock is the plan in the file, as ExecuTorch wrote it"
    return PlannerComparison(Path(path).name, tuple(results), notes=(note,))


def _program(name: str) -> Any:
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"{name}: no such file")
    try:
        from executorch.exir._serialize._program import deserialize_pte_binary
    except ImportError as error:
        raise ValueError(
            f"{name}: reading a program of ExecuTorch needs the package 'executorch' "
            f"(pip install executorch): {error}"
        ) from error
    try:
        return deserialize_pte_binary(path.read_bytes()).program
    except Exception as error:  # The reader raises whatever it stumbles on.
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{name}: is no program of ExecuTorch: {text}") from error


def _arenas(method: Any, file: str) -> Iterator[WrittenArena]:
    code = [instruction.instr_args for chain in method.chains for instruction in chain.instructions]
    operators = [f"{o.name.split('::')[-1]}.{o.overload}".rstrip(".") for o in method.operators]
    names = _value_names(method, code, operators)
    lives = _live_ranges(method, code)
    lines = tuple(_line(instruction, names, operators) for instruction in code)
    ends = ("inputs", *(lines or ("(no instructions)",)), "outputs")
    listing = Listing(ends, tuple(range(len(ends))), name=method.name)
    for arena in range(len(method.non_const_buffer_sizes)):
        pieces = _joined(_pieces(method, arena, lives))
        if pieces:
            yield _arena(method, arena, pieces, names, listing)


def _arena(
    method: Any,
    arena: int,
    pieces: Sequence[_Piece],
    names: Mapping[int, str],
    listing: Listing,
) -> WrittenArena:
    buffers, offsets, notes = [], {}, {}
    for piece in pieces:
        own = names[piece.values[0]]
        size_here = piece.end - piece.begin
        aligned = piece.begin % ALIGNMENT == 0
        live = ((piece.first, piece.last + 1),)
        buffers.append(Buffer(own, size_here, live, alignment=ALIGNMENT if aligned else 1))
        offsets[own] = (piece.begin,)
        notes[own] = BufferNote(what=_what(method.values[piece.values[0]].val, piece, names))
    scope = f"global.arena{arena}"
    problem = Problem(tuple(buffers), MemoryScope(scope), name=f"{scope} of {method.name}")
    peak = max(piece.end for piece in pieces)
    plan = Plan(offsets, peak, 0, WRITTEN, Status.FEASIBLE)
    values = tuple(tuple(piece.values) for piece in pieces)
    return WrittenArena(method.name, problem, plan, notes, listing, values)


def _what(tensor: Any, piece: _Piece, names: Mapping[int, str]) -> str:
    shape = ", ".join(map(str, tensor.sizes))
    views = ", ".join(names[value] for value in piece.values[1:])
    return f"{tensor.scalar_type.name.lower()}[{shape}]" + (f"; also {views}" if views else "")


def _planned(method: Any) -> Iterator[tuple[int, Any]]:
    for value, entry in enumerate(method.values):
        if getattr(entry.val, "allocation_info", None) is not None:
            yield value, entry.val


def _pieces(method: Any, arena: int, lives: Mapping[int, tuple[int, int]]) -> Iterator[_Piece]:
    for value, tensor in _planned(method):
        if tensor.allocation_info.memory_id == arena and value in lives:
            begin, end = _bytes_of(tensor)
            if begin < end:
                yield _Piece(begin, end, *lives[value], [value])


def _joined(found: Iterable[_Piece]) -> list[_Piece]:
    """Join values that share bytes at one time: views, and results in place."""
    pieces: list[_Piece] = []
    for piece in found:
        while met := next((other for other in pieces if other.meets(piece)), None):
            pieces.remove(met)
            met.join(piece)
            piece = met
        pieces.append(piece)
    return pieces


def _live_ranges(method: Any, code: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Return the first and the last position at which each planned value is in use.

    Position 0 is before the first instruction, where inputs are written; the last one is behind all
    instructions, where outputs are read.
    """
    end = len(code) + 1
    touched: dict[int, list[int]] = {}
    written: dict[int, set[int]] = {}
    for value in _leaves(method, method.inputs):
        touched.setdefault(value, []).append(0)
        written.setdefault(value, set()).add(0)
    for position, instruction in enumerate(code, 1):
        for value in _leaves(method, _arguments(instruction)):
            touched.setdefault(value, []).append(position)
        for value in _leaves(method, _results(instruction)):
            written.setdefault(value, set()).add(position)
    for value in _leaves(method, method.outputs):
        touched.setdefault(value, []).append(end)
    planned = dict(_planned(method))
    lives = {v: (at[0], at[-1]) for v, at in touched.items() if v in planned}
    for value, tensor in planned.items():
        if tensor.data_buffer_idx:  # It has a state that the file initialises.
            lives[value] = (0, end)
    _extend_over_views(planned, touched, written, lives)
    _extend_over_moves(code, lives)
    for first, last in _loops(code):
        for value, (begin, until) in lives.items():
            if begin < first <= until or begin <= last < until:
                lives[value] = (min(begin, first), max(until, last))
    return lives


def _extend_over_views(
    planned: Mapping[int, Any],
    touched: Mapping[int, Sequence[int]],
    written: Mapping[int, set[int]],
    lives: dict[int, tuple[int, int]],
) -> None:
    """Let a value live as long as its views, which have no instruction of their own.

    A value that is read before anything has written it is a view of the value that last had its
    bytes.
    """
    spans = {value: _bytes_of(tensor) for value, tensor in planned.items()}
    for value in sorted(lives, key=lambda v: (lives[v], v)):
        first = lives[value][0]
        if first in written.get(value, ()) or planned[value].data_buffer_idx:
            continue
        earlier = [
            (max(at for at in touched[other] if at < first), other)
            for other in lives
            if other != value
            and touched.get(other, (first,))[0] < first
            and planned[other].allocation_info.memory_id == planned[value].allocation_info.memory_id
            and max(spans[other][0], spans[value][0]) < min(spans[other][1], spans[value][1])
        ]
        if earlier:
            _, base = max(earlier)
            lives[base] = (lives[base][0], max(lives[base][1], lives[value][1]))
            lives[value] = (max(lives[base][0], 0), lives[value][1])


def _bytes_of(tensor: Any) -> tuple[int, int]:
    """Return the first byte of a planned tensor in its arena, and the one behind its last."""
    from executorch.exir.tensor import enum_to_scalar_map, num_bytes_from_shape_and_dtype

    dtype = enum_to_scalar_map[tensor.scalar_type]
    size = round_up(num_bytes_from_shape_and_dtype(tensor.sizes, dtype), ALIGNMENT)
    begin = int(tensor.allocation_info.memory_offset)
    return begin, begin + size


def _extend_over_moves(code: Sequence[Any], lives: dict[int, tuple[int, int]]) -> None:
    """Let a tensor live as long as the value that it is moved to: both have its bytes."""
    for move in reversed([i for i in code if type(i).__name__ == "MoveCall"]):
        if move.move_from in lives and move.move_to in lives:
            begin, end = lives[move.move_from]
            lives[move.move_from] = (begin, max(end, lives[move.move_to][1]))


def _loops(code: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the first and the last position of each loop, inner ones first."""
    found = [
        (instruction.destination_instruction + 1, position)
        for position, instruction in enumerate(code, 1)
        if type(instruction).__name__ == "JumpFalseCall"
        and instruction.destination_instruction < position
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
    kind = type(instruction).__name__
    if kind == "KernelCall":
        return tuple(instruction.args[-1:])
    if kind == "DelegateCall":
        return tuple(instruction.args)
    return (instruction.move_to,) if kind == "MoveCall" else ()


def _leaves(method: Any, values: Iterable[int]) -> Iterator[int]:
    """Yield values, and those in lists of tensors among them."""
    for value in values:
        yield value
        entry: Any = method.values[value].val
        if type(entry).__name__ in ("TensorList", "OptionalTensorList"):
            yield from (item for item in entry.items if item >= 0)


def _value_names(method: Any, code: Sequence[Any], operators: Sequence[str]) -> dict[int, str]:
    """Name each value by the operator that writes it first, and its number in the file."""
    made: dict[int, str] = dict.fromkeys(method.inputs, "input")
    for instruction in code:
        if type(instruction).__name__ == "KernelCall" and instruction.args:
            operator = operators[instruction.op_index].split(".")[0]
            for value in _leaves(method, instruction.args[-1:]):
                made.setdefault(value, operator)
        elif type(instruction).__name__ == "DelegateCall":
            for value in _leaves(method, instruction.args):
                made.setdefault(value, "delegate")
    return {value: f"{made.get(value, 'value')} {value}" for value, _ in _planned(method)}


def _line(instruction: Any, names: Mapping[int, str], operators: Sequence[str]) -> str:
    kind = type(instruction).__name__
    if kind == "JumpFalseCall":
        return f"if not value {instruction.cond_value_index}: go to " + str(
            instruction.destination_instruction
        )
    what = operators[instruction.op_index] if kind == "KernelCall" else kind.removesuffix("Call")
    used = dict.fromkeys(names[v] for v in _arguments(instruction) if v in names)
    return f"{what}({', '.join(used)})"
