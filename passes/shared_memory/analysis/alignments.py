# SPDX-License-Identifier: Apache-2.0
"""Multiples of how many bytes a shared buffer has to begin at.

Source: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``, ``cp.async.bulk``,
``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA programming guide.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.ir import Var
from tvm.ir.expr import Call

from passes.ir import nodes_in
from passes.ir.operators import EXTERN_CODE, operator_name

_OF_OPERATORS = (
    # Tensor copies and descriptors of matrices may ask for a swizzle, whose pattern is so long.
    (("bulk_tensor", "wgmma", "tcgen05"), 1024),
    (("bulk", "multimem", "mbarrier"), 128),
    (("matrix_sync", "simdgroup", "cooperative_tensor"), 32),
)
"""Parts of the names of operators, and what they ask of an address; the strictest first."""

_OF_ADDRESSES = 16
"""Bytes that anything else asks for: ``ldmatrix``, ``cp.async``, a vector of extern code."""


def alignment_of_addresses(kernel: Any, buffer: Var) -> int:
    """Return the bytes that the address of a buffer is a multiple of where it is handed to calls.

    An address may take any way to a call, so it is taken to go to each call of the kernel; the
    strictest counts. Extern code may ask for all that the buffer's declaration promises.
    """
    names = {operator_name(call.op) for call in nodes_in(kernel, Call)}
    promised = int(buffer.ty.data_alignment) if names & EXTERN_CODE else 1
    return math.lcm(promised, max((_OF_ADDRESSES, *map(_of_operator, names))))


def _of_operator(name: str) -> int:
    fitting = (size for parts, size in _OF_OPERATORS if any(part in name for part in parts))
    return next(fitting, 1)
