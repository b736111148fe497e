# SPDX-License-Identifier: Apache-2.0
"""Random programs with copies that run by themselves until something waits for them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import tvm
from address_programs import LENGTH, ProgramBuilder
from address_replay import Replay
from hypothesis import strategies as st
from program_parts import cast, loop
from tvm import tirx
from tvm.ir import Call, Op, PrimType
from tvm.tirx import BufferLoad, BufferStore, Evaluate, Let, Var
from tvm.tirx.stmt import AttrStmt

COPIES = (
    "tirx.dma_copy",
    "tirx.nvshmem.getmem_nbi",
    "tirx.ptx.cp_async_bulk_g2s_cta",
    "tirx.ptx.cp_async_ca",
    "tirx.ptx.cp_reduce_async_bulk_s2g",
    "tirx.ptx.st_async",
)
"""Operators that may go on when they have returned; here all are given (to, from, bytes)."""

WAIT = "tirx.dma_wait"
_ZERO = tirx.const(0)


class CopyingBuilder(ProgramBuilder):
    """Draws programs whose copies end at a wait, with other buffers made in between."""

    def copy(self, scope: Any, depth: int) -> list[Any]:
        source = self.newest(scope)
        if source is None:
            return []
        buffer, alloc = self.like(source)
        size = LENGTH * buffer.ty.dtype.dtype.bits // 8
        start, wait = self.pick((self.by_call, self.by_call, self.by_attribute))(
            buffer, source, size
        )
        if self.pick((True, False)):
            start = loop(Var(self.name("once"), PrimType("int32")), 1, start)
        between = [*self.filled_like(source), *self.map(scope.inner(), depth)]
        if any(source.same_as(b) for b in scope.readable[1:]) and self.pick((True, False)):
            scope.readable[1:] = [b for b in scope.readable[1:] if not b.same_as(source)]
        scope.readable.append(buffer)
        return [alloc, start, *between, wait]

    def filled_like(self, source: Any) -> list[Any]:
        """A buffer that would fit where the source is, and that nothing reads."""
        buffer, alloc = self.like(source)
        i = Var(self.name("i"), PrimType("int32"))
        value = cast(i + 50, str(buffer.ty.dtype.dtype))
        return [alloc, loop(i, LENGTH, BufferStore(buffer, value, [i]))]

    def by_call(self, buffer: Any, source: Any, size: int) -> tuple[Any, Any]:
        pointer = self.pointer(source)
        name, to = self.pick(COPIES), self.pointer(buffer)
        if self.random.random() < 0.4:
            address = tirx.reinterpret("int64", source.data)
            var = Var(self.name("q"), PrimType("int64"))
            begun = Let(var, address, call(name, to, var, size))
        else:
            begun = call(name, to, pointer, size)
        return Evaluate(begun), Evaluate(call(WAIT, 0))

    def by_attribute(self, buffer: Any, source: Any, _size: int) -> tuple[Any, Any]:
        i = Var(self.name("i"), PrimType("int32"))
        body = loop(i, LENGTH, BufferStore(buffer, BufferLoad(source, [i]), [i]))
        start = AttrStmt(_ZERO, "async_scope", tirx.const(1), body)
        if self.pick((True, False)):
            start = AttrStmt(_ZERO, "async_commit_queue_scope", _ZERO, start)
        return start, AttrStmt(_ZERO, "async_wait_queue_scope", _ZERO, Evaluate(_ZERO))


def call(name: str, *args: Any) -> Any:
    made = [tirx.const(arg) if isinstance(arg, int) else arg for arg in args]
    return Call(Op.get(name), made, ret_ty=PrimType("int32"))


class CopyingReplay(Replay):
    """Lets each copy read and write when it starts, and once more when it is waited for."""

    def __init__(self, func: Any, plan: Any) -> None:
        super().__init__(func, plan)
        self._pending: list[Callable[[], None]] = []
        self._statements[AttrStmt] = self._attr

    def _begin(self, copy: Callable[[], None]) -> None:
        copy()
        self._pending.append(copy)

    def _wait(self) -> None:
        pending, self._pending = self._pending, []
        for copy in pending:
            copy()

    def _attr(self, op: Any) -> None:
        if op.attr_key == "async_scope":
            self._begin(lambda: self._run(op.body))
        else:
            if op.attr_key == "async_wait_queue_scope":
                self._wait()
            self._run(op.body)

    def _value(self, op: Any) -> Any:
        if isinstance(op, Let):
            self._values[op.var.__chandle__()] = self._value(op.value)
            return self._value(op.body)
        return super()._value(op)

    def _call(self, op: Any) -> Any:
        name = str(op.op.name)
        if name == WAIT:
            return self._wait()
        if name == "tirx.reinterpret":
            return self._value(op.args[0])
        if name not in COPIES:
            return super()._call(op)
        (to, to_at), (source, source_at) = self._value(op.args[0]), self._value(op.args[1])
        count = int(self._value(op.args[2]))

        def copy() -> None:
            data: np.ndarray = source.read(source_at, count)
            to.write(to_at, data.copy())
            self.num_checked += count

        return self._begin(copy)


def copying_programs() -> st.SearchStrategy[tvm.IRModule]:
    """Programs that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: CopyingBuilder(random).build())


def copying_program(seed: int) -> tvm.IRModule:
    """Draw a module of one function from a seed."""
    return CopyingBuilder(Random(seed)).build()
