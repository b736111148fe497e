# SPDX-License-Identifier: Apache-2.0
"""The loops of one layer for one slice: a kernel's stages over a part of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import PrimType, TensorLoad, Var
from tvm.tirx import (
    Bind,
    BufferLoad,
    BufferStore,
    Cast,
    For,
    ForKind,
    IntImm,
    SeqStmt,
)

from passes.ir.structural import structural_mutate
from passes.layer_group.analysis.kernel_calls import KernelCall
from passes.layer_group.analysis.stages import Stage
from passes.layer_group.planning.network import Box
from passes.layer_group.planning.slicing import CHANNELS, LETTERS, TensorSlices
from passes.layer_group.rewrite.local_buffers import LocalBuffer
from passes.layer_group.rewrite.slice_values import INDEX, SliceValues, number


@dataclass(frozen=True)
class AxisPart:
    """The part of an axis that each slice computes."""

    # One a slice of the letter; one in all where the axis is not cut.
    ranges: tuple[tuple[int, int], ...]
    letter: str = ""  # Which slices it follows; empty where the axis is not cut

    @property
    def extent(self) -> int:
        """Elements of the largest part; at least one."""
        return max(1, *(end - begin for begin, end in self.ranges))

    @property
    def begins(self) -> tuple[tuple[int, ...], str] | None:
        """Where the parts begin, with their letter; None for an axis that is not cut."""
        return (tuple(begin for begin, _ in self.ranges), self.letter) if self.letter else None

    def bounds(self, slices: SliceValues) -> tuple[Any, Any]:
        """Return the begin and the extent of a slice's part."""
        if not self.letter:
            ((begin, end),) = self.ranges
            return number(begin), number(end - begin)
        begins = [begin for begin, _ in self.ranges]
        extents = [end - begin for begin, end in self.ranges]
        begin = slices.value(begins, self.letter, f"{self.letter}_begin")
        return begin, slices.value(extents, self.letter, f"{self.letter}_extent")


Parts = tuple[AxisPart, ...]
"""The part of each axis of a buffer."""


def laid_out(call: KernelCall, at: Sequence[Any]) -> list[Any]:
    """Return where a call that only moves elements takes the one with these indices from."""
    assert call.layout is not None, "its layer lays out a weight"
    indices, variables = call.layout
    new = {
        var.__chandle__(): _as(index, var.ty.dtype)
        for var, index in zip(variables, at, strict=True)
    }

    def on_var(var: Var, _mutator: Any) -> Any:
        return new.get(var.__chandle__(), var)

    return [_as(structural_mutate(index, [(Var, on_var)]), INDEX) for index in indices]


def made_parts(tensor: TensorSlices) -> Parts:
    """Return what each slice makes of a tensor."""
    return tuple(
        AxisPart(((0, extent),)) if axis is None else AxisPart(axis.made, axis.letter)
        for extent, axis in zip(tensor.tensor.shape, tensor.axes, strict=True)
    )


def buffer_parts(made: TensorSlices, boxes: Callable[[Box], Mapping[int, Box]]) -> dict[int, Parts]:
    """Return the part that each slice needs of the buffers on the way to a tensor.

    Raises ValueError when an axis of a buffer follows slices of more than one axis.
    """
    shape = made.tensor.shape
    whole = tuple((0, extent) for extent in shape)
    start = boxes(whole)
    ranges: dict[tuple[int, int], AxisPart] = {
        (key, axis): AxisPart((part,))
        for key, box in start.items()
        for axis, part in enumerate(box)
    }
    for letter in LETTERS + CHANNELS:
        lines = [axis for axis in made.axes if axis is not None and axis.letter == letter]
        if not lines:
            continue
        found = []
        for at in range(len(lines[0].made)):
            box = tuple(
                axis.made[at] if axis is not None and axis.letter == letter else (0, extent)
                for extent, axis in zip(shape, made.axes, strict=True)
            )
            found.append(boxes(box) if all(a < b for a, b in box) else None)
        for (key, axis), part in ranges.items():
            if all(box is None or box[key][axis] == start[key][axis] for box in found):
                continue
            along = tuple((0, 0) if box is None else box[key][axis] for box in found)
            if part.letter:
                raise ValueError(f"tensor {made.tensor.name!r}: an axis follows two cuts")
            ranges[key, axis] = AxisPart(along, letter)
    return {key: tuple(ranges[key, axis] for axis in range(len(box))) for key, box in start.items()}


def stage_loops(
    stage: Stage,
    parts: Parts,
    buffers: Mapping[int, LocalBuffer],
    call: KernelCall,
    slices: SliceValues,
    summed: AxisPart | None = None,
) -> Any:
    """Return the loops of a stage over one slice's part, on buffers in local memory.

    Of its outermost sum it adds what is `summed` alone, where that is given.
    """
    new: dict[int, Any] = {}
    bounds = []
    for var, part in zip(stage.spatial, parts, strict=True):
        loop = Var(var.name, var.ty)
        new[var.__chandle__()] = loop
        bounds.append((loop, *part.bounds(slices)))
    inner = []
    for var, extent in stage.inner:
        loop = Var(var.name, var.ty)
        new[var.__chandle__()] = loop
        part = AxisPart(((0, extent),))
        if summed is not None and extent > 1:
            part, summed = summed, None
        inner.append((loop, *part.bounds(slices)))
    kernel = call.kernel.buffers
    places = {kernel[number].__chandle__(): local for number, local in buffers.items()}
    body = nest(inner, _moved(stage.body, new, places, slices))
    if stage.init is not None:
        body = SeqStmt([_moved(stage.init, new, places, slices), body])
    return nest(bounds, body)


def part_loops(parts: Sequence[AxisPart], slices: SliceValues) -> tuple[list[Any], list[Any]]:
    """Return loops over a part of a tensor, and the indices in the tensor."""
    loops = [
        (Var(f"i{axis}", PrimType(INDEX)), *part.bounds(slices)) for axis, part in enumerate(parts)
    ]
    return loops, [loop for loop, _, _ in loops]


def nest(loops: Sequence[tuple[Var, Any, Any]], body: Any) -> Any:
    """Return serial loops around a body: variable, begin and extent of each, outermost first."""
    for loop, begin, extent in reversed(loops):
        kind = loop.ty.dtype
        body = For(loop, _as(begin, kind), _as(extent, kind), ForKind.SERIAL, body)
    return body


def _as(value: Any, dtype: Any) -> Any:
    """Return an index as the type that a kernel's loops have."""
    if str(value.ty.dtype) == str(dtype):
        return value
    return IntImm(str(dtype), value.value) if isinstance(value, IntImm) else Cast(str(dtype), value)


def _moved(
    stmt: Any, variables: Mapping[int, Any], places: Mapping[int, LocalBuffer], slices: SliceValues
) -> Any:
    """Return a statement of a kernel with its variables and buffers replaced, by their handles."""
    variables = dict(variables)

    def place(buffer: Any, indices: Sequence[Any], mutator: Any) -> tuple[Any, list[Any]]:
        local = places[buffer.__chandle__()]
        return local.buffer, local.indices([_as(mutator.mutate(i), INDEX) for i in indices], slices)

    def on_load(load: TensorLoad, mutator: Any) -> Any:
        return BufferLoad(*place(load.source, load.indices, mutator))

    def on_store(store: BufferStore, mutator: Any) -> Any:
        buffer, indices = place(store.buffer, store.indices, mutator)
        return BufferStore(buffer, mutator.mutate(store.value), indices)

    def on_bind(bind: Bind, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        var = variables[bind.var.__chandle__()] = Var(bind.var.name, bind.var.ty)
        return Bind(var, value)

    def on_var(var: Var, _mutator: Any) -> Any:
        return variables.get(var.__chandle__(), var)

    callbacks = [(TensorLoad, on_load), (BufferStore, on_store), (Bind, on_bind), (Var, on_var)]
    return structural_mutate(stmt, callbacks)
