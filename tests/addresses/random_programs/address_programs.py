# SPDX-License-Identifier: Apache-2.0
"""Random programs that run: what is read was written before, and all indices are in bounds.

They are made of what makes planning hard: results that could take an operand's place and must
not, memory seen as another type, pointers that outlive a statement, memory made inside loops. Loops
count in any type of integer; indices and the bounds of loops are read from memory that is planned,
and a loop's body may change what its bounds were read from.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import tvm
from address_buffers import BITS, LENGTH, BufferBuilder, ProgramScope, dtype_of, extent_of
from hypothesis import strategies as st
from program_parts import cast, loop, sequence, twice_round
from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import (
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
)


class ProgramBuilder(BufferBuilder):
    """Draws one function of three arrays: two to read, and one that all results are added to."""

    def build(self) -> tvm.IRModule:
        params = [
            tirx.decl_buffer([LENGTH], "int32", "x", layout=None),
            tirx.decl_buffer([LENGTH], "int8", "y", layout=None),
            tirx.decl_buffer([2 * LENGTH], "int64", "out", layout=None),
        ]
        self.out = params[2]
        body = self.block(ProgramScope(params[:2]), 0)
        func = tirx.PrimFunc(params, sequence(body)).with_attr("global_symbol", "main")
        return tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})

    # Blocks

    def block(self, scope: ProgramScope, depth: int) -> list[Any]:
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

    def loop(self, scope: ProgramScope, depth: int) -> list[Any]:
        var = self.var("k")
        body = sequence(self.block(scope.inner(var), depth + 1))
        first, step = self.pick((0, 0, 1)), self.pick((None, None, 2))
        return [loop(var, self.random.randint(1, 3), body, first, step)]

    def changes_bounds(self, scope: ProgramScope, depth: int) -> list[Any]:
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

    def parallel(self, scope: ProgramScope, depth: int) -> list[Any]:
        if self.in_parallel:
            return []
        self.in_parallel = True
        var = self.var("p")
        # Each iteration has a row of the result, and writes to nothing else from outside.
        self.row = var * LENGTH
        body = sequence(self.block(scope.inner(var), 1))
        self.row, self.in_parallel = tirx.const(0), False
        return [For(var, tirx.const(0), tirx.const(2), ForKind.PARALLEL, body)]

    def branch(self, scope: ProgramScope, depth: int) -> list[Any]:
        condition = BufferLoad(self.pick(scope.readable), [tirx.const(1)]) < 1
        if scope.counters and self.random.random() < 0.7:
            condition = self.pick(scope.counters) < 1
        then = sequence(self.block(scope.inner(), depth + 1))
        other = sequence(self.block(scope.inner(), depth + 1)) if self.pick((True, False)) else None
        return [IfThenElse(condition, then, other)]

    def while_loop(self, scope: ProgramScope, depth: int) -> list[Any]:
        count = tirx.decl_buffer([2], "int32", self.name("count"), layout=None)
        return twice_round(count, self.block(scope.inner(), depth + 1))

    # Allocations and what fills them

    def map(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer, elementwise; often of its own newest operand."""
        buffer, alloc = self.allocate(scope=scope)
        dtype = dtype_of(buffer)
        i = self.var("i", self.pick(("int32", "int32", *self.counting)))
        value = self.read(scope, i, dtype, straight=True)
        if self.pick((True, False)):
            value = value + self.read(scope, i, dtype, straight=self.pick((True, False)))
        if scope.counters:
            value = value + cast(self.pick(scope.counters), dtype)
        scope.readable.append(buffer)
        return [alloc, loop(i, LENGTH, BufferStore(buffer, value, [i]))]

    def vector(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer, four elements at a time."""
        buffer, alloc = self.allocate(scope=scope)
        dtype = dtype_of(buffer)
        wide = [b for b in scope.readable if extent_of(b) >= LENGTH]
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

    def look_up(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer of what a table has, at indices that were computed."""
        kind = self.pick(self.counting)
        extent = 128 if kind == "int8" else 256
        table, made = self.filled(self.pick(list(BITS)), lambda i: i % 91, extent)
        codes, more = self.filled(kind, lambda i: (i * 53 + 11) % extent)
        buffer, alloc = self.allocate(scope=scope)
        dtype = dtype_of(buffer)
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

    def triangle(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer from loops of which the inner one begins or ends where the outer one is."""
        source = self.pick(scope.readable[-2:])
        if extent_of(source) < LENGTH:
            return []
        buffer, alloc = self.like(source)
        i, j = (self.var(n) for n in "ij")
        at, other = self.pick(((i, j), (j, i), (j, j)))
        store = BufferStore(buffer, BufferLoad(source, [other]), [at])
        first, extent = self.pick(((i, LENGTH - i), (tirx.const(0), i + 1)))
        scope.readable.append(buffer)
        return [alloc, loop(i, LENGTH, For(j, first, extent, ForKind.SERIAL, store))]

    def masked(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer, some of whose elements are written under a mask."""
        source = self.pick([b for b in scope.readable if extent_of(b) >= LENGTH])
        dtype = dtype_of(source)
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

    def bound(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer of one element of another, which a variable holds."""
        source = self.pick(scope.readable[-2:])
        buffer, alloc = self.like(source)
        dtype = dtype_of(source)
        var = self.var("v", dtype)
        scope.readable.append(buffer)
        fill = self.fill(buffer, lambda i: var + cast(i, dtype))
        return [alloc, Bind(var, BufferLoad(source, [tirx.const(1)])), fill]

    # Results that must not take the operand's place

    def bounded(self, scope: ProgramScope, depth: int) -> list[Any]:
        """The operand is the bound of the loop."""
        kind = self.pick(("int32", "int32", "int64"))
        bounds, made = self.filled(kind, lambda _: tirx.const(LENGTH))
        buffer, alloc = self.like(bounds)
        dtype = dtype_of(buffer)
        i = self.var("i", dtype)
        kind = self.pick((ForKind.SERIAL, ForKind.PARALLEL))
        if self.in_parallel or depth:
            kind = ForKind.SERIAL
        extent = BufferLoad(bounds, [tirx.const(0)])
        scope.readable.append(buffer)
        store = BufferStore(buffer, i + tirx.const(100, dtype), [i])
        return [*made, alloc, For(i, tirx.const(0, dtype), extent, kind, store)]

    def of_operand(self, scope: ProgramScope, make: Callable[[Any, Any], Any]) -> list[Any]:
        """A new buffer, and the statement that is made of it and its operand."""
        source = self.pick(scope.readable[-2:])
        if extent_of(source) != LENGTH:
            return []
        buffer, alloc = self.like(source)
        scope.readable.append(buffer)
        return [alloc, make(buffer, source)]

    def twice(self, scope: ProgramScope, depth: int) -> list[Any]:
        """Each element is written in several iterations."""

        def make(buffer: Any, source: Any) -> Any:
            k = self.var("k")
            added = cast(k + 1, dtype_of(buffer))
            return loop(k, 2, self.fill(buffer, lambda i: BufferLoad(source, [i]) + added))

        return self.of_operand(scope, make)

    def two_stores(self, scope: ProgramScope, depth: int) -> list[Any]:
        """Two stores in one loop, each of the same element as its operand."""

        def make(buffer: Any, source: Any) -> Any:
            i, one = self.var("i"), tirx.const(1, dtype_of(buffer))
            places = ([i], [tirx.floormod(i + 1, LENGTH)])
            stores = [BufferStore(buffer, BufferLoad(source, at) + one, at) for at in places]
            return loop(i, LENGTH, SeqStmt(stores))

        return self.of_operand(scope, make)

    def changes_source(self, scope: ProgramScope, depth: int) -> list[Any]:
        """The operand is overwritten in the statement that reads it."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        buffer, alloc = self.like(source)
        k = self.var("k")
        read = self.fill(buffer, lambda i: BufferLoad(source, [i]))
        spoil = self.fill(source, lambda j: cast(j, dtype_of(source)))
        scope.readable.append(buffer)
        return [alloc, loop(k, 1, SeqStmt([read, spoil]))]

    def shifted(self, scope: ProgramScope, depth: int) -> list[Any]:
        """One store, to another element than is read."""

        def make(buffer: Any, source: Any) -> Any:
            i = self.var("i")
            store = BufferStore(buffer, BufferLoad(source, [i]), [LENGTH - 1 - i])
            return loop(i, LENGTH, store)

        return self.of_operand(scope, make)

    def accumulate(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A sum, first cleared, then added to."""
        buffer, alloc = self.allocate()
        dtype = dtype_of(buffer)
        i, j, k = (self.var(n) for n in "ijk")
        clear = loop(i, LENGTH, BufferStore(buffer, tirx.const(0, dtype), [i]))
        value = BufferLoad(buffer, [j]) + self.read(scope, tirx.floormod(j + k, LENGTH), dtype)
        add = loop(k, 2, loop(j, LENGTH, BufferStore(buffer, value, [j])))
        scope.readable.append(buffer)
        return [alloc, clear, add]

    # Other names and pointers

    def view(self, scope: ProgramScope, depth: int) -> list[Any]:
        """An allocation seen as another type, and written through that name."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        bits = BITS[dtype_of(source)]
        dtype = self.pick(list(BITS))
        extent = LENGTH * bits // BITS[dtype]
        memory = source.ty.storage_scope
        view = tirx.decl_buffer([extent], dtype, self.name("v"), scope=memory, layout=None)
        made: list[Any] = [DeclBuffer(view, data=source.data)]
        if self.pick((True, False)):
            made.append(self.fill(view, lambda i: cast(i * 3, dtype), extent))
        if self.pick((True, False)):
            scope.readable.append(view)
        return made

    def copy(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A new buffer that extern code fills by address, whole or in two parts."""
        source = self.newest(scope)
        if source is None:
            return []
        buffer, alloc = self.like(source)
        size = LENGTH * BITS[dtype_of(buffer)] // 8
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

    def kept_pointer(self, scope: ProgramScope, depth: int) -> list[Any]:
        """A pointer in a variable, used after other allocations have come and gone."""
        source = self.newest(scope)
        if source is None or self.in_parallel:
            return []
        var = Var(self.name("q"), source.data.ty)
        between = self.map(scope.inner(), depth) + self.map(scope.inner(), depth)
        target, alloc = self.like(source)
        size = LENGTH * BITS[dtype_of(source)] // 8
        scope.readable.append(target)
        return [Bind(var, source.data), *between, alloc, _memcpy(target.data, var, size)]

    def add_to_result(self, scope: ProgramScope, buffer: Any) -> list[Any]:
        i = self.var("i")
        at = [self.row + i]
        value = BufferLoad(self.out, at) + cast(BufferLoad(buffer, [i]), "int64")
        return [loop(i, min(extent_of(buffer), LENGTH), BufferStore(self.out, value, at))]


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
