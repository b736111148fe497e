# SPDX-License-Identifier: Apache-2.0
"""Random modules that reach a buffer by several names, or hand it to functions of the module.

Each module says what it computes twice: as TIR, and in Python on arrays of numpy. Buffers of
several types are filled, changed, read and given up, one after another, so that a plan lets them
share; by their own name, by one declared on it, and by pointers to them that are kept; element by
element and in vectors; in slots that take turns. Functions that nobody calls from outside read and
write what they are given, and call one another.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import tvm

TYPES = ("float32", "int32", "float32", "int8", "float16")
TURNS = 3

Arrays = dict[str, np.ndarray]
Step = Callable[[Arrays, int], None]


class AliasedProgram:
    """One module, as text and as steps in Python.

    If `plain`, it is one that TVM's code generator for C knows: without vectors and ``float16``.
    """

    def __init__(self, seed: int, *, plain: bool = False) -> None:
        self._random, self._plain = Random(seed), plain
        self.size = self._random.choice((4, 4, 8, 16))
        self._scope = self._random.choice(("global", "local.UB"))
        self._calls = self._random.random() < 0.6
        # TVM says of all functions what the one that it declares last says of itself.
        self._is_apart = self._random.random() < 0.5
        self._lines: list[str] = []
        self._steps: list[Step] = []
        self._types: dict[str, str] = {}
        pieces = [self._buffer(f"x{at}") for at in range(self._random.randint(2, 4))]
        self._merge(pieces)

    @property
    def module(self) -> tvm.IRModule:
        types = sorted(set(self._types.values())) if self._calls else ()
        functions = "".join(map(self._functions, types))
        body = "\n            ".join(self._lines)
        return tvm.script.from_source(f"""
@I.ir_module
class M:
{functions}
    @T.prim_func(s_tir=True)
    def other(o: T.Buffer((4,), "float32")):
        T.func_attr({{"global_symbol": "other", "tirx.noalias": {self._is_apart}}})
        o[0] = T.float32(1)
    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer(({TURNS * self.size},), "float32"),
        p: T.Buffer(({self.size},), "int32"),
        o: T.Buffer(({self.size},), "float32"),
    ):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        for t in range({TURNS}):
            {body}
""")

    def expected(self, a: np.ndarray, p: np.ndarray) -> np.ndarray:
        arrays = {name: np.zeros(self.size, dtype) for name, dtype in self._types.items()}
        arrays |= {"a": a, "p": p, "o": np.zeros(self.size, "float32")}
        for turn in range(TURNS):
            for step in self._steps:
                step(arrays, turn)
        return arrays["o"]

    def _merge(self, pieces: list[list[tuple[list[str], Step | None]]]) -> None:
        """Let the lives of buffers follow one another, or overlap with the next."""
        for at, piece in enumerate(pieces):
            while piece:
                following = pieces[at + 1] if at + 1 < len(pieces) else []
                source = following if following and self._random.random() < 0.15 else piece
                lines, step = source.pop(0)
                self._lines += lines
                self._steps += [] if step is None else [step]

    # Functions that are called

    def _functions(self, dtype: str) -> str:
        last = self.size - 1
        space = self._scope
        return f"""
    @T.prim_func(private=True)
    def add_{dtype}(x: T.handle("{dtype}", "{space}"), o: T.handle("float32", "global")):
        T.func_attr({{"tirx.noalias": {self._is_apart}}})
        X = T.decl_buffer(({self.size},), "{dtype}", data=x, scope="{space}")
        O = T.decl_buffer(({self.size},), "float32", data=o)
        for j in range({self.size}):
            O[j] = O[j] + T.Cast("float32", X[{last} - j])
    @T.prim_func(private=True)
    def twice_{dtype}(x: T.handle("{dtype}", "{space}"), o: T.handle("float32", "global")):
        T.func_attr({{"tirx.noalias": {self._is_apart}}})
        X = T.decl_buffer(({self.size},), "{dtype}", data=x, scope="{space}")
        M.add_{dtype}(x, o)
        for j in range({self.size}):
            X[j] = X[j] + T.Cast("{dtype}", 1)
        M.add_{dtype}(x, o)
"""

    # Buffers

    def _buffer(self, name: str) -> list[tuple[list[str], Step | None]]:
        """Return the life of a buffer: lines, each with what it does."""
        random, size = self._random, self.size
        dtype = self._types[name] = random.choice(TYPES[:-1] if self._plain else TYPES)
        slots = random.choice(("", "", ', annotations={"multi_buffer": 2}'))
        place = f'scope="{self._scope}"'
        lines = [f'{name} = T.alloc_buffer(({size},), "{dtype}", {place}{slots})']
        names = [name]
        # Without any plan TVM compiles most programs wrongly that reach a buffer by a pointer, too.
        kind = random.choice(("", "", "", "", "alias", "alias", "bound", "declared"))
        if kind:
            data = f"{name}.data"
            if kind == "bound":
                pointer = f'T.let[T.handle("{dtype}", "{self._scope}")]'
                lines.append(f"q{name}: {pointer} = {name}.data")
                data = f"q{name}"
            elif kind == "declared":
                data = f'{name}.access_ptr("rw")'
            lines.append(f'v{name} = T.decl_buffer(({size},), "{dtype}", data={data}, {place})')
            names.append(f"v{name}")
        life: list[tuple[list[str], Step | None]] = [(lines, None)]
        life.append(self._fill(name if kind == "declared" else random.choice(names), name, dtype))
        for _ in range(random.randint(0, 2)):
            life.append(self._change(random.choice(names), random.choice(names), name, dtype))
        for _ in range(random.randint(1, 2)):
            life.append(self._read(random.choice(names), name, dtype))
        return life

    def _index(self) -> tuple[str, Callable[[int, Arrays], int]]:
        last, size = self.size - 1, self.size
        return self._random.choice(
            (
                ("i", lambda i, _: i),
                (f"{last} - i", lambda i, _: last - i),
                (f"(i + 3) % {size}", lambda i, _: (i + 3) % size),
                ("p[i]", lambda i, arrays: arrays["p"][i]),
                (f"p[{last}]", lambda _, arrays: arrays["p"][last]),
            )
        )

    def _fill(self, by: str, name: str, dtype: str) -> tuple[list[str], Step]:
        size, factor = self.size, self._random.randint(1, 3)
        if self._random.random() < 0.3 and not self._plain:
            ramp = "T.Ramp(i * 4, 1, 4)"
            value = f'T.Cast("{dtype}x4", a[T.Ramp(t * {size} + i * 4, 1, 4)])'
            scaled = f'{value} * T.Broadcast(T.Cast("{dtype}", {factor}), 4)'
            lines = [f"for i in range({size // 4}):", f"    {by}[{ramp}] = {scaled}"]
            place: Callable[[int, Arrays], int] = lambda i, _: i  # noqa: E731
        else:
            text, place = self._random.choice(
                (("i", lambda i, _: i), ("p[i]", lambda i, arrays: arrays["p"][i]))
            )
            value = f'T.Cast("{dtype}", a[t * {size} + i]) * T.Cast("{dtype}", {factor})'
            lines = [f"for i in range({size}):", f"    {by}[{text}] = {value}"]

        def step(arrays: Arrays, turn: int) -> None:
            for i in range(size):
                scaled = arrays["a"][turn * size + i].astype(dtype) * np.asarray(factor, dtype)
                arrays[name][place(i, arrays)] = scaled

        return lines, step

    def _change(self, by: str, other: str, name: str, dtype: str) -> tuple[list[str], Step]:
        (to, at), (of, there) = self._index(), self._index()
        value = f'{other}[{of}] + T.Cast("{dtype}", 1)'
        lines = [f"for i in range({self.size}):", f"    {by}[{to}] = {value}"]

        def step(arrays: Arrays, _turn: int) -> None:
            x = arrays[name]
            for i in range(self.size):
                x[at(i, arrays)] = x[there(i, arrays)] + np.asarray(1, dtype)

        return lines, step

    def _read(self, by: str, name: str, dtype: str) -> tuple[list[str], Step]:
        function = self._random.choice(("add", "add", "add", "twice", "")) if self._calls else ""
        if function:

            def call(arrays: Arrays, _turn: int) -> None:
                for again in range(2 if function == "twice" else 1):
                    if again:
                        arrays[name] += np.asarray(1, dtype)
                    arrays["o"] += arrays[name][::-1].astype("float32")

            return [f"M.{function}_{dtype}({by}.data, o.data)"], call
        text, at = self._index()
        lines = [f"for i in range({self.size}):"]
        lines.append(f'    o[i] = o[i] + T.Cast("float32", {by}[{text}])')

        def step(arrays: Arrays, _turn: int) -> None:
            for i in range(self.size):
                arrays["o"][i] += arrays[name][at(i, arrays)].astype("float32")

        return lines, step
