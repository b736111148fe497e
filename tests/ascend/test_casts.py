# SPDX-License-Identifier: Apache-2.0
"""Casts: which may take the place of what they read, and that results are right where they do."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from address_runs import build, num_arenas, poisoned
from ascend_modules import addresses, chip, module
from program_text import program
from tvm import tirx

from passes.prim_func.problems import ProblemOptions, find_problems
from target_hw.memory import MemoryHierarchy, MemoryScope
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


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("noalias", [False, True])
def test_no_write_overtakes_a_read(level: int, noalias: bool):
    mod = module(narrow.with_attr("tirx.noalias", noalias), CHIP)
    plan = poisoned(AscendPlanMemory(form="arena"))
    assert num_arenas(plan(mod)) == 1
    x = np.random.default_rng(0).standard_normal(LENGTH).astype("float32")
    y = tvm.runtime.tensor(np.zeros(LENGTH, "float16"))
    built = build(mod, plan, {"kind": "llvm", "opt-level": level})
    built["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x.astype("float16"))


def cast_nest(source: str, result: str, extents, index, kind=tirx.ForKind.SERIAL) -> tirx.PrimFunc:
    """Return a function in which a loop nest casts all it reads, both by one index."""
    size = 64
    x = tirx.decl_buffer([size], source, "x", layout=None)
    y = tirx.decl_buffer([size], result, "y", layout=None)
    a = tirx.decl_buffer([size], source, "a", scope="local.UB", layout=None)
    v = tirx.decl_buffer([size], result, "v", scope="local.UB", layout=None)

    def copy(to, read):
        i = tirx.Var("i", "int32")
        store = tirx.BufferStore(to, read[i], [i])
        return tirx.For(i, tirx.const(0), tirx.const(size), tirx.ForKind.SERIAL, store)

    loops = [tirx.Var(f"k{n}", "int32") for n in range(len(extents))]
    at = index(*loops)
    nest = tirx.BufferStore(v, tirx.Cast(result, a[at]), [at])
    for loop, extent in reversed(list(zip(loops, extents, strict=True))):
        nest = tirx.For(loop, tirx.const(0), tirx.const(extent), kind, nest)
    stores = [copy(a, x), nest, copy(y, v)]
    body = tirx.SeqStmt([tirx.AllocBuffer(a), tirx.AllocBuffer(v), *stores])
    return tirx.PrimFunc([x, y], body).with_attr("global_symbol", "main")


def in_place(*args, **options) -> bool:
    memory = MemoryHierarchy((MemoryScope("local.UB", alignment=32),))
    found = find_problems(cast_nest(*args, **options), ProblemOptions(memory=memory))
    (attached,) = found.problems
    return attached.problem.in_place == (("a", "v"),)


def test_which_casts_may_be_in_place():
    row = ([64], lambda i: i)
    assert in_place("float32", "int32", *row)
    assert in_place("float32", "float16", *row)
    assert in_place("int64", "int8", *row)
    assert not in_place("float16", "float32", *row)
    assert in_place("float32", "float16", [4, 16], lambda i, j: i * 16 + j)
    # Backwards, with gaps, by columns, at once: a narrow write would overtake a wide read.
    assert not in_place("float32", "float16", [64], lambda i: 63 - i)
    assert not in_place("float32", "float16", [32], lambda i: i * 2)
    assert not in_place("float32", "float16", [4, 16], lambda i, j: j * 4 + i)
    assert not in_place("float32", "float16", *row, kind=tirx.ForKind.PARALLEL)
    # Elements of one width stay where they are, in any order.
    assert in_place("float32", "int32", [64], lambda i: 63 - i)
    assert in_place("float32", "int32", [4, 16], lambda i, j: j * 4 + i)


@pytest.mark.parametrize(
    ("source", "result", "extents", "index"),
    [
        ("float32", "float16", [64], lambda i: i),
        ("int64", "int8", [4, 16], lambda i, j: i * 16 + j),
        ("float32", "int32", [4, 16], lambda i, j: j * 4 + i),
        ("int32", "int16", [64], lambda i: 63 - i),
    ],
)
@pytest.mark.parametrize("level", [0, 2])
def test_casts_in_arenas_compute_what_numpy_does(source, result, extents, index, level: int):
    mod = tvm.IRModule({"main": cast_nest(source, result, extents, index)})
    x = np.random.default_rng(1).integers(-100, 100, 64).astype(source)
    y = tvm.runtime.tensor(np.zeros(64, result))
    target = {"kind": "llvm", "opt-level": level}
    build(mod, poisoned(PlanAddresses(form="arena")), target)["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x.astype(result))
