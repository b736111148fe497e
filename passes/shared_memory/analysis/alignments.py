# SPDX-License-Identifier: Apache-2.0
"""Multiples of how many bytes a shared buffer has to begin at.

Source: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``, ``cp.async.bulk``,
``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA programming guide.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.ir import Op
from tvm.ir.expr import Call
from tvm_ffi import structural_walk

from passes.prim_func.memory_uses import AllocationUses
from passes.prim_func.problem_options import DEFAULT_ALIGNMENT

_OF_OPERATORS = (
    # Tensor copies and descriptors of matrices may ask for a swizzle, whose pattern is so long.
    (("bulk_tensor", "wgmma", "tcgen05"), 1024),
    (("bulk", "multimem", "mbarrier"), 128),
    (("matrix_sync", "simdgroup", "cooperative_tensor"), 32),
)
"""Parts of the names of operators, and what they ask of an address; the strictest first."""

_OF_ADDRESSES = 16
"""Bytes that anything else asks for: ``ldmatrix``, ``cp.async``, a vector of extern code."""

_WIDEST = 64  # The most that a plain access asks for, in bytes


def alignment_of_addresses(kernel: Any) -> int:
    """Return the bytes that an address may have to be a multiple of: those of the strictest call.

    An address may take any way to a call, so one that is handed on is taken to go to each.
    """
    strictest = _OF_ADDRESSES

    def note_call(call: Call) -> None:
        nonlocal strictest
        if isinstance(call.op, Op):
            strictest = max(strictest, _of_operator(str(call.op.name)))

    structural_walk(kernel, [(Call, note_call)])
    return strictest


def _of_operator(name: str) -> int:
    fitting = (size for parts, size in _OF_OPERATORS if any(part in name for part in parts))
    return next(fitting, 1)


def alignment_of(buffer: Any, uses: AllocationUses, of_address: int) -> int:
    """Return the bytes that a buffer's offset must be a multiple of; `of_address` is 1 for none."""
    alignment = of_address
    for dtype in uses.dtypes:
        alignment = math.lcm(alignment, dtype.bits * dtype.lanes // 8)
    for dtype in uses.accessed:
        width = max(1, dtype.bits * max(dtype.lanes, 1) // 8)
        alignment = math.lcm(alignment, min(1 << (width - 1).bit_length(), _WIDEST))
    asked = int(buffer.ty.data_alignment)
    # TVM writes its default into every buffer: only more than that is a wish.
    return math.lcm(alignment, asked) if asked > DEFAULT_ALIGNMENT else alignment
