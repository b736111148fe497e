# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules, as TVMScript that a failure can be read from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import indent

import tvm
from hypothesis import strategies as st

SIZES = (16, 48, 100)
"""Elements of the inputs; joining and halving makes others."""

CONDITIONS = ("c0", "c1")

KERNEL = """
    @T.prim_func(s_tir=True)
    def own{size}(x: T.Buffer(({size},), "float32"), y: T.Buffer(({size},), "float32")):
        T.func_attr({{"op_pattern": 8}})
        t = T.alloc_buffer(({size},))
        for i in range({size}):
            t[i] = x[i] + T.float32(1)
        for i in range({size}):
            y[i] = t[i] * T.float32(0.5) + t[0]
"""
"""A kernel written by hand, with an allocation of its own."""


@dataclass
class Writer:
    """Writes one function, remembering which variables of which size there are to read."""

    draw: Callable[[st.SearchStrategy], object]
    counter: list[int]
    helpers: tuple[tuple[str, int], ...]
    lines: list[str] = field(default_factory=list)
    keeps: bool = True
    """Whether packed functions that keep what they are given are called."""

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def name(self) -> str:
        self.counter[0] += 1
        return f"v{self.counter[0]}"

    def pick(self, known: dict[str, int]) -> str:
        # Later variables are drawn more often, so that chains get long.
        names = list(known)
        return names[-1 - min(self.draw(st.integers(0, len(names) - 1)) for _ in range(2))]

    def statements(self, depth: int, known: dict[str, int], count: int, nesting: int) -> None:
        kinds = [self.unary, self.unary, self.binary, self.binary, self.join, self.halve]
        kinds += [self.view, self.pair, self.double, self.kernel]
        kinds += [self.keep] if self.keeps else []
        kinds += [self.call] if self.helpers else []
        for _ in range(count):
            if nesting and self.draw(st.integers(0, 5)) == 0:
                self.branch(depth, known, nesting - 1)
            elif self.draw(st.integers(0, 5)) == 0:
                self.dataflow(depth, known)
            else:
                self.draw(st.sampled_from(kinds))(depth, known)

    def unary(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        op = self.draw(st.sampled_from(["nn.relu", "negative", "abs"]))
        self.emit(depth, f"{name} = R.{op}({source})")
        known[name] = known[source]

    def binary(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        other = self.pick({n: size for n, size in known.items() if size == known[source]})
        op = self.draw(st.sampled_from(["add", "subtract", "maximum"]))
        self.emit(depth, f"{name} = R.{op}({source}, {other})")
        known[name] = known[source]

    def join(self, depth: int, known: dict[str, int]) -> None:
        first, second, name = self.pick(known), self.pick(known), self.name()
        if known[first] + known[second] <= 600:
            self.emit(depth, f"{name} = R.concat(({first}, {second}), axis=0)")
            known[name] = known[first] + known[second]

    def halve(self, depth: int, known: dict[str, int]) -> None:
        source = self.pick(known)
        if known[source] % 2:
            return
        both, one, other = self.name(), self.name(), self.name()
        self.emit(depth, f"{both} = R.split({source}, 2, axis=0)")
        self.emit(depth, f"{one} = {both}[0]")
        self.emit(depth, f"{other} = {both}[1]")
        known[one] = known[other] = known[source] // 2

    def view(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        size = known[source]
        if self.draw(st.booleans()):
            view = f'R.memory.view({source}, R.shape([{size}]), R.dtype("float32"), 0)'
        else:
            view = f"R.memory.ensure_zero_offset({source})"
        self.emit(depth, f"{name} = {view}")
        known[name] = size

    def pair(self, depth: int, known: dict[str, int]) -> None:
        first, second, third = self.pick(known), self.pick(known), self.pick(known)
        pair, one, two = self.name(), self.name(), self.name()
        self.emit(depth, f"{pair} = ({first}, ({second}, {third}))")
        self.emit(depth, f"{one} = {pair}[0]")
        self.emit(depth, f"{two} = {pair}[1][1]")
        known[one], known[two] = known[first], known[third]

    def keep(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        size = known[source]
        called = (
            f'R.call_packed("test.gmem.keep", {source}, ty_args=R.Tensor(({size},), "float32"))'
        )
        self.emit(depth, f"{name} = {called}")
        known[name] = size

    def double(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        size = known[source]
        out = f'out_ty=R.Tensor(({size},), "float32")'
        self.emit(depth, f'{name} = R.call_dps_packed("test.gmem.double", ({source},), {out})')
        known[name] = size

    def kernel(self, depth: int, known: dict[str, int]) -> None:
        source, name = self.pick(known), self.name()
        size = known[source]
        if size not in SIZES:
            source, size = "x0", known["x0"]
        out = f'out_ty=R.Tensor(({size},), "float32")'
        self.emit(depth, f"{name} = R.call_tir(cls.own{size}, ({source},), {out})")
        known[name] = size

    def call(self, depth: int, known: dict[str, int]) -> None:
        helper, size = self.draw(st.sampled_from(self.helpers))
        fitting = {name: s for name, s in known.items() if s == size}
        if fitting:
            name = self.name()
            self.emit(depth, f"{name} = cls.{helper}({self.pick(fitting)}, c0, c1)")
            known[name] = size

    def dataflow(self, depth: int, known: dict[str, int]) -> None:
        """Reshape there and back: within a dataflow block, TVM makes views of these."""
        source, between, name = self.pick(known), self.name(), self.name()
        size = known[source]
        self.emit(depth, "with R.dataflow():")
        self.emit(depth + 1, f"{between} = R.reshape({source}, R.shape([{size}, 1]))")
        self.emit(depth + 1, f"{name} = R.reshape({between}, R.shape([{size}]))")
        self.emit(depth + 1, f"R.output({name})")
        known[name] = size

    def branch(self, depth: int, known: dict[str, int], nesting: int) -> None:
        size = known[self.pick(known)]
        condition, pair = self.draw(st.sampled_from(CONDITIONS)), self.name()
        if self.draw(st.booleans()):
            total, condition = self.name(), self.name()
            self.emit(depth, f"{total} = R.sum({self.pick(known)})")
            self.emit(depth, f'{condition} = R.greater({total}, R.const(0, "float32"))')
        for opening in (f"if {condition}:", "else:"):
            self.emit(depth, opening)
            inside = dict(known)
            self.statements(depth + 1, inside, self.draw(st.integers(0, 3)), nesting)
            fitting = {name: s for name, s in inside.items() if s == size}
            first, second = self.pick(fitting), self.pick(inside)
            # Both results have one type, so the second is joined or cut to a fixed size.
            one, two = self.name(), self.name()
            self.emit(
                depth + 1,
                f"{one} = R.abs({first})" if self.draw(st.booleans()) else f"{one} = {first}",
            )
            self.emit(depth + 1, f"{two} = R.sum({second})")
            self.emit(depth + 1, f"{pair} = ({one}, {two})")
        one, two, sum_ = self.name(), self.name(), self.name()
        self.emit(depth, f"{one} = {pair}[0]")
        self.emit(depth, f"{two} = {pair}[1]")
        self.emit(depth, f"{sum_} = R.add({one}, {two})")
        known[one] = known[sum_] = size


@st.composite
def relax_sources(
    draw: Callable[[st.SearchStrategy], object], plain: bool = False, keeps: bool = True
) -> str:
    """Draw the source of a module: ``main``, and up to two functions that it may call.

    A plain one has ``main`` alone, without branches. Nothing keeps a tensor in a plain one, and
    where `keeps` is off.
    """
    counter, helpers, text = [0], [], []
    for index in range(0 if plain else draw(st.integers(0, 2))):
        size = draw(st.sampled_from(SIZES))
        text += _function(draw, counter, tuple(helpers), f"helper{index}", (size,), keeps)
        helpers.append((f"helper{index}", size))
    text += _function(draw, counter, tuple(helpers), "main", SIZES, keeps, plain)
    body = "\n".join(text)
    kernels = [KERNEL.format(size=size) for size in SIZES if f"cls.own{size}," in body]
    return "\n".join(["@I.ir_module", "class Module:", *kernels, body])


def _function(
    draw: Callable[[st.SearchStrategy], object],
    counter: list[int],
    helpers: tuple[tuple[str, int], ...],
    name: str,
    sizes: tuple[int, ...],
    keeps: bool,
    plain: bool = False,
) -> list[str]:
    params = {f"x{index}": size for index, size in enumerate(sizes)}
    writer = Writer(draw, counter, helpers, keeps=keeps and not plain)
    known = dict(params)
    writer.statements(2, known, draw(st.integers(1, 12)), 0 if plain else 2)
    if name == "main":
        results = [writer.pick(known) for _ in range(draw(st.integers(1, 3)))]
        result = f"({', '.join(results)},)"
    else:
        result = writer.pick({n: size for n, size in known.items() if size == sizes[0]})
    typed = [f'{param}: R.Tensor(({size},), "float32")' for param, size in params.items()]
    typed += [f'{condition}: R.Tensor((), "bool")' for condition in CONDITIONS]
    return [
        "    @R.function(pure=False)",
        f"    def {name}({', '.join(typed)}):",
        *(["        cls = Module"] if any("cls." in line for line in writer.lines) else []),
        *writer.lines,
        f"        return {result}",
    ]


_FUNCTION = re.compile(r"^(@.*\n)?def ", re.MULTILINE)


def parse(source: str, **options: bool) -> tvm.IRModule:
    """Make a module of a source, or of functions alone, which are not pure unless they say so."""
    if "class Module:" not in source:
        functions = _FUNCTION.sub(
            lambda head: (head[1] or "@R.function(pure=False)\n") + "def ", source
        )
        source = "@I.ir_module\nclass Module:\n" + indent(functions, "    ")
    return tvm.script.from_source(source, **options)
