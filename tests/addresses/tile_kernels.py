# SPDX-License-Identifier: Apache-2.0
"""Kernels for a Trainium core in NKI instructions, and a replay of what their bytes hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from hypothesis import strategies as st
from tvm.ir import Call, TensorLoad, Var
from tvm.tirx import (
    EQ,
    Add,
    AllocBuffer,
    Bind,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    IntImm,
    Mul,
    PrimFunc,
    SeqStmt,
)
from tvm.tirx.stmt import AttrStmt

TARGET = "aws/trn1/trn1.2xlarge"
PARTITIONS = 4


def kernel(lines: Sequence[str], attributes: str = '"num_inputs": 1') -> PrimFunc:
    """Parse the body of a kernel with an input ``A`` and an output ``B`` of 64 columns."""
    shape = f"({PARTITIONS}, 64)"
    head = [
        "@T.prim_func",
        f'def main(A: T.Buffer({shape}, "float32"), B: T.Buffer({shape}, "float32")):',
        f"    T.func_attr({{{attributes}}})",
        "    T.device_entry()",
    ]
    return tvm.script.from_source("\n".join([*head, *(f"    {line}" for line in lines)]))


def tile(name: str, columns: int, scope: str = "trn.sbuf", more: str = "") -> str:
    """Return the line that allocates a tile."""
    shape = (PARTITIONS, columns) if scope == "trn.sbuf" else (1, PARTITIONS, columns)
    return f'{name} = T.alloc_buffer({shape}, "float32", scope="{scope}"{more})'


def instruction(call: str, columns: int) -> list[str]:
    """Return the lines of one instruction on elements ``[i, j]``."""
    return [
        'with T.attr(0, "tensorized_nki_instruction", 1):',
        f"    for i in range(0, {PARTITIONS}):",
        f"        for j in range(0, {columns}):",
        f"            T.nki.{call}",
    ]


def indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@st.composite
def kernels(draw: st.DrawFn) -> PrimFunc:
    """Draw a kernel: loads, sums and stores of tiles and parts of them, in loops and branches."""
    columns = draw(st.lists(st.sampled_from([4, 8, 16]), min_size=2, max_size=6))
    names = [f"t{k}" for k in range(len(columns))]
    lines = [tile(name, width) for name, width in zip(names, columns, strict=True)]

    def statements(depth: int, most: int) -> list[str]:
        found: list[str] = []
        for _ in range(draw(st.integers(1, most))):
            kind = draw(st.sampled_from(["load", "load", "add", "add", "store", "loop", "branch"]))
            at = draw(st.integers(0, len(names) - 1))
            width = draw(st.sampled_from([columns[at], columns[at], columns[at] // 2]))
            if kind == "load":
                shift = draw(st.integers(0, columns[at] - width))
                found += instruction(f"load({names[at]}[i, j + {shift}], A[i, j])", width)
                found[-1] = found[-1].replace(" + 0]", "]")
            elif kind == "add":
                one, two = (draw(st.integers(0, len(names) - 1)) for _ in range(2))
                width = min(width, columns[one], columns[two])
                call = f"tensortensor({names[at]}[i, j], {names[one]}[i, j], {names[two]}[i, j]"
                found += instruction(f'{call}, "add")', width)
            elif kind == "store":
                found += instruction(f"store(B[i, j], {names[at]}[i, j])", width)
            elif depth < 2:
                inside = statements(depth + 1, 3)
                head = f"for r{depth} in range({draw(st.integers(1, 3))}):"
                if kind == "branch" and depth:
                    head = f"if r{depth - 1} == {draw(st.integers(0, 2))}:"
                found += [head, *indented(inside)]
        return found or instruction(f"store(B[i, j], {names[0]}[i, j])", 4)

    return kernel([*lines, *statements(0, 7)])


class TileReplay:
    """Runs a kernel with addresses, and keeps for each byte which element it holds."""

    def __init__(self, func: PrimFunc) -> None:
        self.memory: dict[str, np.ndarray] = {}
        self.known: dict[int, np.ndarray] = {}  # Whether an element of a tile was written
        self.tiles: dict[int, tuple[int, AllocBuffer]] = {}
        self.views: dict[int, Var] = {}  # What another buffer or pointer names, by its handle
        self.wrong: list[str] = []
        self._run(func.body, {})

    def _run(self, op: Any, env: dict[int, int]) -> None:
        if isinstance(op, SeqStmt):
            for part in op.seq:
                self._run(part, env)
        elif isinstance(op, AllocBuffer):
            handle = op.buffer.__chandle__()
            self.tiles.setdefault(handle, (len(self.tiles) + 1, op))
            # The address stays the same in each round of a loop, and so does what is there.
            self.known.setdefault(handle, np.zeros([int(n) for n in op.buffer.ty.shape], bool))
        elif isinstance(op, Bind | DeclBuffer):
            name, source = (op.var, op.value) if isinstance(op, Bind) else (op.buffer, op.data)
            self.views[name.__chandle__()] = source if isinstance(source, Var) else source.args[0]
        elif isinstance(op, For):
            first = self._value(op.min, env)
            for value in range(first, first + self._value(op.extent, env)):
                self._run(op.body, {**env, op.loop_var.__chandle__(): value})
        elif isinstance(op, IfThenElse):
            case = op.then_case if self._value(op.condition, env) else op.else_case
            if case is not None:
                self._run(case, env)
        elif isinstance(op, AttrStmt):
            self._run(op.body, env)
        elif isinstance(op, Evaluate) and isinstance(op.value, Call):
            self._call(op.value, env)

    def _call(self, call: Call, env: dict[int, int]) -> None:
        result, *operands = [arg for arg in call.args if isinstance(arg, TensorLoad)]
        if str(call.op.name).endswith("matmul"):
            operands.append(result)
        for operand in operands:
            self._access(operand, env, write=False)
        self._access(result, env, write=True)

    def _access(self, load: Any, env: dict[int, int], write: bool) -> None:
        handle = load.source.__chandle__()
        while handle in self.views:
            handle = self.views[handle].__chandle__()
        if handle not in self.tiles:
            return
        number, op = self.tiles[handle]
        index = tuple(self._value(i, env) for i in load.indices)
        kind = op.buffer.ty
        address = [int(part) for part in kind.allocated_addr]
        assert address, f"{op.buffer.name} has no address"
        start = address[0] if len(address) == 1 else address[0] * 2048 + address[1]
        memory = self.memory.setdefault(
            str(kind.storage_scope), np.zeros((PARTITIONS, 1 << 18), np.int64)
        )
        lane, first = index[-2], start + 4 * index[-1]
        tag = number * 4096 + index[-1] + 1
        held = memory[lane, first : first + 4]
        if write:
            held[:] = tag
            self.known[handle][index] = True
        elif self.known[handle][index] and not (held == tag).all():
            self.wrong.append(f"{op.buffer.name}{list(index)} was overwritten")

    def _value(self, expr: Any, env: dict[int, int]) -> int:
        if isinstance(expr, IntImm):
            return int(expr.value)
        if isinstance(expr, Var):
            return env[expr.__chandle__()]
        ways = {Add: int.__add__, Mul: int.__mul__, EQ: int.__eq__}
        return ways[type(expr)](self._value(expr.a, env), self._value(expr.b, env))
