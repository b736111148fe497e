# SPDX-License-Identifier: Apache-2.0
"""Addresses hold for the types that TVM makes of those that a target has no arithmetic for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import tvm
import tvm_ffi
from program_text import program
from tvm import tirx

import tvm_ext
from passes.addresses.transform import PlanAddresses

TARGETS: dict[str, Any] = {
    "llvm": "llvm",
    "old": {"kind": "cuda", "arch": "sm_61"},
    "new": {"kind": "cuda", "arch": "sm_90"},
    "chip": "ext_dev",
}
SOURCE = """
def main(x: 64 TYPE, y: 64 TYPE):
    a, b: local.UB 64 TYPE
    c: local.UB 64 int8
    a[i] = x[i] for i in range(64)
    b[i] = x[63 - i] for i in range(64)
    c[i] = T.Cast("int8", b[i]) for i in range(64)
    y[i] = a[63 - i] + T.Cast("TYPE", c[63 - i]) for i in range(64)
"""


def module(dtype: str, target: str | None = None) -> tvm.IRModule:
    func = program(SOURCE.replace("TYPE", dtype))
    if target is not None:
        func = func.with_attr("target", tvm.target.Target(TARGETS[target]))
    return tvm.IRModule({"main": func})


def stored(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Return the address and the bytes of each allocation."""
    found: list[tuple[int, int]] = []

    def note(op: tirx.AllocBuffer) -> None:
        ty = op.buffer.ty
        if len(ty.allocated_addr):
            size = int(ty.shape[0].value) * ty.dtype.dtype.bits // 8
            found.append((int(ty.allocated_addr[0]), size))

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
    return found


def are_apart(mod: tvm.IRModule) -> bool:
    """Whether the first buffer, which lives throughout, shares bytes with none."""
    (begin, size), *others = stored(mod)
    assert len(others) == 2
    return all(at + n <= begin or begin + size <= at for at, n in others)


@pytest.mark.parametrize("target", [None, "llvm", "old", "new"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_what_grows_behind_the_plan_has_its_place(dtype: str, target: str | None):
    planned = PlanAddresses()(module(dtype, target))
    legalized = tvm.transform.Sequential(
        [tirx.transform.BF16ComputeLegalize(), tirx.transform.FP8ComputeLegalize()]
    )(planned)
    assert are_apart(legalized)
    grows = target != "new"
    assert (stored(legalized) != stored(planned)) == grows
    # Wider elements are read behind what is written in their place.
    assert len({at for at, _ in stored(planned)}) == (3 if grows else 2)


def test_a_chip_that_tvm_does_not_build_for_stores_what_is_declared():
    expected = [(0, 64), (64, 64), (64, 64)]
    assert stored(PlanAddresses()(module("float8_e4m3fn", "chip"))) == expected
    assert stored(PlanAddresses(target="ascend/910b")(module("float8_e4m3fn"))) == expected


@pytest.mark.parametrize(
    ("use", "target"),
    [
        (partial(tvm_ext.use, "PlanAddresses"), "llvm"),
        (partial(tvm_ext.use, "AscendPlanMemory"), "ascend/910b-llvm"),
    ],
)
def test_the_pipelines_plan_what_is_stored(use: Any, target: str):
    mod = tirx.transform.BindTarget(tvm.target.Target(target, host="llvm"))(module("float8_e4m3fn"))
    lower, _, _ = tirx.get_tir_pipeline("default")
    context: AbstractContextManager[None] = use(form="address")
    with context:
        lowered = lower(mod)
    assert are_apart(lowered)
    assert [size for _, size in stored(lowered)] == [256, 256, 64]
