# SPDX-License-Identifier: Apache-2.0
"""Random modules of functions that call one another, and a replay of what stands at an address."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import tvm
from address_replay import Replay
from hypothesis import strategies as st
from tvm.ir import GlobalVar
from tvm.tirx import PrimFunc, is_buffer_var

LENGTH = 8
SCOPES = ("local.UB", "local.UB", "shared.UB", "global.workspace")


class ModuleBuilder:
    """Draws functions that make buffers, call later functions with them, and add up what is left.

    Parameters
    ----------
    random : Random
        Where choices come from.
    scopes : sequence of str
        Where buffers live.
    """

    def __init__(self, random: Random, scopes: Sequence[str] = SCOPES) -> None:
        self.random = random
        self.scopes = scopes
        self.names = 0
        self.calls_left = 0

    def build(self) -> tvm.IRModule:
        # Names in any order, so that callers do not come first by name.
        names = self.random.sample(["a", "b", "c"], self.random.randint(1, 3))
        lines = self.function("main", names, is_main=True)
        for at, name in enumerate(names):
            lines += self.function(name, names[at + 1 :], is_main=False)
        text = "\n".join(["@I.ir_module", "class M:", *(f"    {line}" for line in lines)])
        return tvm.script.from_source(text)

    def function(self, name: str, callees: list[str], is_main: bool) -> list[str]:
        array = f'T.Buffer(({LENGTH},), "int32")'
        self.calls_left = 2
        private = "" if is_main or self.random.random() < 0.5 else ", private=True"
        header = [f"@T.prim_func(s_tir=True{private})"]
        if is_main:
            header.append(f"def main(source: {array}, result: {array}):")
        else:
            header.append(f"def {name}(p: T.handle, q: T.handle):")
            header += [
                f'    {view} = T.decl_buffer(({LENGTH},), "int32", data={pointer})'
                for view, pointer in (("source", "p"), ("result", "q"))
            ]
        return [*header, *(f"    {line}" for line in self.block(["source"], callees, 0))]

    def block(self, readable: list[str], callees: list[str], depth: int) -> list[str]:
        readable = list(readable)
        lines: list[str] = []
        for _ in range(self.random.randint(2, 4)):
            kind = self.random.random()
            if kind < 0.2 and depth < 1:
                inner = self.block(readable, callees, depth + 1)
                lines += [f"for k{self.name()} in range(2):", *(f"    {line}" for line in inner)]
                continue
            new = f"t{self.name()}"
            scope = self.random.choice(self.scopes)
            lines.append(f'{new} = T.alloc_buffer(({LENGTH},), "int32", scope="{scope}")')
            source = self.random.choice(readable)
            lines += self.fill(new, f"{source}[{LENGTH - 1} - i] + {self.random.randint(1, 9)}")
            if callees and self.calls_left:
                self.calls_left -= 1
                lines.append(self.call(self.random.choice(callees), source, new))
            readable.append(new)
        used = self.random.choice(readable)
        return lines + self.fill("result", f"result[i] * 3 + {used}[i]")

    def fill(self, buffer: str, value: str) -> list[str]:
        return [f"for i in range({LENGTH}):", f"    {buffer}[i] = {value}"]

    def call(self, callee: str, source: str, result: str) -> str:
        operands = f"{source}.data, {result}.data"
        return self.random.choice(
            (
                f"M.{callee}({operands})",
                f'T.evaluate(T.call_extern("int32", "{callee}", {operands}))',
                f'T.evaluate(T.call_packed("{callee}", {operands}))',
            )
        )

    def name(self) -> int:
        self.names += 1
        return self.names


class ModuleReplay(Replay):
    """Runs a module in which allocations have addresses, each scope being one memory."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {str(var.name_hint): mod[var] for var in mod.get_global_vars()}
        self._memories: dict[str, np.ndarray] = {}
        super().__init__(self._functions["main"], _NoPlan)

    def _alloc(self, op: Any) -> None:
        super()._alloc(op)
        ty = op.buffer.ty
        memory = self._memory[op.buffer.__chandle__()]
        if len(ty.allocated_addr):
            begin = int(ty.allocated_addr[0])
            all_bytes = self._memories.setdefault(
                str(ty.storage_scope), np.full(1 << 16, 0xA5, dtype="uint8")
            )
            memory.shared = all_bytes[begin : begin + len(memory.own)]

    def _call(self, op: Any) -> Any:
        name = str(op.op.name_hint) if isinstance(op.op, GlobalVar) else str(op.op.name)
        args = list(op.args)
        if name in ("tirx.call_extern", "tirx.tvm_call_packed"):
            name, args = str(args[0].value), args[1:]
        if name not in self._functions:
            return super()._call(op)
        func: PrimFunc = self._functions[name]
        for param, arg in zip(func.params, args, strict=True):
            assert not is_buffer_var(param)
            self._memory[param.__chandle__()], _ = self._value(arg)
        self._run(func.body)
        return None


class _NoPlan:
    scopes = ()


def calling_modules() -> st.SearchStrategy[tvm.IRModule]:
    """Modules that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: ModuleBuilder(random).build())


def calling_module(seed: int, scopes: Sequence[str] = SCOPES) -> tvm.IRModule:
    """Draw a module from a seed."""
    return ModuleBuilder(Random(seed), scopes).build()
