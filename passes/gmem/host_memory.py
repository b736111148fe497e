# SPDX-License-Identifier: Apache-2.0
"""Storages of several memories on a host, whose run time allocates in ``global`` alone."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import IRModule, StringImm
from tvm.ir.transform import Pass, PassContext, module_pass

from passes.ir import structural_mutate
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE
from passes.relax import SCOPE


def host_scopes() -> Pass:
    """Return a pass that lets a host run what was placed over several memories of its chip.

    Each storage stays one allocation, in ``global``: TVM's allocators on a CPU refuse every other
    scope. The attribute of the function still says which memory is meant.
    """

    def rewrite(call: Any, mutator: Any) -> Any:
        call = mutator.default_mutate(call)
        if operator_name(call.op) != ALLOC_PLANNED_STORAGE or str(call.args[2].value) == SCOPE:
            return call
        args = [*call.args[:2], StringImm(SCOPE), *call.args[3:]]
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)

    def transform(mod: IRModule, _ctx: PassContext) -> IRModule:
        result = mod.clone()
        for variable in mod.get_global_vars():
            if isinstance(mod[variable], relax.Function):
                result[variable] = structural_mutate(mod[variable], [(relax.Call, rewrite)])
        return result

    return module_pass(transform, opt_level=0, name="tvm_ext.HostScopes")
