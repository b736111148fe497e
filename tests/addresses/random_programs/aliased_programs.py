# SPDX-License-Identifier: Apache-2.0
"""Random modules that reach a buffer by several names, or hand it to functions of the module.

Buffers of several types are filled, changed, read and given up, one after another, so that a plan
lets them share; by their own name, by one declared on it, and by pointers to them that are kept;
element by element and in vectors; in slots that take turns. Functions that nobody calls from
outside read and write what they are given, and call one another.
"""

from __future__ import annotations

from random import Random

import tvm

TYPES = ("float32", "int32", "float32", "int8", "float16")
TURNS = 3


class AliasedProgram:
    """One module, as text.

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
        self._types: set[str] = set()
        pieces = [self._buffer(f"x{at}") for at in range(self._random.randint(2, 4))]
        self._merge(pieces)

    @property
    def module(self) -> tvm.IRModule:
        types = sorted(self._types) if self._calls else ()
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

    def _merge(self, pieces: list[list[list[str]]]) -> None:
        """Let the lives of buffers follow one another, or overlap with the next."""
        for at, piece in enumerate(pieces):
            while piece:
                following = pieces[at + 1] if at + 1 < len(pieces) else []
                source = following if following and self._random.random() < 0.15 else piece
                self._lines += source.pop(0)

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

    def _buffer(self, name: str) -> list[list[str]]:
        """Return the life of a buffer, in lines that stay together."""
        random, size = self._random, self.size
        dtype = random.choice(TYPES[:-1] if self._plain else TYPES)
        self._types.add(dtype)
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
        life = [lines, self._fill(name if kind == "declared" else random.choice(names), dtype)]
        for _ in range(random.randint(0, 2)):
            life.append(self._change(random.choice(names), random.choice(names), dtype))
        for _ in range(random.randint(1, 2)):
            life.append(self._read(random.choice(names), dtype))
        return life

    def _index(self) -> str:
        last = self.size - 1
        return self._random.choice(
            ("i", f"{last} - i", f"(i + 3) % {self.size}", "p[i]", f"p[{last}]")
        )

    def _fill(self, by: str, dtype: str) -> list[str]:
        size, factor = self.size, self._random.randint(1, 3)
        if self._random.random() < 0.3 and not self._plain:
            value = f'T.Cast("{dtype}x4", a[T.Ramp(t * {size} + i * 4, 1, 4)])'
            scaled = f'{value} * T.Broadcast(T.Cast("{dtype}", {factor}), 4)'
            return [f"for i in range({size // 4}):", f"    {by}[T.Ramp(i * 4, 1, 4)] = {scaled}"]
        place = self._random.choice(("i", "p[i]"))
        value = f'T.Cast("{dtype}", a[t * {size} + i]) * T.Cast("{dtype}", {factor})'
        return [f"for i in range({size}):", f"    {by}[{place}] = {value}"]

    def _change(self, by: str, other: str, dtype: str) -> list[str]:
        to, of = self._index(), self._index()
        value = f'{other}[{of}] + T.Cast("{dtype}", 1)'
        return [f"for i in range({self.size}):", f"    {by}[{to}] = {value}"]

    def _read(self, by: str, dtype: str) -> list[str]:
        function = self._random.choice(("add", "add", "add", "twice", "")) if self._calls else ""
        if function:
            return [f"M.{function}_{dtype}({by}.data, o.data)"]
        value = f'T.Cast("float32", {by}[{self._index()}])'
        return [f"for i in range({self.size}):", f"    o[i] = o[i] + {value}"]
