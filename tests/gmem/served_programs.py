# SPDX-License-Identifier: Apache-2.0
"""Random modules as servers run them: several functions that share weights, of changing lengths.

Each function is called with a length ``n`` up to a bound, or with a size ``v`` that has none, and
returns what depends on them. Packed functions read, keep or return what they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from hypothesis import strategies as st

SEEN: list[Any] = []
"""What ``test.served.keep`` was given, which it holds."""


@tvm.register_global_func("test.served.peek", override=True)
def peek(tensor: Any) -> int:
    """Read the shape of a tensor, and keep nothing of it."""
    return int(tensor.shape[0])


@tvm.register_global_func("test.served.keep", override=True)
def keep(tensor: Any) -> None:
    """Hold a tensor, with what is in it now."""
    SEEN.append((tensor, tensor.numpy().copy()))


@dataclass(frozen=True)
class ServedProgram:
    """A module as text, and the functions in it with the dimension that each is called with."""

    text: str
    functions: dict[str, str]  # ``n``, ``v`` or nothing
    bound: int  # Of ``n``


_WIDTHS = (16, 48, 64, 100, 256)


@st.composite
def served_programs(draw: Any, keeps: bool = False) -> ServedProgram:
    """Draw a module of two to four functions."""
    bound = draw(st.sampled_from([7, 40, 64, 200]))
    functions, lines = {}, ["@I.ir_module", "class Module:"]
    for number in range(draw(st.integers(2, 4))):
        name, rows = f"f{number}", draw(st.sampled_from(["n", "n", "n", "v", "24"]))
        functions[name] = rows if rows.isalpha() else ""
        plans = draw(st.integers(0, 3)) > 0
        lines += _function(draw, name, rows, bound, plans, keeps)
    return ServedProgram("\n".join(lines), functions, bound)


def _function(draw: Any, name: str, rows: str, bound: int, plans: bool, keeps: bool) -> list[str]:
    shape = f'"{rows}"' if rows.isalpha() else rows
    lines = [
        "    @R.function(pure=False)",
        f'    def {name}(x: R.Tensor(({shape}, 64), "float32"), '
        'w: R.Tensor((64, 256), "float32"), u: R.Tensor((256, 64), "float32")):',
    ]
    attributes = [f'"tir_var_upper_bound": {{"n": {bound}}}'] if rows == "n" else []
    attributes += ['"relax.memory_plan_dynamic_func_output": True'] if plans else []
    if attributes:
        lines.append(f"        R.func_attr({{{', '.join(attributes)}}})")
    if rows.isalpha():
        lines.append(f"        {rows} = T.int64()")
    widths = {"x": 64}
    for number in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(list(widths)[-4:]))
        width, made = widths[source], f"t{number}"
        same = [other for other, one in widths.items() if one == width]
        kind = draw(st.sampled_from(["unary", "matmul", "join", "cut", "add", "packed"]))
        if kind == "matmul" and width in (64, 256):
            value, width = f"R.matmul({source}, {'w' if width == 64 else 'u'})", 320 - width
        elif kind == "join" and width <= 256:
            other = draw(st.sampled_from(list(widths)))
            value = f"R.concat(({source}, {other}), axis=1)"
            width += widths[other]
        elif kind == "cut" and any(one < width for one in _WIDTHS):
            width = draw(st.sampled_from([one for one in _WIDTHS if one < width]))
            value = f"R.strided_slice({source}, axes=[1], begin=[0], end=[{width}])"
        elif kind == "packed" and source != "x":
            callee = draw(st.sampled_from(["peek", "keep"] if keeps else ["peek"]))
            lines.append(f'        _{number} = R.call_packed("test.served.{callee}", {source})')
            continue
        elif kind == "add":
            value = f"R.add({source}, {draw(st.sampled_from(same))})"
        else:
            value = f"R.tanh({source})"
        lines.append(f"        {made} = {value}")
        widths[made] = width
    last = list(widths)[-1]
    results = [last] if last != "x" else []
    results += [one for one in list(widths)[1:-1] if draw(st.integers(0, 5)) == 0]
    if not results:
        lines.append("        r = R.exp(x)")
        results = ["r"]
    value = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return [*lines, f"        return {value}"]
