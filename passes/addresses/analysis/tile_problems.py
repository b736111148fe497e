# SPDX-License-Identifier: Apache-2.0
"""The memories of a Trainium core as problems: SBUF and PSUM, in bytes of each partition.

A tile has a partition dimension, whose 128 lanes are side by side, and free dimensions, which take
bytes of each partition. Only these bytes are planned: every tile begins at partition 0.

Source: TVM's back end for Trainium (``tvm.backend.trn``: its naive allocator, its layouts, and its
code generator, which writes addresses as ``mod_alloc(base_addr=...)``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.ir import Var
from tvm.tirx import AllocBuffer, IntImm, PrimFunc

from passes.addresses.analysis.tile_lives import TileAllocation, tile_lives
from passes.ir import nodes_in, unique_name
from passes.planning import Buffer, Problem
from target_hw.memory import MemoryHierarchy, MemoryScope, round_up

SBUF, PSUM = "trn.sbuf", "trn.psum"

PSUM_BANK = 2048
"""Bytes of one bank of PSUM, a partition: 512 numbers of 32 bits, the most that a product makes."""


@dataclass(frozen=True)
class TileProblem:
    """One memory of a function of tile primitives."""

    problem: Problem
    allocations: tuple[AllocBuffer, ...]  # In the order of the problem's buffers


def has_tiles(func: PrimFunc) -> bool:
    """Whether a function allocates memory of a Trainium core."""
    return bool(_tiles(func))


def _tiles(func: PrimFunc) -> list[Var]:
    made = [op.buffer for op in nodes_in(func.body, AllocBuffer)]
    return [buffer for buffer in made if buffer.ty.storage_scope in (SBUF, PSUM)]


def tile_problems(func: PrimFunc, memory: MemoryHierarchy) -> list[TileProblem]:
    """Read the problems of a function's tiles, one for each memory that it uses.

    Capacities are in bytes of a partition; a scope that is not in `memory` has no end. ValueError
    names the buffer and its scope if a tile has a symbolic size, or a given address that it cannot
    have, or is allocated within an instruction or a block.
    """
    lives = tile_lives(func)
    read = {life.statement.buffer.__chandle__() for life in lives}
    for tile in _tiles(func):
        if tile.__chandle__() not in read:
            where = f"buffer {tile.name!r} in {tile.ty.storage_scope}"
            raise ValueError(f"{where}: it is allocated within an instruction or a block")
    found = []
    for scope in (SBUF, PSUM):
        own = [life for life in lives if life.statement.buffer.ty.storage_scope == scope]
        if own:
            described = memory[scope] if scope in memory else MemoryScope(scope)
            names: set[str] = set()
            buffers = tuple(
                _buffer(unique_name(life.statement.buffer.name, names), life, scope) for life in own
            )
            problem = Problem(buffers, described, name=scope)
            found.append(TileProblem(problem, tuple(life.statement for life in own)))
    return found


def tile_address(scope: str, offset: int) -> list[int]:
    """Return an offset in bytes of a partition as TVM's ``allocated_addr`` says it.

    That is an address in SBUF; in PSUM a bank, and an address in it.
    """
    return [offset] if scope == SBUF else [*divmod(offset, PSUM_BANK)]


def _buffer(name: str, life: TileAllocation, scope: str) -> Buffer:
    kind = life.statement.buffer.ty
    where = f"buffer {name!r} in {scope}"
    if not all(isinstance(extent, IntImm) for extent in kind.shape):
        raise ValueError(f"{where}: its shape {list(kind.shape)} is not constant")
    item = int(kind.dtype.dtype.itemsize)
    size, unit = (_sbuf if scope == SBUF else _psum)(kind, item)
    given = [int(part) for part in kind.allocated_addr]
    if not given:
        return Buffer(name, size, (life.live,), unit)
    if len(given) != (1 if scope == SBUF else 2):
        raise ValueError(f"{where}: its address {given} must be {_FORMS[scope]}")
    offset = given[0] if scope == SBUF else given[0] * PSUM_BANK + given[1]
    return Buffer(name, size, (life.live,), math.gcd(unit, offset) or unit, pinned=(offset,))


_FORMS = {SBUF: "one number of bytes", PSUM: "a bank and a number of bytes"}


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
