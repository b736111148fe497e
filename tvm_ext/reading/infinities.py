# SPDX-License-Identifier: Apache-2.0
"""Tensors full of an infinity, such as the masks of attention, which TVM 0.27 does not lower.

``full`` and ``full_like`` of an infinity or of nan end in a TypeError of ``topi.full``.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from passes.ir import POSTORDER, IRModule, structural_map
from passes.ir.operators import operator_name
from passes.ir.relax_operators import FULL
from passes.relax import functions_in_order, rx


def with_infinite_fills(mod: IRModule) -> IRModule:
    """Return a module in which tensors full of an infinity, or of nan, are broadcast constants.

    The input module is never changed.
    """
    result = mod.clone()
    for variable, func in functions_in_order(mod):
        result.update_func(variable, structural_map(func, [(rx.Call, _mended)], POSTORDER))
    return rx.Normalize()(result)


def _mended(call: rx.Call) -> Any:
    if operator_name(call.op) not in FULL or not isinstance(call.args[1], rx.Constant):
        return call
    shape, fill = getattr(call.ty, "shape", None), call.args[1].value.numpy()
    if fill.size != 1 or not isinstance(shape, rx.ShapeExpr) or math.isfinite(fill.item()):
        return call
    return relax.op.broadcast_to(relax.const(fill.item(), str(call.ty.dtype)), shape)
