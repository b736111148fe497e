# SPDX-License-Identifier: Apache-2.0
"""Functions of loops, which a CPU calls where a chip runs the loops.

A group has many loops that differ in nothing but their buffers and rows. As functions of these,
equal ones are compiled once, and compilers take more than twice as long for twice the kernel.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import CallingConv

from passes.ir import Callbacks, PrimFunc, structural_mutate, tir
from passes.ir.operators import address_of, reinterpreted
from passes.layer_group.rewrite.slice_values import INDEX, number

_SCALAR = "int32"
"""The type of numbers that a function is given. An integer that a caller narrows stays so."""

OPAQUE = 8
"""TVM's ``kOpaque``: operator fusion leaves a kernel of this pattern alone."""


def called(loops: Any, name: str, functions: dict[tir.GlobalVar, PrimFunc]) -> Any:
    """Return a call in the place of loops, and add the function that it calls to `functions`.

    The function is given the addresses and the numbers that the loops take from outside. It knows
    no bounds of these, and `FlattenBuffer` takes a quotient or a remainder of such a number and a
    loop variable apart wrongly (``docs/known-faults.md`` has the programs): it is kept from looking
    into them. With a calling convention TVM makes no packed function of it. It does not say that
    its buffers are apart, as some lie in the place of others.
    """
    parameters, arguments, declared = [], [], []
    new: dict[int, Any] = {}
    for at, var in enumerate(tir.undefined_vars(loops)):
        if tir.is_buffer(var):
            ty = var.ty
            pointer = tir.Var(
                f"memory{at}", tir.PointerType(tir.PrimType("void"), ty.storage_scope)
            )
            buffer = tir.new_buffer(ty.shape, str(ty.dtype.dtype), var.name, scope=ty.storage_scope)
            parameters.append(pointer)
            arguments.append(address_of(tir.new_load(var, [number(0)] * len(ty.shape))))
            declared.append(tir.Declaration(buffer, data=pointer))
            new[var.__chandle__()] = buffer
        elif isinstance(var.ty, tir.PointerType):
            parameters.append(tir.Var(f"memory{at}", var.ty))
            arguments.append(var)
            new[var.__chandle__()] = parameters[-1]
        else:
            parameters.append(tir.Var(var.name, tir.PrimType(_SCALAR)))
            arguments.append(tir.Cast(_SCALAR, var))
            new[var.__chandle__()] = tir.Cast(INDEX, parameters[-1])

    def on_var(var: tir.Var, _mutator: Any) -> Any:
        return new.get(var.__chandle__(), var)

    def on_division(division: Any, _mutator: Any) -> Any:
        return reinterpreted(structural_mutate(division, [(tir.Var, on_var)]))

    callbacks: Callbacks = [
        (tir.FloorDiv, on_division),
        (tir.FloorMod, on_division),
        (tir.Var, on_var),
    ]
    body = structural_mutate(loops, callbacks)
    function = PrimFunc(parameters, tir.Sequence([*declared, body]) if declared else body)
    convention = int(CallingConv.C_PACKED_FUNC)
    for key, value in (("calling_conv", convention), ("s_tir", True), ("op_pattern", OPAQUE)):
        function = function.with_attr(key, value)
    variable = tir.GlobalVar(name)
    functions[variable] = function
    return tir.Evaluation(tir.Call(variable, arguments, ret_ty=function.ret_type))
