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

from tvm.tirx.operator.tile_primitive.ops import CopyAsync, GemmAsync

from passes.ir import PrimFunc, nodes_in, tir, unique_name
from passes.planning import Buffer, LiveRange, Problem
from target_hw.memory import MemoryHierarchy, MemoryScope, round_up

SBUF, PSUM = "trn.sbuf", "trn.psum"

PSUM_BANK = 2048
"""Bytes of one bank of PSUM, a partition: 512 numbers of 32 bits, the most that a product makes."""

_ADDRESSES = {SBUF: "one number of bytes", PSUM: "a bank and a number of bytes"}

_INSTRUCTION = "tensorized_nki_instruction"
"""The attribute around the loops that are one instruction."""

_GO_ON = (CopyAsync, GemmAsync)  # They may not be over when the next statement starts


@dataclass(frozen=True)
class TileProblem:
    """One memory of a function of tile primitives."""

    problem: Problem
    allocations: tuple[tir.Allocation, ...]  # In the order of the problem's buffers


def has_tiles(func: PrimFunc) -> bool:
    """Return whether a function allocates memory of a Trainium core."""
    return bool(_tiles(func))


def _tiles(func: PrimFunc) -> list[tir.Var]:
    made = [op.buffer for op in nodes_in(func.body, tir.Allocation)]
    return [buffer for buffer in made if buffer.ty.storage_scope in (SBUF, PSUM)]


def tile_problems(func: PrimFunc, memory: MemoryHierarchy) -> list[TileProblem]:
    """Read the problems of a function's tiles, one for each memory that it uses.

    Capacities are in bytes of a partition; a scope that is not in `memory` has no end. ValueError
    names the buffer and its scope if a tile has a symbolic size, or a given address that it cannot
    have, or is allocated within an instruction or a block.
    """
    reader = _TileReader()
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
    if not all(isinstance(extent, tir.IntConstant) for extent in kind.shape):
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
class _Touch:
    """One statement that names a buffer."""

    position: int
    loops: tuple[int, ...]  # The numbers of those around it, outermost first
    is_scratch: bool = False  # Whether the statement names the buffer as its workspace alone


class _TileReader:
    """The state of reading the tile operations of a function."""

    def __init__(self) -> None:
        self.position = 0
        self.allocations: dict[int, tuple[tir.Allocation, _Touch]] = {}
        self._spans: dict[int, LiveRange] = {}  # Of loops, by number
        self._touches: dict[int, list[_Touch]] = {}  # By the owner's handle
        self._lasting: set[int] = set()  # Owners that something goes on with
        # The allocations that a buffer or a pointer may lie in, by its handle.
        self._owned: dict[int, list[int]] = {}

    def live_range(self, handle: int) -> LiveRange:
        """Return the positions of an allocation's touches, with the loops that carry its value.

        A buffer that a loop uses and that is allocated outside of it is live in all of the loop. A
        buffer that is nothing but the workspace of primitives carries no value from one to the
        next. A buffer that an asynchronous primitive touches is live to the end, and in all loops
        around the primitive.
        """
        _, made = self.allocations[handle]
        touches = self._touches.get(handle, [made])
        begin, end = touches[0].position, touches[-1].position + 1
        if handle in self._lasting:
            loops = (number for touch in touches for number in touch.loops)
            return min([begin, *(self._spans[number][0] for number in loops)]), self.position
        if all(touch.is_scratch for touch in touches):
            return begin, end
        # A loop around the allocation makes a new buffer each time.
        outside = {number for touch in touches for number in touch.loops} - {*made.loops}
        spans = [(begin, end), *(self._spans[number] for number in outside)]
        return min(first for first, _ in spans), max(last for _, last in spans)

    def read(self, op: Any, loops: tuple[int, ...]) -> None:
        """Read a statement, and what stands in it."""
        match op:
            case tir.Sequence():
                for part in op.seq:
                    self.read(part, loops)
            case tir.Allocation():
                handle = op.buffer.__chandle__()
                self.allocations[handle] = op, _Touch(self.position, loops)
                self._owned[handle] = [handle]
                self.position += 1
            case tir.Declaration():
                self._owned[op.buffer.__chandle__()] = self._owners(op.data)
            case tir.Binding():
                self._note(op.value, loops)
                self._owned[op.var.__chandle__()] = self._owners(op.value)
            case tir.Loop() | tir.While():
                self._read_loop(op, loops)
            case tir.If():
                self._note(op.condition, loops)
                self.read(op.then_case, loops)
                if op.else_case is not None:
                    self.read(op.else_case, loops)
            case tir.Attribute() if op.attr_key != _INSTRUCTION:
                self._note(op.value, loops)
                self.read(op.body, loops)
            case _:
                self._note(op, loops)

    def _read_loop(self, op: tir.Loop | tir.While, loops: tuple[int, ...]) -> None:
        number, begin = len(self._spans), self.position
        self._spans[number] = begin, begin
        inside = (*loops, number)
        # A condition is read in each round, before the body.
        for part in [op.min, op.extent] if isinstance(op, tir.Loop) else [op.condition]:
            self._note(part, inside)
        self.read(op.body, inside)
        self.position += 1
        self._spans[number] = begin, self.position

    def _note(self, node: Any, loops: tuple[int, ...]) -> None:
        """Note what one statement without a body touches."""
        is_tile = isinstance(node, tir.TilePrimitive)
        workspace = self._owners([*node.workspace.values()]) if is_tile else []
        named = self._owners([*node.args, *node.config.values()] if is_tile else node)
        for handle in dict.fromkeys([*named, *workspace]):
            touch = _Touch(self.position, loops, handle not in named)
            self._touches.setdefault(handle, []).append(touch)
            if is_tile and isinstance(tir.TilePrimitive.downcast(node), _GO_ON):
                self._lasting.add(handle)
        self.position += 1

    def _owners(self, node: Any) -> list[int]:
        """Return the allocations that nodes name, directly or by another buffer, each once."""
        named = (self._owned.get(var.__chandle__(), []) for var in nodes_in(node, tir.Var))
        return list(dict.fromkeys(handle for handles in named for handle in handles))
