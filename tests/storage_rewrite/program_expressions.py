# SPDX-License-Identifier: Apache-2.0
"""Buffers, indices and values of the random programs of `program_strategy`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import tvm
from saved_json import saved_json
from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import (
    AllocBuffer,
    BufferLoad,
    Let,
    Ramp,
    Var,
)

_SCOPES = (
    *(("global",) * 5),
    *("shared", "shared", "shared.dyn", "local", "warp", "global.workspace"),
    *("local.UB", "local.UB", "local.L1", "shared.UB", "global.vtcm"),
    *("wmma.accumulator", "texture", ""),
)
_DTYPES = (
    *(("float32",) * 4),
    *("float16", "float16", "int8", "int32", "bool", "bfloat16", "float64", "int64", "uint8"),
    *("int4", "float8_e4m3fn", "float32x4", "float16x8", "float32x2", "int8x16"),
    "float32xvscalex4",
)


@dataclass
class Scope:
    """What a statement may name."""

    buffers: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    pointers: list[Any] = field(default_factory=list)

    def inner(self) -> Scope:
        return Scope(list(self.buffers), list(self.scalars), list(self.pointers))


def _foreign(dtype: str) -> PrimType:
    """Return a type that is equal to TVM's own object but is another one, as after `load_json`."""
    return tvm.ir.load_json(saved_json(PrimType(dtype)))


_FOREIGN = {name: _foreign(name) for name in dict.fromkeys(_DTYPES)}


def zero(dtype: Any) -> Any:
    zero = tirx.const(0, str(dtype.with_lanes(1)))
    return zero if dtype.lanes == 1 else splat(zero, dtype)


def splat(value: Any, dtype: Any) -> Any:
    if dtype.lanes < 0:
        return tirx.Broadcast(value, tirx.vscale() * -dtype.lanes)
    return tirx.Broadcast(value, dtype.lanes)


def cast(value: Any, dtype: Any) -> Any:
    return value if value.ty.dtype == dtype else tirx.Cast(PrimType(dtype), value)


def called(*args: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", "g", *args))


class Expressions:
    """Draws buffers, and the indices and values that stand in programs.

    Parameters
    ----------
    random : random.Random
        The source of choices.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = 0
        self.declarations = 0
        self.in_thread = False
        self.in_parallel = False
        self.scopes = self.some(_SCOPES, 3)
        self.dtypes = self.some(_DTYPES, 3)
        if not self.chance(0.1):
            # Memory of scalars does not mix with memory of vectors, save by luck.
            lanes = PrimType(self.dtypes[0]).dtype.lanes
            self.dtypes = [name for name in self.dtypes if PrimType(name).dtype.lanes == lanes]
        self.has_vectors = PrimType(self.dtypes[0]).dtype.lanes != 1 and not self.chance(0.1)
        if self.has_vectors and not self.chance(0.1):
            # Nor can memory of vectors be packed.
            self.scopes = [name for name in self.scopes if "UB" not in name and "L1" not in name]
            self.scopes = self.scopes or ["global"]
        self.foreign = self.chance(0.08)
        self.n = Var("n", PrimType("int32"))
        self.m = Var("m", PrimType("int64"))
        constants = [self.pick((16, 32, 64, 64, 128, 1024)) for _ in range(2)]
        self.extents: list[Any] = [*constants, constants[0], constants[0] * 2]
        if self.chance(0.4):
            self.extents += self.some((self.n, self.n * 2, tirx.min(self.n, 8), self.n + 1), 2)
        if self.chance(0.3):
            self.extents += self.some((tirx.IntImm("int64", 64), self.m, self.m * 4, 7, 1, 3), 2)
        if self.chance(0.1):
            self.extents += self.some((0, 2**26, 2**30, tirx.IntImm("int64", 2**33)), 1)
        self.vector_lanes = self.pick((2, 4, 4, 8))

    # Choices

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, options: Any) -> Any:
        return self.random.choice(options)

    def some(self, options: Any, most: int) -> list[Any]:
        return [self.pick(options) for _ in range(self.random.randint(1, most))]

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    # Buffers

    def dtype(self) -> Any:
        name = self.pick(self.dtypes)
        return _FOREIGN[name] if self.foreign and self.chance(0.5) else PrimType(name)

    def alloc(
        self, scope: Scope, extent: Any = None, dtype: Any = None, memory: str | None = None
    ) -> tuple[Any, Any]:
        """Allocate a buffer and put it in scope; returns the buffer and its statement."""
        self.declarations += 1
        memory = self.pick(self.scopes) if memory is None else memory
        extent = self.pick(self.extents) if extent is None else extent
        if scope.scalars and self.chance(0.02):
            extent = self.pick(scope.scalars) + 1
        if "UB" in memory or "L1" in memory or "vtcm" in memory:
            extent = self._constant(extent)
        buffer = tirx.decl_buffer(
            [extent],
            self.dtype() if dtype is None else dtype,
            self.name("b"),
            scope=memory,
            data_alignment=self.pick((-1, -1, -1, 64)),
            layout="default" if self.chance(0.1) else None,
        )
        if self.chance(0.03) and "UB" in memory:
            buffer = buffer.with_allocated_addr([tirx.IntImm("int32", 4096)])
        annotations: dict[str, Any] = {}
        if self.chance(0.03):
            annotations["tirx.volatile"] = self.chance(0.8)
        if self.chance(0.03):
            annotations["note"] = 1
        scope.buffers.append(buffer)
        return buffer, AllocBuffer(buffer, annotations)

    def _constant(self, extent: Any) -> Any:
        """Return a constant extent, most of the time: what is packed must have one."""
        if isinstance(extent, int | tirx.IntImm) or self.chance(0.01):
            return 8 if isinstance(extent, int) and extent == 0 and self.chance(0.9) else extent
        return 48

    # Expressions

    def scalar_index(self, scope: Scope) -> Any:
        options = [0, 1, self.random.randint(0, 15)]
        index = self.pick([*options, *scope.scalars, *scope.scalars])
        if self.chance(0.3):
            index = index * self.pick((2, 4, 8)) + self.pick((0, 0, 1, 4))
        if isinstance(index, int):
            index = tirx.IntImm("int32", index)
        integers = [b for b in scope.buffers if b.ty.dtype.dtype == "int32"]
        if integers and self.chance(0.08):
            index = self.load(self.pick(integers), scope, 1) + index
        return index

    def index(self, scope: Scope, lanes: int = 1) -> Any:
        """Return an index of so many lanes; negative for a scalable vector."""
        if lanes == 1:
            return self.scalar_index(scope)
        base = self.scalar_index(scope)
        if self.chance(0.6):
            base = base * abs(lanes)
        count = tirx.vscale() * -lanes if lanes < 0 else lanes
        if self.chance(0.08) and lanes > 0:
            return tirx.Broadcast(base, count)
        return Ramp(base, tirx.const(self.pick((1, 1, 1, 1, 2)), str(base.ty.dtype)), count)

    def indices(self, buffer: Any, scope: Scope, lanes: int = 1) -> list[Any]:
        rank = len(buffer.ty.shape)
        if rank == 0:
            return []
        return [*(self.scalar_index(scope) for _ in range(rank - 1)), self.index(scope, lanes)]

    def load(self, buffer: Any, scope: Scope, lanes: int = 1) -> Any:
        return BufferLoad(buffer, self.indices(buffer, scope, lanes))

    def value(self, dtype: Any, scope: Scope, depth: int = 0) -> Any:
        """Return a value of a type, made of loads and scalars in scope."""
        terms = []
        for _ in range(self.random.randint(0, 2)):
            buffers = [b for b in scope.buffers if self._lanes_for(b, dtype.lanes)]
            if buffers:
                buffer = self.pick(buffers)
                lanes = self._lanes_for(buffer, dtype.lanes)
                if lanes != 1 and not buffer.ty.shape:
                    continue
                terms.append(cast(self.load(buffer, scope, lanes), dtype))
        if not terms:
            return zero(dtype)
        value = terms[0]
        for term in terms[1:]:
            if dtype == "bool":
                value = tirx.Select(self.condition(scope), value, term)
            else:
                value = value + term
        if depth < 1 and self.chance(0.06):
            var = Var(self.name("let"), PrimType(dtype))
            value = Let(var, value, cast(var, dtype))
        elif self.chance(0.05):
            value = tirx.Select(self.condition(scope), value, zero(dtype))
        elif self.chance(0.03) and dtype.lanes == 1:
            value = tirx.call_extern(PrimType(dtype), "f", value)
        elif self.chance(0.03) and dtype.lanes == 1:
            value = tirx.if_then_else(self.condition(scope), value, zero(dtype))
        return value

    def _lanes_for(self, buffer: Any, lanes: int) -> int:
        """Return with how many index lanes a buffer gives a value of `lanes`; 0 for none."""
        have = buffer.ty.dtype.dtype.lanes
        if have == lanes:
            return 1
        if have > 0 and lanes > 0 and lanes % have == 0:
            return lanes // have
        return lanes if lanes < 0 and have == 1 else 0

    def condition(self, scope: Scope) -> Any:
        left = self.scalar_index(scope)
        loads = [b for b in scope.buffers if b.ty.dtype.dtype.lanes == 1]
        if loads and self.chance(0.3):
            left = tirx.Cast(PrimType("int32"), self.load(self.pick(loads), scope))
        return left < 7

    # Accesses

    def store(self, buffer: Any, scope: Scope) -> Any:
        lanes = 1
        element = buffer.ty.dtype.dtype
        if buffer.ty.shape and self.chance(0.25) and element.lanes == 1:
            lanes = self.vector_lanes
            if element == "float32" and self.chance(0.05):
                lanes = -4
        value = element.with_lanes(element.lanes * lanes) if lanes > 0 else f"{element}xvscalex4"
        value = PrimType(str(value)).dtype
        return tirx.BufferStore(
            buffer, self.value(value, scope), self.indices(buffer, scope, lanes)
        )

    def address(self, scope: Scope) -> Any:
        buffer = self.pick(scope.buffers)
        kind = self.random.randint(0, 6)
        if kind <= 1:
            return buffer.data
        if kind == 2:
            return buffer
        if kind <= 4:
            element = buffer.ty.dtype
            if self.chance(0.2):
                element = PrimType(self.pick(self.dtypes))
            data = buffer.data if self.chance(0.8) else buffer
            offset = self.scalar_index(scope)
            return tirx.tvm_access_ptr(element, data, offset, self.pick((8, self.n)), 3)
        lanes = self.vector_lanes if self.chance(0.2) and buffer.ty.dtype.dtype.lanes == 1 else 1
        return tirx.address_of(self.load(buffer, scope, lanes if buffer.ty.shape else 1))

    def vector_access(self, buffer: Any, scope: Scope, lanes: int) -> Any:
        dtype = PrimType(buffer.ty.dtype.dtype.with_lanes(lanes)).dtype
        base = (self.pick(scope.scalars) if scope.scalars else tirx.IntImm("int32", 1)) * lanes
        if self.chance(0.06):
            base = base + self.pick((1, lanes))
        one = tirx.const(1, str(base.ty.dtype))
        if self.chance(0.05):
            return called(tirx.tvm_access_ptr(str(dtype), buffer.data, base, lanes, 3))
        if self.chance(0.04):
            return self.store(buffer, scope)
        if self.chance(0.05):
            return called(tirx.address_of(tirx.BufferLoad(buffer, [base])))
        width = lanes * 2 if self.chance(0.06) else lanes
        value_type = PrimType(str(dtype.with_lanes(width))).dtype
        value = self.value(value_type, scope)
        if self.chance(0.4):
            value = tirx.BufferLoad(buffer, [tirx.Ramp(base, one, width)]) + value
        return tirx.BufferStore(buffer, value, [tirx.Ramp(base, one, width)])
