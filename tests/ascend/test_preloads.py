# SPDX-License-Identifier: Apache-2.0
"""Buffers that one iteration fills for a later one, compiled in arena form, against numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from ascend_modules import SEARCHES, addresses, module
from program_text import program
from sweeps import sample
from tvm import tirx

from tvm_ext.transform import AscendPlanMemory

USED = """
{space}z[i] = x[15 - i] * T.float32(2) for i in range(16)
{space}o[{row}, i] = z[i] for i in range(16)"""

# Bodies of kernels in which `x` is filled for later iterations, and which row of the input each row
# of the output is made of: it has twice the elements, in the opposite order.
CARRIED = {
    "at_the_end": (
        """
    for t in range(16):
        {x}
        {z}
        if t > 0:
            {used:t - 1}
        x[i] = a[t, i] for i in range(16)""",
        [*range(15), None],
    ),
    "first_and_ahead": (
        """
    for t in range(16):
        {x}
        {z}
        if t == 0:
            x[i] = a[0, i] for i in range(16)
        {used:t}
        if t < 15:
            x[i] = a[t + 1, i] for i in range(16)""",
        range(16),
    ),
    "in_each_second_iteration": (
        """
    for t in range(16):
        {x}
        {z}
        if t % 2 == 0:
            x[i] = a[t, i] for i in range(16)
        {used:t}""",
        [t - t % 2 for t in range(16)],
    ),
    "through_the_inner_of_two_loops": (
        """
    for s in range(4):
        for t in range(4):
            {x}
            {z}
            if t == 0:
                x[i] = a[s * 4, i] for i in range(16)
            {used:s * 4 + t}
            if t < 3:
                x[i] = a[s * 4 + t + 1, i] for i in range(16)""",
        range(16),
    ),
    "through_both_of_two_loops": (
        """
    for s in range(4):
        for t in range(4):
            {x}
            {z}
            if s * 4 + t == 0:
                x[i] = a[0, i] for i in range(16)
            {used:s * 4 + t}
            if s * 4 + t < 15:
                x[i] = a[s * 4 + t + 1, i] for i in range(16)""",
        range(16),
    ),
}
# The same, where each iteration of the loop around `x` reads only what it wrote itself.
APART = {
    "in_the_outer_of_two_loops": (
        """
    for s in range(4):
        {x}
        for t in range(4):
            {z}
            if t == 0:
                x[i] = a[s * 4, i] for i in range(16)
            {used:s * 4 + t}
            if t < 3:
                x[i] = a[s * 4 + t + 1, i] for i in range(16)""",
        range(16),
    ),
    "loaded_and_used_in_one_iteration": (
        """
    for t in range(16):
        {x}
        {z}
        x[i] = a[t, i] for i in range(16)
        {used:t}""",
        range(16),
    ),
}


def kernel(body: str, annotations: str) -> tirx.PrimFunc:
    lines = []
    for line in body.splitlines():
        text = line.strip()
        space = line[: line.find(text)]
        if text.startswith("{used:"):
            lines += USED.format(space=space, row=text[6:-1]).splitlines()
        else:
            lines.append(line.format(x=f"x: local.UB 16 float32 {annotations}", z="z: local.UB 16"))
    return program("def main(a: 16x16, o: 16x16):\n" + "\n".join(filter(None, lines)))


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
BY_DEFAULT = [*product((*CARRIED, *APART), (2,), ("search",)), ("at_the_end", 1, "search")]
BY_DEFAULT += product(("first_and_ahead", "through_both_of_two_loops"), (2,), ("mirror",))


@pytest.mark.parametrize("case", sample(CASES, *BY_DEFAULT))
def test_a_later_iteration_reads_what_was_preloaded(case: tuple[str, int, str]):
    name, slots, search = case
    body, rows = (CARRIED | APART)[name]
    for kept in ("", ', "preload_local_buffer": True'):
        func = kernel(body, f'{{"multi_buffer": {slots}{kept}}}')
        check(func, list(rows), search)
        assert num_slots(func, search) == (slots if name in APART else 1)
