# SPDX-License-Identifier: Apache-2.0
"""Random programs for `StorageRewrite`: flat functions, as they stand after `VectorizeLoop`.

A program is built from one source of choices. Hypothesis gives one that it can shrink
(`programs`); `random.Random(seed)` gives a fast one for statistics and long sweeps
(`random_program`). The programs are well-scoped but need not mean anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import tvm
from hypothesis import strategies as st
from tvm import tirx
from tvm.ir import PointerType, PrimType, StringImm
from tvm.target import Target
from tvm.tirx import (
    AllocBuffer,
    AssertStmt,
    Bind,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    Let,
    Ramp,
    Return,
    SeqStmt,
    Var,
    While,
)
from tvm.tirx.stmt import AttrStmt, Break, Continue

_SCOPES = (
    *(("global",) * 5),
    "shared",
    "shared",
    "shared.dyn",
    "local",
    "warp",
    "global.workspace",
    "local.UB",
    "local.UB",
    "local.L1",
    "shared.UB",
    "global.vtcm",
    "wmma.accumulator",
    "texture",
    "",
)
_DTYPES = (
    *(("float32",) * 4),
    "float16",
    "float16",
    "int8",
    "int32",
    "bool",
    "bfloat16",
    "float64",
    "int64",
    "uint8",
    "int4",
    "float8_e4m3fn",
    "float32x4",
    "float16x8",
    "float32x2",
    "int8x16",
    "float32xvscalex4",
)
_TARGETS = ("llvm", "cuda", "vulkan", "webgpu", "c")


@dataclass(frozen=True)
class Program:
    """A module of one function, and the pass configuration to run it under."""

    mod: tvm.IRModule
    config: dict[str, Any]

    def __repr__(self) -> str:
        return f"config = {self.config}\n{self.mod.script()}"


@dataclass
class _Scope:
    """What a statement may name."""

    buffers: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    pointers: list[Any] = field(default_factory=list)

    def inner(self) -> _Scope:
        return _Scope(list(self.buffers), list(self.scalars), list(self.pointers))


def _foreign(dtype: str) -> PrimType:
    """Return a type that is equal to TVM's own object but is another one, as after `load_json`."""
    return tvm.ir.load_json(tvm.ir.save_json(PrimType(dtype)))


_FOREIGN = {name: _foreign(name) for name in dict.fromkeys(_DTYPES)}


def _zero(dtype: Any) -> Any:
    zero = tirx.const(0, str(dtype.with_lanes(1)))
    return zero if dtype.lanes == 1 else _splat(zero, dtype)


def _splat(value: Any, dtype: Any) -> Any:
    if dtype.lanes < 0:
        return tirx.Broadcast(value, tirx.vscale() * -dtype.lanes)
    return tirx.Broadcast(value, dtype.lanes)


def _cast(value: Any, dtype: Any) -> Any:
    return value if value.ty.dtype == dtype else tirx.Cast(PrimType(dtype), value)


class ProgramBuilder:
    """Draws one program.

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
        self.kinds: list[tuple[int, Callable[[_Scope, int], list[Any]]]] = [
            (9, self.chain),
            (4, self.stores),
            (4, self.vector_only),
            (4, self.loop),
            (2, self.branch),
            (2, self.thread),
            (2, self.attribute),
            (3, self.opaque),
            (2, self.alias),
            (1, self.pointer),
            (1, self.while_loop),
            (1, self.assertion),
            (1, self.scalar),
            (1, self.unused),
            (1, self.noop),
            (2, self.repeat),
        ]

    # Choices

    def chance(self, probability: float) -> bool:
        # The unlikely is at the high end, so that a smaller choice is a plainer program.
        return self.random.randint(0, 999) >= 1000 - probability * 1000

    def pick(self, options: Any) -> Any:
        return options[self.random.randint(0, len(options) - 1)]

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
        self, scope: _Scope, extent: Any = None, dtype: Any = None, memory: str | None = None
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

    def scalar_index(self, scope: _Scope) -> Any:
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

    def index(self, scope: _Scope, lanes: int = 1) -> Any:
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

    def indices(self, buffer: Any, scope: _Scope, lanes: int = 1) -> list[Any]:
        rank = len(buffer.ty.shape)
        if rank == 0:
            return []
        return [*(self.scalar_index(scope) for _ in range(rank - 1)), self.index(scope, lanes)]

    def load(self, buffer: Any, scope: _Scope, lanes: int = 1) -> Any:
        return BufferLoad(buffer, self.indices(buffer, scope, lanes))

    def value(self, dtype: Any, scope: _Scope, depth: int = 0) -> Any:
        """Return a value of a type, made of loads and scalars in scope."""
        terms = []
        for _ in range(self.random.randint(0, 2)):
            buffers = [b for b in scope.buffers if self._lanes_for(b, dtype.lanes)]
            if buffers:
                buffer = self.pick(buffers)
                lanes = self._lanes_for(buffer, dtype.lanes)
                if lanes != 1 and not buffer.ty.shape:
                    continue
                terms.append(_cast(self.load(buffer, scope, lanes), dtype))
        if not terms:
            return _zero(dtype)
        value = terms[0]
        for term in terms[1:]:
            if dtype == "bool":
                value = tirx.Select(self.condition(scope), value, term)
            else:
                value = value + term
        if depth < 1 and self.chance(0.06):
            var = Var(self.name("let"), PrimType(dtype))
            value = Let(var, value, _cast(var, dtype))
        elif self.chance(0.05):
            value = tirx.Select(self.condition(scope), value, _zero(dtype))
        elif self.chance(0.03) and dtype.lanes == 1:
            value = tirx.call_extern(PrimType(dtype), "f", value)
        elif self.chance(0.03) and dtype.lanes == 1:
            value = tirx.if_then_else(self.condition(scope), value, _zero(dtype))
        return value

    def _lanes_for(self, buffer: Any, lanes: int) -> int:
        """Return with how many index lanes a buffer gives a value of `lanes`; 0 for none."""
        have = buffer.ty.dtype.dtype.lanes
        if have == lanes:
            return 1
        if have > 0 and lanes > 0 and lanes % have == 0:
            return lanes // have
        return lanes if lanes < 0 and have == 1 else 0

    def condition(self, scope: _Scope) -> Any:
        left = self.scalar_index(scope)
        loads = [b for b in scope.buffers if b.ty.dtype.dtype.lanes == 1]
        if loads and self.chance(0.3):
            left = tirx.Cast(PrimType("int32"), self.load(self.pick(loads), scope))
        return left < 7

    # Straight code

    def store(self, buffer: Any, scope: _Scope) -> Any:
        lanes = 1
        element = buffer.ty.dtype.dtype
        if buffer.ty.shape and self.chance(0.25) and element.lanes == 1:
            lanes = self.vector_lanes
            if element == "float32" and self.chance(0.05):
                lanes = -4
        value = element.with_lanes(element.lanes * lanes) if lanes > 0 else f"{element}xvscalex4"
        value = PrimType(str(value)).dtype
        return BufferStore(buffer, self.value(value, scope), self.indices(buffer, scope, lanes))

    def stores(self, scope: _Scope, depth: int) -> list[Any]:
        made = []
        for _ in range(self.random.randint(1, 3)):
            if not scope.buffers or self.chance(0.3):
                buffer, stmt = self.alloc(scope)
                made.append(stmt)
            else:
                buffer = self.pick(scope.buffers)
            made.append(self.store(buffer, scope))
        return made

    def _wrap(self, body: Callable[[_Scope], Any], scope: _Scope) -> Any:
        """Put a statement under one or no statement with a body."""
        inner = scope.inner()
        kind = self.random.randint(0, 13)
        if kind <= 7:
            var = Var(self.name("i"), PrimType(self.pick(("int32", "int32", "int64"))))
            inner.scalars += [var, var, var]
            return self._for(var, body(inner))
        if kind == 8:
            return IfThenElse(self.condition(scope), body(inner), None)
        if kind == 9:
            return While(self.condition(scope), body(inner))
        if kind == 10:
            key = self.pick(("extern_scope", "pragma_unroll", "note"))
            return AttrStmt(StringImm("x"), key, tirx.IntImm("int32", 1), body(inner))
        return body(inner)

    def _for(self, var: Any, body: Any, extent: Any = None) -> Any:
        kind = self.pick((ForKind.SERIAL,) * 7 + (ForKind.UNROLLED, ForKind.PARALLEL))
        thread = None
        if self.chance(0.02):
            kind = ForKind.THREAD_BINDING
            thread = IterVar(None, Var("t", var.ty), IterVar.ThreadIndex, "threadIdx.y")
        zero = tirx.const(0, str(var.ty.dtype))
        if extent is None:
            extent = tirx.const(self.pick((4, 8, 16)), str(var.ty.dtype))
        annotations = {"pragma_note": 1} if self.chance(0.05) else None
        step = tirx.const(2, str(var.ty.dtype)) if self.chance(0.03) else None
        return For(var, zero, extent, kind, body, thread, annotations, step)

    def chain(self, scope: _Scope, depth: int) -> list[Any]:
        """Element-wise stages, each from the one before it: where memory is shared."""
        extent, dtype, memory = self.pick(self.extents), self.dtype(), self.pick(self.scopes)
        made: list[Any] = []
        before: Any = None
        for _ in range(self.random.randint(2, 5)):
            changed = self.chance(0.25)
            buffer, stmt = self.alloc(
                scope,
                None if changed else extent,
                self.dtype() if changed and self.chance(0.5) else dtype,
                None if self.chance(0.05) else memory,
            )
            made.append(stmt)
            made.append(self._wrap(lambda s, b=buffer, a=before: self._stage(b, a, s), scope))
            before = buffer
        scope.buffers = [b for b in scope.buffers if self.chance(0.6)]
        return made

    def _stage(self, buffer: Any, before: Any, scope: _Scope) -> Any:
        """Write a buffer from another at the same index, or nearly so."""
        dtype = buffer.ty.dtype.dtype
        wide = dtype.lanes == 1 and self.chance(0.3)
        lanes = self.vector_lanes if wide else 1
        index = self.index(scope, lanes)
        value_type = PrimType(str(dtype.with_lanes(lanes) if wide else dtype)).dtype
        value = self.value(value_type, scope) if self.chance(0.1) else _zero(value_type)
        if before is not None and before.ty.dtype.dtype.lanes == dtype.lanes:
            source = self._almost(index, scope, lanes)
            load = _cast(BufferLoad(before, [source]), value_type)
            is_copy = value_type == "bool" or self.chance(0.3)
            value = load if is_copy else load + _one(value_type)
        if value_type != "bool" and self.chance(0.07):
            value = value + BufferLoad(buffer, [index])
        stmt: Any = BufferStore(buffer, value, [index])
        if before is not None and self.chance(0.07):
            stmt = SeqStmt([stmt, self.store(self.pick((before, buffer)), scope)])
        return stmt

    def _almost(self, index: Any, scope: _Scope, lanes: int) -> Any:
        kind = self.random.randint(0, 9)
        if kind == 0 and lanes == 1:
            return index + 1
        if kind == 1:
            return self.index(scope, lanes)
        return index

    def vector_only(self, scope: _Scope, depth: int) -> list[Any]:
        """A buffer that is only accessed as vectors, or almost."""
        if self.has_vectors:
            return self.chain(scope, depth)
        lanes = self.vector_lanes
        dtype = self.pick(("float32", "float16", "int8", "float32"))
        buffer, stmt = self.alloc(scope, self.pick((lanes * 8, lanes * 8, lanes * 16, 30)), dtype)
        scope.buffers.pop()
        made = [stmt]
        views = [buffer]
        if self.chance(0.2):
            view = tirx.decl_buffer(
                buffer.ty.shape, buffer.ty.dtype, self.name("v"), data=buffer.data, layout=None
            )
            made.append(DeclBuffer(view, data=buffer.data))
            self.declarations += 1
            views.append(view)

        def access(inner: _Scope) -> Any:
            return self._vector_access(self.pick(views), inner, lanes)

        made += [self._wrap(access, scope) for _ in range(self.random.randint(1, 3))]
        return made

    def _vector_access(self, buffer: Any, scope: _Scope, lanes: int) -> Any:
        dtype = PrimType(buffer.ty.dtype.dtype.with_lanes(lanes)).dtype
        base = (self.pick(scope.scalars) if scope.scalars else tirx.IntImm("int32", 1)) * lanes
        if self.chance(0.06):
            base = base + self.pick((1, lanes))
        one = tirx.const(1, str(base.ty.dtype))
        if self.chance(0.05):
            return Evaluate(
                tirx.call_extern(
                    "int32", "g", tirx.tvm_access_ptr(str(dtype), buffer.data, base, lanes, 3)
                )
            )
        if self.chance(0.04):
            return self.store(buffer, scope)
        if self.chance(0.05):
            return Evaluate(
                tirx.call_extern("int32", "g", tirx.address_of(BufferLoad(buffer, [base])))
            )
        width = lanes * 2 if self.chance(0.06) else lanes
        value_type = PrimType(str(dtype.with_lanes(width))).dtype
        value = self.value(value_type, scope)
        if self.chance(0.4):
            value = BufferLoad(buffer, [Ramp(base, one, width)]) + value
        return BufferStore(buffer, value, [Ramp(base, one, width)])

    # Statements with a body

    def block(self, scope: _Scope, depth: int) -> Any:
        inner = scope.inner()
        made: list[Any] = []
        for _ in range(self.random.randint(1, 3 if depth else 5)):
            made += self.statement(inner, depth)
        return _sequence(made)

    def statement(self, scope: _Scope, depth: int) -> list[Any]:
        kinds = [k for w, kind in self.kinds for k in [kind] * w]
        if depth >= 3:
            kinds = [self.chain, self.stores, self.vector_only, self.opaque]
        return self.pick(kinds)(scope, depth)

    def loop(self, scope: _Scope, depth: int) -> list[Any]:
        var = Var(self.name("i"), PrimType(self.pick(("int32", "int32", "int32", "int64"))))
        inner = scope.inner()
        inner.scalars += [var, var]
        extent = None
        if self.chance(0.15):
            extent = self.n if str(var.ty.dtype) == "int32" else self.m
        if self.chance(0.03):
            extent = tirx.Cast(var.ty, self.scalar_index(scope))
        body = self.block(inner, depth + 1)
        if self.chance(0.05):
            leave = self.pick((Break, Continue))()
            body = _sequence([body, IfThenElse(self.condition(inner), leave, None)])
        return [self._for(var, body, extent)]

    def while_loop(self, scope: _Scope, depth: int) -> list[Any]:
        return [While(self.condition(scope), self.block(scope, depth + 1))]

    def branch(self, scope: _Scope, depth: int) -> list[Any]:
        other = self.block(scope, depth + 1) if self.chance(0.5) else None
        return [IfThenElse(self.condition(scope), self.block(scope, depth + 1), other)]

    def thread(self, scope: _Scope, depth: int) -> list[Any]:
        """A nest of thread extents, or a virtual thread; never one within another."""
        if self.in_thread or self.in_parallel:
            return self.loop(scope, depth)
        self.in_thread = True
        inner = scope.inner()
        names = self.pick((("blockIdx.x",), ("blockIdx.x", "threadIdx.x"), ("threadIdx.x",), ()))
        nest = []
        for name in names or ("vthread",):
            var = Var(self.name("t"), PrimType("int32"))
            inner.scalars += [var, var]
            nest.append((IterVar(None, var, IterVar.ThreadIndex, name), 4))
        body = self.block(inner, depth + 1)
        for axis, extent in reversed(nest):
            key = "thread_extent" if names else "virtual_thread"
            body = AttrStmt(axis, key, tirx.IntImm("int32", extent), body)
            if self.chance(0.1):
                body = AttrStmt(StringImm("x"), "note", tirx.IntImm("int32", 1), body)
        self.in_thread = False
        return [body]

    def attribute(self, scope: _Scope, depth: int) -> list[Any]:
        key = self.pick(
            ("pragma_unroll", "pragma_note", "extern_scope", "double_buffer_write", "note")
        )
        node: Any = StringImm("x")
        if scope.buffers and self.chance(0.6):
            node = self.pick(scope.buffers)
        value: Any = tirx.IntImm("int32", 1)
        if self.chance(0.15):
            value = self.scalar_index(scope)
        return [AttrStmt(node, key, value, self.block(scope, depth + 1))]

    # Accesses that nobody sees, and other names for memory

    def address(self, scope: _Scope) -> Any:
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

    def opaque(self, scope: _Scope, depth: int) -> list[Any]:
        if not scope.buffers:
            return self.stores(scope, depth)
        args: list[Any] = []
        for _ in range(self.random.randint(1, 3)):
            if scope.pointers and self.chance(0.2):
                args.append(self.pick(scope.pointers))
            elif self.chance(0.3):
                args.append(self.load(self.pick(scope.buffers), scope))
            else:
                args.append(self.address(scope))
        return [Evaluate(tirx.call_extern("int32", "g", *args))]

    def alias(self, scope: _Scope, depth: int) -> list[Any]:
        """A chain of views of one buffer."""
        if not scope.buffers:
            return self.stores(scope, depth)
        source = self.pick(scope.buffers)
        made: list[Any] = []
        for _ in range(self.random.randint(1, 2)):
            shape = list(source.ty.shape)
            if self.chance(0.3):
                shape = [self.pick(self.extents)]
            elif self.chance(0.1):
                shape = [4, 8]
            elif self.chance(0.02):
                shape = []
            dtype = self.dtype() if self.chance(0.3) else source.ty.dtype
            if dtype.dtype.lanes != source.ty.dtype.dtype.lanes and self.chance(0.9):
                dtype = source.ty.dtype
            offset = tirx.IntImm("int32", 4) if self.chance(0.05) else None
            view = tirx.decl_buffer(
                shape, dtype, self.name("v"), data=source.data, elem_offset=offset, layout=None
            )
            made.append(DeclBuffer(view, data=source if self.chance(0.1) else source.data))
            self.declarations += 1
            scope.buffers.append(view)
            made.append(self.store(view, scope))
            source = view
        return made

    def pointer(self, scope: _Scope, depth: int) -> list[Any]:
        """A variable bound to an address, and perhaps a buffer declared there."""
        if not scope.buffers:
            return self.stores(scope, depth)
        buffer = self.pick(scope.buffers)
        memory = buffer.ty.storage_scope
        value = self.pick(
            (
                buffer.data,
                tirx.address_of(self.load(buffer, scope)),
                tirx.tvm_access_ptr(buffer.ty.dtype, buffer.data, self.scalar_index(scope), 8, 3),
                tirx.handle_add_byte_offset(buffer.data, 16),
            )
        )
        made: list[Any] = []
        self.declarations += 1
        if self.chance(0.6):
            var = Var(self.name("p"), value.ty)
            scope.pointers.append(var)
            made.append(Bind(var, value))
            if self.chance(0.3):
                pointed = tirx.tvm_access_ptr(buffer.ty.dtype, var, self.scalar_index(scope), 8, 1)
                made.append(Evaluate(tirx.call_extern("int32", "g", pointed)))
            value = var
        if self.chance(0.6):
            view = tirx.decl_buffer(
                [self.pick(self.extents)],
                buffer.ty.dtype,
                self.name("v"),
                scope=memory,
                layout=None,
            )
            made.append(DeclBuffer(view, data=value))
            scope.buffers.append(view)
            made.append(self.store(view, scope))
        return made or self.noop(scope, depth)

    # The rest

    def assertion(self, scope: _Scope, depth: int) -> list[Any]:
        return [AssertStmt(self.condition(scope), StringImm("RuntimeError"), [StringImm("no")])]

    def scalar(self, scope: _Scope, depth: int) -> list[Any]:
        self.declarations += 1
        var = Var(self.name("s"), PrimType("int32"))
        made = [Bind(var, tirx.Cast(PrimType("int32"), self.scalar_index(scope)))]
        scope.scalars.append(var)
        return made

    def unused(self, scope: _Scope, depth: int) -> list[Any]:
        _, stmt = self.alloc(scope)
        scope.buffers.pop()
        if self.chance(0.3):
            shape = [4, self.pick((4, self.n))]
            square = tirx.decl_buffer(shape, "float32", self.name("b"), layout=None)
            self.declarations += 1
            return [stmt, AllocBuffer(square)]
        return [stmt]

    def noop(self, scope: _Scope, depth: int) -> list[Any]:
        return [Evaluate(tirx.IntImm("int32", 0))]

    def repeat(self, scope: _Scope, depth: int) -> list[Any]:
        """The same statement object in two places."""
        before = self.declarations
        inner = scope.inner()
        made = self.statement(inner, depth + 1)
        if len(made) != 1 or (before != self.declarations and self.chance(0.9)):
            scope.buffers = inner.buffers
            scope.scalars, scope.pointers = inner.scalars, inner.pointers
            return made
        between = self.stores(scope, depth) if self.chance(0.7) else []
        return [made[0], *between, made[0]]

    # The whole

    def build(self) -> Program:
        scope = _Scope(scalars=[self.n])
        params: list[Any] = [self.n, self.m]
        for _ in range(self.random.randint(0, 2)):
            dtype = self.dtype() if self.chance(0.5) else PrimType("float32")
            buffer = tirx.decl_buffer([self.pick(self.extents)], dtype, self.name("p"), layout=None)
            params.append(buffer)
            scope.buffers.append(buffer)
        if self.chance(0.3):
            pointee = self.pick(("float32", "void", "int8"))
            pointer = Var(self.name("h"), PointerType(PrimType(pointee)))
            params.append(pointer)
            scope.pointers.append(pointer)
        body = self.block(scope, 0)
        if self.chance(0.1):
            value = self.load(self.pick(scope.buffers), scope) if scope.buffers else tirx.const(0)
            body = _sequence([body, Return(value)])
        func = tirx.PrimFunc(params, body).with_attr("global_symbol", "main")
        if self.chance(0.5):
            func = func.with_attr("target", Target(self.pick(_TARGETS)))
        config = {"tirx.merge_static_smem": True} if self.chance(0.08) else {}
        return Program(tvm.IRModule({"main": func}), config)


def _sequence(stmts: list[Any]) -> Any:
    """Join statements; TVM drops no-ops from nested sequences, and knows none of length one."""
    flat: list[Any] = []
    for stmt in stmts:
        flat += stmt.seq if isinstance(stmt, SeqStmt) else [stmt]
    return flat[0] if len(flat) == 1 else SeqStmt(flat)


def _one(dtype: Any) -> Any:
    one = tirx.const(1, str(dtype.with_lanes(1)))
    return one if dtype.lanes == 1 else _splat(one, dtype)


class BrokenProgramBuilder(ProgramBuilder):
    """Draws a program with one fault that the stock pass checks for."""

    def build(self) -> Program:
        program = super().build()
        func = program.mod["main"]
        faults = (
            self.undeclared,
            self.vectorized,
            self.nested_threads,
            self.not_flat,
            self.symbolic_special,
            self.declared_twice,
            self.no_dimensions,
            self.odd_lanes,
        )
        fault = self.pick(faults)()
        body = _sequence([*fault, func.body] if self.chance(0.5) else [func.body, *fault])
        return Program(tvm.IRModule({"main": func.with_body(body)}), program.config)

    def _buffer(self, shape: list[Any], memory: str = "global", dtype: str = "float32") -> Any:
        return tirx.decl_buffer(shape, dtype, "faulty", scope=memory, layout=None)

    def _write(self, buffer: Any) -> Any:
        return BufferStore(buffer, _zero(buffer.ty.dtype.dtype), [0] * len(buffer.ty.shape))

    def undeclared(self) -> list[Any]:
        view = tirx.decl_buffer([8], "float32", "view", layout=None)
        source = self._buffer([8])
        if self.chance(0.5):
            return [self._write(source)]
        return [DeclBuffer(view, data=source.data), self._write(view)]

    def vectorized(self) -> list[Any]:
        var = Var("faulty", PrimType("int32"))
        buffer = self._buffer([8])
        zero, extent = tirx.IntImm("int32", 0), tirx.IntImm("int32", 8)
        store = BufferStore(buffer, _zero(buffer.ty.dtype.dtype), [var])
        return [AllocBuffer(buffer), For(var, zero, extent, ForKind.VECTORIZED, store)]

    def nested_threads(self) -> list[Any]:
        buffer = self._buffer([8], "shared")
        body: Any = SeqStmt([AllocBuffer(buffer), self._write(buffer)])
        for _ in range(2):
            axis = IterVar(None, Var("t", PrimType("int32")), IterVar.ThreadIndex, "vthread")
            body = AttrStmt(axis, "virtual_thread", tirx.IntImm("int32", 2), body)
        return [body]

    def not_flat(self) -> list[Any]:
        buffer = self._buffer(self.pick(([4, 8], [])))
        return [AllocBuffer(buffer), self._write(buffer)]

    def symbolic_special(self) -> list[Any]:
        buffer = self._buffer([self.pick((self.n, 0))], self.pick(("local.UB", "shared.L1")))
        return [AllocBuffer(buffer), self._write(buffer)]

    def declared_twice(self) -> list[Any]:
        view = self._buffer([8])
        buffer = tirx.decl_buffer([8], "float32", "whole", layout=None)
        declared = DeclBuffer(view, data=buffer.data)
        return [AllocBuffer(buffer), declared, self._write(view), declared]

    def no_dimensions(self) -> list[Any]:
        view = tirx.decl_buffer([], "float32", "view", layout=None)
        buffer = self._buffer([8])
        return [AllocBuffer(buffer), DeclBuffer(view, data=buffer.data), self._write(view)]

    def odd_lanes(self) -> list[Any]:
        view = tirx.decl_buffer([2], "float32x4", "view", layout=None)
        buffer = self._buffer([8])
        return [AllocBuffer(buffer), DeclBuffer(view, data=buffer.data), self._write(view)]


def random_program(seed: int) -> Program:
    """Draw a program from a seed."""
    return ProgramBuilder(Random(seed)).build()


def programs() -> st.SearchStrategy[Program]:
    """Programs that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: ProgramBuilder(random).build())


def broken_programs() -> st.SearchStrategy[Program]:
    """Programs with a fault, which no pass should take."""
    return st.randoms(use_true_random=False).map(
        lambda random: BrokenProgramBuilder(random).build()
    )
