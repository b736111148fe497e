# SPDX-License-Identifier: Apache-2.0
"""The stages of a kernel: plain loop nests, each of which makes whole elements of its result.

The rules here are those for buffers, loops and blocks; those for what a block does with one element
are in `block_bodies`. A group runs a stage over any part of its result, in the order of the
result's axes, and for each element over what is summed, in the order of the kernel's loops. That is
the same where

- buffers are dense, of known extents, and of scalars that fill bytes;
- each variable of a block is one of its loops, which runs from 0 to its extent in steps of one, on
  one thread and without annotations, and there is no other loop and no predicate;
- each variable is an axis of what the block writes, or is summed over behind an initial statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, For, IntImm

from passes.layer_group.analysis.block_bodies import (
    BodyReader,
    ElementLoad,
    NotSliceableError,
    at_place,
    stores_of,
)

_SPATIAL, _SUMMED = int(tvm.tirx.IterVar.DataPar), int(tvm.tirx.IterVar.CommReduce)


@dataclass(frozen=True, eq=False)
class Stage:
    """One block: for each element of what it writes, a computation."""

    name: str  # The block's
    spatial: tuple[Var, ...]  # One for each axis of what it writes: the index there
    extents: tuple[int, ...]  # How many elements each of those axes has
    # The variables that are summed over, with their extents, outermost first.
    inner: tuple[tuple[Var, int], ...]
    init: Any  # What is done for an element before its first summand
    body: Any  # What is done for an element and each value of the inner variables
    writes: tuple[int, ...]  # Numbers of buffers, all of the same shape
    reads: tuple[ElementLoad, ...]  # Of other buffers than those

    @property
    def operations(self) -> int:
        """Executions of the body for all elements."""
        return prod(self.extents) * prod(extent for _, extent in self.inner)

    def reads_in_place(self, buffer: int) -> bool:
        """Whether each element of a buffer is read for the element at the same place alone.

        All of that happens before something is stored there, so that it can be stored in its place.
        """
        found = [access for access in self.reads if access.buffer == buffer]
        return (
            bool(found)
            and all(extent == 1 for _, extent in self.inner)
            and all(
                not access.behind_store and at_place(access.indices, self.spatial, self.extents)
                for access in found
            )
        )


def known_shape(buffer: Var) -> tuple[int, ...]:
    """Return the extents of a buffer; NotSliceableError if they are not known, or it is not plain.

    See the rules for buffers above.
    """
    ty = buffer.ty
    if not all((_constant(extent) or 0) > 0 for extent in ty.shape):
        raise NotSliceableError(f"the shape of {buffer.name!r} is not known, or empty")
    if len(ty.strides) or not isinstance(ty.elem_offset, (IntImm, Var)):
        raise NotSliceableError(f"{buffer.name!r} has strides or an offset")
    element = ty.dtype.dtype
    if element.lanes != 1 or element.bits % 8:
        raise NotSliceableError(f"{buffer.name!r} holds elements of type {element}")
    return tuple(int(extent.value) for extent in ty.shape)


def read_stage(
    loops: Sequence[For],
    realize: SBlockRealize,
    number: Mapping[int, int],
    shapes: Sequence[tuple[int, ...]],
) -> Stage:
    """Read a block, given the number of each buffer by its handle, and their extents by number.

    Raises NotSliceableError when it breaks one of the rules above.
    """
    block = realize.block
    name = str(block.name_hint)
    check_block(name, realize)
    ordered = _in_order_of_loops(name, loops, realize)
    stores = stores_of(name, block)
    writes = tuple(dict.fromkeys(number[store.buffer.__chandle__()] for store in stores))
    shape = shapes[writes[0]]
    spatial = _spatial(name, ordered, stores[0], shape)
    for store in stores:
        same_shape = shapes[number[store.buffer.__chandle__()]] == shape
        if not (same_shape and at_place(store.indices, spatial, shape)):
            raise NotSliceableError(f"block {name!r} does not write at its own place")
    inner = _inner(name, ordered, spatial, block)
    body = BodyReader(name, number, writes, spatial, shape)
    body.read(block)
    return Stage(name, spatial, shape, inner, block.init, block.body, writes, tuple(body.reads))


def check_block(name: str, realize: SBlockRealize) -> None:
    """Refuse a block that has more to it than variables, an initial statement and a body."""
    block = realize.block
    if block.match_buffers:
        raise NotSliceableError(f"block {name!r} matches buffers")
    if block.alloc_buffers and block.iter_vars:
        raise NotSliceableError(f"block {name!r} has buffers of its own")
    if not _constant(realize.predicate):
        raise NotSliceableError(f"block {name!r} has a predicate")
    if any(str(key).startswith("pragma_") for key in block.annotations):
        raise NotSliceableError(f"block {name!r} has a pragma")


def _constant(expr: Any) -> int | None:
    return int(expr.value) if isinstance(expr, IntImm) else None


def _in_order_of_loops(
    name: str, loops: Sequence[For], realize: SBlockRealize
) -> list[tuple[Any, int]]:
    """Return a block's variables with their extents, in the order in which its loops run them."""
    at = {loop.loop_var.__chandle__(): depth for depth, loop in enumerate(loops)}
    found: dict[int, tuple[Any, int]] = {}
    alone = []
    for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        extent = _extent(name, item)
        if isinstance(value, IntImm) and extent == 1:
            alone.append((item, extent))
            continue
        depth = at.get(value.__chandle__()) if isinstance(value, Var) else None
        if depth is None or depth in found or not _is_plain(loops[depth], extent):
            raise NotSliceableError(f"the loops of block {name!r} are scheduled")
        found[depth] = (item, extent)
    if any(depth not in found and not _is_plain(loop, 1) for depth, loop in enumerate(loops)):
        raise NotSliceableError(f"the loops of block {name!r} are scheduled")
    return [found[depth] for depth in sorted(found)] + alone


def _is_plain(loop: For, extent: int) -> bool:
    """Whether a loop runs from 0 to an extent, one by one, and nothing else is said about it."""
    return (
        int(loop.kind) == int(tvm.tirx.ForKind.SERIAL)
        and not loop.annotations
        and (loop.step is None or _constant(loop.step) == 1)
        and _constant(loop.min) == 0
        and _constant(loop.extent) == extent
    )


def _extent(name: str, item: Any) -> int:
    extent = _constant(item.dom.extent)
    if _constant(item.dom.min) != 0 or extent is None:
        raise NotSliceableError(f"the shape of block {name!r} is not known")
    return extent


def _spatial(
    name: str, ordered: Sequence[tuple[Any, int]], store: BufferStore, shape: Sequence[int]
) -> tuple[Var, ...]:
    """Return the variable of each axis that a block writes along; none where it is constant."""
    extents = {item.var.__chandle__(): extent for item, extent in ordered}
    chosen: list[Var] = []
    for axis, (index, extent) in enumerate(zip(store.indices, shape, strict=True)):
        if isinstance(index, IntImm):
            chosen.append(Var(f"unit_{axis}", index.ty))
        elif extents.get(index.__chandle__()) == extent and not any(
            index.same_as(var) for var in chosen
        ):
            chosen.append(index)
        else:
            raise NotSliceableError(f"block {name!r} does not write one whole element at a time")
    return tuple(chosen)


def _inner(
    name: str, ordered: Sequence[tuple[Any, int]], spatial: Sequence[Var], block: SBlock
) -> tuple[tuple[Var, int], ...]:
    """Return the variables that are no axis of the result, with their extents, outermost first."""
    inner = []
    for item, extent in ordered:
        kind = int(item.iter_type)
        is_axis = any(item.var.same_as(var) for var in spatial)
        if kind not in (_SPATIAL, _SUMMED) or (is_axis == (kind == _SUMMED) and extent != 1):
            raise NotSliceableError(f"block {name!r} writes an element more than once")
        if not is_axis:
            inner.append((item.var, extent))
    if block.init is None and any(extent != 1 for _, extent in inner):
        raise NotSliceableError(f"block {name!r} sums into what was there before")
    return tuple(inner)
