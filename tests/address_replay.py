# SPDX-License-Identifier: Apache-2.0
"""Runs a function step by step on two memories at once.

In one, every allocation has bytes of its own. In the other, allocations of one attach point and
scope share one array of bytes, at the offsets of a plan. Whatever is read must be the same in
both; the first value that was overwritten too early is named. Loops run one iteration after the
other, and their bounds are read again after each, as C and the tasks of a parallel loop do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.expr import Call
from tvm.tirx import is_buffer_var
from tvm.tirx.stmt import AttrStmt

from passes.driver import AddressPlan


class OverwrittenError(AssertionError):
    """A value was read from the plan's memory that is not the one that was written."""


class _Memory:
    """The bytes of one allocation, twice."""

    def __init__(self, name: str, own: np.ndarray, shared: np.ndarray) -> None:
        self.name = name
        self.own = own
        self.shared = shared
        self.is_written = np.zeros(len(own), dtype=bool)

    def write(self, at: int, data: np.ndarray) -> None:
        self.own[at : at + len(data)] = data
        self.shared[at : at + len(data)] = data
        self.is_written[at : at + len(data)] = True

    def read(self, at: int, count: int) -> np.ndarray:
        own, shared = self.own[at : at + count], self.shared[at : at + count]
        assert self.is_written[at : at + count].all(), f"{self.name} is read before it is written"
        if not np.array_equal(own, shared):
            raise OverwrittenError(f"{self.name}: byte {at} is not what was written there")
        return own


class Replay:
    """Runs a function under a plan.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Without a plan in it.
    plan : AddressPlan
        Where its allocations live.
    """

    def __init__(self, func: Any, plan: AddressPlan) -> None:
        self._func = func
        self._values: dict[int, Any] = {}
        self._memory: dict[int, _Memory] = {}
        self._loops: list[tuple[int, int]] = []
        self._place: dict[int, tuple[tuple[int, str], tuple[int, ...], Any]] = {}
        self._sizes: dict[tuple[int, str], int] = {}
        self._arenas: dict[tuple[int, str], np.ndarray] = {}
        self.num_checked = 0
        for scope in plan.scopes:
            # Addresses are all in one memory, and each arena is one of its own.
            is_arena = scope.attached.owner_range is None
            key = (scope.attached.owner or 0) if is_arena else 0, scope.problem.memory.name
            self._sizes[key] = max(self._sizes.get(key, 0), scope.plan.peak)
            for name, allocation in scope.attached.allocations.items():
                handle = allocation.statement.buffer.__chandle__()
                self._place[handle] = key, scope.plan.offsets[name], allocation.loop
        self._statements: dict[type, Callable[[Any], None]] = {
            tirx.SeqStmt: self._seq,
            tirx.For: self._for,
            tirx.While: self._while,
            tirx.IfThenElse: self._if,
            tirx.AllocBuffer: self._alloc,
            tirx.DeclBuffer: self._decl,
            tirx.BufferStore: self._store,
            tirx.Evaluate: lambda op: self._value(op.value),
            tirx.Bind: self._bind,
            AttrStmt: lambda op: self._run(op.body),
        }

    def __call__(self, arrays: Sequence[np.ndarray]) -> None:
        """Run on arrays, which are changed in place."""
        for param, array in zip(self._func.params, arrays, strict=True):
            if not is_buffer_var(param):
                self._values[param.__chandle__()] = array
                continue
            data = array.reshape(-1).view("uint8")
            self._memory[param.__chandle__()] = memory = _Memory(param.name, data, data)
            memory.is_written[:] = True
        self._enter(0)
        self._run(self._func.body)

    def _enter(self, owner: int) -> None:
        for (key, scope), size in self._sizes.items():
            if key == owner:
                self._arenas[owner, scope] = np.full(size, 0xA5, dtype="uint8")

    # Statements

    def _run(self, op: Any) -> None:
        self._statements[type(op)](op)

    def _seq(self, op: Any) -> None:
        for inner in op.seq:
            self._run(inner)

    def _for(self, op: Any) -> None:
        parts = [part for part in (op.min, op.extent, op.step) if part is not None]
        first, extent, *step = (int(self._value(part)) for part in parts)
        for number, value in enumerate(range(first, first + extent, *step)):
            kind = np.dtype(str(op.loop_var.ty.dtype))
            self._values[op.loop_var.__chandle__()] = kind.type(value)
            self._loops.append((op.__chandle__(), number))
            self._enter(op.__chandle__())
            self._run(op.body)
            self._loops.pop()
            for part in parts:
                self._value(part)

    def _while(self, op: Any) -> None:
        number = 0
        while self._value(op.condition):
            self._loops.append((op.__chandle__(), number))
            self._run(op.body)
            self._loops.pop()
            number += 1

    def _if(self, op: Any) -> None:
        if self._value(op.condition):
            self._run(op.then_case)
        elif op.else_case is not None:
            self._run(op.else_case)

    def _alloc(self, op: Any) -> None:
        buffer = op.buffer
        size = int(buffer.ty.shape[0].value) * _dtype(buffer.ty.dtype.dtype).itemsize
        own = np.zeros(size, dtype="uint8")
        shared = own
        handle = buffer.__chandle__()
        if handle in self._place:
            key, offsets, _loop = self._place[handle]
            # The slot is that of the innermost loop that is running.
            slot = self._loops[-1][1] % len(offsets) if len(offsets) > 1 else 0
            shared = self._arenas[key][offsets[slot] : offsets[slot] + size]
            assert len(shared) == size
        self._memory[handle] = _Memory(buffer.name, own, shared)

    def _decl(self, op: Any) -> None:
        known = self._memory.get(op.data.__chandle__())
        self._memory[op.buffer.__chandle__()] = known or self._value(op.data)[0]

    def _store(self, op: Any) -> None:
        value = np.atleast_1d(np.asarray(self._value(op.value)))
        dtype = _dtype(op.buffer.ty.dtype.dtype)
        memory = self._memory[op.buffer.__chandle__()]
        for index, lane in zip(self._index(op.indices), value, strict=True):
            data = np.asarray([lane], dtype=dtype).view("uint8")
            memory.write(int(index) * dtype.itemsize, data)

    def _bind(self, op: Any) -> None:
        self._values[op.var.__chandle__()] = self._value(op.value)

    # Expressions

    def _index(self, indices: Any) -> np.ndarray:
        return np.atleast_1d(np.asarray(self._value(indices[0])))

    def _value(self, op: Any) -> Any:
        if isinstance(op, TensorLoad):
            return self._load(op)
        if isinstance(op, tirx.Var):
            handle = op.__chandle__()
            return (self._memory[handle], 0) if is_buffer_var(op) else self._values[handle]
        if isinstance(op, (tirx.IntImm, tirx.FloatImm)):
            return np.dtype(str(op.ty.dtype)).type(op.value)
        if isinstance(op, tirx.Cast):
            return np.asarray(self._value(op.value)).astype(_dtype(op.ty.dtype))[()]
        if isinstance(op, tirx.Ramp):
            base, stride = self._value(op.base), self._value(op.stride)
            return base + stride * np.arange(int(op.lanes.value))
        if isinstance(op, tirx.Broadcast):
            return np.full(int(op.lanes.value), self._value(op.value))
        if isinstance(op, Call):
            return self._call(op)
        operation = _BINARY[type(op)]
        with np.errstate(over="ignore"):
            return operation(self._value(op.a), self._value(op.b))

    def _load(self, op: Any) -> Any:
        dtype = _dtype(op.source.ty.dtype.dtype)
        memory = self._memory[op.source.__chandle__()]
        lanes = [
            memory.read(int(index) * dtype.itemsize, dtype.itemsize).view(dtype)[0]
            for index in self._index(op.indices)
        ]
        self.num_checked += len(lanes)
        return lanes[0] if op.ty.dtype.lanes == 1 else np.array(lanes)

    def _masked(self, op: Any, is_store: bool) -> Any:
        memory, dtype = self._memory[op.args[0].__chandle__()], _dtype(op.args[0].ty.dtype.dtype)
        *value, index, mask = (self._value(arg) for arg in op.args[1:])
        lanes = np.zeros(len(index), dtype) if not is_store else value[0]
        for lane in np.flatnonzero(mask):
            at = int(index[lane]) * dtype.itemsize
            if is_store:
                memory.write(at, np.asarray([lanes[lane]], dtype=dtype).view("uint8"))
            else:
                lanes[lane] = memory.read(at, dtype.itemsize).view(dtype)[0]
        return lanes

    def _call(self, op: Any) -> Any:
        name = str(op.op.name).removeprefix("tirx.")
        if name == "buffer_data":
            return self._memory[op.args[0].__chandle__()], 0
        if name == "address_of":
            load = op.args[0]
            dtype = _dtype(load.source.ty.dtype.dtype)
            at = int(self._index(load.indices)[0]) * dtype.itemsize
            return self._memory[load.source.__chandle__()], at
        if name == "tvm_access_ptr":
            dtype = _dtype(op.args[0].ty.dtype)
            memory, at = self._value(op.args[1])
            return memory, at + int(self._value(op.args[2])) * dtype.itemsize
        if name in ("masked_load", "masked_store"):
            return self._masked(op, name == "masked_store")
        assert name == "call_extern", name
        assert str(op.args[0].value) == "memcpy"
        (to, to_at), (source, source_at) = self._value(op.args[1]), self._value(op.args[2])
        count = int(self._value(op.args[3]))
        to.write(to_at, source.read(source_at, count).copy())
        self.num_checked += count
        return None


def _dtype(dtype: Any) -> np.dtype:
    return np.dtype(str(dtype.with_lanes(1)))


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.EQ: lambda a, b: a == b,
    tirx.NE: lambda a, b: a != b,
}
