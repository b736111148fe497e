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

rounds = program("""
def rounds(x: 512, y: 512):
    n: local 1 int32
    n[0] = 0
    while n[0] < 8:
        slots = T.alloc_buffer((64,), "float32", scope="local.UB", annotations={"multi_buffer": 3})
        slots[i] = x[i + n[0] * 64] for i in range(64)
        if n[0] % 2 == 0:
            a, b: local.UB 64
            a[i] = slots[63 - (i + 3) % 64] for i in range(64)
            b[i] = a[63 - i] for i in range(64)
            y[i + n[0] * 64] = b[i] + T.float32(1) for i in range(64)
        else:
            c: local.UB 64
            c[i] = slots[i] + T.float32(1) for i in range(64)
            y[i + n[0] * 64] = c[63 - i] for i in range(64)
        n[0] = n[0] + 1
""")


@pytest.mark.parametrize("form", ["address", "arena"])
@pytest.mark.parametrize("level", [0, 2])
def test_what_is_in_a_while_loop_builds_and_is_right(level: int, form: str):
    mod = tvm.IRModule({"main": rounds.with_attr("global_symbol", "main")})
    rows, y = np.arange(512, dtype="float32"), tvm.runtime.tensor(np.zeros(512, "float32"))
    built = build(mod, poisoned(PlanAddresses(form=form)), {"kind": "llvm", "opt-level": level})
    built["main"](tvm.runtime.tensor(rows), y)
    expected = rows.reshape(8, 64) + 1
    expected[0::2] = np.roll(expected[0::2], 3, axis=1)
    expected[1::2] = expected[1::2, ::-1]
    np.testing.assert_array_equal(y.numpy().reshape(8, 64), expected)


def test_iterations_of_a_while_loop_take_turns_with_slots():
    mod = capture(tvm.IRModule({"main": rounds}), "ascend/910b-llvm")
    assert len(addresses(AscendPlanMemory()(mod))["slots"]) == 3
