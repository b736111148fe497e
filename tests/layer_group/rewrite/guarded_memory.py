# SPDX-License-Identifier: Apache-2.0
"""Kernels of groups whose local memory shows each access that it should not have had.

Local memory begins full of NaN (of the largest number for integers, of true for bool). A load
outside of its buffer's extents gives the same, and a store or a copy outside of them is left out.
So a group that reads what nothing wrote, or leaves a buffer, gives other numbers than its layers
one by one. This looks at the kernels as they are written, and at nothing that planned or checked
them.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, Evaluate, For, IfThenElse, SeqStmt

from passes.ir.operators import is_address_of
from passes.ir.structural import nodes_in, structural_mutate

SCOPE = "local.LMEM"


def guarded(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module with groups, whose local memory is guarded."""
    functions = dict(mod.functions.items())
    for variable, function in functions.items():
        if isinstance(function, tirx.PrimFunc):
            functions[variable] = _guarded(function)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _is_local(buffer: Any) -> bool:
    return str(buffer.ty.storage_scope) == SCOPE


def _guarded(function: Any) -> Any:
    allocated = [a.buffer for a in nodes_in(function.body, AllocBuffer) if _is_local(a.buffer)]

    def on_load(load: TensorLoad, mutator: Any) -> Any:
        indices = [mutator.mutate(index) for index in load.indices]
        new = BufferLoad(load.source, indices)
        if not _is_local(load.source):
            return new
        return tirx.if_then_else(_inside(load.source, indices), new, _poison(load.source))

    def on_store(store: BufferStore, mutator: Any) -> Any:
        indices = [mutator.mutate(index) for index in store.indices]
        new = BufferStore(store.buffer, mutator.mutate(store.value), indices)
        if not _is_local(store.buffer):
            return new
        return IfThenElse(_inside(store.buffer, indices), new, None)

    def on_evaluate(stmt: Evaluate, mutator: Any) -> Any:
        places = [arg.args[0] for arg in stmt.value.args if is_address_of(arg)]
        places = [place for place in places if _is_local(place.source)]
        guards = [_inside(place.source, place.indices) for place in places]
        if len(stmt.value.args) == 3 and not isinstance(stmt.value.args[2], Call):
            size = stmt.value.args[2].astype("int64")  # A copy of so many bytes.
            guards += [_last_byte(place, size) for place in places]
        return reduce(lambda inner, guard: IfThenElse(guard, inner, None), guards, stmt)

    def on_seq(seq: SeqStmt, mutator: Any) -> Any:
        return SeqStmt(
            [
                part
                for stmt in seq.seq
                for part in (
                    (stmt, _filled(stmt.buffer))
                    if isinstance(stmt, AllocBuffer) and _is_local(stmt.buffer)
                    else (mutator.mutate(stmt),)
                )
            ]
        )

    def on_for(loop: For, mutator: Any) -> Any:
        body = mutator.mutate(loop.body)
        if "cores" in loop.annotations:  # Each core has a memory of its own.
            body = SeqStmt([*map(_filled, allocated), body])
        return For(
            loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations
        )

    callbacks = [
        (TensorLoad, on_load),
        (BufferStore, on_store),
        (Evaluate, on_evaluate),
        (SeqStmt, on_seq),
        (For, on_for),
    ]
    return function.with_body(structural_mutate(function.body, callbacks))


def _inside(buffer: Any, indices: Any) -> Any:
    """Return whether an element is within the extents of a buffer."""
    found = [tirx.const(True)]  # A single number has no extents.
    for index, extent in zip(indices, buffer.ty.shape, strict=True):
        found += [index >= 0, index < extent]
    return reduce(tirx.And, found)


def _last_byte(place: TensorLoad, size: Any) -> Any:
    """Return whether so many bytes from an element on are within its buffer."""
    flat, total = tirx.IntImm("int64", 0), 1
    for index, extent in zip(place.indices, place.source.ty.shape, strict=True):
        flat, total = flat * extent + index, total * int(extent)
    width = place.source.ty.dtype.dtype.bits // 8
    return flat * width + size <= tirx.IntImm("int64", total * width)


def _poison(buffer: Any) -> Any:
    dtype = str(buffer.ty.dtype.dtype)
    if "int" in dtype:
        return tirx.max_value(dtype)
    if dtype == "bool":
        return tirx.const(True, dtype)  # TVM cannot fold the cast of NaN to bool.
    return tirx.Cast(dtype, tirx.FloatImm("float32", float("nan")))


def _filled(buffer: Any) -> Any:
    """Return a loop that fills a buffer; one of bytes, with those of which all floats are NaN."""
    extents = [int(extent) for extent in buffer.ty.shape]
    variables = [
        tvm.ir.Var(f"fill{axis}", tvm.ir.PrimType("int64")) for axis in range(len(extents))
    ]
    body: Any = BufferStore(buffer, _poison(buffer), variables)
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        zero, count = (tirx.IntImm("int64", n) for n in (0, extent))
        body = For(variable, zero, count, tirx.ForKind.SERIAL, body)
    return body
