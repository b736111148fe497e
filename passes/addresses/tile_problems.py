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
from itertools import count
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
    reader.read(func.body)
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
    around: tuple[int, ...]  # The numbers of the loops and branches around it, outermost first
    is_scratch: bool = False  # Whether the statement names the buffer as its workspace alone
    fills: bool = False  # Whether the statement writes all of the buffer and does not read it
    is_name: bool = False  # Whether the statement gives the buffer's address a name, and no more


def _filled(node: Any) -> tuple[tir.Var, list[Any]] | None:
    """Return the buffer that a primitive or an instruction writes all of, and its other operands.

    None where that is not sure at a look.
    """
    if isinstance(node, tir.TilePrimitive):
        if not isinstance(tir.TilePrimitive.downcast(node), _OVERWRITE):
            return None
        result, others = node.args[0], [*node.args[1:], *node.config.values()]
        others += node.workspace.values()
        if not isinstance(result, tir.Region):
            return None
        written = [(each.min, each.extent) for each in result.region]
    else:
        call, counts = _instruction_call(node)
        if call is None or str(call.op.name).rpartition(".")[2] not in _OVERWRITING:
            return None
        result, *others = call.args
        if not isinstance(result, tir.Load):
            return None
        one = tir.IntConstant("int32", 1)
        written = [counts.pop(index.__chandle__(), (index, one)) for index in result.indices]
    # From where on, and how many elements, in each dimension
    ranges = [(tir.constant(begin), tir.constant(length)) for begin, length in written]
    extents = [tir.constant(extent) for extent in result.source.ty.shape]
    is_whole = None not in extents and ranges == [(0, extent) for extent in extents]
    return (result.source, others) if is_whole else None


def _instruction_call(node: Any) -> tuple[tir.Call | None, dict[int, tuple[Any, Any]]]:
    """Return the call of an instruction, and the bounds of the loops around it, by their variables.

    None where something else stands around the call, or a loop has a step.
    """
    counts: dict[int, tuple[Any, Any]] = {}
    if not isinstance(node, tir.Attribute):
        return None, counts
    body = node.body
    while isinstance(body, tir.Loop) and body.step is None:
        counts[body.loop_var.__chandle__()] = body.min, body.extent
        body = body.body
    is_call = isinstance(body, tir.Evaluation) and isinstance(body.value, tir.Call)
    return (body.value if is_call else None), counts


class _TileReader:
    """The state of reading the tile operations of a function."""

    def __init__(self) -> None:
        self.position = 0
        self.allocations: dict[int, tuple[tir.Allocation, _Touch]] = {}
        self._number = count()  # Of loops and branches
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
        loops = {number for touch in touches for number in touch.around} & self._spans.keys()
        if handle in self._lasting:
            return min([begin, *(self._spans[number][0] for number in loops)]), self.position
        if all(touch.is_scratch for touch in touches):
            return begin, end
        first, *_ = [touch for touch in touches if not touch.is_name] or touches
        if first.fills and first.around == made.around:
            loops.difference_update(made.around)
        spans = [(begin, end), *(self._spans[number] for number in loops)]
        return min(first for first, _ in spans), max(last for _, last in spans)

    def read(self, op: Any, around: tuple[int, ...] = ()) -> None:
        """Read a statement, and what stands in it."""
        match op:
            case tir.Sequence():
                for part in op.seq:
                    self.read(part, around)
            case tir.Allocation():
                handle = op.buffer.__chandle__()
                self.allocations[handle] = op, _Touch(self.position, around)
                self._owned[handle] = [handle]
                self.position += 1
            case tir.Declaration():
                self._owned[op.buffer.__chandle__()] = self._owners(op.data)
            case tir.Binding():
                self._note(op.value, around)
                self._owned[op.var.__chandle__()] = self._owners(op.value)
            case tir.Loop() | tir.While():
                number, begin = next(self._number), self.position
                # A condition is read in each round, before the body.
                for part in [op.min, op.extent] if isinstance(op, tir.Loop) else [op.condition]:
                    self._note(part, (*around, number))
                self.read(op.body, (*around, number))
                self.position += 1
                self._spans[number] = begin, self.position
            case tir.If():
                self._note(op.condition, around)
                for case in (op.then_case, op.else_case):
                    if case is not None:
                        self.read(case, (*around, next(self._number)))
            case tir.Attribute() if op.attr_key != _INSTRUCTION:
                self._note(op.value, around)
                self.read(op.body, around)
            case _:
                self._note(op, around)

    def _note(self, node: Any, around: tuple[int, ...]) -> None:
        """Note what one statement without a body touches."""
        is_tile = isinstance(node, tir.TilePrimitive)
        workspace = self._owners([*node.workspace.values()]) if is_tile else []
        named = self._owners([*node.args, *node.config.values()] if is_tile else node)
        written, others = _filled(node) or (None, [])
        filled = set() if written is None else {written.__chandle__()}
        filled.difference_update(self._owners(others))
        is_name = isinstance(node, tir.Expr) and not has_any(node, tir.Load, tir.Region)
        for handle in dict.fromkeys([*named, *workspace]):
            is_scratch = handle not in named
            touch = _Touch(self.position, around, is_scratch, handle in filled, is_name)
            self._touches.setdefault(handle, []).append(touch)
            if is_tile and isinstance(tir.TilePrimitive.downcast(node), _GO_ON):
                self._lasting.add(handle)
        self.position += 1

    def _owners(self, node: Any) -> list[int]:
        """Return the allocations that nodes name, directly or by another buffer, each once."""
        named = (self._owned.get(var.__chandle__(), []) for var in nodes_in(node, tir.Var))
        return list(dict.fromkeys(handle for handles in named for handle in handles))
