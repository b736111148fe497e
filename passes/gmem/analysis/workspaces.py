# SPDX-License-Identifier: Apache-2.0
"""The memory that kernels allocate for themselves while a Relax function calls them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvm import relax
from tvm.ir import Call, GlobalVar, IRModule
from tvm.s_tir import SBlock
from tvm.tirx import AllocBuffer, IntImm, PrimFunc

from passes.ir import nodes_in
from passes.ir.operators import operator_name
from passes.ir.relax_operators import CALL_TIR_DYN
from passes.planning import Buffer
from passes.relax import SCOPE, RelaxMemory, bindings_of, element_bytes
from target_hw.memory import round_up

DEFAULT_ALIGNMENT = 64  # Bytes: what TVM says of a buffer for which nobody asked


def workspaces(memory: RelaxMemory, alignment: int) -> Iterator[Buffer]:
    """Yield the workspace of each call of a kernel of the module that allocates in ``global``.

    It is named by the variable that the call is bound to and the kernel, and lives at the call.
    A kernel's allocations, and those of kernels that it calls, are taken to live at once, each
    rounded up to the alignment, or to its own where that is larger. One in a parallel loop is
    counted once, as for one thread. Those of a size that only the running program knows are not
    counted.
    """
    known: dict[int, list[tuple[int, int]]] = {}
    for position, binding in enumerate(bindings_of(memory.func.body)):
        call: Any = binding.value
        if not isinstance(call, relax.Call):
            continue
        callee = call.args[0] if operator_name(call.op) == CALL_TIR_DYN else call.op
        if (handle := callee.__chandle__()) not in known:
            known[handle] = list(_buffers(memory.mod, callee, set()))
        own = known[handle]
        largest = math.lcm(alignment, *(asked for _, asked in own))
        size = sum(round_up(nbytes, math.lcm(alignment, asked)) for nbytes, asked in own)
        if size:
            name = f"{memory.bindings[position]}: {callee.name_hint}"
            yield Buffer(name, size, ((position, position + 1),), alignment=largest)


def _buffers(mod: IRModule, callee: Any, callers: set[str]) -> Iterator[tuple[int, int]]:
    """Yield bytes and alignment of what a kernel allocates, and of what the kernels it calls do."""
    known = isinstance(callee, GlobalVar) and callee in mod.functions
    if not known or not isinstance(mod[callee], PrimFunc) or str(callee.name_hint) in callers:
        return
    body, inside = mod[callee].body, {*callers, str(callee.name_hint)}
    blocks = [block.alloc_buffers for block in nodes_in(body, SBlock)]
    own = [buffer for buffers in blocks for buffer in buffers]
    own += [alloc.buffer for alloc in nodes_in(body, AllocBuffer)]
    for buffer in own:
        ty = buffer.ty
        if str(ty.storage_scope) == SCOPE and all(isinstance(dim, IntImm) for dim in ty.shape):
            nbytes = math.prod(int(dim) for dim in ty.shape) * element_bytes(ty.dtype.dtype)
            asked = int(ty.data_alignment)
            yield nbytes, asked if asked > DEFAULT_ALIGNMENT else 1
    for call in nodes_in(body, Call):
        yield from _buffers(mod, call.op, inside)
