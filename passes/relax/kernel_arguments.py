# SPDX-License-Identifier: Apache-2.0
"""Which tensors nothing but kernels touch, and as which arguments.

Only such a tensor can stand at an offset that a kernel adds to its indices. Whatever else reads a
tensor (packed functions, caches of keys and values, the virtual machine itself) takes its memory
from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir import GlobalVar, IRModule, Op, TensorLoad, Var
from tvm.ir.expr import TensorRegion
from tvm.s_tir import MatchBufferRegion
from tvm.tirx import BufferStore, IntImm, PrimFunc, is_buffer_var

from passes.ir import element_type, nodes_in
from passes.ir.relax_operators import RESHAPES
from passes.relax.facts import SCOPE, KernelUses
from passes.relax.tensors import AllocatedTensor


class KernelArguments:
    """The calls of kernels, by the handle of the variable that each is bound to."""

    def __init__(self, mod: IRModule, asked: bool) -> None:
        self._mod = mod
        self._asked = asked  # Nothing is noted of kernels where nobody asks.
        self._movable: dict[int, list[bool]] = {}
        # For each argument the number of its tensor; None for what is planned nowhere.
        self.by_call: dict[int, tuple[int | None, ...]] = {}
        self.from_start: set[int] = set()  # Numbers of tensors that something else reads

    def note(self, op: Any, variable: Any, tensors: Sequence[tuple[int, ...]]) -> None:
        """Note a call that reads and writes some tensors, those of each argument."""
        if not self._asked:
            return
        movable: list[bool] = []
        if variable is not None and isinstance(op, GlobalVar):
            handle = op.__chandle__()
            if handle not in self._movable:
                self._movable[handle] = _movable(self._mod[op])
            movable = self._movable[handle]
        arguments: list[int | None] = []
        for number, inside in enumerate(tensors):
            takes_offset = number < len(movable) and movable[number] and len(inside) == 1
            arguments.append(inside[0] if takes_offset else None)
            if not takes_offset:
                self.from_start.update(inside)
        if any(argument is not None for argument in arguments):
            self.by_call[variable.__chandle__()] = tuple(arguments)

    def uses(
        self, tensors: Sequence[AllocatedTensor], buffer_of: Mapping[int, str]
    ) -> KernelUses | None:
        """Return the same by the names of buffers; None where nobody asked."""
        if not self._asked:
            return None
        variables = [tensor.variable for tensor in tensors]
        names = ["" if v is None else buffer_of.get(v.__chandle__(), "") for v in variables]
        calls = {
            call: tuple("" if number is None else names[number] for number in arguments)
            for call, arguments in self.by_call.items()
        }
        return KernelUses(calls, frozenset(names[number] for number in self.from_start))

    def note_alias(self, op: Any, tensors: Sequence[int]) -> None:
        """Note what makes another tensor of the same memory."""
        name = op.name if isinstance(op, Op) else getattr(op, "global_symbol", "")
        if str(name) not in RESHAPES:
            self.from_start.update(tensors)


def _movable(func: PrimFunc) -> list[bool]:
    """Whether each parameter is a buffer that may begin at an element other than 0.

    It is in plain memory, without strides, of elements of whole bytes; and the body names it for
    its elements alone, and nowhere for its address, which would be that of element 0.
    """
    body = func.body
    elements = [node.source for node in nodes_in(body, TensorLoad, TensorRegion)]
    elements += [store.buffer for store in nodes_in(body, BufferStore)]
    elsewhere = [match.source.source for match in nodes_in(body, MatchBufferRegion)]
    seen = Counter(var.__chandle__() for var in (*nodes_in(body, Var), *elsewhere))
    seen.subtract(var.__chandle__() for var in elements)
    return [
        is_buffer_var(param)
        and str(param.scope()) == SCOPE
        and not param.ty.strides
        and element_type(param.ty.dtype).bits % 8 == 0
        and isinstance(param.ty.elem_offset, IntImm)
        and not int(param.ty.elem_offset)
        and seen[param.__chandle__()] == 0
        for param in func.params
    ]
