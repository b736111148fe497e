# SPDX-License-Identifier: Apache-2.0
"""The number of a loop's current iteration, by which its buffers take turns with their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from passes.ir import does_not_wrap

_ZERO = tirx.IntImm("int32", 0)


class Iterations:
    """Numbers the iterations of loops, and writes the loops so that the numbers hold.

    The first value and the step of a ``for`` are evaluated once, in front of it: its body may
    change the memory that they read. A ``while`` gets a counter.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, Any] = {}
        self._bound: dict[int, dict[str, Var]] = {}
        self._counters: dict[int, Var] = {}

    def number_in(self, loop: tirx.For | tirx.While) -> Any:
        """Return the number of a loop's current iteration, from 0, for use in its body."""
        key = loop.__chandle__()
        if key not in self._numbers:
            is_for = isinstance(loop, tirx.For)
            self._numbers[key] = self._number_of_for(loop) if is_for else self._counter_of(key)
        return self._numbers[key]

    def _number_of_for(self, loop: tirx.For) -> Any:
        bound = self._bound[loop.__chandle__()] = {
            part: Var(f"{loop.loop_var.name}_{part}", value.ty)
            for part, value in (("min", loop.min), ("step", loop.step))
            if value is not None and not isinstance(value, (tirx.IntImm, Var))
        }
        number = loop.loop_var
        first, step = bound.get("min", loop.min), bound.get("step", loop.step)
        if not (isinstance(first, tirx.IntImm) and first.value == 0):
            number = number - first
        if step is not None and not (isinstance(step, tirx.IntImm) and step.value == 1):
            number = tirx.floordiv(number, step)
        # A narrow type may be too small for the number of slots.
        return number if does_not_wrap(number.ty.dtype) else number.astype("int64")

    def _counter_of(self, key: int) -> Any:
        self._counters[key] = counter = tirx.decl_buffer(
            (tirx.IntImm("int32", 1),), "int64", "iteration", scope="local", layout=None
        )
        return tirx.BufferLoad(counter, [_ZERO])

    def write_for(self, op: tirx.For, new: tirx.For) -> Any:
        """Return a rewritten ``for`` behind what the numbers of `op` rest on."""
        bound = self._bound.get(op.__chandle__())
        if not bound:
            return new
        binds = [tirx.Bind(var, getattr(new, part)) for part, var in bound.items()]
        first, step = bound.get("min", new.min), bound.get("step", new.step)
        parts = (new.loop_var, first, new.extent, new.kind, new.body, new.thread_binding)
        return tirx.SeqStmt([*binds, tirx.For(*parts, new.annotations, step=step)])

    def write_while(self, op: tirx.While, new: tirx.While) -> Any:
        """Return a rewritten ``while`` that counts, if anyone asked for the numbers of `op`."""
        counter = self._counters.get(op.__chandle__())
        if counter is None:
            return new

        def count(value: Any) -> Any:
            return tirx.BufferStore(counter, value, [_ZERO])

        step = count(tirx.BufferLoad(counter, [_ZERO]) + tirx.IntImm("int64", 1))
        loop = tirx.While(new.condition, tirx.SeqStmt([step, new.body]))
        return tirx.SeqStmt([tirx.AllocBuffer(counter), count(tirx.IntImm("int64", -1)), loop])


def slot_index(dtype: Any, offsets: Sequence[int], number: Any) -> Any:
    """Return where the slot begins whose turn it is: iteration number modulo their number.

    Offsets are in bytes; `dtype` is the type of the index, `number` that of the iteration, from 0.
    """
    count = len(offsets)
    slot = tirx.floormod(number, tirx.IntImm(number.ty, count)).astype(dtype)
    stride = offsets[1] - offsets[0]
    if all(offset == offsets[0] + k * stride for k, offset in enumerate(offsets)):
        return slot * tirx.IntImm(dtype, stride) + tirx.IntImm(dtype, offsets[0])
    index: Any = tirx.IntImm(dtype, offsets[-1])
    for k in range(count - 2, -1, -1):
        index = tirx.Select(slot == tirx.IntImm(dtype, k), tirx.IntImm(dtype, offsets[k]), index)
    return index
