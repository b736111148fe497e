# SPDX-License-Identifier: Apache-2.0
"""Random programs whose loops may carry values in buffers that TVM allocates inside of them.

A program is text that both TVM and Python run. In Python a buffer is the same memory in each round,
and an element that nothing has written yet has no value: a program whose result would rest on one
is none.
"""

from __future__ import annotations

import itertools
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm

LENGTH = 16
"""Elements of each buffer and of the input."""

ROUNDS = 3
"""Rounds of a loop."""

SCOPES = ("global", "local.UB")


class NoValueError(Exception):
    """The result of a program rests on an element that was never written."""


class _NoValue:
    """The value of an element that nothing has written, and of what is computed with it."""

    def _same(self, *_others: Any) -> _NoValue:
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = _same

    def __bool__(self) -> bool:
        raise NoValueError

    def _compared(self, _other: Any) -> _NoValue:
        return self

    __lt__ = __gt__ = __ge__ = __le__ = _compared


class _Memory:
    def __init__(self) -> None:
        self._values: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < LENGTH
        return self._values.get(index, _NoValue())

    def __setitem__(self, index: int, value: Any) -> None:
        assert 0 <= index < LENGTH
        self._values[index] = value


def result_of(text: str, given: np.ndarray) -> np.ndarray:
    """Run a program in Python; NoValueError where it has no result."""
    memory: dict[str, _Memory] = {}

    def choose(condition: Any, one: Any, other: Any) -> Any:
        return one if condition else other

    language = SimpleNamespace(
        alloc=lambda name: memory.setdefault(name, _Memory()),
        if_then_else=choose,
        Select=choose,
        grid=lambda *extents: itertools.product(*map(range, extents)),
        serial=range,
        unroll=range,
        max=max,
        min=min,
    )
    result = [0] * (LENGTH * ROUNDS * ROUNDS)
    exec("def main(x, y):\n" + text, {"T": language}, names := {})
    names["main"]([int(value) for value in given], result)
    if any(isinstance(value, _NoValue) for value in result):
        raise NoValueError
    return np.array(result, "int32")


def module_of(text: str, scope: str) -> tvm.IRModule:
    """Return a program as TVM takes it, with its buffers in a storage scope.

    They are the whole function's: TVM itself moves them into the innermost loop that has all uses.
    """
    made = [line for line in text.splitlines() if "T.alloc" in line]
    used = "\n".join(line for line in text.splitlines() if line not in made)
    buffers = "\n".join(
        f'    {name} = T.sblock_alloc_buffer(({LENGTH},), "int32", scope="{scope}")'
        for name in sorted({line.split()[0] for line in made})
    )
    source = f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer(({LENGTH},), "int32"), y: T.Buffer(({LENGTH * ROUNDS**2},), "int32")):
{buffers}
{used}
"""
    return tvm.IRModule({"main": tvm.script.from_source(source)})


def drawn(number: int) -> str:
    """Return the body of a program."""
    return "\n".join(_Program(Random(number)).lines()) + "\n"


class _Program:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._pick = random.choice
        # The variables of the loops around, which count rounds.
        self._rounds = self._pick((["k"], ["k"], ["o", "k"]))

    def lines(self) -> list[str]:
        lines, depth = [], 1
        for at, name in enumerate(self._rounds):
            kind = self._pick(("range", "range", "T.unroll", "T.serial"))
            lines.append(f"{'    ' * depth}for {name} in {kind}({ROUNDS}):")
            depth += 1
            if at == 0 and len(self._rounds) > 1:
                body = self._temporaries("uv", "x") if self._pick((True, False)) else []
                lines += ["    " * depth + line for line in body]
        carrying = self._pick(("s", "s", "st"))
        body = [f'{name} = T.alloc("{name}")' for name in carrying]
        parts = [part for name in carrying for part in self._carried(name)]
        temporaries = self._temporaries("wv" if len(self._rounds) == 1 else "wt", self._pick("xs"))
        # Temporaries stand anywhere in between, where they could take the bytes of what waits.
        at = self._random.randint(0, len(parts))
        parts[at:at] = [temporaries]
        for part in parts:
            body += part
        return lines + ["    " * depth + line for line in body]

    def _carried(self, name: str) -> list[list[str]]:
        """Statements that write a buffer in some rounds, and read it."""
        fill, use = self._fill(name), self._use(name)
        if self._random.random() < 0.25:  # A round ahead
            return [["if k > 0:", *_inside(use)], fill]
        parts = [fill, use]
        if self._random.random() < 0.4:
            parts.insert(1, self._update(name))
        if self._random.random() < 0.3:
            parts.append(self._update(name))
        return parts

    def _fill(self, name: str) -> list[str]:
        value = self._pick(("x[i]", "x[i] + k", f"x[{LENGTH - 1} - i]", "k"))
        index = self._pick(("i", "i", f"{LENGTH - 1} - i", "i // 4 * 4 + i % 4"))
        extent = self._pick((LENGTH, LENGTH, LENGTH, LENGTH - 1, LENGTH // 2))
        all_of_it = [f"for i in range({extent}):", f"    {name}[{index}] = {value}"]
        condition = self._pick(("k == 0", "k == 0", "k < 1", "k % 2 == 0", "x[0] > 1", "i > k"))
        if len(self._rounds) > 1 and self._random.random() < 0.3:
            condition = "o == 0 and k == 0"
        kind = self._random.random()
        if kind < 0.2:
            return all_of_it
        if kind < 0.4 and "i" not in condition:
            return [f"if {condition}:", *_inside(all_of_it)]
        if kind < 0.55:
            head = [f"for i in range({LENGTH}):", f"    if {condition}:"]
            return [*head, f"        {name}[{index}] = {value}"]
        if kind < 0.75:
            kept, choose = f"{name}[{index}]", self._pick(("T.if_then_else", "T.Select"))
            kept = self._pick((kept, f"{kept} * 2 + 1"))
            chosen = f"{choose}({condition}, {value}, {kept})"
            return [f"for i in range({LENGTH}):", f"    {name}[{index}] = {chosen}"]
        if kind < 0.85:  # No round of the inner loop but in the first round of the outer one
            return ["for q in T.serial(T.max(1 - k, 0)):", *_inside(all_of_it)]
        if kind < 0.93:
            return [
                f"for q, i in T.grid(2, {LENGTH}):",
                "    if q == 0:",
                f"        {name}[i] = {value}",
                f"    {name}[i] = {name}[i] + q",
            ]
        return [
            *all_of_it,
            f"for i in range({LENGTH}):",
            f"    if {condition}:",
            f"        {name}[{index}] = {value}",
            "    else:",
            f"        {name}[{index}] = {name}[{index}] + 1",
        ]

    def _update(self, name: str) -> list[str]:
        return self._pick(
            (
                [f"for i in range({LENGTH}):", f"    {name}[i] = {name}[i] + k + 1"],
                [f"{name}[k] = {name}[k] + 5"],
                [f"for i in range({LENGTH - 1}):", f"    {name}[i + 1] = {name}[i] + x[i]"],
                [
                    "if k > 0:",
                    f"    for i in range({LENGTH}):",
                    f"        {name}[i] = {name}[i] * 2",
                ],
            )
        )

    def _use(self, name: str) -> list[str]:
        at = f"k * {LENGTH} + i" if len(self._rounds) == 1 else f"(o * {ROUNDS} + k) * {LENGTH} + i"
        index = self._pick(("i", f"{LENGTH - 1} - i", "i // 2"))
        return [f"for i in range({LENGTH}):", f"    y[{at}] = y[{at}] + {name}[{index}]"]

    def _temporaries(self, names: str, source: str) -> list[str]:
        """Two buffers, each written whole before it is read, one from the other backwards."""
        one, two = names
        if two == "t":
            two = "v"
        return [
            f'{one} = T.alloc("{one}")',
            f'{two} = T.alloc("{two}")',
            f"for i in range({LENGTH}):",
            f"    {one}[i] = x[{LENGTH - 1} - i] + 100",
            f"for i in range({LENGTH}):",
            f"    {two}[i] = {one}[{LENGTH - 1} - i] * 3",
            f"for i in range({LENGTH}):",
            f"    y[i] = y[i] + {two}[i]",
        ]


def _inside(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
