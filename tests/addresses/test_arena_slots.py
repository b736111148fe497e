# SPDX-License-Identifier: Apache-2.0
"""Double-buffered kernels in arenas, as a user builds them: every index pattern, every opt-level.

Each kernel loads a row into one slot of a buffer, reads it back by several index patterns, and then
does the same with a second buffer that takes the place of the first. What it computes is held
against numpy, which knows no slots.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import numpy as np
import pytest
import tvm
from address_runs import build, poisoned
from program_text import program
from tvm import tirx
from tvm.ir.transform import Pass

from passes.ir import nodes_in
from passes.ir.operators import buffer_data_var
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext.transform import PlanAddresses

ROWS, WIDTH = 9, 64

# Of the row's elements, the one that element i of the result is: as TIR, and in Python.
READS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "i": lambda i: i,
    "(i + 3) % 64": lambda i: (i + 3) % 64,
    "(i + 61) % 64": lambda i: (i + 61) % 64,
    "63 - i": lambda i: 63 - i,
    "63 - (i + 5) % 64": lambda i: 63 - (i + 5) % 64,
    "i * 3 % 64": lambda i: i * 3 % 64,
    "(i * 5 + 7) % 64": lambda i: (i * 5 + 7) % 64,
    "(i + 7) % 48": lambda i: (i + 7) % 48,
    "(i + 7) % 32": lambda i: (i + 7) % 32,
    "(i + 5) % 8": lambda i: (i + 5) % 8,
    "i % 8 * 8 + i // 8": lambda i: i % 8 * 8 + i // 8,
    "i // 2 + (i + 1) % 2 * 32": lambda i: i // 2 + (i + 1) % 2 * 32,
    "(i + 1) % 8 + i // 8 * 8": lambda i: (i + 1) % 8 + i // 8 * 8,
    "T.bitwise_xor(i, 5)": lambda i: i ^ 5,
}


def kernel(slots: int, size: int, dtype: str, *, noalias: bool) -> tvm.IRModule:
    """Return a kernel that reads rows back by all patterns."""
    count = len(READS)
    lines = [f'T.func_attr({{"tirx.noalias": {noalias}}})', f"for t in range({ROWS}):"]
    for number, buffer in enumerate("ab"):
        annotations = f'annotations={{"multi_buffer": {slots}}}'
        lines += [
            f'    {buffer} = T.alloc_buffer(({size},), "{dtype}", scope="local.UB", {annotations})',
            f"    {buffer}[(i + 9) % 64] = x[t * {WIDTH} + i] for i in range({WIDTH})",
        ]
        for pattern, read in enumerate(READS):
            row = f"{(number * count + pattern) * ROWS * WIDTH} + t * {WIDTH}"
            lines.append(f"    y[{row} + i] = {buffer}[{read}] for i in range({WIDTH})")
    arrays = f"x: {ROWS * WIDTH} {dtype}, y: {2 * count * ROWS * WIDTH} {dtype}"
    func = program(f"def main({arrays}):\n{indent(chr(10).join(lines), '    ')}")
    return tvm.IRModule({"main": func})


def result(mod: tvm.IRModule, plan: Pass, dtype: str, level: int) -> np.ndarray:
    rows = np.arange(ROWS * WIDTH).astype(dtype)
    out = tvm.runtime.tensor(np.zeros(2 * len(READS) * rows.size, dtype))
    target = {"kind": "llvm", "opt-level": level}
    build(mod, plan, target)["main"](tvm.runtime.tensor(rows), out)
    return out.numpy().reshape(2, len(READS), ROWS, WIDTH)


def assert_right(found: np.ndarray, dtype: str) -> None:
    i = np.arange(WIDTH)
    rows = np.zeros((ROWS, WIDTH), dtype)
    rows[:, (i + 9) % 64] = np.arange(ROWS * WIDTH).astype(dtype).reshape(ROWS, WIDTH)
    for buffer in range(2):
        for pattern, (text, read) in enumerate(READS.items()):
            np.testing.assert_array_equal(found[buffer, pattern], rows[:, read(i)], text)


def arenas(alignment: int = 1) -> Pass:
    memory = MemoryHierarchy((MemoryScope("local.UB", alignment=alignment),))
    return poisoned(PlanAddresses(form="arena", memory=memory))


@pytest.mark.parametrize(
    ("slots", "size", "noalias", "level"),
    [(2, 64, True, 3), (3, 100, False, 0)],
)
def test_slots_change_no_index(slots: int, size: int, noalias: bool, level: int):
    mod = kernel(slots, size, "float32", noalias=noalias)
    assert_right(result(mod, arenas(32), "float32", level), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("size", [WIDTH, 4 * WIDTH, WIDTH + 36])
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_slots_change_no_index_in_every_way(slots: int, size: int, dtype: str, level: int):
    for noalias in (False, True):
        mod = kernel(slots, size, dtype, noalias=noalias)
        for alignment in (1, 512):
            assert_right(result(mod, arenas(alignment), dtype, level), dtype)


@pytest.mark.parametrize("slots", [1, 2])
def test_each_name_is_declared_on_the_arena(slots: int):
    planned = arenas()(kernel(slots, 64, "float32", noalias=True))["main"]
    names = [op.data for op in nodes_in(planned.body, tirx.DeclBuffer)]
    assert len(names) == 2
    assert {buffer_data_var(name).name for name in names} == {"arena_local_UB"}
    assert "tirx.noalias" in planned.attrs
    # No compiler knows what is read from memory that is volatile.
    assert planned.script().count("tirx.volatile") == slots - 1


shared_product = program("""
def main(x: 512, y: 512):
    for t in range(2):
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 2})
        a[i] = x[t * 256 + i] for i in range(64)
        y[t * 256 + i] = a[(i + 3) % 64] for i in range(64)
""")


def test_a_slot_may_have_a_product_in_common_with_an_index():
    # TVM gives `t * 256` a name, which has to come before the address of the slot, too.
    mod = tvm.IRModule({"main": shared_product})
    x, y = np.arange(512, dtype="float32"), tvm.runtime.tensor(np.zeros(512, "float32"))
    build(mod, arenas(32), "llvm")["main"](tvm.runtime.tensor(x), y)
    i = np.arange(64)
    for t in range(2):
        row = y.numpy()[t * 256 : t * 256 + 64]
        np.testing.assert_array_equal(row, x[t * 256 + (i + 3) % 64])
