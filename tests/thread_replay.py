# SPDX-License-Identifier: Apache-2.0
"""Goes through a kernel as all threads of a block do, and says where two of them meet in a byte.

There is no device here, so a lowered kernel is not run: what each thread reads and writes between
two barriers is noted. Threads run at their own pace, so nothing orders two accesses between the
same barriers.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.tirx.stmt import AttrStmt


class _Threads:
    """Notes which thread touches which bytes of shared memory, between which barriers."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.place: dict[int, tuple[Any, int]] = {}
        self.step = 0
        self.touched: dict[tuple[Any, int, int], list[tuple[int, bool]]] = {}
        self.thread = 0

    def run(self, op: Any) -> None:
        if isinstance(op, tirx.SeqStmt):
            for inner in op.seq:
                self.run(inner)
        elif isinstance(op, AttrStmt):
            if op.attr_key == "thread_extent":
                is_thread = str(op.node.thread_tag) == "threadIdx.x"
                self.values[op.node.var.__chandle__()] = self.thread if is_thread else 0
            self.run(op.body)
        elif isinstance(op, tirx.AllocBuffer):
            self.allocate(op.buffer)
        elif isinstance(op, tirx.DeclBuffer):
            source = op.data.args[0] if isinstance(op.data, Call) else op.data
            if source.__chandle__() in self.place:
                self.place[op.buffer.__chandle__()] = self.place[source.__chandle__()]
        elif isinstance(op, tirx.Bind):
            self.reads(op.value)
            self.values[op.var.__chandle__()] = self.value(op.value)
        elif isinstance(op, tirx.BufferStore):
            self.reads(op.value)
            self.touch(op.buffer, op.indices, writes=True)
        elif isinstance(op, tirx.For):
            for number in range(int(self.value(op.extent))):
                self.values[op.loop_var.__chandle__()] = int(self.value(op.min)) + number
                self.run(op.body)
        else:
            self.call(op.value)

    def allocate(self, buffer: Any) -> None:
        """Give a buffer memory of its own, or the one memory in which addresses count."""
        ty = buffer.ty
        if not str(ty.storage_scope).startswith("shared"):
            return
        addresses = ty.allocated_addr
        # One scope is one memory.
        memory = str(ty.storage_scope) if len(addresses) else buffer.__chandle__()
        begin = int(addresses[0]) if len(addresses) else 0
        self.place[buffer.__chandle__()] = memory, begin

    def call(self, op: Any) -> None:
        """A barrier, or extern code that reads all of a buffer that it is given."""
        if str(op.op.name) == "tirx.tvm_storage_sync":
            self.step += 1
            return
        assert str(op.op.name) == "tirx.call_extern", op
        pointer, size = op.args[1], int(op.args[2].value)
        if str(pointer.op.name) == "tirx.address_of":
            load = pointer.args[0]
            buffer, first = load.source, int(self.value(load.indices[0]))
        else:
            buffer, first = pointer.args[0], 0
        memory, begin = self.place[buffer.__chandle__()]
        begin += first * _width(buffer.ty.dtype.dtype)
        self.note(memory, begin, begin + size, writes=False)

    def reads(self, value: Any) -> None:
        def load(op: TensorLoad) -> None:
            self.touch(op.source, op.indices, writes=False)

        tvm_ffi.structural_walk(value, (TensorLoad, load))

    def touch(self, buffer: Any, indices: Any, writes: bool) -> None:
        if buffer.__chandle__() not in self.place:
            return
        memory, begin = self.place[buffer.__chandle__()]
        width = _width(buffer.ty.dtype.dtype)
        first = begin + int(self.value(indices[0])) * width
        self.note(memory, first, first + width, writes)

    def note(self, memory: Any, begin: int, end: int, writes: bool) -> None:
        for byte in range(begin, end):
            entry = self.touched.setdefault((memory, self.step, byte), [])
            entry.append((self.thread, writes))

    def value(self, op: Any) -> Any:
        if isinstance(op, tirx.Var):
            return self.values[op.__chandle__()]
        if isinstance(op, (tirx.IntImm, tirx.FloatImm)):
            return op.value
        if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](self.value(op.a), self.value(op.b))
        return None  # No index depends on it.


def _width(dtype: Any) -> int:
    return dtype.bits * dtype.lanes // 8


_ARITHMETIC = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
}


def races(func: tirx.PrimFunc, num_threads: int) -> bool:
    """Whether two threads touch one byte between the same barriers, and one of them writes it."""
    threads = _Threads()
    for thread in range(num_threads):
        threads.thread, threads.step = thread, 0
        threads.run(func.body)
    return any(
        any(writes for _, writes in entry) and len({thread for thread, _ in entry}) > 1
        for entry in threads.touched.values()
    )
