# SPDX-License-Identifier: Apache-2.0
"""The bytes of shared memory that a kernel takes by TVM's default passes."""

from __future__ import annotations

import logging
from typing import Any

from passes.ir import (
    STOCK_MERGE,
    STOCK_REWRITE,
    IRModule,
    PrimFunc,
    allocated_bits,
    build_option,
    nodes_in,
    outermost_threads,
    structural_map,
    tir,
    with_body,
    without_instruments,
)
from passes.ir.operators import MERGES_STATIC_SHARED

_REDUCTION = "reduce_scope"  # The attribute around what `LowerThreadAllreduce` makes of a reduction


def stock_bytes(func: PrimFunc, scope: str, logger: logging.Logger) -> list[int]:
    """Return the bytes of a storage scope that each kernel takes by TVM's default passes.

    `func` is lowered up to `LowerThreadAllreduce`. TVM's `StorageRewrite` runs before that, so
    it shares no buffer that `LowerThreadAllreduce` makes. Where passes fail, nothing is shared.
    """
    apart = func
    if not build_option(MERGES_STATIC_SHARED):
        apart = _with_reductions_apart(func)
    before = allocated_bytes(func, scope)
    reductions = [a - b for a, b in zip(before, allocated_bytes(apart, scope), strict=True)]
    mod = IRModule({"main": apart})
    try:
        with without_instruments():
            for stock in (STOCK_REWRITE(), STOCK_MERGE()):
                mod = stock(mod)
    except RuntimeError as error:
        logger.info("TVM's own passes fail: %s", error)
        return before
    shared = allocated_bytes(mod["main"], scope)
    return [a + b for a, b in zip(shared, reductions, strict=True)]


def allocated_bytes(func: PrimFunc, scope: str) -> list[int]:
    """Return the bytes of constant size that each kernel of a function allocates in a scope."""
    return [
        sum(-(-nbits // 8) for name, nbits in allocated_bits(owner) if name == scope and nbits)
        for owner in outermost_threads(func.body)
    ]


def _with_reductions_apart(func: PrimFunc) -> PrimFunc:
    """Return a function whose reductions' buffers are local, where `StorageRewrite` leaves them.

    The buffers are those that a reduction allocates, or writes its result to.
    """
    new: dict[int, Any] = {}
    for reduction in nodes_in(func.body, tir.Attribute):
        if reduction.attr_key != _REDUCTION:
            continue
        for op in nodes_in(reduction.body, tir.Allocation, tir.Store):
            old = op.buffer
            if str(old.ty.storage_scope) == "shared":
                new[old.__chandle__()] = tir.new_buffer(
                    old.ty.shape, old.ty.dtype.dtype, old.name, scope="local"
                )
    if not new:
        return func
    body = structural_map(func.body, [(tir.Var, lambda var: new.get(var.__chandle__(), var))])
    return with_body(func, body)
