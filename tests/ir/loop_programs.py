# SPDX-License-Identifier: Apache-2.0
"""Random loops in the subset of Python that `passes.ir.loop_to_tir` translates, as source text.

Each program has helpers, with and without results, that call one another, and one entry. Arrays
have `SIZE` elements and are handed on under several names, one array also twice. Every index is in
range, every value that is stored is below `LIMIT`, so that nothing wraps, and divisors are
positive, negative and constant, but never 0.
"""

from __future__ import annotations

import random

SIZE = 8
LIMIT = 1009
FIELDS = ("first", "second", "third")

_HEAD = """\
from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]
BELOW = -3
FEW = 4


class State(NamedTuple):
    first: Ints
    second: Ints
    third: Ints
    count: int
"""


class LoopProgram:
    """One program, written line by line."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._helpers: list[tuple[str, int, int, bool]] = []  # Name, arrays, integers, has a result
        self._lines: list[str] = []
        self._arrays: list[str] = []
        self._numbers: list[str] = []
        self._counters = 0
        for number in range(self._rng.randint(1, 3)):
            self._helper(f"helper{number}")
        self._entry()

    @property
    def text(self) -> str:
        """The source of a module with ``State`` and the function ``entry(state, one, two)``."""
        return _HEAD + "\n".join(self._lines) + "\n"

    def _helper(self, name: str) -> None:
        arrays, numbers = self._rng.randint(1, 3), self._rng.randint(0, 2)
        has_result = self._rng.random() < 0.5
        self._arrays = [f"array{at}" for at in range(arrays)]
        self._numbers = [f"number{at}" for at in range(numbers)]
        parameters = [f"{each}: Ints" for each in self._arrays]
        parameters += [f"{each}: int" for each in self._numbers]
        result = "int" if has_result else "None"
        self._lines.append(f"\n\ndef {name}({', '.join(parameters)}) -> {result}:")
        self._block(1, self._rng.randint(1, 4), leaves=has_result)
        if has_result:
            self._lines.append(f"    return {self._reduced()}")
        self._helpers.append((name, arrays, numbers, has_result))

    def _entry(self) -> None:
        self._arrays = [f"state.{field}" for field in FIELDS]
        self._numbers = ["one", "two", "state.count"]
        self._lines.append("\n\ndef entry(state: State, one: int, two: int) -> None:")
        if self._rng.random() < 0.5:
            self._lines.append("    again = state.first")
            self._arrays.append("again")
        self._block(1, self._rng.randint(3, 7))

    # Statements

    def _block(self, depth: int, count: int, leaves: bool = False) -> None:
        for _ in range(count):
            self._statement(depth, leaves)

    def _statement(self, depth: int, leaves: bool) -> None:
        rng, pad = self._rng, "    " * depth
        kind = rng.choice(("store", "store", "add", "local", "call", "call", "if", "for", "while"))
        if depth > 3 and kind in ("if", "for", "while"):
            kind = "store"
        if kind == "call" and not self._call(pad):
            kind = "store"
        if kind == "store":
            self._lines.append(f"{pad}{self._element()} = {self._reduced()}")
        elif kind == "add":
            element = self._element()
            self._lines += [f"{pad}{element} += {self._number()}"]
            self._lines += [f"{pad}{element} %= {rng.choice((LIMIT, -LIMIT, 97))}"]
        elif kind == "local":
            self._counters += 1
            name = f"local{self._counters}"
            self._lines.append(f"{pad}{name} = {self._reduced()}")
            if depth == 1:
                self._numbers.append(name)
        elif kind == "if":
            self._lines.append(f"{pad}if {self._condition()}:")
            self._block(depth + 1, rng.randint(1, 2), leaves)
            if leaves and rng.random() < 0.3:
                self._lines.append(f"{pad}    return {self._reduced()}")
            if rng.random() < 0.4:
                self._lines.append(f"{pad}else:")
                self._block(depth + 1, 1, leaves)
        elif kind == "for":
            self._loop(depth, leaves)
        elif kind == "while":
            self._counters += 1
            name = f"left{self._counters}"
            self._lines += [f"{pad}{name} = {rng.randint(0, 5)}", f"{pad}while {name} > 0:"]
            self._lines.append(f"{pad}    {name} -= 1")
            if rng.random() < 0.3:
                self._lines += [f"{pad}    if {self._condition()}:"]
                self._lines += [f"{pad}        {rng.choice(('break', 'continue'))}"]
            self._block(depth + 1, rng.randint(1, 2), leaves)

    def _loop(self, depth: int, leaves: bool) -> None:
        rng, pad = self._rng, "    " * depth
        self._counters += 1
        name = f"at{self._counters}"
        bounds = rng.choice((str(SIZE), "FEW", "4", f"1, {SIZE}", "2, 6", "state.count"))
        if "state.count" in bounds and "state.count" not in self._numbers:
            bounds = str(SIZE)
        self._lines.append(f"{pad}for {name} in range({bounds}):")
        self._numbers.append(name)
        self._block(depth + 1, rng.randint(1, 3), leaves)
        self._numbers.remove(name)

    def _call(self, pad: str) -> bool:
        if not self._helpers:
            return False
        name, arrays, numbers, has_result = self._rng.choice(self._helpers)
        given = [self._rng.choice(self._arrays) for _ in range(arrays)]
        given += [self._reduced() for _ in range(numbers)]
        call = f"{name}({', '.join(given)})"
        self._lines.append(f"{pad}{self._element()} = {call}" if has_result else f"{pad}{call}")
        return True

    # Expressions

    def _index(self) -> str:
        rng = self._rng
        if rng.random() < 0.4:
            return str(rng.randrange(SIZE))
        return f"({self._number()}) % {SIZE}"

    def _element(self) -> str:
        return f"{self._rng.choice(self._arrays)}[{self._index()}]"

    def _number(self, depth: int = 0) -> str:
        rng = self._rng
        kind = rng.choice(("name", "constant", "element", "two", "two", "choice", "divide"))
        if depth > 1 and kind in ("two", "choice", "divide"):
            kind = "constant" if not self._numbers else "name"
        if kind == "name" and self._numbers:
            return rng.choice(self._numbers)
        if kind == "element":
            array = rng.choice(self._arrays)
            inner = self._numbers[-1] if self._numbers else "3"
            return f"{array}[{inner} % {SIZE}]"
        if kind == "two":
            one, two = self._number(depth + 1), self._number(depth + 1)
            form = rng.choice(("({} + {})", "({} - {})", "min({}, {})", "max({}, {})"))
            return form.format(one, two)
        if kind == "choice":
            one, two = self._number(depth + 1), self._number(depth + 1)
            return f"({one} if {self._condition(depth + 1)} else {two})"
        if kind == "divide":
            divisor = rng.choice(
                ("-1", "-2", "-3", "BELOW", "FEW", "7", "-8", "(2 - 5)", "(FEW + 1)")
            )
            return f"({self._number(depth + 1)} {rng.choice(('//', '%'))} {divisor})"
        return str(rng.randint(-9, 9))

    def _reduced(self) -> str:
        """Return an expression of which the value is small."""
        return f"({self._number()}) % {self._rng.choice((LIMIT, -LIMIT, 12, 2))}"

    def _condition(self, depth: int = 0) -> str:
        rng = self._rng
        one, two = self._number(depth + 1), self._number(depth + 1)
        test = f"{one} {rng.choice(('<', '<=', '>', '>=', '==', '!='))} {two}"
        if depth == 0 and rng.random() < 0.3:
            return f"{test} {rng.choice(('and', 'or'))} {self._condition(1)}"
        return f"not ({test})" if rng.random() < 0.1 else test
