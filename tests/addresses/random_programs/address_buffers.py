# SPDX-License-Identifier: Apache-2.0
"""What random programs are made of: buffers of several types and scopes, indices and pointers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from program_parts import cast, loop
from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import (
    AllocBuffer,
    BufferLoad,
    BufferStore,
    Var,
)

LENGTH = 16
"""Elements of every buffer that is not a view."""

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

COUNTING = (*BITS, *(f"u{dtype}" for dtype in BITS))
"""The types that loops count in, and that tables are indexed by."""


@dataclass
class ProgramScope:
    """What a statement may read."""

    readable: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)

    def inner(self, *counters: Any) -> ProgramScope:
        return ProgramScope(list(self.readable), [*self.counters, *counters])


def dtype_of(buffer: Any) -> str:
    return str(buffer.ty.dtype.dtype)


def extent_of(buffer: Any) -> int:
    return int(buffer.ty.shape[0].value)


class BufferBuilder:
    """Draws buffers, what fills them, and what of them a statement reads."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = 0
        self.in_parallel = False
        self.scopes = self.random.sample(["global", "local.UB", "local.L1", "shared.UB"], 2)
        # Half of the programs have buffers whose offsets in an arena stand in indices: no slots,
        # and no index that an offset would make wrap.
        is_plain = self.pick((True, False))
        self.counting = ("int32", "int64") if is_plain else COUNTING
        self.slots = (1,) if is_plain else (1, 1, 2, 3)
        self.out: Any = None
        self.row: Any = tirx.const(0)

    def pick(self, choices: Any) -> Any:
        return self.random.choice(choices)

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def var(self, prefix: str, dtype: str = "int32") -> Any:
        return Var(self.name(prefix), PrimType(dtype))

    def fill(self, buffer: Any, value: Callable[[Any], Any], extent: int = LENGTH) -> Any:
        """Return a loop that gives each element of a buffer a value by its index."""
        i = self.var("i")
        return loop(i, extent, BufferStore(buffer, value(i), [i]))

    def allocate(
        self, dtype: str | None = None, scope: ProgramScope | None = None
    ) -> tuple[Any, Any]:
        buffer = tirx.decl_buffer(
            [LENGTH],
            dtype or self.pick(("int32", "int32", "int32", "int8", "int64", "int16")),
            self.name("b"),
            scope=self.pick(self.scopes),
            layout=None,
        )
        slots = self.pick(self.slots) if scope is not None and scope.counters else 1
        return buffer, AllocBuffer(buffer, {"multi_buffer": slots} if slots > 1 else None)

    def index(self, i: Any, extent: int) -> Any:
        # Not (extent - 1 - i) modulo extent: TVM itself lowers that wrongly.
        within = i if extent >= LENGTH else tirx.floormod(i, extent)
        last = min(extent, LENGTH) - 1
        wrapped = tirx.floormod(i + 3, min(extent, LENGTH))
        return self.pick((within, within, within, last - within, wrapped, tirx.floordiv(within, 2)))

    def read(self, scope: ProgramScope, i: Any, dtype: str, straight: bool = False) -> Any:
        source = self.pick(scope.readable[-3:])
        extent = extent_of(source)
        index = i if straight and extent >= LENGTH else self.index(i, extent)
        return cast(BufferLoad(source, [index]), dtype)

    def newest(self, scope: ProgramScope) -> Any:
        """An allocation that can be overwritten, and is as long as all are; or None."""
        for buffer in reversed(scope.readable):
            if buffer.name.startswith("b") and extent_of(buffer) == LENGTH:
                return buffer
        return None

    def like(self, source: Any) -> tuple[Any, Any]:
        buffer = tirx.decl_buffer(
            [LENGTH],
            source.ty.dtype,
            self.name("b"),
            scope=source.ty.storage_scope or "global",
            layout=None,
        )
        return buffer, AllocBuffer(buffer)

    def filled(self, dtype: str, value: Any, extent: int = LENGTH) -> tuple[Any, list[Any]]:
        """A new buffer, and what gives each element a value by its index."""
        memory = self.pick(self.scopes)
        buffer = tirx.decl_buffer([extent], dtype, self.name("n"), scope=memory, layout=None)
        fill = self.fill(buffer, lambda i: cast(value(i), dtype), extent)
        return buffer, [AllocBuffer(buffer), fill]

    def other_name(self, buffer: Any) -> Any:
        """A buffer, or one of its type that is to be declared on its memory."""
        if self.in_parallel or self.pick((True, True, False)):
            return buffer
        memory, name = buffer.ty.storage_scope, self.name("a")
        return tirx.decl_buffer([LENGTH], buffer.ty.dtype, name, scope=memory, layout=None)

    def pointer(self, buffer: Any) -> Any:
        return self.pick((buffer.data, buffer, self.pointer_at(buffer, 0)))

    def pointer_at(self, buffer: Any, at: int) -> Any:
        """The address of an element, in a type of index."""
        index = tirx.const(at, self.pick(("int32", "int32", *self.counting)))
        return self.pick(
            (
                tirx.address_of(BufferLoad(buffer, [index])),
                tirx.tvm_access_ptr(buffer.ty.dtype, buffer.data, index, LENGTH - at, 3),
            )
        )
