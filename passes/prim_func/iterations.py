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

    A number is by 1 above that of the iteration before; the first one may be any. A ``while``, and
    a ``for`` whose step is not constant, get a counter: the body may change what the step is read
    from.
    """

    def __init__(self) -> None:
        self._counters: dict[int, Var] = {}

    def number_in(self, loop: tirx.For | tirx.While) -> Any:
        """Return the number of a loop's current iteration, for use in its body."""
        if isinstance(loop, tirx.For) and (loop.step is None or isinstance(loop.step, tirx.IntImm)):
            number = loop.loop_var
            if loop.step is not None:
                number = tirx.floordiv(number, loop.step)
            # A narrow type may be too small for the number of slots.
            return number if does_not_wrap(number.ty.dtype) else number.astype("int64")
        key = loop.__chandle__()
        if key not in self._counters:
            self._counters[key] = tirx.decl_buffer(
                (tirx.IntImm("int32", 1),), "int64", "iteration", scope="local", layout=None
            )
        return tirx.BufferLoad(self._counters[key], [_ZERO])

    def write(self, op: tirx.For | tirx.While, new: tirx.For | tirx.While) -> Any:
        """Return a rewritten loop, which counts if anyone asked for a number of `op` to count."""
        counter = self._counters.get(op.__chandle__())
        if counter is None:
            return new

        def count(value: Any) -> Any:
            return tirx.BufferStore(counter, value, [_ZERO])

        step = count(tirx.BufferLoad(counter, [_ZERO]) + tirx.IntImm("int64", 1))
        body = tirx.SeqStmt([step, new.body])
        if isinstance(new, tirx.While):
            loop = tirx.While(new.condition, body)
        else:
            parts = (new.loop_var, new.min, new.extent, new.kind, body, new.thread_binding)
            loop = tirx.For(*parts, new.annotations, step=new.step)
        return tirx.SeqStmt([tirx.AllocBuffer(counter), count(tirx.IntImm("int64", -1)), loop])


def slot_index(dtype: Any, offsets: Sequence[int], number: Any) -> Any:
    """Return where the slot begins whose turn it is: iteration number modulo their number.

    Offsets are in bytes; `dtype` is the type of the index, `number` that of the iteration.
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
