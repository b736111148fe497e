# SPDX-License-Identifier: Apache-2.0
"""The weights of a Relax function: parameters from ``num_input`` on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import relax

from passes.relax.facts import LeftToRuntime, Weight
from passes.relax.sizes import Sizes, UnknownSizeError

NUM_INPUT = "num_input"
"""The function attribute that says how many parameters come before the weights."""


def parameter_weights(func: relax.Function, sizes: Sizes) -> Iterator[Weight | LeftToRuntime]:
    """Yield the parameters that are weights; of a tuple each field, as ``name[0]``.

    There may be fewer parameters than inputs: ``BindParams`` leaves the attribute as it is.
    """
    inputs = func.attrs.get(NUM_INPUT) if func.attrs else None
    if inputs is None:
        return
    for param in func.params[max(int(inputs), 0) :]:
        yield from _weights_within(str(param.name), param.ty, sizes)


def _weights_within(name: str, ty: Any, sizes: Sizes) -> Iterator[Weight | LeftToRuntime]:
    if isinstance(ty, relax.TupleType):
        for index, field in enumerate(ty.fields):
            yield from _weights_within(f"{name}[{index}]", field, sizes)
        return
    reason = "a weight that is no tensor"
    if isinstance(ty, relax.TensorType):
        reason = "a weight whose shape or type is not known"
        if isinstance(ty.shape, relax.ShapeExpr) and ty.dtype is not None:
            try:
                yield Weight(name, sizes.constant(ty.shape.values, ty.dtype.dtype))
                return
            except UnknownSizeError as error:
                reason = f"a weight whose {error}"
    yield LeftToRuntime(name, None, reason)
