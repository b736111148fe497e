# SPDX-License-Identifier: Apache-2.0
"""Random programs for `StorageRewrite`: flat functions, as they stand after `VectorizeLoop`.

The programs are well-scoped but need not mean anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import tvm
from program_expressions import Expressions, Scope, called, cast, splat, zero
from program_parts import sequence
from tvm import tirx
from tvm.ir import PointerType, PrimType, StringImm
from tvm.target import Target
from tvm.tirx.stmt import AttrStmt, Break, Continue

_TARGETS = ("llvm", "cuda", "vulkan", "webgpu", "c")
_KINDS = {"chain": 9, "stores": 4, "vector_only": 4, "loop": 4, "branch": 2, "thread": 2} | {
    **{"attribute": 2, "opaque": 3, "alias": 2, "pointer": 1, "while_loop": 1, "assertion": 1},
    **{"scalar": 1, "unused": 1, "noop": 1, "repeat": 2},
}
"""How often each kind of statement is drawn."""


@dataclass(frozen=True)
class Program:
    """A module of one function, and the pass configuration to run it under."""

    mod: tvm.IRModule
    config: dict[str, Any]

    def __repr__(self) -> str:
        return f"config = {self.config}\n{self.mod.script()}"


class ProgramBuilder(Expressions):
    """Draws one program from a source of choices."""

    # Straight code

    def stores(self, scope: Scope, depth: int) -> list[Any]:
        made = []
        for _ in range(self.random.randint(1, 3)):
            if not scope.buffers or self.chance(0.3):
                buffer, stmt = self.alloc(scope)
                made.append(stmt)
            else:
                buffer = self.pick(scope.buffers)
            made.append(self.store(buffer, scope))
        return made

    def _wrap(self, body: Callable[[Scope], Any], scope: Scope) -> Any:
        """Put a statement under one or no statement with a body."""
        inner = scope.inner()
        kind = self.random.randint(0, 13)
        if kind <= 7:
            var = tirx.Var(self.name("i"), PrimType(self.pick(("int32", "int32", "int64"))))
            inner.scalars += [var, var, var]
            return self._for(var, body(inner))
        if kind == 8:
            return tirx.IfThenElse(self.condition(scope), body(inner), None)
        if kind == 9:
            return tirx.While(self.condition(scope), body(inner))
        if kind == 10:
            key = self.pick(("extern_scope", "pragma_unroll", "note"))
            return AttrStmt(StringImm("x"), key, tirx.IntImm("int32", 1), body(inner))
        return body(inner)

    def _for(self, var: Any, body: Any, extent: Any = None) -> Any:
        kind = self.pick(
            (tirx.ForKind.SERIAL,) * 7 + (tirx.ForKind.UNROLLED, tirx.ForKind.PARALLEL)
        )
        thread = None
        if self.chance(0.02):
            kind = tirx.ForKind.THREAD_BINDING
            thread = tirx.IterVar(
                None, tirx.Var("t", var.ty), tirx.IterVar.ThreadIndex, "threadIdx.y"
            )
        zero = tirx.const(0, str(var.ty.dtype))
        if extent is None:
            extent = tirx.const(self.pick((4, 8, 16)), str(var.ty.dtype))
        annotations = {"pragma_note": 1} if self.chance(0.05) else None
        step = tirx.const(2, str(var.ty.dtype)) if self.chance(0.03) else None
        return tirx.For(var, zero, extent, kind, body, thread, annotations, step)

    def chain(self, scope: Scope, depth: int) -> list[Any]:
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

    def _stage(self, buffer: Any, before: Any, scope: Scope) -> Any:
        """Write a buffer from another at the same index, or nearly so."""
        dtype = buffer.ty.dtype.dtype
        wide = dtype.lanes == 1 and self.chance(0.3)
        lanes = self.vector_lanes if wide else 1
        index = self.index(scope, lanes)
        value_type = PrimType(str(dtype.with_lanes(lanes) if wide else dtype)).dtype
        value = self.value(value_type, scope) if self.chance(0.1) else zero(value_type)
        if before is not None and before.ty.dtype.dtype.lanes == dtype.lanes:
            source = self._almost(index, scope, lanes)
            load = cast(tirx.BufferLoad(before, [source]), value_type)
            is_copy = value_type == "bool" or self.chance(0.3)
            value = load if is_copy else load + _one(value_type)
        if value_type != "bool" and self.chance(0.07):
            value = value + tirx.BufferLoad(buffer, [index])
        stmt: Any = tirx.BufferStore(buffer, value, [index])
        if before is not None and self.chance(0.07):
            stmt = tirx.SeqStmt([stmt, self.store(self.pick((before, buffer)), scope)])
        return stmt

    def _almost(self, index: Any, scope: Scope, lanes: int) -> Any:
        kind = self.random.randint(0, 9)
        if kind == 0 and lanes == 1:
            return index + 1
        return self.index(scope, lanes) if kind == 1 else index

    def vector_only(self, scope: Scope, depth: int) -> list[Any]:
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
            made.append(tirx.DeclBuffer(view, data=buffer.data))
            self.declarations += 1
            views.append(view)

        def access(inner: Scope) -> Any:
            return self.vector_access(self.pick(views), inner, lanes)

        made += [self._wrap(access, scope) for _ in range(self.random.randint(1, 3))]
        return made

    # Statements with a body

    def block(self, scope: Scope, depth: int) -> Any:
        inner = scope.inner()
        made: list[Any] = []
        for _ in range(self.random.randint(1, 3 if depth else 5)):
            made += self.statement(inner, depth)
        return sequence(made)

    def statement(self, scope: Scope, depth: int) -> list[Any]:
        kinds = [kind for kind, weight in _KINDS.items() for _ in range(weight)]
        if depth >= 3:
            kinds = ["chain", "stores", "vector_only", "opaque"]
        made: list[Any] = getattr(self, self.pick(kinds))(scope, depth)
        return made

    def loop(self, scope: Scope, depth: int) -> list[Any]:
        var = tirx.Var(self.name("i"), PrimType(self.pick(("int32", "int32", "int32", "int64"))))
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
            body = sequence([body, tirx.IfThenElse(self.condition(inner), leave, None)])
        return [self._for(var, body, extent)]

    def while_loop(self, scope: Scope, depth: int) -> list[Any]:
        return [tirx.While(self.condition(scope), self.block(scope, depth + 1))]

    def branch(self, scope: Scope, depth: int) -> list[Any]:
        other = self.block(scope, depth + 1) if self.chance(0.5) else None
        return [tirx.IfThenElse(self.condition(scope), self.block(scope, depth + 1), other)]

    def thread(self, scope: Scope, depth: int) -> list[Any]:
        """A nest of thread extents, or a virtual thread; never one within another."""
        if self.in_thread or self.in_parallel:
            return self.loop(scope, depth)
        self.in_thread = True
        inner = scope.inner()
        names = self.pick((("blockIdx.x",), ("blockIdx.x", "threadIdx.x"), ("threadIdx.x",), ()))
        nest = []
        for name in names or ("vthread",):
            var = tirx.Var(self.name("t"), PrimType("int32"))
            inner.scalars += [var, var]
            nest.append((tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, name), 4))
        body = self.block(inner, depth + 1)
        for axis, extent in reversed(nest):
            key = "thread_extent" if names else "virtual_thread"
            body = AttrStmt(axis, key, tirx.IntImm("int32", extent), body)
            if self.chance(0.1):
                body = AttrStmt(StringImm("x"), "note", tirx.IntImm("int32", 1), body)
        self.in_thread = False
        return [body]

    def attribute(self, scope: Scope, depth: int) -> list[Any]:
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

    def opaque(self, scope: Scope, depth: int) -> list[Any]:
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
        return [called(*args)]

    def alias(self, scope: Scope, depth: int) -> list[Any]:
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
            made.append(tirx.DeclBuffer(view, data=source if self.chance(0.1) else source.data))
            self.declarations += 1
            scope.buffers.append(view)
            made.append(self.store(view, scope))
            source = view
        return made

    def pointer(self, scope: Scope, depth: int) -> list[Any]:
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
            var = tirx.Var(self.name("p"), value.ty)
            scope.pointers.append(var)
            made.append(tirx.Bind(var, value))
            if self.chance(0.3):
                pointed = tirx.tvm_access_ptr(buffer.ty.dtype, var, self.scalar_index(scope), 8, 1)
                made.append(called(pointed))
            value = var
        if self.chance(0.6):
            shape, dtype = [self.pick(self.extents)], buffer.ty.dtype
            view = tirx.decl_buffer(shape, dtype, self.name("v"), scope=memory, layout=None)
            made.append(tirx.DeclBuffer(view, data=value))
            scope.buffers.append(view)
            made.append(self.store(view, scope))
        return made or self.noop(scope, depth)

    # The rest

    def assertion(self, scope: Scope, depth: int) -> list[Any]:
        return [
            tirx.AssertStmt(self.condition(scope), StringImm("RuntimeError"), [StringImm("no")])
        ]

    def scalar(self, scope: Scope, depth: int) -> list[Any]:
        self.declarations += 1
        var = tirx.Var(self.name("s"), PrimType("int32"))
        made = [tirx.Bind(var, tirx.Cast(PrimType("int32"), self.scalar_index(scope)))]
        scope.scalars.append(var)
        return made

    def unused(self, scope: Scope, depth: int) -> list[Any]:
        _, stmt = self.alloc(scope)
        scope.buffers.pop()
        if self.chance(0.3):
            shape = [4, self.pick((4, self.n))]
            square = tirx.decl_buffer(shape, "float32", self.name("b"), layout=None)
            self.declarations += 1
            return [stmt, tirx.AllocBuffer(square)]
        return [stmt]

    def noop(self, scope: Scope, depth: int) -> list[Any]:
        return [tirx.Evaluate(tirx.IntImm("int32", 0))]

    def repeat(self, scope: Scope, depth: int) -> list[Any]:
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
        scope = Scope(scalars=[self.n])
        params: list[Any] = [self.n, self.m]
        for _ in range(self.random.randint(0, 2)):
            dtype = self.dtype() if self.chance(0.5) else PrimType("float32")
            buffer = tirx.decl_buffer([self.pick(self.extents)], dtype, self.name("p"), layout=None)
            params.append(buffer)
            scope.buffers.append(buffer)
        if self.chance(0.3):
            pointee = self.pick(("float32", "void", "int8"))
            pointer = tirx.Var(self.name("h"), PointerType(PrimType(pointee)))
            params.append(pointer)
            scope.pointers.append(pointer)
        body = self.block(scope, 0)
        if self.chance(0.1):
            value = self.load(self.pick(scope.buffers), scope) if scope.buffers else tirx.const(0)
            body = sequence([body, tirx.Return(value)])
        func = tirx.PrimFunc(params, body).with_attr("global_symbol", "main")
        if self.chance(0.5):
            func = func.with_attr("target", Target(self.pick(_TARGETS)))
        config = {"tirx.merge_static_smem": True} if self.chance(0.08) else {}
        return Program(tvm.IRModule({"main": func}), config)


def _one(dtype: Any) -> Any:
    one = tirx.const(1, str(dtype.with_lanes(1)))
    return one if dtype.lanes == 1 else splat(one, dtype)


def random_program(seed: int) -> Program:
    """Draw a program from a seed."""
    return ProgramBuilder(Random(seed)).build()
