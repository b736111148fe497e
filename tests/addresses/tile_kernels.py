# SPDX-License-Identifier: Apache-2.0
"""Kernels for a Trainium core in NKI instructions, and a replay of what their bytes hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
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


FORMS = {
    "load": "load({}[i, j], A[i, j])",
    "store": "store(B[i, j], {}[i, j])",
    "zero": "memset({}[i, j], T.float32(0.0))",
    "sqrt": 'activation({}[i, j], {}[i, j], "sqrt")',
    "add": 'tensortensor({}[i, j], {}[i, j], {}[i, j], "add")',
}


def steps(text: str, columns: int = 16) -> list[str]:
    """Return the lines of instructions such as ``load a; add c a b; store c``."""
    words = map(str.split, text.split("; "))
    found = (instruction(FORMS[word].format(*names), columns) for word, *names in words)
    return [line for lines in found for line in lines]


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


Step = Callable[[dict[int, int]], Any]
"""What runs, or has a value, where variables have values, by their handles."""


class TileReplay:
    """Runs a kernel with addresses, and keeps for each byte which element it holds."""

    def __init__(self, func: PrimFunc) -> None:
        self.memory: dict[str, np.ndarray] = {}
        self.known: dict[int, np.ndarray] = {}  # Whether an element of a tile was written
        self.tiles: dict[int, tuple[int, AllocBuffer]] = {}
        self.views: dict[int, Var] = {}  # What another buffer or pointer names, by its handle
        self.wrong: list[str] = []
        self._step(func.body)({})

    def _step(self, op: Any) -> Step:
        """Read a statement once: its rounds then ask TVM nothing."""
        steps: list[Step] = []
        if isinstance(op, SeqStmt):
            steps += [self._step(part) for part in op.seq]
        elif isinstance(op, AllocBuffer):
            handle = op.buffer.__chandle__()
            # The address stays the same in each round of a loop, and so does what is there.
            self.tiles.setdefault(handle, (len(self.tiles) + 1, op))
            self.known.setdefault(handle, np.zeros([int(n) for n in op.buffer.ty.shape], bool))
        elif isinstance(op, Bind | DeclBuffer):
            name, source = (op.var, op.value) if isinstance(op, Bind) else (op.buffer, op.data)
            self.views[name.__chandle__()] = source if isinstance(source, Var) else source.args[0]
        elif isinstance(op, For):
            return self._loop(op)
        elif isinstance(op, IfThenElse):
            condition, then = self._value(op.condition), self._step(op.then_case)
            otherwise = self._step(op.else_case)
            return lambda env: then(env) if condition(env) else otherwise(env)
        elif isinstance(op, AttrStmt):
            return self._step(op.body)
        elif isinstance(op, Evaluate) and isinstance(op.value, Call):
            result, *operands = [arg for arg in op.value.args if isinstance(arg, TensorLoad)]
            if str(op.value.op.name).endswith("matmul"):
                operands.append(result)
            steps += [self._access(operand, write=False) for operand in operands]
            steps.append(self._access(result, write=True))

        def run(env: dict[int, int]) -> None:
            for step in steps:
                step(env)

        return run

    def _loop(self, op: For) -> Step:
        first, extent, body = self._value(op.min), self._value(op.extent), self._step(op.body)
        variable = op.loop_var.__chandle__()

        def run(env: dict[int, int]) -> None:
            begin = first(env)
            for value in range(begin, begin + extent(env)):
                body({**env, variable: value})

        return run

    def _access(self, load: Any, write: bool) -> Step:
        handle = load.source.__chandle__()
        while handle in self.views:
            handle = self.views[handle].__chandle__()
        if handle not in self.tiles:
            return lambda _env: None
        number, op = self.tiles[handle]
        indices = [self._value(index) for index in load.indices]
        name, kind, known = str(op.buffer.name), op.buffer.ty, self.known[handle]
        address = [int(part) for part in kind.allocated_addr]
        assert address, f"{name} has no address"
        start = address[0] if len(address) == 1 else address[0] * 2048 + address[1]
        memory = self.memory.setdefault(
            str(kind.storage_scope), np.zeros((PARTITIONS, 1 << 18), np.int64)
        )

        def run(env: dict[int, int]) -> None:
            index = tuple(value(env) for value in indices)
            first = start + 4 * index[-1]
            tag, held = number * 4096 + index[-1] + 1, memory[index[-2], first : first + 4]
            if write:
                held[:] = tag
                known[index] = True
            elif known[index] and not (held == tag).all():
                self.wrong.append(f"{name}{list(index)} was overwritten")

        return run

    def _value(self, expr: Any) -> Step:
        if isinstance(expr, IntImm):
            number = int(expr.value)
            return lambda _env: number
        if isinstance(expr, Var):
            return itemgetter(expr.__chandle__())
        way = {Add: int.__add__, Mul: int.__mul__, EQ: int.__eq__}[type(expr)]
        one, two = self._value(expr.a), self._value(expr.b)
        return lambda env: way(one(env), two(env))
