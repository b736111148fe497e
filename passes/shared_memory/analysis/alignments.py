# SPDX-License-Identifier: Apache-2.0
"""Multiples of how many bytes a shared buffer has to begin at.

Source: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``, ``cp.async.bulk``,
``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA programming guide.
"""

from __future__ import annotations

from typing import Any

from tvm.ir.expr import Call

from passes.ir.operators import operator_name
from passes.ir.structural import nodes_in

_OF_OPERATORS = (
    # Tensor copies and descriptors of matrices may ask for a swizzle, whose pattern is so long.
    (("bulk_tensor", "wgmma", "tcgen05"), 1024),
    (("bulk", "multimem", "mbarrier"), 128),
    (("matrix_sync", "simdgroup", "cooperative_tensor"), 32),
)
"""Parts of the names of operators, and what they ask of an address; the strictest first."""

_OF_ADDRESSES = 16
"""Bytes that anything else asks for: ``ldmatrix``, ``cp.async``, a vector of extern code."""


def alignment_of_addresses(kernel: Any) -> int:
    """Return the bytes that an address may have to be a multiple of: those of the strictest call.

    An address may take any way to a call, so one that is handed on is taken to go to each.
    """
    names = {operator_name(call.op) for call in nodes_in(kernel, Call)}
    return max((_OF_ADDRESSES, *map(_of_operator, names)))


def _of_operator(name: str) -> int:
    fitting = (size for parts, size in _OF_OPERATORS if any(part in name for part in parts))
    return next(fitting, 1)
