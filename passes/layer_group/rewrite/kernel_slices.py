# SPDX-License-Identifier: Apache-2.0
"""The loops of one layer for one slice: a kernel's stages over a part of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from passes.ir import Callbacks, structural_mutate, tir
from passes.layer_group.analysis.kernel_calls import KernelCall
from passes.layer_group.analysis.stages import Stage
from passes.layer_group.planning.slicing import region_needed
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

    def on_var(var: tir.Var, _mutator: Any) -> Any:
        return new.get(var.__chandle__(), var)

    return [_as(structural_mutate(index, [(tir.Var, on_var)]), INDEX) for index in indices]


@dataclass(frozen=True, eq=False)
class LayerPart:
    """The elements that a layer computes at once: a slice of its result, or a part of a slice."""

    call: KernelCall
    buffers: Mapping[int, LocalBuffer]  # Where each buffer of the kernel lies, by its number
    regions: Mapping[int, Region]  # The part computed of each buffer that the kernel makes
    summed: AxisPart | None = None  # The part that is added of the outermost sum; None for all

    def written(self, stage: Stage) -> Region:
        """Return the part of its result that a stage computes."""
        return self.regions[stage.writes[0]]

    def loops(self, stage: Stage, slices: SliceValues) -> Any:
        """Return the loops of a stage, on buffers in local memory."""
        new: dict[int, Any] = {}

        def bound(var: tir.Var, part: AxisPart) -> tuple[tir.Var, Any, Any]:
            loop = new[var.__chandle__()] = tir.Var(var.name, var.ty)
            return loop, slices.begin(part), slices.count(part)

        bounds = [*map(bound, stage.spatial, self.written(stage))]
        inner, summed = [], self.summed
        for var, extent in stage.inner:
            part = whole(extent)
            if summed is not None and extent > 1:
                part, summed = summed, None
            inner.append(bound(var, part))
        kernel = self.call.kernel.buffers
        places = {kernel[number].__chandle__(): local for number, local in self.buffers.items()}
        body = nest(inner, _moved(stage.body, new, places, slices))
        if stage.init is not None:
            body = tir.Sequence([_moved(stage.init, new, places, slices), body])
        return nest(bounds, body)

    def check(self, stage: Stage) -> None:
        """Raise ValueError if a slice stores or reads what is not in local memory then."""
        written = self.written(stage)
        for buffer in stage.writes:
            self.buffers[buffer].check_holds(written, f"block {stage.name!r} stores,")
        for buffer, axes in self.call.stage_reads[stage.writes].items():
            needed = [*region_needed(written, axes, self.call.kernel.shapes[buffer])]
            if self.summed is not None:
                for axis in (axis for summed, axis in self.call.sums if summed == buffer):
                    needed[axis] = self.summed
            what = f"block {stage.name!r} reads,"
            self.buffers[buffer].check_holds(tuple(needed), what)
            computed = zip(self.regions.get(buffer, ()), needed, strict=False)
            for axis, (made, part) in enumerate(computed):
                check_covers(made, part, f"{what} of what is computed, axis {axis}")


def loops_over(parts: Sequence[AxisPart], slices: SliceValues) -> tuple[list[Any], list[Any]]:
    """Return loops over a part of a tensor, and the indices in the tensor."""
    loops = [
        (tir.Var(f"i{axis}", tir.PrimType(INDEX)), slices.begin(part), slices.count(part))
        for axis, part in enumerate(parts)
    ]
    return loops, [loop for loop, _, _ in loops]


def nest(loops: Sequence[tuple[tir.Var, Any, Any]], body: Any) -> Any:
    """Return serial loops around a body: variable, begin and extent of each, outermost first."""
    for loop, begin, extent in reversed(loops):
        kind = loop.ty.dtype
        body = tir.Loop(loop, _as(begin, kind), _as(extent, kind), tir.LoopKind.SERIAL, body)
    return body


def _as(value: Any, dtype: Any) -> Any:
    """Return an index as the type that a kernel's loops have."""
    if str(value.ty.dtype) == str(dtype):
        return value
    return (
        tir.IntConstant(str(dtype), value.value)
        if isinstance(value, tir.IntConstant)
        else tir.Cast(str(dtype), value)
    )


def _moved(
    stmt: Any, variables: Mapping[int, Any], places: Mapping[int, LocalBuffer], slices: SliceValues
) -> Any:
    """Return a statement of a kernel with its variables and buffers replaced, by their handles."""
    variables = dict(variables)

    def place(buffer: Any, indices: Sequence[Any], mutator: Any) -> tuple[Any, list[Any]]:
        local = places[buffer.__chandle__()]
        return local.buffer, local.indices([_as(mutator.mutate(i), INDEX) for i in indices], slices)

    def on_load(load: tir.Load, mutator: Any) -> Any:
        return tir.new_load(*place(load.source, load.indices, mutator))

    def on_store(store: tir.Store, mutator: Any) -> Any:
        buffer, indices = place(store.buffer, store.indices, mutator)
        return tir.Store(buffer, mutator.mutate(store.value), indices)

    def on_bind(bind: tir.Binding, mutator: Any) -> Any:
        value = mutator.mutate(bind.value)
        var = variables[bind.var.__chandle__()] = tir.Var(bind.var.name, bind.var.ty)
        return tir.Binding(var, value)

    def on_var(var: tir.Var, _mutator: Any) -> Any:
        return variables.get(var.__chandle__(), var)

    callbacks: Callbacks = [
        (tir.Load, on_load),
        (tir.Store, on_store),
        (tir.Binding, on_bind),
        (tir.Var, on_var),
    ]
    return structural_mutate(stmt, callbacks)
