# SPDX-License-Identifier: Apache-2.0
"""Buffers that one iteration fills for a later one, compiled in arena form, against numpy."""

from __future__ import annotations

from itertools import product
from textwrap import indent

import numpy as np
import pytest
import tvm
from ascend_modules import SEARCHES, addresses, module
from program_text import cases, program
from sweeps import sample
from tvm import tirx

from tvm_ext.transform import AscendPlanMemory

USED = """
{space}z[i] = x[15 - i] * T.float32(2) for i in range(16)
{space}o[{row}, i] = z[i] for i in range(16)"""

# Bodies of kernels in which `x` is filled for later iterations.
CARRIED = cases("""
# at the end
for t in range(16):
    {x}
    {z}
    if t > 0:
        {used:t - 1}
    x[i] = a[t, i] for i in range(16)
# first and ahead
for t in range(16):
    {x}
    {z}
    if t == 0:
        x[i] = a[0, i] for i in range(16)
    {used:t}
    if t < 15:
        x[i] = a[t + 1, i] for i in range(16)
# in each second iteration
for t in range(16):
    {x}
    {z}
    if t % 2 == 0:
        x[i] = a[t, i] for i in range(16)
    {used:t}
# through the inner of two loops
for s in range(4):
    for t in range(4):
        {x}
        {z}
        if t == 0:
            x[i] = a[s * 4, i] for i in range(16)
        {used:s * 4 + t}
        if t < 3:
            x[i] = a[s * 4 + t + 1, i] for i in range(16)
# through both of two loops
for s in range(4):
    for t in range(4):
        {x}
        {z}
        if s * 4 + t == 0:
            x[i] = a[0, i] for i in range(16)
        {used:s * 4 + t}
        if s * 4 + t < 15:
            x[i] = a[s * 4 + t + 1, i] for i in range(16)
""")
# The same, where each iteration of the loop around `x` reads only what it wrote itself.
APART = cases("""
# in the outer of two loops
for s in range(4):
    {x}
    for t in range(4):
        {z}
        if t == 0:
            x[i] = a[s * 4, i] for i in range(16)
        {used:s * 4 + t}
        if t < 3:
            x[i] = a[s * 4 + t + 1, i] for i in range(16)
# loaded and used in one iteration
for t in range(16):
    {x}
    {z}
    x[i] = a[t, i] for i in range(16)
    {used:t}
""")
ROWS = {
    "at the end": [*range(15), None],
    "in each second iteration": [t - t % 2 for t in range(16)],
}
"""The row of the input that each row of the output is made of, where it is not the same one.

It has twice the elements, in the opposite order.
"""


def kernel(body: str, annotations: str) -> tirx.PrimFunc:
    lines = []
    for line in body.splitlines():
        text = line.strip()
        space = line[: line.find(text)]
        if text.startswith("{used:"):
            lines += USED.format(space=space, row=text[6:-1]).splitlines()
        else:
            lines.append(line.format(x=f"x: local.UB 16 float32 {annotations}", z="z: local.UB 16"))
    return program(f"def main(a: 16x16, o: 16x16):\n{indent(chr(10).join(lines), '    ')}")


def check(func: tirx.PrimFunc, rows: list[int | None], search: str) -> None:
    planned = AscendPlanMemory(search=search, form="arena")(module(func))
    a = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")
    expected = np.zeros_like(a)
    for at, row in enumerate(rows):
        if row is not None:
            expected[at] = 2 * a[row, ::-1]
    found = tvm.runtime.tensor(np.zeros_like(a))
    tirx.build(planned, target="llvm")["main"](tvm.runtime.tensor(a), found)
    np.testing.assert_array_equal(found.numpy(), expected)


def num_slots(func: tirx.PrimFunc, search: str) -> int:
    planned = AscendPlanMemory(search=search)(module(func))
    return len(addresses(planned)["x"])


CASES = [*product((*CARRIED, *APART), (1, 2, 3), SEARCHES)]
BY_DEFAULT = [*product((*CARRIED, *APART), (2,), ("search",)), ("at the end", 1, "search")]
BY_DEFAULT += product(("first and ahead", "through both of two loops"), (2,), ("mirror",))


@pytest.mark.parametrize("case", sample(CASES, *BY_DEFAULT))
def test_a_later_iteration_reads_what_was_preloaded(case: tuple[str, int, str]):
    name, slots, search = case
    for kept in ("", ', "preload_local_buffer": True'):
        func = kernel((CARRIED | APART)[name], f'{{"multi_buffer": {slots}{kept}}}')
        check(func, ROWS.get(name, [*range(16)]), search)
        assert num_slots(func, search) == (slots if name in APART else 1)
