# SPDX-License-Identifier: Apache-2.0
"""Random programs with one fault that the stock pass checks for."""

from __future__ import annotations

from typing import Any

import tvm
from hypothesis import strategies as st
from program_expressions import zero
from program_strategy import Program, ProgramBuilder, sequence
from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import (
    AllocBuffer,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    IterVar,
    SeqStmt,
    Var,
)
from tvm.tirx.stmt import AttrStmt


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
        body = sequence([*fault, func.body] if self.chance(0.5) else [func.body, *fault])
        return Program(tvm.IRModule({"main": func.with_body(body)}), program.config)

    def _buffer(self, shape: list[Any], memory: str = "global", dtype: str = "float32") -> Any:
        return tirx.decl_buffer(shape, dtype, "faulty", scope=memory, layout=None)

    def _write(self, buffer: Any) -> Any:
        return BufferStore(buffer, zero(buffer.ty.dtype.dtype), [0] * len(buffer.ty.shape))

    def undeclared(self) -> list[Any]:
        view = tirx.decl_buffer([8], "float32", "view", layout=None)
        source = self._buffer([8])
        if self.chance(0.5):
            return [self._write(source)]
        return [DeclBuffer(view, data=source.data), self._write(view)]

    def vectorized(self) -> list[Any]:
        var = Var("faulty", PrimType("int32"))
        buffer = self._buffer([8])
        begin, extent = tirx.IntImm("int32", 0), tirx.IntImm("int32", 8)
        store = BufferStore(buffer, zero(buffer.ty.dtype.dtype), [var])
        return [AllocBuffer(buffer), For(var, begin, extent, ForKind.VECTORIZED, store)]

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


def broken_programs() -> st.SearchStrategy[Program]:
    """Programs with a fault, which no pass should take."""
    return st.randoms(use_true_random=False).map(
        lambda random: BrokenProgramBuilder(random).build()
    )
