# SPDX-License-Identifier: Apache-2.0
"""Casts that take the place of what they read: that they do, and that results are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from address_runs import build, num_arenas, poisoned
from ascend_modules import addresses, chip, module
from program_text import program
from sweeps import sample

from tvm_ext.transform import AscendPlanMemory, PlanAddresses

LENGTH = 40_000
CHIP = chip(UB=160_000)
"""A core in which the operand fits, and the result not beside it."""


narrow = program("""
def narrow(x: 40000, y: 40000 float16):
    a: local.UB 40000
    v: local.UB 40000 float16
    a[i] = x[i] for i in range(40000)
    v[i] = T.Cast("float16", a[i]) for i in range(40000)
    y[i] = v[i] for i in range(40000)
""")


def test_a_narrowing_cast_fits_in_the_memory_of_its_operand():
    mod = module(narrow, CHIP)
    assert addresses(AscendPlanMemory()(mod)) == {"a": (0,), "v": (0,)}
    with pytest.raises(ValueError, match="ub overflow, requires 1920000 bits"):
        AscendPlanMemory(restrict_inplace_as_isa=True)(mod)


WAYS = sample(product((0, 1, 2, 3), (False, True)), (0, False), (2, True))


@pytest.mark.parametrize("way", WAYS)
def test_no_write_overtakes_a_read(way: tuple[int, bool]):
    level, noalias = way
    mod = module(narrow.with_attr("tirx.noalias", noalias), CHIP)
    plan = poisoned(AscendPlanMemory(form="arena"))
    assert num_arenas(plan(mod)) == 1
    x = np.random.default_rng(0).standard_normal(LENGTH).astype("float32")
    y = tvm.runtime.tensor(np.zeros(LENGTH, "float16"))
    built = build(mod, plan, {"kind": "llvm", "opt-level": level})
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x.astype("float16"))


@pytest.mark.parametrize(
    ("source", "result", "nest"),
    [
        ("float32", "float16", "v[i] = T.Cast('float16', a[i]) for i in range(64)"),
        (
            "int64",
            "int8",
            "v[i * 16 + j] = T.Cast('int8', a[i * 16 + j]) for i, j in T.grid(4, 16)",
        ),
        (
            "float32",
            "int32",
            "v[j * 4 + i] = T.Cast('int32', a[j * 4 + i]) for i, j in T.grid(4, 16)",
        ),
        ("int32", "int16", "v[63 - i] = T.Cast('int16', a[63 - i]) for i in range(64)"),
    ],
)
@pytest.mark.parametrize("level", sample((0, 2), 2))
def test_casts_in_arenas_compute_what_numpy_does(source: str, result: str, nest: str, level: int):
    func = program(f"""
    def main(x: 64 {source}, y: 64 {result}):
        a: local.UB 64 {source}
        v: local.UB 64 {result}
        a[i] = x[i] for i in range(64)
        {nest}
        y[i] = v[i] for i in range(64)
    """)
    x = np.random.default_rng(1).integers(-100, 100, 64).astype(source)
    y = tvm.runtime.tensor(np.zeros(64, result))
    plan, target = poisoned(PlanAddresses(form="arena")), {"kind": "llvm", "opt-level": level}
    build(tvm.IRModule({"main": func}), plan, target)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x.astype(result))
