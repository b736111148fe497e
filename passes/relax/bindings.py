# SPDX-License-Identifier: Apache-2.0
"""Facts that the bindings of a Relax function state directly: names, uses, callees, effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from passes.ir import POSTORDER, IRModule, PrimFunc, items, nodes_in, structural_map, tir
from passes.ir.operators import CALL_OUT, legalization, operator_name
from passes.ir.relax_operators import (
    CALLEES,
    KERNELS_OF_NEW_MEMORY,
    MOVE_OR_HINT,
    OVERWRITE_ARGUMENTS,
    Callee,
)
from passes.relax import rx


def functions_in_order(mod: IRModule) -> list[tuple[tir.GlobalVar, Any]]:
    """Return the Relax functions of a module, sorted by name."""
    named = {str(v.name_hint): v for v in mod.get_global_vars()}
    return [
        (named[name], mod[named[name]])
        for name in sorted(named)
        if isinstance(mod[named[name]], rx.Function)
    ]


def renamed(func: rx.Function, names: Mapping[int, str]) -> rx.Function:
    """Return a function with new names for some of its variables, by their handles."""
    made: dict[int, Any] = {}

    def rename(variable: Any) -> Any:
        handle = variable.__chandle__()
        if handle not in names:
            return variable
        if handle not in made:
            made[handle] = type(variable)(names[handle], variable.ty, variable.span)
        return made[handle]

    if not names:
        return func
    changed: rx.Function = structural_map(
        func, [(rx.DataflowVar, rename), (rx.Var, rename)], POSTORDER
    )
    return changed


def bindings_of(body: Any) -> Iterator[Any]:
    """Yield the bindings of a body in program order: an ``if``, then those inside it.

    Those of functions within the function are left out.
    """
    if not isinstance(body, rx.SeqExpr):
        return
    for block in body.blocks:
        for binding in items(block.bindings):
            yield binding
            value = binding.value
            if isinstance(value, rx.If):
                yield from bindings_of(value.true_branch)
                yield from bindings_of(value.false_branch)


def variables_in(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield the variables among arguments of a call, in tuples too, but no function names."""
    for argument in arguments:
        if isinstance(argument, rx.Tuple):
            yield from variables_in(argument.fields)
        elif isinstance(argument, rx.Var) and not isinstance(argument, tir.GlobalVar):
            yield argument


def classify(mod: IRModule, op: Any) -> tuple[Callee, str]:
    """Return what calling `op` does with its arguments, and how messages call it.

    Packed functions called in destination-passing style are not covered: see
    `passes.relax.graph`.
    """
    if operator_name(op):
        name = str(op.name)
        if name in CALLEES:
            return CALLEES[name], name
        legalized = op.get_attr("FLegalize") is not None
        return (Callee.HIGH_LEVEL if legalized else Callee.KEEPS), f"operator {name!r}"
    if isinstance(op, tir.GlobalVar):
        function = mod.functions.get(op)
        if isinstance(function, PrimFunc):
            return Callee.READS, f"kernel {str(op.name_hint)!r}"
        if isinstance(function, rx.Function):
            return Callee.CALLS, f"Relax function {str(op.name_hint)!r}"
        return Callee.KEEPS, f"function {str(op.name_hint)!r}"
    if isinstance(op, rx.ExternFunc):
        symbol = str(op.global_symbol)
        return CALLEES.get(symbol, Callee.KEEPS), f"packed function {symbol!r}"
    return Callee.KEEPS, "closure"


def known_at_entry(func: rx.Function) -> set[int]:
    """Return the handles of the symbolic variables that the arguments of a call give values."""
    known = (rx.definable_symbols_in_type(param.ty) for param in func.params)
    return {variable.__chandle__() for variables in known for variable in variables}


def place_of(func: rx.Function, name: str) -> str:
    """Return a symbolic dimension with the input and axis that give it: ``n (axis 0 of x)``."""
    for parameter in func.params:
        shape = getattr(parameter.ty, "shape", parameter.ty)
        for axis, size in enumerate(getattr(shape, "values", None) or ()):
            if isinstance(size, tir.Var) and str(size.name) == name:
                return f"{name} (axis {axis} of {parameter.name})"
    return name


def signature_variables(func: rx.Function) -> list[Any]:
    """Return the symbolic variables in the types of a function's parameters and of its result."""
    signature = rx.FuncType([param.ty for param in func.params], func.ret_ty)
    return list(rx.symbols_in_type(signature))


class OpaqueValues:
    """Tells values that are not known to be computed from their arguments alone.

    A packed function may hold a generator of random numbers, or a cache, so these keep their order.
    Also which values write their arguments: these keep their place among all uses of that memory.
    """

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._calls_out: dict[int, bool] = {}

    def overwrite_arguments(self, value: Any) -> bool:
        """Return whether a value, or a function that it names, writes what it is given."""
        found = nodes_in(value, tir.Call, tir.GlobalVar)
        looked_at = set[str]()
        for one in found:  # It grows by what functions hold.
            if isinstance(one, tir.Call):
                if operator_name(one.op) in OVERWRITE_ARGUMENTS:
                    return True
            elif str(one.name_hint) not in looked_at:
                looked_at.add(str(one.name_hint))
                function = self._mod.functions.get(one)
                if isinstance(function, rx.Function):
                    found += nodes_in(function.body, tir.Call, tir.GlobalVar)
        return False

    def __call__(self, value: Any) -> bool:
        """Return whether a value is not known to be computed from its arguments alone."""
        if not isinstance(value, tir.Call):
            return isinstance(value, rx.If | rx.Function | rx.SeqExpr)
        name = operator_name(value.op)
        if name in KERNELS_OF_NEW_MEMORY:
            return self._is_unknown_kernel(value.args[0])
        legalized = legalization(value.op) is not None
        return not legalized or name in MOVE_OR_HINT

    def _is_unknown_kernel(self, callee: Any) -> bool:
        """Return whether a kernel is not in the module, or calls other functions."""
        kernel = self._mod.functions.get(callee) if isinstance(callee, tir.GlobalVar) else None
        if not isinstance(kernel, PrimFunc):
            return True
        handle = kernel.__chandle__()
        if handle not in self._calls_out:
            self._calls_out[handle] = any(
                not operator_name(call.op) or operator_name(call.op) in CALL_OUT
                for call in nodes_in(kernel.body, tir.Call)
            )
        return self._calls_out[handle]
