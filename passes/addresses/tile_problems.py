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

from tvm.tirx.operator.tile_primitive.ops import (
    FMA,
    BinaryOp,
    Copy,
    CopyAsync,
    Gemm,
    GemmAsync,
    UnaryOp,
)

from passes.ir import PrimFunc, has_any, nodes_in, tir, unique_name
from passes.planning import Buffer, LiveRange, Problem
from target_hw.memory import MemoryHierarchy, MemoryScope, round_up

SBUF, PSUM = "trn.sbuf", "trn.psum"

PSUM_BANK = 2048
"""Bytes of one bank of PSUM, a partition: 512 numbers of 32 bits, the most that a product makes."""

_ADDRESSES = {SBUF: "one number of bytes", PSUM: "a bank and a number of bytes"}

_INSTRUCTION = "tensorized_nki_instruction"
"""The attribute around the loops that are one instruction."""

_GO_ON = (CopyAsync, GemmAsync)  # They may not be over when the next statement starts

_OVERWRITE = (UnaryOp, BinaryOp, Copy, FMA, Gemm)
"""Primitives that write all of the region that is their first operand, whatever it held."""

_OVERWRITING = (
    "load",
    "tensor_copy",
    "activation",
    "reciprocal",
    "tensorreduce",
    "tensortensor",
    "tensorscalar",
    "memset",
    "identity",
    "scalar_tensor_tensor",
    "scalar_tensor_scalar",
    "affine_select",
)
"""Instructions that write each element of their first operand, whatever it held.

Source: ``tvm.backend.trn.op``.
"""


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
    branches: tuple[int, ...] = ()  # Likewise
    is_scratch: bool = False  # Whether the statement names the buffer as its workspace alone
    fills: bool = False  # Whether the statement writes all of the buffer and does not read it
    is_name: bool = False  # Whether the statement gives the buffer's address a name, and no more


def _filled(node: Any) -> tir.Var | None:
    """Return the buffer that a primitive or an instruction writes all of, as is sure at a look."""
    if isinstance(node, tir.TilePrimitive):
        region = node.args[0]
        if not isinstance(tir.TilePrimitive.downcast(node), _OVERWRITE):
            return None
        if not isinstance(region, tir.Region):
            return None
        ranges = zip(region.region, region.source.ty.shape, strict=True)
        is_whole = all(
            tir.constant(each.min) == 0 and _is_as_long(each.extent, extent)
            for each, extent in ranges
        )
        return region.source if is_whole else None
    call, counts = _instruction_call(node)
    if call is None or str(call.op.name).rpartition(".")[2] not in _OVERWRITING:
        return None
    result = call.args[0]
    if not isinstance(result, tir.Load):
        return None
    for index, extent in zip(result.indices, result.source.ty.shape, strict=True):
        count = counts.pop(index.__chandle__(), None)
        is_all = tir.constant(index) == 0 and tir.constant(extent) == 1
        if not is_all and (count is None or not _is_as_long(count, extent)):
            return None
    return result.source


def _instruction_call(node: Any) -> tuple[tir.Call | None, dict[int, Any]]:
    """Return the call of an instruction, and how far the loops around it count, by their variables.

    None where something else stands around the call, or a loop does not begin at 0.
    """
    counts: dict[int, Any] = {}
    if not isinstance(node, tir.Attribute):
        return None, counts
    body = node.body
    while isinstance(body, tir.Loop):
        if tir.constant(body.min) != 0 or body.step is not None:
            return None, counts
        counts[body.loop_var.__chandle__()] = body.extent
        body = body.body
    is_call = isinstance(body, tir.Evaluation) and isinstance(body.value, tir.Call)
    return (body.value if is_call else None), counts


def _others(node: Any) -> list[Any]:
    """Return what a primitive or an instruction names beside its first operand."""
    if isinstance(node, tir.TilePrimitive):
        return [*list(node.args)[1:], *node.config.values(), *node.workspace.values()]
    call, _ = _instruction_call(node)
    return [] if call is None else list(call.args)[1:]


def _is_as_long(count: Any, extent: Any) -> bool:
    return tir.constant(count) is not None and tir.constant(count) == tir.constant(extent)


class _TileReader:
    """The state of reading the tile operations of a function."""

    def __init__(self) -> None:
        self.position = 0
        self._branches: tuple[int, ...] = ()
        self.allocations: dict[int, tuple[tir.Allocation, _Touch]] = {}
        self._spans: dict[int, LiveRange] = {}  # Of loops, by number
        self._touches: dict[int, list[_Touch]] = {}  # By the owner's handle
        self._lasting: set[int] = set()  # Owners that something goes on with
        # The allocations that a buffer or a pointer may lie in, by its handle.
        self._owned: dict[int, list[int]] = {}

    def live_range(self, handle: int) -> LiveRange:
        """Return the positions of an allocation's touches, with the loops that carry its value.

        A buffer that a loop uses and that is allocated outside of it is live in all of the loop. So
        is one that is allocated in it, at an address that stays, unless each round certainly fills
        it before anything else uses it. A buffer that is nothing but the workspace of primitives
        carries no value from one to the next. A buffer that an asynchronous primitive touches is
        live to the end, and in all loops around the primitive.
        """
        _, made = self.allocations[handle]
        touches = self._touches.get(handle, [made])
        begin, end = touches[0].position, touches[-1].position + 1
        if handle in self._lasting:
            loops = (number for touch in touches for number in touch.loops)
            return min([begin, *(self._spans[number][0] for number in loops)]), self.position
        if all(touch.is_scratch for touch in touches):
            return begin, end
        first, *_ = [touch for touch in touches if not touch.is_name] or touches
        is_own = first.fills and (first.loops, first.branches) == (made.loops, made.branches)
        carrying = {number for touch in touches for number in touch.loops}
        outside = carrying - ({*made.loops} if is_own else set())
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
                self.allocations[handle] = op, _Touch(self.position, loops, self._branches)
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
                outer = self._branches
                for case in (op.then_case, op.else_case):
                    if case is not None:
                        self._branches = (*outer, self.position)
                        self.read(case, loops)
                self._branches = outer
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
        filled = _filled(node)
        if filled is not None and filled.__chandle__() in self._owners(_others(node)):
            filled = None
        is_name = isinstance(node, tir.Expr) and not has_any(node, tir.Load, tir.Region)
        for handle in dict.fromkeys([*named, *workspace]):
            fills = filled is not None and filled.__chandle__() == handle
            is_scratch = handle not in named
            touch = _Touch(self.position, loops, self._branches, is_scratch, fills, is_name)
            self._touches.setdefault(handle, []).append(touch)
            if is_tile and isinstance(tir.TilePrimitive.downcast(node), _GO_ON):
                self._lasting.add(handle)
        self.position += 1

    def _owners(self, node: Any) -> list[int]:
        """Return the allocations that nodes name, directly or by another buffer, each once."""
        named = (self._owned.get(var.__chandle__(), []) for var in nodes_in(node, tir.Var))
        return list(dict.fromkeys(handle for handles in named for handle in handles))
