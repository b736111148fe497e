# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a Relax function `StaticPlanBlockMemory` lets share a storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from passes.ir import UPPER_BOUND
from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_TENSOR, ALLOC_TENSOR
from passes.relax import bindings_of

_MAKES_TENSOR = (ALLOC_TENSOR, ALLOC_PLANNED_TENSOR)


def stock_sharing(
    mod: tvm.IRModule, variable: GlobalVar, upper_bounds: Mapping[str, int]
) -> tuple[tuple[int, ...], ...] | None:
    """Run the stock pass on one function, and return which tensors share a storage.

    Whether that is right is for others to judge: the pass has faults with branches and with packed
    functions (apache/tvm 20191).
    """
    func = mod[variable]
    own = func.attrs.get(UPPER_BOUND, {}) if func.attrs else {}
    bounded = func.with_attr(UPPER_BOUND, {**upper_bounds, **own}) if upper_bounds else func
    functions = {
        name: function
        for name, function in mod.functions.items()
        if not isinstance(function, relax.Function)
    }
    alone = tvm.IRModule({**functions, variable: bounded}, global_infos=mod.global_infos)
    try:
        planned = relax.transform.StaticPlanBlockMemory()(alone)[variable]
    except Exception:
        return None
    before, behind = _tensors(func), _tensors(planned)
    if len(before) != len(behind):
        return None
    shared: dict[int, list[int]] = {}
    for one, other in zip(before, behind, strict=True):
        is_new = str(one.value.op.name) == ALLOC_TENSOR
        if is_new and str(other.value.op.name) == ALLOC_PLANNED_TENSOR:
            storage = other.value.args[0].__chandle__()
            shared.setdefault(storage, []).append(one.var.__chandle__())
    return tuple(tuple(tensors) for tensors in shared.values())


def _tensors(func: relax.Function) -> list[Any]:
    """Return the bindings that make tensors, in program order."""
    bindings = (b for b in bindings_of(func.body) if isinstance(b.value, relax.Call))
    return [b for b in bindings if operator_name(b.value.op) in _MAKES_TENSOR]
