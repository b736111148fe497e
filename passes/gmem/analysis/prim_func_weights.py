# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a `PrimFunc` are weights: tensors that are there before it runs, and stay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.ir import PrimType, Var
from tvm.ir.expr import Call
from tvm.tirx import Bind, BufferStore, DeclBuffer, PrimFunc, is_buffer_var
from tvm_ffi import structural_walk

from passes.ir import constant_shape, element_type, nodes_in, unique_name
from passes.ir.operators import buffer_data_var, is_address_of, is_buffer_data
from passes.relax import NUM_INPUT


@dataclass(frozen=True)
class WeightParameters:
    """The weights of a function."""

    # Names, unique among themselves, and bytes, in the order of the parameters.
    sizes: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]  # One line for each weight without an address: which, and why


def find_weights(func: PrimFunc) -> WeightParameters:
    """Return the weights of a function: parameters from ``num_input`` on that nothing writes."""
    value = func.attrs.get(NUM_INPUT) if func.attrs else None
    if value is None:
        return WeightParameters((), ())
    sizes: list[tuple[str, int]] = []
    left_out: list[str] = []
    names: set[str] = set()
    written = _written_parameters(func)
    for param in func.params[int(getattr(value, "value", value)) :]:
        if not is_buffer_var(param) or param.__chandle__() in written:
            continue
        extents = constant_shape(param.ty.shape)
        if extents is None:
            left_out.append(f"weight {param.name!r} has no address: its size is symbolic")
            continue
        bits = math.prod(extent for extent, _ in extents) * element_type(param.ty.dtype).nbits
        sizes.append((unique_name(param.name, names), -(-bits // 8)))
    return WeightParameters(tuple(sizes), tuple(left_out))


def _written_parameters(func: PrimFunc) -> set[int]:
    """Return the handles of the parameters that are stored to, or handed to a call."""
    # The parameters that each variable may lead to, by handle.
    parameters_of: dict[int, set[int]] = {p.__chandle__(): {p.__chandle__()} for p in func.params}
    written: set[int] = set()

    def parameters_within(expr: Any) -> set[int]:
        named = (parameters_of.get(v.__chandle__(), ()) for v in nodes_in(expr, Var))
        return {parameter for parameters in named for parameter in parameters}

    def note_name(var: Any, value: Any) -> None:
        parameters_of[var.__chandle__()] = parameters_within(value)

    def note_bind(bind: Bind) -> None:
        if not isinstance(bind.var.ty, PrimType):  # The variable is an address.
            note_name(bind.var, bind.value)

    def note_write(var: Any) -> None:
        written.update(parameters_of.get(var.__chandle__(), ()))

    def note_call(call: Call) -> None:
        if is_buffer_data(call):
            return  # What is done with the address is said by the statement around it.
        if is_address_of(call):
            note_write(call.args[0].source)
        for argument in call.args:
            var = buffer_data_var(argument)
            if var is not None:
                note_write(var)

    structural_walk(
        func.body,
        [
            (DeclBuffer, lambda alias: note_name(alias.buffer, alias.data)),
            (Bind, note_bind),
            (BufferStore, lambda store: note_write(store.buffer)),
            (Call, note_call),
        ],
    )
    return written
