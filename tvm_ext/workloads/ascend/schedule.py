# SPDX-License-Identifier: Apache-2.0
"""From a schedule to a function whose allocations say how many slots they have.

`tvm.s_tir.Schedule` annotates blocks and loops, not allocations, and TVM's lowering drops the
annotations of blocks. So a schedule says of the block that writes a buffer what
:func:`lower_blocks` then says of its allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import AllocBuffer

FIRST = -2
"""Tells `compute_at` to put a block as early in the loop as it may stand."""

SLOTS = "multi_buffer"
"""The annotation that says how many slots a buffer has."""


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
        sch.annotate(block, SLOTS, slots)


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
    slots: dict[str, Any] = {}

    def note(block: SBlock) -> None:
        if SLOTS in block.annotations:
            for region in block.writes:
                slots[str(region.source.name)] = block.annotations[SLOTS]

    for function in sch.mod.functions.values():
        tvm_ffi.structural_walk(function.body, (SBlock, note))
    # A kernel is the same whatever options its caller lowers it with.
    with tvm.transform.PassContext():
        lowered = lower(sch.mod)
    (function,) = lowered.functions.values()

    def allocate(op: AllocBuffer, _mutator: Any) -> Any:
        count = slots.get(str(op.buffer.name))
        return op if count is None else AllocBuffer(op.buffer, {**op.annotations, SLOTS: count})

    body = tvm_ffi.structural_mutate(function.body, [(AllocBuffer, allocate)])
    return function.with_body(body)
