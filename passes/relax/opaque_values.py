# SPDX-License-Identifier: Apache-2.0
"""Values of a Relax function that are not known to be computed from their arguments alone.

A packed function may hold a generator of random numbers, or a cache, so these keep their order.
Also which values write their arguments: these keep their place among all uses of that memory.
"""

from __future__ import annotations

from typing import Any

from passes.ir import IRModule, PrimFunc, nodes_in, tir
from passes.ir.operators import CALL_OUT, legalization, operator_name
from passes.ir.relax_operators import KERNELS_OF_NEW_MEMORY, MOVE_OR_HINT, OVERWRITE_ARGUMENTS
from passes.relax import rx


class OpaqueValues:
    """Tells values that are not known to be computed from their arguments alone."""

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
