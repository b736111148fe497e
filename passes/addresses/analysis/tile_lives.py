# SPDX-License-Identifier: Apache-2.0
"""Live ranges of buffers in a function of tile primitives and NKI instructions.

Such a function allocates tiles of two or more dimensions and works on regions of them; it is not
flattened. A position is a statement without a body: a tile primitive, an instruction with the loops
that span its tile, or any other one. A loop has two positions more, its beginning and its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import Call, TensorLoad, TensorRegion, Var
from tvm.tirx import (
    AllocBuffer,
    Bind,
    Break,
    Continue,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    IntImm,
    PrimFunc,
    SeqStmt,
    While,
)
from tvm.tirx.operator.tile_primitive.ops import BinaryOp, Copy, CopyAsync, GemmAsync, UnaryOp
from tvm.tirx.stmt import AttrStmt
from tvm.tirx.tile_primitive import TilePrimitiveCall

from passes.ir import has_any, nodes_in
from passes.ir.operators import JUMPS, NKI_OVERWRITES, operator_name
from passes.planning import LiveRange

INSTRUCTION = "tensorized_nki_instruction"
"""The attribute around the loops that are one instruction."""

_OVERWRITE = (UnaryOp, BinaryOp, Copy)  # Tile primitives that write all elements of a region
_GO_ON = (CopyAsync, GemmAsync)  # They may not be over when the next statement starts


@dataclass(frozen=True)
class TileAllocation:
    """One allocation and when its memory is in use."""

    statement: AllocBuffer
    live: LiveRange


@dataclass(frozen=True)
class _Enclosing:
    """A statement with a body."""

    number: int
    is_loop: bool
    runs: bool  # Whether it is a loop whose body runs once at least, and each time to its end


@dataclass(frozen=True)
class _Touch:
    """One statement that names a buffer."""

    position: int
    around: tuple[_Enclosing, ...]  # Outermost first
    overwrites: bool = False  # Whether it writes the whole buffer, and reads nothing of it
    is_scratch: bool = False  # Whether the statement names the buffer as its workspace alone

    def loops(self) -> list[int]:
        return [e.number for e in self.around if e.is_loop]


def tile_lives(func: PrimFunc) -> list[TileAllocation]:
    """Return each allocation of a function with its live range.

    A buffer that a loop uses and that is allocated outside of it is live in all of the loop, unless
    each iteration overwrites the whole of it first. A buffer that is nothing but the workspace of
    primitives carries no value from one to the next. A buffer that an asynchronous primitive
    touches is live to the end, and in all loops around the primitive.
    """
    reader = _Reader()
    reader.read(func.body, ())
    return [
        TileAllocation(statement, reader.live_range(handle))
        for handle, (statement, _) in reader.allocations.items()
    ]


class _Reader:
    """What has been read of a function so far."""

    def __init__(self) -> None:
        self.position = 0
        self.allocations: dict[int, tuple[AllocBuffer, _Touch]] = {}
        self._spans: dict[int, LiveRange] = {}  # Of loops and branches, by number
        self._touches: dict[int, list[_Touch]] = {}  # By the owner's handle
        self._lasting: set[int] = set()  # Owners that something goes on with
        # The allocations that a buffer or a pointer may lie in, by its handle.
        self._owned: dict[int, list[int]] = {}

    def live_range(self, handle: int) -> LiveRange:
        """Return the positions of an allocation's touches, with the loops that carry its value."""
        _, made = self.allocations[handle]
        touches = self._touches.get(handle, [made])
        begin, end = touches[0].position, touches[-1].position + 1
        if handle in self._lasting:
            loops = (number for touch in touches for number in touch.loops())
            return min([begin, *(self._spans[number][0] for number in loops)]), self.position
        if all(touch.is_scratch for touch in touches):
            return begin, end
        # A loop around the allocation makes a new buffer each time.
        outside = {number for touch in touches for number in touch.loops()} - {*made.loops()}
        for number in sorted(outside):
            first = next(t for t in touches if number in t.loops())
            inner = first.around[[e.number for e in first.around].index(number) + 1 :]
            if not (first.overwrites and all(e.runs for e in inner)):
                begin, end = min(begin, self._spans[number][0]), max(end, self._spans[number][1])
        return begin, end

    def read(self, op: Any, around: tuple[_Enclosing, ...]) -> None:
        """Read a statement, and what stands in it."""
        match op:
            case SeqStmt():
                for part in op.seq:
                    self.read(part, around)
            case AllocBuffer():
                handle = op.buffer.__chandle__()
                self.allocations[handle] = op, _Touch(self.position, around)
                self._owned[handle] = [handle]
                self.position += 1
            case DeclBuffer():
                self._owned[op.buffer.__chandle__()] = self._owners(op.data)
            case Bind():
                self._note(op.value, around)
                self._owned[op.var.__chandle__()] = self._owners(op.value)
            case For() | While() | IfThenElse():
                self._read_bodies(op, around)
            case AttrStmt() if op.attr_key != INSTRUCTION:
                self._note(op.value, around)
                self.read(op.body, around)
            case _:
                self._note(op, around)

    def _read_bodies(self, op: For | While | IfThenElse, around: tuple[_Enclosing, ...]) -> None:
        is_branch = isinstance(op, IfThenElse)
        bodies = [op.then_case, op.else_case] if is_branch else [op.body]
        runs = isinstance(op, For) and (_constant(op.extent) or 0) > 0 and not _jumps(op.body)
        number, begin = len(self._spans), self.position
        self._spans[number] = begin, begin
        inside = (*around, _Enclosing(number, not is_branch, runs))
        # A condition is read in each round, in front of the body.
        for part in [op.min, op.extent] if isinstance(op, For) else [op.condition]:
            self._note(part, inside)
        for body in bodies:
            if body is not None:
                self.read(body, inside)
        self.position += 1
        self._spans[number] = begin, self.position

    def _note(self, node: Any, around: tuple[_Enclosing, ...]) -> None:
        """Note what one statement without a body touches."""
        is_tile = isinstance(node, TilePrimitiveCall)
        workspace = self._owners([*node.workspace.values()]) if is_tile else []
        named = self._owners([*node.args, *node.config.values()] if is_tile else node)
        overwritten = self._overwritten(node)
        for handle in dict.fromkeys([*named, *workspace]):
            touch = _Touch(self.position, around, handle == overwritten, handle not in named)
            self._touches.setdefault(handle, []).append(touch)
            if is_tile and _called(node, _GO_ON):
                self._lasting.add(handle)
        self.position += 1

    def _owners(self, node: Any) -> list[int]:
        """Return the allocations that nodes name, directly or by another buffer, each once."""
        named = (self._owned.get(var.__chandle__(), []) for var in nodes_in(node, Var))
        return list(dict.fromkeys(handle for handles in named for handle in handles))

    def _overwritten(self, node: Any) -> int | None:
        """Return the allocation of which a statement writes every element and reads none."""
        if isinstance(node, TilePrimitiveCall):
            target, others = node.args[0], [*node.args[1:], *node.workspace.values()]
            is_whole = _called(node, _OVERWRITE) and isinstance(target, TensorRegion)
            is_whole = is_whole and _is_whole(target)
        else:
            call, loops = _instruction(node)
            if call is None or not isinstance(call.args[0], TensorLoad):
                return None
            target = call.args[0]
            others, is_whole = [*call.args[1:], *target.indices], _spans(target, loops)
        if not is_whole:
            return None
        handle = int(target.source.__chandle__())
        return None if handle in self._owners(others) else handle


def _called(node: Any, kinds: tuple[Any, ...]) -> bool:
    return isinstance(TilePrimitiveCall.downcast(node), kinds)


def _jumps(body: Any) -> bool:
    """Whether an iteration may end before the end of a loop's body."""
    calls = (operator_name(call.op) for call in nodes_in(body, Call))
    return has_any(body, Break, Continue) or any(name in JUMPS for name in calls)


def _constant(expr: Any) -> int | None:
    return int(expr.value) if isinstance(expr, IntImm) else None


def _is_all(begin: Any, extent: Any, size: Any) -> bool:
    """Whether a range is all of a dimension of constant size."""
    known = _constant(size)
    return known is not None and (_constant(begin), _constant(extent)) == (0, known)


def _is_whole(region: Any) -> bool:
    """Whether a region is all of its buffer."""
    sizes = zip(region.region, region.source.ty.shape, strict=True)
    return all(_is_all(part.min, part.extent, size) for part, size in sizes)


def _instruction(node: Any) -> tuple[Call | None, list[For]]:
    """Return the NKI instruction that a statement is if it overwrites its result, and its loops."""
    loops: list[For] = []
    body = node.body if isinstance(node, AttrStmt) else node
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    call = body.value if isinstance(body, Evaluate) else None
    is_known = isinstance(call, Call) and operator_name(call.op) in NKI_OVERWRITES
    return (call if is_known else None), loops


def _spans(access: Any, loops: list[For]) -> bool:
    """Whether an access reaches each element of its buffer in an instruction's loops.

    Each index must be the variable of a loop that runs over the whole dimension.
    """
    free = {loop.loop_var.__chandle__(): loop for loop in loops}
    for index, size in zip(access.indices, access.source.ty.shape, strict=True):
        if (_constant(index), _constant(size)) == (0, 1):
            continue
        loop = free.pop(index.__chandle__(), None)
        if loop is None or loop.step is not None or not _is_all(loop.min, loop.extent, size):
            return False
    return True
