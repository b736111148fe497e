# SPDX-License-Identifier: Apache-2.0
"""Live ranges of buffers in a function of tile primitives and NKI instructions.

Such a function allocates tiles of two or more dimensions and works on regions of them; it is not
flattened. A position is a statement without a body: a tile primitive, an instruction with the loops
that span its tile, or any other one. A loop has two positions more, its beginning and its end.
"""

from __future__ import annotations

from collections.abc import Iterator
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

from passes.ir import nodes_in
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
    runs: bool  # Whether its body runs at least once each time, and each time to its end
    loop: For | None = None


@dataclass(frozen=True)
class _Touch:
    """One statement that names a buffer."""

    position: int
    around: tuple[_Enclosing, ...]  # Outermost first
    # The loops around it, by number, all rounds of which together write the whole buffer and read
    # nothing of it; None where they do not.
    overwrites: frozenset[int] | None = None
    is_scratch: bool = False  # Whether the statement names the buffer as its workspace alone


def tile_lives(func: PrimFunc) -> list[TileAllocation]:
    """Return each allocation of a function with its live range.

    A buffer that a loop uses and that is allocated outside of it is live in all of the loop, unless
    each iteration overwrites the whole of it first. A buffer that is nothing but the workspace of
    primitives carries no value from one to the next. A buffer that an asynchronous primitive
    touches is live to the end, and in all loops around the primitive.
    """
    reader = _Reader()
    reader.read(func.body, ())
    found = []
    for handle, (statement, made) in reader.allocations.items():
        touches = reader.touches.get(handle, [made])
        begin, end = _live_range(touches, made.around, reader.spans)
        if handle in reader.lasting:
            around = [e.number for touch in touches for e in touch.around if e.is_loop]
            begin = min([begin, *(reader.spans[number][0] for number in around)])
            end = reader.position
        found.append(TileAllocation(statement, (begin, end)))
    return found


def _live_range(
    touches: list[_Touch], home: tuple[_Enclosing, ...], spans: dict[int, LiveRange]
) -> LiveRange:
    """Return the positions from the first to behind the last touch, and loops that carry a value.

    `home` is what stands around the allocation: a loop there makes a new buffer each time.
    """
    begin, end = touches[0].position, touches[-1].position + 1
    if all(touch.is_scratch for touch in touches):
        return begin, end
    loops = {e.number for touch in touches for e in touch.around if e.is_loop}
    for number in sorted(loops - {e.number for e in home}):
        first = next(t for t in touches if any(e.number == number for e in t.around))
        inner = first.around[[e.number for e in first.around].index(number) + 1 :]
        if not (all(e.runs for e in inner) and _is_overwrite(first, inner, touches)):
            begin, end = min(begin, spans[number][0]), max(end, spans[number][1])
    return begin, end


def _is_overwrite(first: _Touch, inner: tuple[_Enclosing, ...], touches: list[_Touch]) -> bool:
    """Whether a touch writes all of its buffer before anything else touches it.

    `inner` is what stands around the touch within the loop that is asked about.
    """
    if first.overwrites is None or not first.overwrites <= {e.number for e in inner}:
        return False
    outermost = min(first.overwrites, default=None)
    within = (t for t in touches if any(e.number == outermost for e in t.around))
    return all(touch is first for touch in within)


class _Reader:
    """What has been read of a function so far."""

    def __init__(self) -> None:
        self.position = 0
        self.spans: dict[int, LiveRange] = {}  # Of loops and branches, by number
        self.allocations: dict[int, tuple[AllocBuffer, _Touch]] = {}
        self.touches: dict[int, list[_Touch]] = {}  # By the owner's handle
        self.lasting: set[int] = set()  # Owners that something goes on with
        # The allocations that a buffer or a pointer may lie in, by its handle.
        self._owned: dict[int, list[int]] = {}
        self._enclosed = 0

    def read(self, statement: Any, around: tuple[_Enclosing, ...]) -> None:
        if isinstance(statement, SeqStmt):
            for part in statement.seq:
                self.read(part, around)
        elif isinstance(statement, AllocBuffer):
            handle = statement.buffer.__chandle__()
            self.allocations[handle] = statement, _Touch(self.position, around)
            self._owned[handle] = [handle]
            self.position += 1
        elif isinstance(statement, DeclBuffer):
            self._owned[statement.buffer.__chandle__()] = self._owners(statement.data)
        elif isinstance(statement, Bind):
            self._note(statement.value, around)
            self._owned[statement.var.__chandle__()] = self._owners(statement.value)
        elif isinstance(statement, For | While | IfThenElse):
            self._read_bodies(statement, around)
        elif isinstance(statement, AttrStmt) and statement.attr_key != INSTRUCTION:
            self._note(statement.value, around)
            self.read(statement.body, around)
        else:
            self._note(statement, around)

    def _read_bodies(self, statement: Any, around: tuple[_Enclosing, ...]) -> None:
        is_loop = not isinstance(statement, IfThenElse)
        bodies = [statement.body] if is_loop else [statement.then_case, statement.else_case]
        loop = statement if isinstance(statement, For) else None
        extent = None if loop is None else loop.extent
        runs = isinstance(extent, IntImm) and extent.value > 0 and not _jumps(statement.body)
        self._enclosed += 1
        number, begin = self._enclosed, self.position
        inside = (*around, _Enclosing(number, is_loop, runs, loop))
        # A condition is read in each round, in front of the body.
        for name in ("condition", "min", "extent"):
            if hasattr(statement, name):
                self._note(getattr(statement, name), inside)
        for body in bodies:
            if body is not None:
                self.read(body, inside)
        self.position += 1
        self.spans[number] = begin, self.position

    def _note(self, node: Any, around: tuple[_Enclosing, ...]) -> None:
        """Note what one statement without a body touches."""
        is_tile = isinstance(node, TilePrimitiveCall)
        workspace = self._owners([*node.workspace.values()]) if is_tile else []
        named = self._owners([*node.args, *node.config.values()] if is_tile else node)
        overwritten = dict(self._overwritten(node, around))
        for handle in dict.fromkeys([*named, *workspace]):
            is_scratch = handle not in named
            touch = _Touch(self.position, around, overwritten.get(handle), is_scratch)
            self.touches.setdefault(handle, []).append(touch)
            if is_tile and _called(node, _GO_ON):
                self.lasting.add(handle)
        self.position += 1

    def _owners(self, node: Any) -> list[int]:
        """Return the allocations that nodes name, directly or by another buffer, each once."""
        named = (self._owned.get(var.__chandle__(), []) for var in nodes_in(node, Var))
        return list(dict.fromkeys(handle for handles in named for handle in handles))

    def _overwritten(
        self, node: Any, around: tuple[_Enclosing, ...]
    ) -> Iterator[tuple[int, frozenset[int]]]:
        """Yield the allocation of which a statement writes every element and reads none.

        With it come the loops around the statement that it takes for this, by number.
        """
        loops: frozenset[int] | None
        if isinstance(node, TilePrimitiveCall):
            target, others = node.args[0], [*node.args[1:], *node.workspace.values()]
            if not _called(node, _OVERWRITE) or not isinstance(target, TensorRegion):
                return
            loops = frozenset() if _is_whole(target) else None
        else:
            call, own = _instruction(node)
            if call is None or not isinstance(call.args[0], TensorLoad):
                return
            target = call.args[0]
            others = [*call.args[1:], *target.indices]
            loops = _spanning(target, own, around)
        handle = target.source.__chandle__()
        read = {owner for other in others for owner in self._owners(other)}
        if loops is not None and handle in self.allocations and handle not in read:
            yield handle, loops


def _called(node: Any, kinds: tuple[Any, ...]) -> bool:
    return isinstance(TilePrimitiveCall.downcast(node), kinds)


def _jumps(body: Any) -> bool:
    """Whether an iteration may end before the end of a loop's body."""
    calls = (operator_name(call.op) for call in nodes_in(body, Call))
    return bool(nodes_in(body, Break, Continue)) or any(name in JUMPS for name in calls)


def _is_whole(region: Any) -> bool:
    """Whether a region is all of its buffer."""
    return all(
        isinstance(r.min, IntImm)
        and isinstance(r.extent, IntImm)
        and isinstance(size, IntImm)
        and (r.min.value, r.extent.value) == (0, size.value)
        for r, size in zip(region.region, region.source.ty.shape, strict=True)
    )


def _instruction(node: Any) -> tuple[Call | None, list[For]]:
    """Return the NKI instruction that a statement is if it overwrites its result, and its loops."""
    loops: list[For] = []
    body = node.body if isinstance(node, AttrStmt) else node
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    call = body.value if isinstance(body, Evaluate) else None
    is_known = isinstance(call, Call) and str(getattr(call.op, "name", "")) in NKI_OVERWRITES
    return (call if is_known else None), loops


def _spanning(access: Any, own: list[For], around: tuple[_Enclosing, ...]) -> frozenset[int] | None:
    """Return the loops around an instruction that its access takes to reach each element.

    Each index must be a loop's variable that runs over the whole dimension; None otherwise.
    """
    free: dict[int, tuple[For, int | None]] = {
        e.loop.loop_var.__chandle__(): (e.loop, e.number) for e in around if e.loop is not None
    }
    free |= {loop.loop_var.__chandle__(): (loop, None) for loop in own}
    taken = set()
    for index, size in zip(access.indices, access.source.ty.shape, strict=True):
        if isinstance(index, IntImm) and isinstance(size, IntImm):
            if (index.value, size.value) != (0, 1):
                return None
            continue
        loop, number = free.pop(index.__chandle__(), (None, None))
        if loop is None or not _is_span(loop, size):
            return None
        if number is not None:
            taken.add(number)
    return frozenset(taken)


def _is_span(loop: For, size: Any) -> bool:
    bounds = (loop.min, loop.extent, size)
    if loop.step is not None or not all(isinstance(bound, IntImm) for bound in bounds):
        return False
    return bool(loop.min.value == 0 and loop.extent.value == size.value)
