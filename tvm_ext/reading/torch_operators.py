# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's programs that TVM's importer hands on as TVM computes something else.

- A negative index (docs/known-faults.md has programs): ``y[:, -1]`` becomes ``take(y, -1, axis=1,
  mode="fast")``, whose kernel reads before the row; ``y[i, j]`` becomes ``index_tensor``, which has
  no other mode.
- A tensor full of an infinity or of nan, such as a mask of attention: ``full`` and ``full_like``
  end in a TypeError of ``topi.full``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from passes.ir import POSTORDER, IRModule, structural_map, tir
from passes.ir.operators import operator_name
from passes.ir.relax_operators import FULL, INDEX_TENSOR, TAKE
from passes.relax import bindings_of, functions_in_order, rx

_FAST = "fast"
"""The mode of ``take`` in which an index that is not in the tensor is read all the same."""


def as_pytorch_computes(mod: IRModule) -> IRModule:
    """Return a module whose operators compute what PyTorch does.

    Of ``take``, constant indices become what they mean, and others are taken modulo the size of
    the axis; ``index_tensor`` gets indices of 0 and above. Tensors full of an infinity are
    broadcast constants. The input module is never changed. Raises ValueError, with the operator,
    for a constant index that is not in the tensor.
    """
    result = mod.clone()
    for variable, func in functions_in_order(mod):
        called = {b.value.__chandle__(): str(b.var.name) for b in bindings_of(func.body)}

        def mended(call: Any, called: dict[int, str] = called) -> Any:
            name = called.get(call.__chandle__(), operator_name(call.op) or "")
            return _mended(call, name)

        result.update_func(variable, structural_map(func, [(rx.Call, mended)], POSTORDER))
    return rx.Normalize()(result)


def _mended(call: rx.Call, name: str) -> Any:
    """Return a call that computes what PyTorch does; `name` is its own, for messages."""
    operator = operator_name(call.op)
    if operator == TAKE and str(call.attrs.mode) == _FAST:
        (data, indices), axis = call.args, call.attrs.axis
        known = _constant(indices, _extent(data, axis), name)
        if known is None:
            return relax.op.take(data, indices, axis, mode="wrap")
        return call if known is indices else relax.op.take(data, known, axis, mode=_FAST)
    if operator == INDEX_TENSOR:
        data, indices = call.args
        found = [_from_front(i, _extent(data, axis), name) for axis, i in enumerate(indices.fields)]
        return relax.op.index_tensor(data, found)
    if operator in FULL and isinstance(call.args[1], rx.Constant):
        shape, fill = getattr(call.ty, "shape", None), call.args[1].value.numpy()
        if fill.size == 1 and isinstance(shape, rx.ShapeExpr) and not math.isfinite(fill.item()):
            return relax.op.broadcast_to(relax.const(fill.item(), str(call.ty.dtype)), shape)
    return call


def _extent(data: Any, axis: Any) -> Any:
    """Return the size of an axis, by default of the only one; None where it is not known."""
    shape = getattr(data.ty, "shape", None)
    return shape.values[int(axis or 0)] if isinstance(shape, rx.ShapeExpr) else None


def _constant(indices: Any, extent: Any, name: str) -> Any:
    """Return constant indices as those from the front; None where they are not known."""
    if not isinstance(indices, rx.Constant):
        return None
    values = indices.value.numpy()
    if not isinstance(extent, tir.IntConstant):
        return indices if values.size == 0 or values.min() >= 0 else None
    size = int(extent)
    outside = values[(values < -size) | (values >= size)]
    if outside.size:
        raise ValueError(f"operator {name!r}: index {outside.flat[0]} is not in an axis of {size}")
    if values.size == 0 or values.min() >= 0:
        return indices
    return relax.const(np.where(values < 0, values + size, values), str(values.dtype))


def _from_front(index: Any, extent: Any, name: str) -> Any:
    """Return indices as those from the front."""
    known, type_ = _constant(index, extent, name), str(index.ty.dtype)
    if known is not None or type_.startswith("uint"):
        return index if known is None else known
    if extent is None:
        raise ValueError(
            f"operator {name!r}: an index may be negative, and the size of what it reads is not "
            "known"
        )
    size, zero = relax.prim_value(extent.astype(type_)), relax.prim_value(tir.IntConstant(type_, 0))
    return relax.op.where(relax.op.less(index, zero), relax.op.add(index, size), index)
