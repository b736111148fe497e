# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules, as TVMScript that a failure can be read from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import numpy as np
import tvm
from hypothesis import strategies as st

SIZES = (16, 48, 100)
"""Columns of the inputs; joining and halving makes others."""

CONDITIONS = ("c0", "c1")

SYMBOLIC = (("n", 4), ("n * m", 16), ("n", 100), ("n", 3))
"""Rows and columns of the inputs of a module of unknown sizes."""

KERNEL = """
    @T.prim_func(s_tir=True)
    def own{size}(x: T.Buffer({shape}, "float32"), y: T.Buffer({shape}, "float32")):
        T.func_attr({{"op_pattern": 8}})
        t = T.alloc_buffer({shape})
        for i, j in T.grid{shape}:
            t[i, j] = x[i, j] + T.float32(1)
        for i, j in T.grid{shape}:
            y[i, j] = t[i, j] * T.float32(0.5) + t[0, 0]
"""
"""A kernel written by hand, with an allocation of its own."""

_WIDTHS = (16, 48, 64, 100, 128, 256)

Shape = tuple[str, int]
"""The rows of a tensor, which may be symbolic, and its columns."""

Draw = Callable[[st.SearchStrategy], Any]


def _type(shape: Shape) -> str:
    rows = shape[0] if shape[0].isdigit() else f'"{shape[0]}"'
    return f'R.Tensor(({rows}, {shape[1]}), "float32")'


@dataclass
class Writer:
    """Writes one function, remembering which tensors of which shape there are to read."""

    draw: Draw
    kinds: tuple[str, ...]  # Methods that write a step
    helpers: dict[str, Shape]  # Functions that may be called, and the shape that each takes
    lines: list[str] = field(default_factory=list)
    made: int = 0

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def bind(self, depth: int, value: str) -> str:
        self.made += 1
        self.emit(depth, f"v{self.made} = {value}")
        return f"v{self.made}"

    def one_of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def pick(self, known: dict[str, Shape], shape: Shape | None = None, rows: str = "") -> str:
        """Return a tensor of a shape or of so many rows, if that is asked."""
        names = [
            name
            for name, its in known.items()
            if shape in (None, its) and (not rows or its[0] == rows)
        ]
        # Later variables are drawn more often, so that chains get long.
        return names[-1 - min(self.draw(st.integers(0, len(names) - 1)) for _ in range(2))]

    def steps(self, depth: int, known: dict[str, Shape], count: int, nesting: int = 0) -> None:
        for _ in range(count):
            if nesting and self.draw(st.integers(0, 5)) == 0:
                self.branch(depth, known, nesting - 1)
                continue
            source = self.pick(known)
            kind = self.one_of(*self.kinds)
            found = getattr(self, kind)(depth, known, source, *known[source])
            for name, shape in found or ():
                known[name] = shape

    # Each step writes lines, and returns the tensors that there are then, with their shapes.

    def unary(self, depth: int, _known: Any, source: str, *shape: Any) -> Any:
        op = self.one_of("nn.relu", "negative", "abs")
        return [(self.bind(depth, f"R.{op}({source})"), shape)]

    def binary(self, depth: int, known: Any, source: str, *shape: Any) -> Any:
        op = self.one_of("add", "subtract", "maximum")
        return [(self.bind(depth, f"R.{op}({source}, {self.pick(known, shape)})"), shape)]

    def join(self, depth: int, known: Any, source: str, rows: str, columns: int) -> Any:
        other = self.pick(known, rows=rows)
        columns += known[other][1]
        if columns <= 600:
            value = f"R.concat(({source}, {other}), axis=1)"
            return [(self.bind(depth, value), (rows, columns))]
        return None

    def halve(self, depth: int, _known: Any, source: str, rows: str, columns: int) -> Any:
        if columns % 2:
            return None
        both = self.bind(depth, f"R.split({source}, 2, axis=1)")
        return [(self.bind(depth, f"{both}[{at}]"), (rows, columns // 2)) for at in (0, 1)]

    def cut(self, depth: int, _known: Any, source: str, rows: str, columns: int) -> Any:
        width = self.one_of(*(one for one in _WIDTHS if one < columns), columns)
        value = f"R.strided_slice({source}, axes=[1], begin=[0], end=[{width}])"
        return [(self.bind(depth, value), (rows, width))]

    def total(self, depth: int, _known: Any, source: str, rows: str, _columns: int) -> Any:
        return [(self.bind(depth, f"R.sum({source}, axis=[1], keepdims=True)"), (rows, 1))]

    def multiply(self, depth: int, _known: Any, source: str, rows: str, columns: int) -> Any:
        if columns not in (64, 256):
            return None
        weight = "w" if columns == 64 else "u"
        return [(self.bind(depth, f"R.matmul({source}, {weight})"), (rows, 320 - columns))]

    def view(self, depth: int, _known: Any, source: str, *shape: Any) -> Any:
        whole = f'view({source}, R.shape([{shape[0]}, {shape[1]}]), R.dtype("float32"), 0)'
        value = self.one_of(whole, f"ensure_zero_offset({source})")
        return [(self.bind(depth, f"R.memory.{value}"), shape)]

    def pair(self, depth: int, known: Any, source: str, *shape: Any) -> Any:
        second, third = self.pick(known), self.pick(known)
        pair = self.bind(depth, f"({source}, ({second}, {third}))")
        one, two = (self.bind(depth, f"{pair}{field}") for field in ("[0]", "[1][1]"))
        return [(one, shape), (two, known[third])]

    def keep(self, depth: int, _known: Any, source: str, *shape: Any) -> Any:
        value = f'R.call_packed("test.gmem.keep", {source}, ty_args={_type(shape)})'
        return [(self.bind(depth, value), shape)]

    def hold(self, depth: int, _known: Any, source: str, *_shape: Any) -> None:
        if source.startswith("v"):
            self.bind(depth, f'R.call_packed("test.gmem.keep", {source})')

    def peek(self, depth: int, _known: Any, source: str, *_shape: Any) -> None:
        if source.startswith("v"):
            self.bind(depth, f'R.call_packed("test.gmem.peek", {source})')

    def double(self, depth: int, _known: Any, source: str, *shape: Any) -> Any:
        value = f'R.call_dps_packed("test.gmem.double", ({source},), out_ty={_type(shape)})'
        return [(self.bind(depth, value), shape)]

    def kernel(self, depth: int, known: Any, source: str, *shape: Any) -> Any:
        if shape[1] not in SIZES:
            source, shape = "x0", known["x0"]
        value = f"R.call_tir(cls.own{shape[1]}, ({source},), out_ty={_type(shape)})"
        return [(self.bind(depth, value), shape)]

    def call(self, depth: int, known: Any, *_source: Any) -> Any:
        if not self.helpers:
            return None
        helper, (rows, columns) = self.one_of(*self.helpers.items())
        fits = {n: s for n, s in known.items() if s == (rows if rows.isdigit() else s[0], columns)}
        if not fits:
            return None
        given = self.pick(fits)
        return [(self.bind(depth, f"cls.{helper}({given}, c0, c1)"), known[given])]

    def dataflow(self, depth: int, _known: Any, source: str, rows: str, columns: int) -> Any:
        """Reshape there and back: within a dataflow block, TVM makes views of these."""
        self.emit(depth, "with R.dataflow():")
        between = self.bind(depth + 1, f"R.reshape({source}, R.shape([{columns}, {rows}]))")
        name = self.bind(depth + 1, f"R.reshape({between}, R.shape([{rows}, {columns}]))")
        self.emit(depth + 1, f"R.output({name})")
        return [(name, (rows, columns))]

    def branch(self, depth: int, known: dict[str, Shape], nesting: int) -> None:
        shape = known[self.pick(known)]
        condition = self.one_of(*CONDITIONS)
        if self.draw(st.booleans()):
            total = self.bind(depth, f"R.sum({self.pick(known)})")
            condition = self.bind(depth, f'R.greater({total}, R.const(0, "float32"))')
        self.made += 1
        pair = f"v{self.made}"
        for opening in (f"if {condition}:", "else:"):
            self.emit(depth, opening)
            inside = dict(known)
            self.steps(depth + 1, inside, self.draw(st.integers(0, 3)), nesting)
            first, second = self.pick(inside, shape), self.pick(inside)
            # Both results have one type, so the second is joined or cut to a fixed size.
            one = self.bind(depth + 1, f"R.abs({first})" if self.draw(st.booleans()) else first)
            two = self.bind(depth + 1, f"R.sum({second})")
            self.emit(depth + 1, f"{pair} = ({one}, {two})")
        one, two = (self.bind(depth, f"{pair}[{at}]") for at in (0, 1))
        known[one] = known[self.bind(depth, f"R.add({one}, {two})")] = shape

    def function(
        self,
        name: str,
        inputs: Sequence[Shape],
        others: Sequence[str],
        count: int,
        nesting: int,
        returned: Callable[[dict[str, Shape]], str],
        attributes: str = "",
    ) -> list[str]:
        """Write a function of inputs and other parameters, and return its lines."""
        known = {f"x{at}": shape for at, shape in enumerate(inputs)}
        dims = sorted({word for rows, _ in inputs for word in re.findall(r"[a-z]", rows)})
        params = [f"{param}: {_type(shape)}" for param, shape in known.items()]
        self.steps(2, known, count, nesting)
        result = returned(known)
        head = [f"        R.func_attr({{{attributes}}})"] if attributes else []
        head += [f"        {dim} = T.int64()" for dim in dims]
        head += ["        cls = Module"] if any("cls." in line for line in self.lines) else []
        return [
            "    @R.function(pure=False)",
            f"    def {name}({', '.join([*params, *others])}):",
            *head,
            *self.lines,
            f"        return {result}",
        ]


_CONDITIONS = tuple(f'{condition}: R.Tensor((), "bool")' for condition in CONDITIONS)
_PLAIN = ("unary", "unary", "binary", "binary", "join", "halve")
SERVED = ("unary", "multiply", "join", "cut", "binary", "peek")
_STATIC = (*_PLAIN, "view", "pair", "double", "kernel", "dataflow")


def _module(*lines: str) -> str:
    return "\n".join(["@I.ir_module", "class Module:", *lines])


@st.composite
def relax_sources(
    draw: Draw,
    plain: bool = False,
    keeps: bool = True,
    inputs: Sequence[Shape] = tuple(("1", size) for size in SIZES),
    others: Sequence[str] = (),
    kinds: tuple[str, ...] = _STATIC,
) -> str:
    """Draw the source of a module: ``main``, and up to two functions that it may call.

    A plain one has ``main`` alone, without branches. Nothing keeps a tensor in a plain one, and
    where `keeps` is off.
    """
    helpers: dict[str, Shape] = {}
    kinds = (*kinds, *(["keep"] if keeps and not plain else []), *([] if plain else ["call"]))
    nesting, most, text = (0 if plain else 2), 12, []
    for index in range(0 if plain else draw(st.integers(0, 2))):
        rows, size = draw(st.sampled_from(inputs))
        shape = (rows if rows.isdigit() else "k", size)
        writer = Writer(draw, kinds, dict(helpers))
        end = lambda known, w=writer, shape=shape: w.pick(known, shape)  # noqa: E731
        count = draw(st.integers(1, most))
        text += writer.function(f"helper{index}", [shape], _CONDITIONS, count, nesting, end)
        helpers[f"helper{index}"] = shape
    writer = Writer(draw, kinds, helpers)

    def results(known: dict[str, Shape]) -> str:
        return f"({', '.join(writer.pick(known) for _ in range(draw(st.integers(1, 3))))},)"

    params = (*others, *_CONDITIONS)
    text += writer.function("main", inputs, params, draw(st.integers(1, most)), nesting, results)
    body = "\n".join(text)
    sizes = [size for size in SIZES if f"cls.own{size}," in body]
    kernels = [KERNEL.format(size=size, shape=f"({inputs[0][0]}, {size})") for size in sizes]
    return _module(*kernels, body)


def symbolic_sources(jumps: bool = False) -> st.SearchStrategy[str]:
    """Draw a module with tensors of ``n`` or ``n * m`` rows; `jumps` are branches and calls."""
    kinds = (*_PLAIN, "total")
    return relax_sources(not jumps, False, SYMBOLIC, ('shape: R.Shape(["m"])',), kinds)


def inputs_of(*ways: Any, rows: int = 1) -> list[np.ndarray]:
    """Return numbers for the inputs of a module of fixed sizes, and which way branches go."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, size), dtype="float32") for size in SIZES]
    return arrays + [np.array(bool(way)) for way in ways]


@dataclass(frozen=True)
class ServedProgram:
    """A module as text, and the functions in it with the dimension that each is called with."""

    text: str
    functions: dict[str, str]  # ``n``, ``v`` or nothing
    bound: int  # Of ``n``


@st.composite
def served_programs(
    draw: Draw,
    rows: Sequence[str] = ("n", "n", "n", "v", "24"),
    kinds: tuple[str, ...] = SERVED,
    others: Sequence[str] = (),
) -> ServedProgram:
    """Draw a module as servers run it: functions that share weights, of changing lengths.

    Each function has a length ``n`` up to a bound, or sizes that have none, and returns what
    depends on them. Where it may have `others`, of which it draws rows of more inputs, nothing has
    a bound, and there are no weights.
    """
    bound = draw(st.sampled_from([7, 40, 64, 200]))
    weights = [] if others else [f"w: {_type(('64', 256))}", f"u: {_type(('256', 64))}"]
    functions, text = {}, []
    for number in range(draw(st.integers(1 if others else 2, 3))):
        name, given = f"f{number}", [draw(st.sampled_from(rows))]
        if others:
            given += draw(st.lists(st.sampled_from(others), max_size=3))
        functions[name] = given[0] if given[0].isalpha() else ""
        attributes = [f'"tir_var_upper_bound": {{"n": {bound}}}'] if given[0] == "n" else []
        attributes += ['"relax.memory_plan_dynamic_func_output": True'] * (draw(_OFTEN) > 0)
        writer = Writer(draw, kinds, {})

        def results(known: dict[str, Shape], writer: Writer = writer) -> str:
            found = [writer.pick(known) for _ in range(draw(st.integers(1, 3)))]
            ways = [writer.one_of("{}", "R.exp({})", "R.sum({})") for _ in found]
            if all(name.startswith("x") for name in found):
                ways = ["R.exp({})"] * len(found)
            made = [writer.bind(2, w.format(n)) for w, n in zip(ways, found, strict=True)]
            return made[0] if len(made) == 1 else f"({', '.join(made)})"

        said = "" if others else ", ".join(attributes)
        inputs = [(one, 64) for one in given]
        text += writer.function(name, inputs, weights, draw(st.integers(2, 12)), 0, results, said)
    return ServedProgram(_module(*text), functions, bound)


_OFTEN = st.integers(0, 3)


_FUNCTION = re.compile(r"^(@.*\n)?def ", re.MULTILINE)


def parse(source: str, **options: bool) -> tvm.IRModule:
    """Make a module of a source, or of functions alone, which are not pure unless they say so."""
    if "class Module:" not in source:
        functions = _FUNCTION.sub(
            lambda head: (head[1] or "@R.function(pure=False)\n") + "def ", source
        )
        source = "@I.ir_module\nclass Module:\n" + indent(functions, "    ")
    return tvm.script.from_source(source, **options)
