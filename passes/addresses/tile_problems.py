# SPDX-License-Identifier: Apache-2.0
"""The memories of a Trainium core as problems: SBUF and PSUM, in bytes of each partition.

A function of tile primitives and NKI instructions allocates tiles of two or more dimensions and
works on regions of them; it is not flattened. A tile has a partition dimension, whose 128 lanes are
side by side, and free dimensions, which take bytes of each partition. Only these bytes are planned:
every tile begins at partition 0.

A position is a statement without a body: a tile primitive, an instruction with the loops that span
its tile, or any other one. A loop has two positions more, its beginning and its end.

Source: TVM's back end for Trainium (``tvm.backend.trn``: its naive allocator, its layouts, and its
code generator, which writes addresses as ``mod_alloc(base_addr=...)``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad, TensorRegion, Var
from tvm.tirx.operator.tile_primitive.ops import BinaryOp, Copy, CopyAsync, GemmAsync, UnaryOp
from tvm.tirx.stmt import AttrStmt
from tvm.tirx.tile_primitive import TilePrimitiveCall

from passes.ir import has_any, nodes_in, unique_name
from passes.ir.operators import JUMPS, NKI_OVERWRITES, operator_name
from passes.planning import Buffer, LiveRange, Problem
from target_hw.memory import MemoryHierarchy, MemoryScope, round_up

SBUF, PSUM = "trn.sbuf", "trn.psum"

PSUM_BANK = 2048
"""Bytes of one bank of PSUM, a partition: 512 numbers of 32 bits, the most that a product makes."""

_ADDRESSES = {SBUF: "one number of bytes", PSUM: "a bank and a number of bytes"}

_INSTRUCTION = "tensorized_nki_instruction"
"""The attribute around the loops that are one instruction."""

_OVERWRITE = (UnaryOp, BinaryOp, Copy)  # Tile primitives that write all elements of a region
_GO_ON = (CopyAsync, GemmAsync)  # They may not be over when the next statement starts


@dataclass(frozen=True)
class TileProblem:
    """One memory of a function of tile primitives."""

    problem: Problem
    allocations: tuple[tirx.AllocBuffer, ...]  # In the order of the problem's buffers


def has_tiles(func: tirx.PrimFunc) -> bool:
    """Whether a function allocates memory of a Trainium core."""
    return bool(_tiles(func))


def _tiles(func: tirx.PrimFunc) -> list[Var]:
    made = [op.buffer for op in nodes_in(func.body, tirx.AllocBuffer)]
    return [buffer for buffer in made if buffer.ty.storage_scope in (SBUF, PSUM)]


def tile_problems(func: tirx.PrimFunc, memory: MemoryHierarchy) -> list[TileProblem]:
    """Read the problems of a function's tiles, one for each memory that it uses.

    Capacities are in bytes of a partition; a scope that is not in `memory` has no end. ValueError
    names the buffer and its scope if a tile has a symbolic size, or a given address that it cannot
    have, or is allocated within an instruction or a block.
    """
    reader = _Reader()
    reader.read(func.body, ())
    for tile in _tiles(func):
        if tile.__chandle__() not in reader.allocations:
            where = f"buffer {tile.name!r} in {tile.ty.storage_scope}"
            raise ValueError(f"{where}: it is allocated within an instruction or a block")
    found = []
    for scope in (SBUF, PSUM):
        made = (statement for statement, _ in reader.allocations.values())
        own = [statement for statement in made if statement.buffer.ty.storage_scope == scope]
        if own:
            described = memory[scope] if scope in memory else MemoryScope(scope)
            names: set[str] = set()
            buffers = [
                _buffer(
                    unique_name(op.buffer.name, names),
                    op.buffer.ty,
                    reader.live_range(op.buffer.__chandle__()),
                )
                for op in own
            ]
            problem = Problem(tuple(buffers), described, name=scope)
            found.append(TileProblem(problem, tuple(own)))
    return found


def tile_address(scope: str, offset: int) -> list[int]:
    """Return an offset in bytes of a partition as TVM's ``allocated_addr`` says it.

    That is an address in SBUF; in PSUM a bank, and an address in it.
    """
    return [offset] if scope == SBUF else [*divmod(offset, PSUM_BANK)]


def _buffer(name: str, kind: Any, live: LiveRange) -> Buffer:
    scope = str(kind.storage_scope)
    where = f"buffer {name!r} in {scope}"
    if not all(isinstance(extent, tirx.IntImm) for extent in kind.shape):
        raise ValueError(f"{where}: its shape {list(kind.shape)} is not constant")
    item = int(kind.dtype.dtype.itemsize)
    size, unit = (_sbuf if scope == SBUF else _psum)(kind, item)
    given = [int(part) for part in kind.allocated_addr]
    if not given:
        return Buffer(name, size, (live,), unit)
    if len(given) != (1 if scope == SBUF else 2):
        raise ValueError(f"{where}: its address {given} must be {_ADDRESSES[scope]}")
    offset = given[0] if scope == SBUF else given[0] * PSUM_BANK + given[1]
    return Buffer(name, size, (live,), math.gcd(unit, offset) or unit, pinned=(offset,))


def _sbuf(kind: Any, item: int) -> tuple[int, int]:
    """Return the bytes of a partition that a tile of SBUF takes, and their alignment."""
    shape = [int(extent) for extent in kind.shape]
    if kind.layout is None:
        return math.prod(shape[1:]) * item, item
    lanes = math.prod(int(it.extent) for it in kind.layout.shard if it.axis.name == "P")
    return max(_span(kind.layout, "F"), math.prod(shape) // lanes) * item, item


def _psum(kind: Any, item: int) -> tuple[int, int]:
    """Return the bytes of a partition that a tile of PSUM takes, and their alignment.

    A tile in one bank does not reach into the next one; one of several banks takes them whole.
    """
    shape = [int(extent) for extent in kind.shape]
    if kind.layout is None:
        banks, nbytes = math.prod(shape[:-2]), shape[-1] * item
    else:
        banks, nbytes = _span(kind.layout, "Bank"), _span(kind.layout, "F") * item
    if banks > 1 or nbytes > PSUM_BANK:
        return max(banks, 1) * round_up(nbytes, PSUM_BANK), PSUM_BANK
    return nbytes, 1 << max(0, nbytes - 1).bit_length()


def _span(layout: Any, axis: str) -> int:
    """Return how many places of a memory axis a layout reaches over, from the tile's address on."""
    begin = sum(int(shift) for moved, shift in layout.offset.items() if moved.name == axis)
    iters = [it for it in layout.shard if it.axis.name == axis]
    return begin + 1 + sum((int(it.extent) - 1) * int(it.stride) for it in iters)


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


class _Reader:
    """What has been read of a function so far."""

    def __init__(self) -> None:
        self.position = 0
        self.allocations: dict[int, tuple[tirx.AllocBuffer, _Touch]] = {}
        self._spans: dict[int, LiveRange] = {}  # Of loops and branches, by number
        self._touches: dict[int, list[_Touch]] = {}  # By the owner's handle
        self._lasting: set[int] = set()  # Owners that something goes on with
        # The allocations that a buffer or a pointer may lie in, by its handle.
        self._owned: dict[int, list[int]] = {}

    def live_range(self, handle: int) -> LiveRange:
        """Return the positions of an allocation's touches, with the loops that carry its value.

        A buffer that a loop uses and that is allocated outside of it is live in all of the loop,
        unless each iteration overwrites the whole of it first. A buffer that is nothing but the
        workspace of primitives carries no value from one to the next. A buffer that an asynchronous
        primitive touches is live to the end, and in all loops around the primitive.
        """
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
            case tirx.SeqStmt():
                for part in op.seq:
                    self.read(part, around)
            case tirx.AllocBuffer():
                handle = op.buffer.__chandle__()
                self.allocations[handle] = op, _Touch(self.position, around)
                self._owned[handle] = [handle]
                self.position += 1
            case tirx.DeclBuffer():
                self._owned[op.buffer.__chandle__()] = self._owners(op.data)
            case tirx.Bind():
                self._note(op.value, around)
                self._owned[op.var.__chandle__()] = self._owners(op.value)
            case tirx.For() | tirx.While() | tirx.IfThenElse():
                self._read_bodies(op, around)
            case AttrStmt() if op.attr_key != _INSTRUCTION:
                self._note(op.value, around)
                self.read(op.body, around)
            case _:
                self._note(op, around)

    def _read_bodies(
        self, op: tirx.For | tirx.While | tirx.IfThenElse, around: tuple[_Enclosing, ...]
    ) -> None:
        is_branch = isinstance(op, tirx.IfThenElse)
        bodies = [op.then_case, op.else_case] if is_branch else [op.body]
        runs = isinstance(op, tirx.For) and (_constant(op.extent) or 0) > 0 and not _jumps(op.body)
        number, begin = len(self._spans), self.position
        self._spans[number] = begin, begin
        inside = (*around, _Enclosing(number, not is_branch, runs))
        # A condition is read in each round, in front of the body.
        for part in [op.min, op.extent] if isinstance(op, tirx.For) else [op.condition]:
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
    return has_any(body, tirx.Break, tirx.Continue) or any(name in JUMPS for name in calls)


def _constant(expr: Any) -> int | None:
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def _is_all(begin: Any, extent: Any, size: Any) -> bool:
    """Whether a range is all of a dimension of constant size."""
    known = _constant(size)
    return known is not None and (_constant(begin), _constant(extent)) == (0, known)


def _is_whole(region: Any) -> bool:
    """Whether a region is all of its buffer."""
    sizes = zip(region.region, region.source.ty.shape, strict=True)
    return all(_is_all(part.min, part.extent, size) for part, size in sizes)


def _instruction(node: Any) -> tuple[Call | None, list[tirx.For]]:
    """Return the NKI instruction that a statement is if it overwrites its result, and its loops."""
    loops: list[tirx.For] = []
    body = node.body if isinstance(node, AttrStmt) else node
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    call = body.value if isinstance(body, tirx.Evaluate) else None
    is_known = isinstance(call, Call) and operator_name(call.op) in NKI_OVERWRITES
    return (call if is_known else None), loops


def _spans(access: Any, loops: list[tirx.For]) -> bool:
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
