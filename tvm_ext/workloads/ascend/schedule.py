# SPDX-License-Identifier: Apache-2.0
"""From a schedule to a function whose allocations say how many slots they have.

`tvm.s_tir.Schedule` annotates blocks and loops, not allocations, and TVM's lowering drops the
annotations of blocks, except for pragmas. So a schedule says as a pragma of the block that writes
a buffer what :func:`lower_blocks` then says of its allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import AllocBuffer, BufferStore
from tvm.tirx.stmt import AttrStmt

FIRST = -2
"""Tells `compute_at` to put a block as early in the loop as it may stand."""

_MULTI_BUFFER = "pragma_multi_buffer"


def tensor(shape: tuple[int, ...], dtype: str, name: str) -> te.Tensor:
    """Declare an input of a tensor expression."""
    return te.placeholder(shape, dtype, name)


def schedule(inputs: Iterable[te.Tensor], output: te.Tensor) -> Schedule:
    """Begin to schedule a function of a tensor expression: first its inputs, then its output."""
    return s_tir.Schedule(te.create_prim_func([*inputs, output]))


def cast(x: te.Tensor, dtype: str, name: str) -> te.Tensor:
    """Convert each element: a block of its own."""
    return te.compute(x.shape, lambda *at: x(*at).astype(dtype), name=name)


def multi_buffer(sch: Schedule, block: Any, slots: int) -> None:
    """Give the buffer that a block writes as many slots."""
    if slots > 1:
        block = sch.get_sblock(block) if isinstance(block, str) else block
        sch.annotate(block, _MULTI_BUFFER, slots)


def lower_blocks(sch: Schedule) -> tirx.PrimFunc:
    """Turn the blocks of a schedule into loops with allocations in them.

    Loops that the schedule unrolls are unrolled here, before memory is planned: each copy of the
    body has allocations of its own, with ``multi_buffer`` among their annotations.
    """
    lower = tvm.transform.Sequential(
        [
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.UnrollLoop(),
            tirx.transform.StmtSimplify(),
        ]
    )
    # A kernel is the same whatever options its caller lowers it with.
    with tvm.transform.PassContext():
        lowered = lower(sch.mod)
    (function,) = lowered.functions.values()
    return function.with_body(_apply_pragmas(function.body))


def _apply_pragmas(body: Any) -> Any:
    slots: dict[int, Any] = {}

    def note(op: AttrStmt) -> None:
        if op.attr_key == _MULTI_BUFFER:
            tvm_ffi.structural_walk(
                op.body, (BufferStore, lambda s: slots.update({s.buffer.__chandle__(): op.value}))
            )

    tvm_ffi.structural_walk(body, (AttrStmt, note))

    def rewrite_attr(op: AttrStmt, mutator: Any) -> Any:
        if op.attr_key == _MULTI_BUFFER:
            return mutator.mutate(op.body)
        return mutator.default_mutate(op)

    def rewrite_alloc(op: AllocBuffer, _mutator: Any) -> Any:
        count = slots.get(op.buffer.__chandle__())
        if count is None:
            return op
        return AllocBuffer(op.buffer, {**op.annotations, "multi_buffer": count})

    return tvm_ffi.structural_mutate(body, [(AttrStmt, rewrite_attr), (AllocBuffer, rewrite_alloc)])
