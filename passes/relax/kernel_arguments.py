# SPDX-License-Identifier: Apache-2.0
"""Tensors that only kernels touch, and the arguments through which they do.

Only such a tensor can stand at an offset that a kernel adds to its indices: packed functions and
the virtual machine take a tensor's memory from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from passes.ir import IRModule, PrimFunc, element_type, nodes_in, tir
from passes.relax.facts import SCOPE, KernelUses
from passes.relax.tensors import AllocatedTensor


def kernel_uses(
    mod: IRModule,
    calls: Iterable[tuple[Any, Any, Sequence[tuple[AllocatedTensor, ...]]]],
    tensors: Iterable[AllocatedTensor],
    alignment: int,
) -> KernelUses:
    """Return which buffers kernels take at an offset; all others get `from_start`.

    A call is what is called, the variable that it is bound to, and the tensors of each argument.
    Offsets are multiples of `alignment` bytes.
    """
    movable = cache(lambda kernel: _movable(mod[kernel], alignment))
    by_call: dict[int, tuple[str, ...]] = {}
    for op, variable, given in calls:
        is_kernel = variable is not None and isinstance(op, tir.GlobalVar)
        moves = movable(op) if is_kernel else []
        arguments = [""] * len(given)
        for number, inside in enumerate(given):
            if number < len(moves) and moves[number] and len(inside) == 1:
                arguments[number] = inside[0].buffer
            else:
                for tensor in inside:
                    tensor.from_start = True
        if any(arguments):
            by_call[variable.__chandle__()] = tuple(arguments)
    return KernelUses(by_call, frozenset(one.buffer for one in tensors if one.from_start))


def _movable(func: PrimFunc, alignment: int) -> list[bool]:
    """Return, for each parameter, whether it is a buffer that may begin at an element other than 0.

    It is in plain memory, without strides, of elements of whole bytes, and an element begins at
    each offset, which fails for elements of three lanes. And the body uses only its elements, never
    its address, which would be that of element 0.
    """
    body = func.body
    elements = [node.source for node in nodes_in(body, tir.Load, tir.Region)]
    elements += [store.buffer for store in nodes_in(body, tir.Store)]
    elsewhere = [match.source.source for match in nodes_in(body, tir.MatchedRegion)]
    seen = Counter(var.__chandle__() for var in (*nodes_in(body, tir.Var), *elsewhere))
    seen.subtract(var.__chandle__() for var in elements)
    return [
        tir.is_buffer(param)
        and str(param.scope()) == SCOPE
        and not param.ty.strides
        and element_type(param.ty.dtype).bits % 8 == 0
        and alignment * 8 % (element_type(param.ty.dtype).nbits or 1) == 0
        and isinstance(param.ty.elem_offset, tir.IntConstant)
        and not int(param.ty.elem_offset)
        and seen[param.__chandle__()] == 0
        for param in func.params
    ]
