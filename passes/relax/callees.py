# SPDX-License-Identifier: Apache-2.0
"""What a call in a lowered Relax function does with the tensors that it is given.

Operators and packed functions are told by their whole name, which is their identity; whatever is
not in a list here may keep what it is given.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar, Op
from tvm.tirx import PrimFunc

from passes.ir.relax_operators import CALLEES, Callee

_PACKED = {
    "vm.builtin.reshape": Callee.ALIASES,
    # What `LegalizeOps` makes of `R.print` and `R.assert_op`.
    "relax.run.print": Callee.READS,
    "relax.run.assert_op": Callee.READS,
    # TVM's caches of keys and values copy what they are given into memory of their own
    # (`src/runtime/vm/lm_support.cc`, `src/runtime/vm/kv_state.cc`).
    **{
        f"vm.builtin.attention_kv_cache_{name}": Callee.READS
        for name in (
            "create",
            "update",
            "append",
            "window_override",
            "window_override_with_sinks",
            "attention_with_fused_qkv",
            "attention_with_shared_kv",
            "self_attention",
            "cross_attention",
            "append_mla_kv",
        )
    },
}


def classify(mod: tvm.IRModule, op: Any) -> tuple[Callee, str]:
    """Return what calling `op` does with its arguments, and how messages call it.

    Packed functions called in destination-passing style are not told here: see
    `passes.relax.graph`.
    """
    if isinstance(op, Op):
        name = str(op.name)
        if name in CALLEES:
            return CALLEES[name], name
        legalized = op.get_attr("FLegalize") is not None
        return (Callee.HIGH_LEVEL if legalized else Callee.KEEPS), f"operator {name!r}"
    if isinstance(op, GlobalVar):
        function = mod.functions.get(op)
        if isinstance(function, PrimFunc):
            return Callee.READS, f"kernel {str(op.name_hint)!r}"
        if isinstance(function, relax.Function):
            return Callee.CALLS, f"Relax function {str(op.name_hint)!r}"
        return Callee.KEEPS, f"function {str(op.name_hint)!r}"
    if isinstance(op, relax.ExternFunc):
        symbol = str(op.global_symbol)
        return _PACKED.get(symbol, Callee.KEEPS), f"packed function {symbol!r}"
    return Callee.KEEPS, "closure"
