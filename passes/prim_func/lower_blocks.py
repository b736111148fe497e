# SPDX-License-Identifier: Apache-2.0
"""Takes the blocks out of a function that has no schedule."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import Sequential
from tvm.tirx import For, ForKind, PrimFunc
from tvm_ffi import structural_walk


def lower_blocks(func: PrimFunc) -> PrimFunc:
    """Return a function without blocks and with flat buffers: itself if it has none.

    The passes are those of TVM that take blocks away, in the order of its own pipeline. ValueError
    is raised when the function has blocks and a schedule, whose marks TVM must follow before.
    """
    blocks: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, blocks.append))
    if not blocks:
        return func
    _refuse_schedule(func)
    lower = Sequential(
        [
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
        ]
    )
    return lower(IRModule({"main": func}))["main"]


def _refuse_schedule(func: PrimFunc) -> None:
    def look_at(loop: For) -> None:
        if loop.kind == ForKind.THREAD_BINDING or len(loop.annotations):
            raise ValueError(
                f"it has blocks, and loop {loop.loop_var.name!r} is bound to threads or annotated; "
                "lower it first, as far as TVM does before it runs StorageRewrite"
            )

    structural_walk(func.body, (For, look_at))
