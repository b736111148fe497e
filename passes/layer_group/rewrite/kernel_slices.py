# SPDX-License-Identifier: Apache-2.0
"""The loops of one layer for one slice: a kernel's stages over a part of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir import PrimType, TensorLoad, Var
from tvm.tirx import Bind, BufferLoad, BufferStore, Cast, For, ForKind, IntImm, SeqStmt

from passes.ir import structural_mutate
from passes.layer_group.analysis.kernel_calls import KernelCall
from passes.layer_group.analysis.stages import Stage
from passes.layer_group.planning.spans import AxisPart, Region, whole
from passes.layer_group.rewrite.local_buffers import LocalBuffer, check_covers
from passes.layer_group.rewrite.slice_values import INDEX, SliceValues


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


def stage_loops(
    stage: Stage,
    parts: Region,
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
        bounds.append((loop, slices.begin(part), slices.count(part)))
    inner = []
    for var, extent in stage.inner:
        loop = Var(var.name, var.ty)
        new[var.__chandle__()] = loop
        part = whole(extent)
        if summed is not None and extent > 1:
            part, summed = summed, None
        inner.append((loop, slices.begin(part), slices.count(part)))
    kernel = call.kernel.buffers
    places = {kernel[number].__chandle__(): local for number, local in buffers.items()}
    body = nest(inner, _moved(stage.body, new, places, slices))
    if stage.init is not None:
        body = SeqStmt([_moved(stage.init, new, places, slices), body])
    return nest(bounds, body)


def check_stage(
    stage: Stage,
    parts: Mapping[int, Region],
    buffers: Mapping[int, LocalBuffer],
    call: KernelCall,
    summed: AxisPart | None = None,
) -> None:
    """Check that no access of a stage leaves what local memory holds in a slice.

    `parts` are those that the call's stages compute, by the number of the buffer; `summed` is as
    `stage_loops` has it.

    Raises ValueError when a slice stores or reads an element that is not in local memory then.
    """
    written = computed_part(stage, parts)
    for buffer in stage.writes:
        buffers[buffer].check_holds(written, f"block {stage.name!r} stores,")
    for buffer, axes in call.stage_reads[stage.writes].items():
        shape = call.kernel.shapes[buffer]
        needed = [
            whole(extent) if m is None else written[m.axis].needed(m)
            for m, extent in zip(axes, shape, strict=True)
        ]
        if summed is not None and call.sum_stage is not None:
            _, var, _ = call.sum_stage
            along = (access.indices for access in stage.reads if access.buffer == buffer)
            found = {a for at in along for a, index in enumerate(at) if index.same_as(var)}
            for axis in sorted(found):
                needed[axis] = summed
        what = f"block {stage.name!r} reads,"
        buffers[buffer].check_holds(tuple(needed), what)
        for axis, (made, part) in enumerate(zip(parts.get(buffer, ()), needed, strict=False)):
            check_covers(made, part, f"{what} of what is computed, axis {axis}")


def computed_part(stage: Stage, parts: Mapping[int, Region]) -> Region:
    """Return the part of its result that a stage computes."""
    return parts[next(buffer for buffer in stage.writes if buffer in parts)]


def part_loops(parts: Sequence[AxisPart], slices: SliceValues) -> tuple[list[Any], list[Any]]:
    """Return loops over a part of a tensor, and the indices in the tensor."""
    loops = [
        (Var(f"i{axis}", PrimType(INDEX)), slices.begin(part), slices.count(part))
        for axis, part in enumerate(parts)
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
