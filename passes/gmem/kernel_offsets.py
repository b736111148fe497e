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


class KernelVariants:
    """The variants that the functions of a module call, each made once."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._names = {str(variable.name_hint) for variable in mod.get_global_vars()}
        self._made: dict[tuple[str, tuple[int, ...]], GlobalVar] = {}
        self._functions: dict[GlobalVar, PrimFunc] = {}

    def called_by(
        self,
        func: relax.Function,
        calls: Mapping[int, tuple[str, ...]],
        placement: Placement,
    ) -> relax.Function:
        """Return a function that calls variants where an argument is at an offset other than 0.

        `calls` is `KernelUses.calls` of the function.
        """
        offsets = {
            n: at for pieces in placement for piece in pieces for n, at in piece.offsets.items()
        }

        def rewrite(binding: Any, mutator: Any) -> Any:
            names = calls.get(binding.var.__chandle__(), ())
            moved = tuple(offsets.get(name, 0) for name in names)
            if not any(moved):
                return mutator.default_mutate(binding)
            call = binding.value
            kernel = self._variant(call.op, moved)
            new = relax.Call(kernel, call.args, call.attrs, call.ty_args, call.span, call.ty)
            return relax.VarBinding(binding.var, new, binding.span)

        return structural_mutate(func, [(relax.VarBinding, rewrite)])

    def _variant(self, kernel: GlobalVar, offsets: tuple[int, ...]) -> GlobalVar:
        key = str(kernel.name_hint), offsets
        if key not in self._made:
            name = unique_name(f"{kernel.name_hint}_at_offsets", self._names, "_")
            variable = GlobalVar(name)
            relax.expr._update_type(variable, kernel.ty)
            self._made[key] = variable
            self._functions[variable] = _at_offsets(self._mod[kernel], offsets)
        return self._made[key]

    def add_to(self, mod: IRModule) -> None:
        """Add the variants to a module, and drop kernels of its own that nothing calls any more."""
        if not self._made:
            return
        for variable, kernel in self._functions.items():
            mod[variable] = kernel
        functions = mod.functions.values()
        called = {str(v.name_hint) for func in functions for v in nodes_in(func, GlobalVar)}
        for name in sorted({name for name, _ in self._made} - called):
            variable = mod.get_global_var(name)
            if "global_symbol" not in (mod[variable].attrs or {}):
                del mod[variable]


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
