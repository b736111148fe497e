# SPDX-License-Identifier: Apache-2.0
"""Uses of the buffers that the threads of a block share, where not all is known of them.

Source of alignments: the operand alignments of the PTX ISA for ``ldmatrix``, ``cp.async``,
``cp.async.bulk``, ``cp.async.bulk.tensor`` and ``wgmma``, and of ``nvcuda::wmma`` in the CUDA
programming guide.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from passes.ir import AllocationUses, is_dense, tir
from passes.ir.operators import EXTERN_CODE, masked_index

_ALIGNMENTS = (
    # Tensor copies and descriptors of matrices may ask for a swizzle, whose pattern is so long.
    (("bulk_tensor", "wgmma", "tcgen05"), 1024),
    (("bulk", "multimem", "mbarrier"), 128),
    (("matrix_sync", "simdgroup", "cooperative_tensor"), 32),
)
"""Parts of the names of operators, and the alignment of an address in bytes; strictest first."""

_OTHER_ALIGNMENT = 16
"""Bytes that anything else asks for: ``ldmatrix``, ``cp.async``, a vector of extern code."""


def is_handed_on(uses: AllocationUses) -> bool:
    """Return whether a buffer's address is an operand of a call."""
    return any(each.is_address and masked_index(each.op) is None for each in uses.accesses)


def has_scattered_vectors(uses: AllocationUses) -> bool:
    """Return whether a vector is loaded or stored that is not of neighbouring elements."""
    plain = (each for each in uses.accesses if not each.is_address)
    return any(_is_scattered(index) for each in plain for index in each.indices)


def _is_scattered(index: Any) -> bool:
    """Return whether an index is that of a vector of elements that are not all neighbours."""
    return index.ty.dtype.lanes != 1 and not (type(index) is tir.Ramp and is_dense(index))


def alignment_of_addresses(names: Collection[str], buffer: tir.Var) -> int:
    """Return the bytes that the address of a buffer is a multiple of where it is handed to calls.

    An address may take any way to a call, so it is taken to go to each of the operators of the
    kernel, by their `names`; the strictest counts. Extern code may ask for all that the buffer's
    declaration promises.
    """
    promised = 1 if EXTERN_CODE.isdisjoint(names) else int(buffer.ty.data_alignment)
    asked = (
        size for parts, size in _ALIGNMENTS for name in names if any(part in name for part in parts)
    )
    return math.lcm(promised, max(asked, default=_OTHER_ALIGNMENT))
