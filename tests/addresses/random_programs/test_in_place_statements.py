# SPDX-License-Identifier: Apache-2.0
"""Results in place of operands, held against a run of the statement one access after the other."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import tvm_ffi
from program_parts import loop
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, For, IfThenElse, PrimFunc, SeqStmt, Var

from passes.prim_func.problems import ProblemOptions, find_problems

LENGTH = 400
WIDTHS = {"int32": 4, "int16": 2}
EXTENT = 3
"""What the elements of `a` are where they are the extent of a loop."""


class StatementBuilder:
    """Draws a statement that reads `a` and writes `b`, in nests of loops that share some."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dtypes = random.choice([("int32", "int32")] * 3 + [("int32", "int16")])
        self.a, self.b = (
            tirx.decl_buffer([LENGTH], dtype, name, layout=None)
            for name, dtype in zip("ab", self.dtypes, strict=True)
        )
        self.scalar = tirx.decl_buffer([1], "int32", "scalar", layout=None)
        self.names = 0
        # Indices are made of the same few factors, so that they often are the same, and right.
        self.factors = random.choice([(8, 1), (1, 8), (4, 1), (16, 4, 1), (6, 2, 1), (1, 1)])
        # What loops count in, and indices are computed in: narrow and unsigned types wrap.
        self.counting = random.choice(["int32"] * 7 + ["int64", "uint8", "int16"])
        self.permuted = random.choice((0, 0, 0.7))
        self.step = random.choice((3, 5, 2))
        if self.counting == "uint8":
            self.factors = random.choice([(64, 1), (128, 4, 1), self.factors])

    def index(self, counters: list[Any]) -> Any:
        pick = self.random.random
        index: Any = self.const(0)
        if counters and pick() < self.permuted:
            # One counter in another order: by a step around, rows and columns, halves exchanged.
            counter, how = self.random.choice(counters), self.random.randrange(3)
            if how == 0:
                return tirx.floormod(counter * self.const(self.step), self.const(8)) + self.const(
                    40
                )
            rest, row = (f(counter, self.const(4)) for f in (tirx.floormod, tirx.floordiv))
            index = rest * self.const(2) + row if how == 1 else rest + (self.const(1) - row) * 4
            return index + self.const(40)
        for number, counter in enumerate(counters[:3]):
            factor = self.factors[number % len(self.factors)]
            if pick() < 0.1:
                factor = self.random.choice((-1, 0, 1, 2, 3, 8))
            value = self.const(7) - counter if pick() < 0.07 else counter
            index = index + value * self.const(factor)
        return index + self.const(self.random.choice((0, 0, 0, 0, 1, 2, 8)) + 40)

    def const(self, value: int) -> Any:
        # A number of Python's would make `int32` of what is narrower.
        return tirx.const(abs(value) if self.counting.startswith("u") else value, self.counting)

    def value(self, counters: list[Any]) -> Any:
        load = BufferLoad(self.a, [self.index(counters)])
        return tirx.Cast(self.dtypes[1], load) if self.dtypes[0] != self.dtypes[1] else load

    def leaf(self, counters: list[Any]) -> Any:
        kind = self.random.random()
        if kind < 0.55:
            return BufferStore(self.b, self.value(counters), [self.index(counters)])
        if kind < 0.75:
            one = tirx.const(1, self.dtypes[0])
            return BufferStore(self.a, one, [self.index(counters)])
        load = BufferLoad(self.a, [self.index(counters)])
        return BufferStore(self.scalar, tirx.Cast("int32", load), [tirx.const(0)])

    def unrolled(self, counters: list[Any]) -> Any:
        """Return two stores, each of what stands at its own place."""
        first, steps = self.index(counters), [self.const(self.random.choice((1, 1, 2, 8)))] * 2
        places = [first, first + steps[0]]
        if self.random.random() < 0.7 and counters:
            counter = self.random.choice(counters)
            places = [counter * self.const(2) + self.const(at + 40) for at in (0, 1)]
        made = []
        for place in places:
            load = BufferLoad(self.a, [place])
            same = self.dtypes[0] == self.dtypes[1]
            value = load if same else tirx.Cast(self.dtypes[1], load)
            made.append(BufferStore(self.b, value, [place]))
        return SeqStmt(made)

    def body(self, counters: list[Any], depth: int) -> Any:
        if self.random.random() < 0.1:
            return self.unrolled(counters)
        parts = [self.part(counters, depth) for _ in range(self.random.choice((1, 1, 2)))]
        return parts[0] if len(parts) == 1 else SeqStmt(parts)

    def part(self, counters: list[Any], depth: int) -> Any:
        kind = self.random.random()
        if depth < 3 and kind > 0.5:
            return self.loop(counters, depth)
        if depth < 4 and kind > 0.35:
            condition = self.random.choice(counters) < self.random.randint(0, 3)
            other = self.body(counters, depth + 1) if self.random.random() < 0.6 else None
            return IfThenElse(condition, self.body(counters, depth + 1), other)
        return self.leaf(counters)

    def loop(self, counters: list[Any], depth: int) -> Any:
        self.names += 1
        counter = Var(f"i{self.names}", self.counting)
        first: Any = self.const(self.random.choice((0, 0, 0, 1)))
        extent: Any = self.const(self.random.choice((1, 2, 3, 4, 8)))
        step = self.const(2) if self.random.random() < 0.1 else None
        if counters and self.random.random() < 0.2:
            first = self.random.choice(counters) * self.const(self.random.choice((1, -1)))
        elif counters and self.random.random() < 0.15:
            extent = self.random.choice(counters) + self.const(1)
        elif self.random.random() < 0.1:
            load = BufferLoad(self.a, [self.index(counters)])
            extent = tirx.Cast(self.counting, load) if self.counting != self.dtypes[0] else load
        body = self.body([*counters, counter], depth + 1)
        return For(counter, first, extent, tirx.ForKind.SERIAL, body, step=step)

    def build(self) -> tuple[PrimFunc, Any]:
        x = tirx.decl_buffer([LENGTH], self.dtypes[0], "x", layout=None)
        y = tirx.decl_buffer([LENGTH], self.dtypes[1], "y", layout=None)
        i, j = Var("i", "int32"), Var("j", "int32")
        outer = Var("outer", self.counting)
        around = [outer] if self.random.random() < 0.3 else []
        statement = self.loop(around, 0)
        body: Any = SeqStmt(
            [
                AllocBuffer(self.a),
                AllocBuffer(self.b),
                loop(i, LENGTH, BufferStore(self.a, BufferLoad(x, [i]), [i])),
                statement,
                loop(j, LENGTH, BufferStore(y, BufferLoad(self.b, [j]), [j])),
            ]
        )
        if around:
            body = loop(outer, 2, body)
        return PrimFunc([x, y, self.scalar], body), statement


def events(op: Any, values: dict[Any, int]) -> Iterator[tuple[str, int, bool]]:
    """Run a statement, and yield buffer, element and whether it is a store of each access."""
    if isinstance(op, SeqStmt):
        for part in op.seq:
            yield from events(part, values)
    elif isinstance(op, For):
        first, extent = number(op.min, values), number(op.extent, values)
        step = 1 if op.step is None else number(op.step, values)
        yield from loads(op.extent, values)
        for value in range(first, first + extent, step):
            yield from events(op.body, {**values, op.loop_var.name: value})
            yield from loads(op.extent, values)  # As C does.
    elif isinstance(op, IfThenElse):
        if number(op.condition, values):
            yield from events(op.then_case, values)
        elif op.else_case is not None:
            yield from events(op.else_case, values)
    else:
        yield from loads(op.value, values)
        name, at = op.buffer.name, number(op.indices[0], values)
        is_copy = isinstance(op.value, TensorLoad) and op.value.source.name == "a" and name == "b"
        if is_copy and tvm_ffi.structural_equal(op.value.indices[0], op.indices[0]):
            name = "copy"
        yield name, at, True


def loads(expr: Any, values: dict[Any, int]) -> Iterator[tuple[str, int, bool]]:
    """Yield the load that an expression is, if it is one, as `events` does."""
    value = expr.value if isinstance(expr, tirx.Cast) else expr
    if isinstance(value, TensorLoad):
        yield value.source.name, number(value.indices[0], values), False


def number(expr: Any, values: dict[Any, int]) -> int:
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, Var):
        return values[expr.name]
    if isinstance(expr, (tirx.Cast, TensorLoad)):
        return EXTENT
    one, other = number(expr.a, values), number(expr.b, values)
    name = type(expr).__name__
    if name in ("FloorDiv", "FloorMod"):
        return one // other if name == "FloorDiv" else one % other
    found = {"Add": one + other, "Sub": one - other, "Mul": one * other, "LT": one < other}[name]
    dtype = expr.ty.dtype
    return found % (1 << dtype.bits) if str(dtype).startswith("uint") else found


def is_safe(statement: Any, dtypes: tuple[str, str]) -> bool:
    """Whether no access to `a` follows a store to `b` of one of its bytes.

    What is copied to the place where it stands may still be loaded.
    """
    for outer in range(2):
        overwritten: set[int] = set()
        copied: set[int] = set()
        for buffer, at, is_store in events(statement, {"outer": outer}):
            if buffer == "scalar":
                continue
            width = WIDTHS[dtypes[buffer != "a"]]
            touched = set(range(at * width, (at + 1) * width))
            if buffer == "a" and touched & (overwritten | copied if is_store else overwritten):
                return False
            if buffer == "copy":
                copied |= touched
            if buffer == "b" and is_store:
                overwritten |= touched
    return True


def judge(random: Random) -> tuple[bool, bool]:
    """Return whether a result is allowed in place, and whether it may be."""
    builder = StatementBuilder(random)
    func, statement = builder.build()
    (attached,) = find_problems(func, ProblemOptions(scopes=("global",))).problems
    allowed = ("a", "b") in attached.problem.in_place
    return allowed, is_safe(statement, builder.dtypes)


@pytest.mark.parametrize("count", [120, pytest.param(50_000, id="many", marks=pytest.mark.slow)])
def test_what_is_allowed_in_place_is_safe(count: int):
    found = [judge(Random(seed)) for seed in range(count)]
    assert (True, False) not in found, f"seed {found.index((True, False))}"
    assert sum(allowed for allowed, _ in found) > count // 50
