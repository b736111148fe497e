# SPDX-License-Identifier: Apache-2.0
"""Random programs that run: what is read was written before, and all indices are in bounds.

They are made of what makes planning hard: results that could take an operand's place and must
not, memory seen as another type, pointers that outlive a statement, memory made inside loops. Loops
count in any type of integer; indices and the bounds of loops are read from memory that is planned,
and a loop's body may change what its bounds were read from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import tvm
from hypothesis import strategies as st
from program_parts import cast, loop, sequence
from tvm import tirx
from tvm.ir import PrimType
from tvm.script import tirx as T
from tvm.tirx import (
    AllocBuffer,
    Bind,
    Broadcast,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    Ramp,
    SeqStmt,
    Var,
    While,
)

LENGTH = 16
"""Elements of every buffer that is not a view."""

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

COUNTING = (*_BITS, *(f"u{dtype}" for dtype in _BITS))
"""The types that loops count in, and that tables are indexed by."""


@dataclass
class _Scope:
    """What a statement may read."""

    readable: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)

    def inner(self, *counters: Any) -> _Scope:
        return _Scope(list(self.readable), [*self.counters, *counters])


class ProgramBuilder:
    """Draws one function of three arrays: two to read, and one that all results are added to."""

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

    def build(self) -> tvm.IRModule:
        params = [
            tirx.decl_buffer([LENGTH], "int32", "x", layout=None),
            tirx.decl_buffer([LENGTH], "int8", "y", layout=None),
            tirx.decl_buffer([2 * LENGTH], "int64", "out", layout=None),
        ]
        self.out = params[2]
        body = self.block(_Scope(params[:2]), 0)
        func = tirx.PrimFunc(params, sequence(body)).with_attr("global_symbol", "main")
        return tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})

    # Blocks

    def block(self, scope: _Scope, depth: int) -> list[Any]:
        made: list[Any] = []
        kinds = [self.map] * 4 + [self.accumulate, self.twice, self.two_stores, self.vector]
        kinds += [self.changes_source, self.view, self.kept_pointer, self.shifted] + [self.copy] * 3
        kinds += [self.look_up, self.triangle, self.masked, self.bounded, self.bound]
        if depth < 2:
            kinds += [self.loop] * 3 + [self.branch, self.while_loop, self.changes_bounds]
        if depth == 0:
            kinds += [self.parallel]
        for _ in range(self.random.randint(2, 7 if depth == 0 else 4)):
            made += self.pick(kinds)(scope, depth)
        made += self.add_to_result(scope, self.pick(scope.readable))
        return made

    def loop(self, scope: _Scope, depth: int) -> list[Any]:
        var = self.var("k")
        body = sequence(self.block(scope.inner(var), depth + 1))
        first, step = self.pick((0, 0, 1)), self.pick((None, None, 2))
        return [loop(var, self.random.randint(1, 3), body, first, step)]

    def changes_bounds(self, scope: _Scope, depth: int) -> list[Any]:
        """A loop that changes the memory from which its bounds were read."""
        dtype = self.pick(self.counting)
        bounds, made = self.filled(dtype, lambda i: i + 1)
        first, extent, step = (
            self.pick((tirx.const(at + 1, dtype), BufferLoad(bounds, [tirx.const(at)])))
            for at in range(3)
        )
        var = self.var("k", dtype)
        body = self.block(scope.inner(var), depth + 1)
        change = BufferStore(bounds, tirx.const(self.pick((5, 40)), dtype), [tirx.const(0)])
        body.insert(self.pick((0, len(body))), change)
        if dtype.endswith("64") or self.pick((True, False)):
            step = None  # TVM narrows loops of 64 bits, and not their steps.
        return [*made, For(var, first, extent, ForKind.SERIAL, sequence(body), step=step)]

    def parallel(self, scope: _Scope, depth: int) -> list[Any]:
        if self.in_parallel:
            return []
        self.in_parallel = True
        var = self.var("p")
        # Each iteration has a row of the result, and writes to nothing else from outside.
        self.row = var * LENGTH
        body = sequence(self.block(scope.inner(var), 1))
        self.row, self.in_parallel = tirx.const(0), False
        return [For(var, tirx.const(0), tirx.const(2), ForKind.PARALLEL, body)]

    def branch(self, scope: _Scope, depth: int) -> list[Any]:
        condition = BufferLoad(self.pick(scope.readable), [tirx.const(1)]) < 1
        if scope.counters and self.random.random() < 0.7:
            condition = self.pick(scope.counters) < 1
        then = sequence(self.block(scope.inner(), depth + 1))
        other = sequence(self.block(scope.inner(), depth + 1)) if self.pick((True, False)) else None
        return [IfThenElse(condition, then, other)]

    def while_loop(self, scope: _Scope, depth: int) -> list[Any]:
        count = tirx.decl_buffer([2], "int32", self.name("count"), layout=None)
        zero = tirx.const(0)
        body = self.block(scope.inner(), depth + 1)
        step = BufferStore(count, BufferLoad(count, [zero]) + 1, [zero])
        return [
            AllocBuffer(count),
            BufferStore(count, zero, [zero]),
            While(BufferLoad(count, [zero]) < 2, sequence([*body, step])),
        ]

    # Allocations and what fills them

    def allocate(self, dtype: str | None = None, scope: _Scope | None = None) -> tuple[Any, Any]:
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

    def read(self, scope: _Scope, i: Any, dtype: str, straight: bool = False) -> Any:
        source = self.pick(scope.readable[-3:])
        extent = _extent(source)
        index = i if straight and extent >= LENGTH else self.index(i, extent)
        return cast(BufferLoad(source, [index]), dtype)

    def map(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer, elementwise; often of its own newest operand."""
        buffer, alloc = self.allocate(scope=scope)
        dtype = _dtype(buffer)
        i = self.var("i", self.pick(("int32", "int32", *self.counting)))
        value = self.read(scope, i, dtype, straight=True)
        if self.pick((True, False)):
            value = value + self.read(scope, i, dtype, straight=self.pick((True, False)))
        if scope.counters:
            value = value + cast(self.pick(scope.counters), dtype)
        scope.readable.append(buffer)
        return [alloc, loop(i, LENGTH, BufferStore(buffer, value, [i]))]

    def vector(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer, four elements at a time."""
        buffer, alloc = self.allocate(scope=scope)
        dtype = _dtype(buffer)
        wide = [b for b in scope.readable if _extent(b) >= LENGTH]
        i = self.var("i")
        lanes = Ramp(i * 4, tirx.const(1), 4)
        value = cast(BufferLoad(wide[-1], [lanes]), f"{dtype}x4")
        backward = Ramp(LENGTH - 1 - i * 4, tirx.const(-1), 4)
        if self.pick((True, False)):
            value = value + cast(BufferLoad(self.pick(wide), [backward]), f"{dtype}x4")
        else:
            value = value + Broadcast(cast(i, dtype), 4)
        scope.readable.append(buffer)
        return [alloc, loop(i, LENGTH // 4, BufferStore(buffer, value, [lanes]))]

    def newest(self, scope: _Scope) -> Any:
        """An allocation that can be overwritten, and is as long as all are; or None."""
        for buffer in reversed(scope.readable):
            if buffer.name.startswith("b") and _extent(buffer) == LENGTH:
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

    def look_up(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer of what a table has, at indices that were computed."""
        kind = self.pick(self.counting)
        extent = 128 if kind == "int8" else 256
        table, made = self.filled(self.pick(list(_BITS)), lambda i: i % 91, extent)
        codes, more = self.filled(kind, lambda i: (i * 53 + 11) % extent)
        buffer, alloc = self.allocate(scope=scope)
        dtype = _dtype(buffer)
        i = self.var("i")
        index = BufferLoad(codes, [i])
        # Wraps where the type is narrow, and not in the middle of an index.
        index = self.pick((index, tirx.floormod(index, tirx.const(100, kind))))
        value = BufferLoad(table, [index])
        if self.pick((True, False)):
            value = BufferLoad(
                table, [tirx.floormod(cast(value, "int32") + cast(index, "int32"), extent)]
            )
        scope.readable.append(buffer)
        pairs = self.pick(([*made, *more], [*more, *made]))
        return [*pairs, alloc, loop(i, LENGTH, BufferStore(buffer, cast(value, dtype), [i]))]

    def triangle(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer from loops of which the inner one begins or ends where the outer one is."""
        source = self.pick(scope.readable[-2:])
        if _extent(source) < LENGTH:
            return []
        buffer, alloc = self.like(source)
        i, j = (self.var(n) for n in "ij")
        at, other = self.pick(((i, j), (j, i), (j, j)))
        store = BufferStore(buffer, BufferLoad(source, [other]), [at])
        first, extent = self.pick(((i, LENGTH - i), (tirx.const(0), i + 1)))
        scope.readable.append(buffer)
        return [alloc, loop(i, LENGTH, For(j, first, extent, ForKind.SERIAL, store))]

    def masked(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer, some of whose elements are written under a mask."""
        source = self.pick([b for b in scope.readable if _extent(b) >= LENGTH])
        dtype = _dtype(source)
        buffer, alloc = self.like(source)
        i, j = (self.var(n) for n in "ij")
        clear = loop(j, LENGTH, BufferStore(buffer, cast(j, dtype), [j]))
        lanes = Ramp(i * 4, tirx.const(1), 4)
        backward = Ramp(LENGTH - 4 - i * 4, tirx.const(1), 4)
        mask = lanes < Broadcast(tirx.const(self.random.randint(0, LENGTH)), 4)
        at, to = self.pick(((lanes, lanes), (lanes, backward), (backward, lanes)))
        value = T.masked_load(f"{dtype}x4", source, at, mask)
        store = Evaluate(T.masked_store(buffer, value, to, mask))
        scope.readable.append(buffer)
        return [alloc, clear, loop(i, LENGTH // 4, store)]

    def bound(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer of one element of another, which a variable holds."""
        source = self.pick(scope.readable[-2:])
        buffer, alloc = self.like(source)
        dtype = _dtype(source)
        var = self.var("v", dtype)
        scope.readable.append(buffer)
        fill = self.fill(buffer, lambda i: var + cast(i, dtype))
        return [alloc, Bind(var, BufferLoad(source, [tirx.const(1)])), fill]

    # Results that must not take the operand's place

    def bounded(self, scope: _Scope, depth: int) -> list[Any]:
        """The operand is the bound of the loop."""
        kind = self.pick(("int32", "int32", "int64"))
        bounds, made = self.filled(kind, lambda _: tirx.const(LENGTH))
        buffer, alloc = self.like(bounds)
        dtype = _dtype(buffer)
        i = self.var("i", dtype)
        kind = self.pick((ForKind.SERIAL, ForKind.PARALLEL))
        if self.in_parallel or depth:
            kind = ForKind.SERIAL
        extent = BufferLoad(bounds, [tirx.const(0)])
        scope.readable.append(buffer)
        store = BufferStore(buffer, i + tirx.const(100, dtype), [i])
        return [*made, alloc, For(i, tirx.const(0, dtype), extent, kind, store)]

    def of_operand(self, scope: _Scope, make: Callable[[Any, Any], Any]) -> list[Any]:
        """A new buffer, and the statement that is made of it and its operand."""
        source = self.pick(scope.readable[-2:])
        if _extent(source) != LENGTH:
            return []
        buffer, alloc = self.like(source)
        scope.readable.append(buffer)
        return [alloc, make(buffer, source)]

    def twice(self, scope: _Scope, depth: int) -> list[Any]:
        """Each element is written in several iterations."""

        def make(buffer: Any, source: Any) -> Any:
            k = self.var("k")
            added = cast(k + 1, _dtype(buffer))
            return loop(k, 2, self.fill(buffer, lambda i: BufferLoad(source, [i]) + added))

        return self.of_operand(scope, make)

    def two_stores(self, scope: _Scope, depth: int) -> list[Any]:
        """Two stores in one loop, each of the same element as its operand."""

        def make(buffer: Any, source: Any) -> Any:
            i, one = self.var("i"), tirx.const(1, _dtype(buffer))
            places = ([i], [tirx.floormod(i + 1, LENGTH)])
            stores = [BufferStore(buffer, BufferLoad(source, at) + one, at) for at in places]
            return loop(i, LENGTH, SeqStmt(stores))

        return self.of_operand(scope, make)

    def changes_source(self, scope: _Scope, depth: int) -> list[Any]:
        """The operand is overwritten in the statement that reads it."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        buffer, alloc = self.like(source)
        k = self.var("k")
        read = self.fill(buffer, lambda i: BufferLoad(source, [i]))
        spoil = self.fill(source, lambda j: cast(j, _dtype(source)))
        scope.readable.append(buffer)
        return [alloc, loop(k, 1, SeqStmt([read, spoil]))]

    def shifted(self, scope: _Scope, depth: int) -> list[Any]:
        """One store, to another element than is read."""

        def make(buffer: Any, source: Any) -> Any:
            i = self.var("i")
            store = BufferStore(buffer, BufferLoad(source, [i]), [LENGTH - 1 - i])
            return loop(i, LENGTH, store)

        return self.of_operand(scope, make)

    def accumulate(self, scope: _Scope, depth: int) -> list[Any]:
        """A sum, first cleared, then added to."""
        buffer, alloc = self.allocate()
        dtype = _dtype(buffer)
        i, j, k = (self.var(n) for n in "ijk")
        clear = loop(i, LENGTH, BufferStore(buffer, tirx.const(0, dtype), [i]))
        value = BufferLoad(buffer, [j]) + self.read(scope, tirx.floormod(j + k, LENGTH), dtype)
        add = loop(k, 2, loop(j, LENGTH, BufferStore(buffer, value, [j])))
        scope.readable.append(buffer)
        return [alloc, clear, add]

    # Other names and pointers

    def view(self, scope: _Scope, depth: int) -> list[Any]:
        """An allocation seen as another type, and written through that name."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        bits = _BITS[_dtype(source)]
        dtype = self.pick(list(_BITS))
        extent = LENGTH * bits // _BITS[dtype]
        memory = source.ty.storage_scope
        view = tirx.decl_buffer([extent], dtype, self.name("v"), scope=memory, layout=None)
        made: list[Any] = [DeclBuffer(view, data=source.data)]
        if self.pick((True, False)):
            made.append(self.fill(view, lambda i: cast(i * 3, dtype), extent))
        if self.pick((True, False)):
            scope.readable.append(view)
        return made

    def copy(self, scope: _Scope, depth: int) -> list[Any]:
        """A new buffer that extern code fills by address, whole or in two parts."""
        source = self.newest(scope)
        if source is None:
            return []
        buffer, alloc = self.like(source)
        size = LENGTH * _BITS[_dtype(buffer)] // 8
        scope.readable.append(buffer)
        named, (to, given) = [alloc], (self.other_name(buffer), self.other_name(source))
        for name, memory in ((to, buffer), (given, source)):
            if name is not memory:
                named.append(DeclBuffer(name, data=memory.data))
        if self.pick((True, False)):
            return [*named, _memcpy(self.pointer(to), self.pointer(given), size)]
        half = LENGTH // 2
        parts = [(self.pointer_at(to, at), self.pointer_at(given, at)) for at in (0, half)]
        return [*named, *(_memcpy(one, other, size // 2) for one, other in parts)]

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

    def kept_pointer(self, scope: _Scope, depth: int) -> list[Any]:
        """A pointer in a variable, used after other allocations have come and gone."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        var = Var(self.name("q"), source.data.ty)
        between = self.map(scope.inner(), depth) + self.map(scope.inner(), depth)
        target, alloc = self.like(source)
        size = LENGTH * _BITS[_dtype(source)] // 8
        scope.readable.append(target)
        return [Bind(var, source.data), *between, alloc, _memcpy(target.data, var, size)]

    def add_to_result(self, scope: _Scope, buffer: Any) -> list[Any]:
        i = self.var("i")
        at = [self.row + i]
        value = BufferLoad(self.out, at) + cast(BufferLoad(buffer, [i]), "int64")
        return [loop(i, min(_extent(buffer), LENGTH), BufferStore(self.out, value, at))]


def _dtype(buffer: Any) -> str:
    return str(buffer.ty.dtype.dtype)


def _extent(buffer: Any) -> int:
    return int(buffer.ty.shape[0].value)


def _memcpy(to: Any, source: Any, size: int) -> Any:
    return Evaluate(tirx.call_extern("int32", "memcpy", to, source, tirx.const(size, "int64")))


def program_inputs(seed: int) -> list[np.ndarray]:
    """Return arguments for a program: small numbers, and zeros for its result."""
    values = np.random.default_rng(seed)
    return [
        values.integers(-3, 3, LENGTH).astype("int32"),
        values.integers(-3, 3, LENGTH).astype("int8"),
        np.zeros(2 * LENGTH, "int64"),
    ]


def random_program(seed: int) -> tvm.IRModule:
    """Draw a module of one function from a seed."""
    return ProgramBuilder(Random(seed)).build()


def programs() -> st.SearchStrategy[tvm.IRModule]:
    """Programs that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: ProgramBuilder(random).build())
