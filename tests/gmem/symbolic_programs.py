# SPDX-License-Identifier: Apache-2.0
"""Random Relax modules whose tensors have sizes that only the running program knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

PARAMETERS = {"x0": ("n", 4), "x1": ("n * m", 16), "x2": ("n", 100), "x3": ("n", 3)}

HELPER = """
    @R.function(private=True)
    def helper(h: R.Tensor(("k", 16), "float32")):
        a = R.nn.relu(h)
        b = R.concat((a, h), axis=1)
        c = R.sum(b, axis=[1], keepdims=True)
        return c
"""


@dataclass
class _Writer:
    draw: Callable[[Any], Any]
    jumps: bool
    lines: list[str] = field(default_factory=list)
    made: int = 0

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def steps(self, known: dict[str, tuple[str, int]], count: int, indent: str) -> None:
        kinds = ["unary", "unary", "binary", "join", "halve", "rows"]
        kinds += ["call", "branch"] if self.jumps and len(indent) < 16 else []
        for _ in range(count):
            source = self.draw(st.sampled_from(list(known)[-6:]))
            self.step(self.draw(st.sampled_from(kinds)), source, known, indent)

    def step(self, kind: str, source: str, known: dict[str, Any], indent: str) -> None:
        rows, columns = known[source]
        other = self.draw(st.sampled_from([o for o, shape in known.items() if shape[0] == rows]))
        if kind == "branch":
            self.branch(source, known, indent)
            return
        name = self.name()
        if kind == "binary" and known[other] == known[source]:
            made = f"R.add({source}, {other})"
        elif kind == "join" and columns + known[other][1] <= 400:
            made = f"R.concat(({source}, {other}), axis=1)"
            columns += known[other][1]
        elif kind == "halve" and columns % 2 == 0:
            self.lines.append(f"{indent}{name}s = R.split({source}, 2, axis=1)")
            made = f"{name}s[0]"
            columns //= 2
        elif kind == "rows":
            made = f"R.sum({source}, axis=[1], keepdims=True)"
            columns = 1
        elif kind == "call" and columns == 16:
            made = f"cls.helper({source})"
            columns = 1
        else:
            op = self.draw(st.sampled_from(["nn.relu", "negative", "abs"]))
            made = f"R.{op}({source})"
        self.lines.append(f"{indent}{name} = {made}")
        known[name] = rows, columns

    def branch(self, source: str, known: dict[str, Any], indent: str) -> None:
        result = self.name()
        for opening in ("if c:", "else:"):
            self.lines.append(indent + opening)
            inside = dict(known)
            self.steps(inside, self.draw(st.integers(0, 4)), indent + "    ")
            same = [name for name, shape in inside.items() if shape == known[source]]
            op = self.draw(st.sampled_from(["nn.relu", "negative"]))
            self.lines.append(f"{indent}    {result} = R.{op}({same[-1]})")
        known[result] = known[source]


@st.composite
def symbolic_sources(draw: Callable[[Any], Any], jumps: bool = False) -> str:
    """Draw the source of a module with tensors of ``n`` or ``n * m`` rows.

    With `jumps` there are branches and calls of another function, too, and one parameter more.
    """
    writer = _Writer(draw, jumps)
    known: dict[str, Any] = dict(PARAMETERS)
    writer.steps(known, draw(st.integers(2, 14)), " " * 8)
    made = [name for name in known if name.startswith("v")] or list(known)
    results = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True))
    params = [f'{name}: R.Tensor(("{r}", {c}), "float32")' for name, (r, c) in PARAMETERS.items()]
    params += ['shape: R.Shape(["m"])', *(['c: R.Tensor((), "bool")'] if jumps else [])]
    return "\n".join(
        [
            "@I.ir_module",
            "class Module:",
            HELPER if jumps else "",
            "    @R.function(pure=False)",
            f"    def main({', '.join(params)}):",
            "        cls = Module" if jumps else "",
            *writer.lines,
            f"        return ({', '.join(results)},)",
        ]
    )
