# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a `PrimFunc` are weights: tensors that are there before it runs, and stay."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tvm.ir import TensorLoad, Var
from tvm.ir.expr import Call
from tvm.tirx import DeclBuffer, PrimFunc, is_buffer_var

from passes.ir import constant_shape, element_type, nodes_in, unique_name
from passes.ir.operators import buffer_data_var, is_address_of
from passes.relax import NUM_INPUT


@dataclass(frozen=True)
class WeightParameters:
    """The weights of a function."""

    # Names, unique among themselves, and bytes, in the order of the parameters.
    sizes: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]  # One line for each weight without an address: which, and why


def find_weights(func: PrimFunc) -> WeightParameters:
    """Return the weights of a function: parameters from ``num_input`` on that are only read."""
    value = func.attrs.get(NUM_INPUT) if func.attrs else None
    if value is None:
        return WeightParameters((), ())
    sizes: list[tuple[str, int]] = []
    left_out: list[str] = []
    names: set[str] = set()
    read = _only_read(func)
    for param in func.params[int(getattr(value, "value", value)) :]:
        if not is_buffer_var(param) or param.__chandle__() not in read:
            continue
        extents = constant_shape(param.ty.shape)
        if extents is None:
            left_out.append(f"weight {param.name!r} has no address: its size is symbolic")
            continue
        bits = math.prod(extent for extent, _ in extents) * element_type(param.ty.dtype).nbits
        sizes.append((unique_name(param.name, names), -(-bits // 8)))
    return WeightParameters(tuple(sizes), tuple(left_out))


def _only_read(func: PrimFunc) -> set[int]:
    """Return the handles of the buffers that nothing names but for an element's value.

    A buffer may also be declared on the same memory, if that one is only read, too.
    """
    named = Counter(variable.__chandle__() for variable in nodes_in(func.body, Var))
    named.subtract(load.source.__chandle__() for load in nodes_in(func.body, TensorLoad))
    addresses = filter(is_address_of, nodes_in(func.body, Call))
    taken = (call.args[0] for call in addresses if isinstance(call.args[0], TensorLoad))
    named.update(element.source.__chandle__() for element in taken)
    for alias in reversed(nodes_in(func.body, DeclBuffer)):  # Its own aliases stand behind it.
        handle, source = alias.buffer.__chandle__(), buffer_data_var(alias.data)
        named[handle] -= 1
        if source is not None and not named[handle]:
            named[source.__chandle__()] -= 1
    return {param.__chandle__() for param in func.params if not named[param.__chandle__()]}
