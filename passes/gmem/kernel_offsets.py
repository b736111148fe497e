# SPDX-License-Identifier: Apache-2.0
"""Kernels for tensors at offsets: the offset is a constant that the kernel adds to its indices.

A parameter of the variant begins at an element other than 0 (`elem_offset`). TVM's code for the
host then holds that the tensor is at that very offset, and `FlattenBuffer` adds it to the indices.
A constant leaves vector loads as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule, Var
from tvm.tirx import IntImm, PrimFunc, decl_buffer

from passes.gmem.planning.pool import Placement
from passes.ir import element_type, nodes_in, structural_mutate, unique_name
from passes.relax import KernelUses


def with_kernel_variants(
    mod: IRModule, uses: Mapping[str, tuple[KernelUses, Placement]]
) -> IRModule:
    """Return a module whose functions call variants of kernels for arguments at offsets.

    `uses` has the kernels that each function calls, and where its tensors stand. Kernels of the
    module's own that nothing calls any more are dropped.
    """
    result = mod.clone()
    names = {str(variable.name_hint) for variable in mod.get_global_vars()}
    made: dict[tuple[str, tuple[int, ...]], GlobalVar] = {}

    def variant(kernel: GlobalVar, offsets: tuple[int, ...]) -> GlobalVar:
        key = str(kernel.name_hint), offsets
        if key not in made:
            made[key] = GlobalVar(unique_name(f"{kernel.name_hint}_at_offsets", names, "_"))
            relax.expr._update_type(made[key], kernel.ty)
            result[made[key]] = _at_offsets(mod[kernel], offsets)
        return made[key]

    for name, (own, placement) in uses.items():
        offsets = {
            n: at for pieces in placement for piece in pieces for n, at in piece.offsets.items()
        }

        def rewrite(
            binding: Any, mutator: Any, own: KernelUses = own, offsets: Any = offsets
        ) -> Any:
            buffers = own.calls.get(binding.var.__chandle__(), ())
            moved = tuple(offsets.get(buffer, 0) for buffer in buffers)
            if not any(moved):
                return mutator.default_mutate(binding)
            call = binding.value
            kernel = variant(call.op, moved)
            new = relax.Call(kernel, call.args, call.attrs, call.ty_args, call.span, call.ty)
            return relax.VarBinding(binding.var, new, binding.span)

        function = mod.get_global_var(name)
        result[function] = structural_mutate(mod[function], [(relax.VarBinding, rewrite)])
    functions = result.functions.values()
    called = {str(v.name_hint) for func in functions for v in nodes_in(func, GlobalVar)}
    for name in sorted({name for name, _ in made} - called):
        variable = result.get_global_var(name)
        if "global_symbol" not in (result[variable].attrs or {}):
            del result[variable]
    return result


def _at_offsets(func: PrimFunc, offsets: tuple[int, ...]) -> PrimFunc:
    """Return a kernel whose parameters begin at some bytes each."""
    new: dict[int, Var] = {}
    for param, offset in zip(func.params, offsets, strict=False):
        if offset:
            ty = param.ty
            elements, rest = divmod(offset * 8, element_type(ty.dtype).nbits)
            if rest:
                raise AssertionError(f"parameter {param.name!r} begins within an element: {offset}")
            new[param.__chandle__()] = decl_buffer(
                ty.shape,
                ty.dtype,
                param.name,
                elem_offset=IntImm("int64", elements),
                data_alignment=int(ty.data_alignment),
                offset_factor=int(ty.offset_factor),
            )

    def swap(variable: Any, _mutator: Any) -> Any:
        return new.get(variable.__chandle__(), variable)

    return structural_mutate(func, [(Var, swap)])
