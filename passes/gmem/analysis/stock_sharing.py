# SPDX-License-Identifier: Apache-2.0
"""Tensors that share a storage under TVM's own plan, `StaticPlanBlockMemory`.

Our live ranges judge that sharing: the pass has faults with branches and with packed functions
(apache/tvm 20191).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import tvm
from tvm.ir.transform import PassContext

from passes.gmem.planning.pool import Placement, in_slots_of
from passes.ir import UPPER_BOUND, InternalError, IRModule, Pass, array_get, declared_bounds
from passes.ir.operators import is_call_of
from passes.ir.relax_operators import ALLOC_PLANNED_TENSOR, ALLOC_TENSOR
from passes.relax import UNCAPTURED, RelaxMemory, bindings_of, rx

_LOGGER = logging.getLogger("tvm_ext.GMEMAllocate")

_is_new, _is_planned = is_call_of(ALLOC_TENSOR), is_call_of(ALLOC_PLANNED_TENSOR)


def stock_pass() -> Pass:
    """Return `StaticPlanBlockMemory` itself, whatever its name in ``relax.transform`` stands for.

    Users put ``GMEMAllocate`` there, so that pipelines that are not ours run it.
    """
    made: Pass = tvm.get_global_func("relax.transform.StaticPlanBlockMemory")()
    return made


def stock_placement(memory: RelaxMemory, upper_bounds: Mapping[str, int]) -> Placement | None:
    """Return what the stock pass writes, whether it is right or wrong; None where it fails."""
    shared = _shared(memory, upper_bounds)
    if shared is None:
        return None
    placement = []
    for group in memory.groups:
        known = {buffer.name: buffer for buffer in group.every}
        named = ([memory.buffer_of.get(tensor) for tensor in same] for same in shared)
        inside = ([known[name] for name in same if name in known] for same in named)
        placement.append(in_slots_of(slot for slot in inside if slot))
    return tuple(placement)


def kept_as_stock(memory: RelaxMemory, stock: Placement) -> RelaxMemory:
    """Return a function with what the stock pass leaves to the runtime left there, too.

    `RewriteCUDAGraph` captures a kernel where all its tensors stand in storages that are kept. So
    it captures the same kernels, in as many graphs, as under the stock pass.
    """
    stocks = {name for pieces in stock for piece in pieces for name in piece.offsets}
    planned = {
        buffer.name
        for group in memory.groups
        for buffer in group.problem.buffers
        if group.unit is not None or buffer.name in stocks
    }
    return memory.leaving(planned, f"the stock pass leaves it there, {UNCAPTURED}")


def _shared(memory: RelaxMemory, upper_bounds: Mapping[str, int]) -> list[list[int]] | None:
    """Run the pass on one function; return by storage the handles of its tensors' variables."""
    mod, func = memory.mod, memory.func
    variable = mod.get_global_var(memory.name)
    bounds = {**upper_bounds, **declared_bounds(func)}
    bounded = func.with_attr(UPPER_BOUND, bounds) if upper_bounds else func
    kernels = {v: f for v, f in mod.functions.items() if not isinstance(f, rx.Function)}
    alone = IRModule({**kernels, variable: bounded}, global_infos=mod.global_infos)
    try:
        with PassContext():  # Instruments are for what is built: this one calls what is not there.
            planned = stock_pass()(alone)[variable]
    except InternalError as error:
        text = "function %r: TVM's StaticPlanBlockMemory fails: %s"
        _LOGGER.info(text, memory.name, str(error).strip().splitlines()[-1])
        return None
    shared: dict[int, list[int]] = {}
    for (variable, given), (_, found) in zip(_tensors(func), _tensors(planned), strict=True):
        if _is_new(given) and _is_planned(found):
            storage = array_get(found.args, 0).__chandle__()
            shared.setdefault(storage, []).append(variable.__chandle__())
    return list(shared.values())


def _tensors(func: rx.Function) -> list[tuple[Any, Any]]:
    """Return the variables that are bound to new tensors, in program order, and the calls."""
    bound = ((binding.var, binding.value) for binding in bindings_of(func.body))
    return [(var, value) for var, value in bound if _is_new(value) or _is_planned(value)]
