# SPDX-License-Identifier: Apache-2.0
"""Kernels for tensors at offsets: the offset is a constant that the kernel adds to its indices.

A parameter of the variant begins at an element other than 0 (`elem_offset`), which TVM's code for
the host checks and `FlattenBuffer` adds to the indices. A constant leaves vector loads as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from passes.gmem.relax_functions import FunctionPlan
from passes.ir import (
    IRModule,
    PrimFunc,
    element_type,
    nodes_in,
    structural_mutate,
    tir,
    unique_name,
)
from passes.relax import rx


def with_kernel_variants(mod: IRModule, plans: Sequence[FunctionPlan]) -> IRModule:
    """Return a module whose planned functions call variants of kernels for arguments at offsets.

    Kernels of the module's own that nothing calls any more are dropped.
    """
    result = mod.clone()
    names = {str(variable.name_hint) for variable in mod.get_global_vars()}
    made: dict[tuple[str, tuple[int, ...]], tir.GlobalVar] = {}

    def variant(kernel: tir.GlobalVar, offsets: tuple[int, ...]) -> tir.GlobalVar:
        key = str(kernel.name_hint), offsets
        if key not in made:
            made[key] = tir.GlobalVar(unique_name(f"{kernel.name_hint}_at_offsets", names, "_"))
            rx.update_type(made[key], kernel.ty)
            result[made[key]] = _at_offsets(mod[kernel], offsets)
        return made[key]

    def rewrite(moved: Mapping[int, tuple[int, ...]], binding: Any, mutator: Any) -> Any:
        call, offsets = binding.value, moved.get(binding.var.__chandle__(), ())
        if not any(offsets):
            return mutator.default_mutate(binding)
        kernel = variant(call.op, offsets)
        new = rx.Call(kernel, call.args, call.attrs, call.ty_args, call.span, call.ty)
        return rx.VarBinding(binding.var, new, binding.span)

    for planned in plans:
        function, own = mod.get_global_var(planned.memory.name), partial(rewrite, _moved(planned))
        result[function] = structural_mutate(mod[function], [(rx.VarBinding, own)])
    functions = result.functions.values()
    called = {str(v.name_hint) for func in functions for v in nodes_in(func, tir.GlobalVar)}
    for name in sorted({name for name, _ in made} - called):
        variable = result.get_global_var(name)
        if "global_symbol" not in result[variable].attrs:
            del result[variable]
    return result


def _moved(planned: FunctionPlan) -> dict[int, tuple[int, ...]]:
    """Return the offsets of a call's arguments, by its variable's handle."""
    pieces, uses = chain(*planned.placement), planned.memory.kernel_arguments
    offsets = {name: at for piece in pieces for name, at in piece.offsets.items()}
    calls = uses.calls.items() if uses else ()
    return {handle: tuple(offsets.get(buffer, 0) for buffer in own) for handle, own in calls}


def _at_offsets(func: PrimFunc, offsets: tuple[int, ...]) -> PrimFunc:
    """Return a kernel whose parameters begin at some bytes each."""
    new: dict[int, tir.Var] = {}
    for param, offset in zip(func.params, offsets, strict=False):
        if offset:
            ty = param.ty
            elements, rest = divmod(offset * 8, element_type(ty.dtype).nbits)
            if rest:
                raise AssertionError(f"parameter {param.name!r} begins within an element: {offset}")
            new[param.__chandle__()] = tir.new_buffer(
                ty.shape,
                ty.dtype,
                param.name,
                elem_offset=tir.IntConstant("int64", elements),
                data_alignment=int(ty.data_alignment),
                offset_factor=int(ty.offset_factor),
                layout="default",
            )

    def swap(variable: Any, _mutator: Any) -> Any:
        return new.get(variable.__chandle__(), variable)

    return structural_mutate(func, [(tir.Var, swap)]).without_attr("global_symbol")
