# SPDX-License-Identifier: Apache-2.0
"""Allocations in ``while`` loops and branches: they build, take turns, and results are right."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from address_runs import addresses, build, poisoned
from program_text import program

from tvm_ext.lowering import capture
from tvm_ext.transform import AscendPlanMemory, PlanAddresses

plain = program("""
def plain(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        a, b: local.UB 64
        a[i] = x[i + n[0] * 64] for i in range(64)
        b[i] = a[63 - i] for i in range(64)
        y[i + n[0] * 64] = b[i] + T.float32(1) for i in range(64)
        n[0] = n[0] + 1
""")

slots = program("""
def slots(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        a = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 3})
        a[i] = x[i + n[0] * 64] for i in range(64)
        y[i + n[0] * 64] = a[63 - (i + 3) % 64] + T.float32(1) for i in range(64)
        n[0] = n[0] + 1
""")

branches = program("""
def branches(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        if n[0] % 2 == 0:
            a: local.UB 64
            a[i] = x[i + n[0] * 64] for i in range(64)
            y[i + n[0] * 64] = a[63 - i] + T.float32(1) for i in range(64)
        else:
            b: local.UB 64
            b[i] = x[i + n[0] * 64] + T.float32(1) for i in range(64)
            y[i + n[0] * 64] = b[63 - i] for i in range(64)
        n[0] = n[0] + 1
""")


ROWS = np.arange(512, dtype="float32").reshape(8, 64)
REVERSED = ROWS[:, ::-1] + 1
EXPECTED = {
    "plain": REVERSED,
    "slots": ROWS[:, 63 - (np.arange(64) + 3) % 64] + 1,
    "branches": REVERSED,
}
FUNCTIONS = {"plain": plain, "slots": slots, "branches": branches}


@pytest.mark.parametrize("form", ["address", "arena"])
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_in_a_while_loop_builds_and_is_right(name: str, level: int, form: str):
    mod = tvm.IRModule({"main": FUNCTIONS[name].with_attr("global_symbol", "main")})
    y = tvm.runtime.tensor(np.zeros(512, "float32"))
    built = build(mod, poisoned(PlanAddresses(form=form)), {"kind": "llvm", "opt-level": level})
    built["main"](tvm.runtime.tensor(ROWS.reshape(-1)), y)
    np.testing.assert_array_equal(y.numpy().reshape(8, 64), EXPECTED[name])


def test_iterations_of_a_while_loop_take_turns_with_slots():
    mod = capture(tvm.IRModule({"main": slots}), "ascend/910b-llvm")
    assert addresses(AscendPlanMemory()(mod)) == {"n": (), "a": (0, 256, 512)}
