# SPDX-License-Identifier: Apache-2.0
"""The memory that kernels allocate for themselves while a Relax function calls them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GlobalVar
from tvm.s_tir import SBlock
from tvm.tirx import AllocBuffer, IntImm, PrimFunc

from passes.ir import nodes_in
from passes.relax import SCOPE, RelaxMemory, bindings_of, element_bytes
from target_hw.memory import round_up


@dataclass(frozen=True)
class Workspace:
    """What one call of a kernel needs for itself."""

    name: str  # The variable that the call is bound to, and the kernel
    position: int  # Of the call among the function's bindings
    size: int  # Bytes


def workspaces(memory: RelaxMemory, alignment: int) -> Iterator[Workspace]:
    """Yield the workspace of each call of a kernel of the module that allocates in ``global``.

    A kernel's allocations are taken to live at once, each rounded up to the alignment. Those of a
    size that only the running program knows are not counted.
    """
    known: dict[str, int] = {}
    for position, binding in enumerate(bindings_of(memory.func.body)):
        call: Any = binding.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, GlobalVar):
            continue
        kernel = str(call.op.name_hint)
        if not isinstance(memory.mod[call.op], PrimFunc):
            continue
        if kernel not in known:
            known[kernel] = _bytes(memory.mod[call.op], alignment)
        if known[kernel]:
            yield Workspace(f"{memory.bindings[position]}: {kernel}", position, known[kernel])


def _bytes(kernel: PrimFunc, alignment: int) -> int:
    blocks = [block.alloc_buffers for block in nodes_in(kernel.body, SBlock)]
    own = [buffer for buffers in blocks for buffer in buffers]
    own += [alloc.buffer for alloc in nodes_in(kernel.body, AllocBuffer)]
    return sum(round_up(_size(buffer), alignment) for buffer in own)


def _size(buffer: Any) -> int:
    """Return the bytes of a buffer in ``global`` memory; 0 where they are not known."""
    ty = buffer.ty
    if str(ty.storage_scope) != SCOPE or not all(isinstance(dim, IntImm) for dim in ty.shape):
        return 0
    return math.prod(int(dim) for dim in ty.shape) * element_bytes(ty.dtype.dtype)
