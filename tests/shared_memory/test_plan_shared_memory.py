# SPDX-License-Identifier: Apache-2.0
"""Kernels with planned shared memory: the same numbers, no races, no more bytes than TVM's own."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest
from block_replay import FaultError, replay
from kernels import CASES
from opencl_runs import lowered, run, shared_bytes

import tvm_ext

MERGED = {"tirx.merge_static_smem": True}
WAYS: dict[str, Any] = {
    "apart": (nullcontext, {"tirx.disable_storage_rewrite": True}),
    "stock": (nullcontext, {}),
    "merged": (nullcontext, MERGED),
    "best": (tvm_ext.use_plan_shared_memory, {}),
    "insert": (lambda: tvm_ext.use_plan_shared_memory(barriers="insert"), {}),
    "first fit": (lambda: tvm_ext.use_plan_shared_memory("first_fit"), {}),
}
OURS = ("best", "insert", "first fit")


@cache
def kernel(name: str, way: str) -> Any:
    within, config = WAYS[way]
    return lowered(CASES[name].func, within, config=config)


def replayed(name: str, way: str, order: str = "random") -> None:
    arguments, expected = CASES[name].arguments()
    replay(kernel(name, way), arguments, order)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("name", CASES)
def test_no_two_threads_meet_in_a_byte(name: str, way: str):
    replayed(name, way, "backward" if way == "insert" else "random")


# What a device takes long for is compiling.
QUICK = ("three phases", "dynamic", "half")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in QUICK]


@pytest.mark.parametrize("way", ["best", pytest.param("insert", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_device_computes_the_same(name: str, way: str):
    case = CASES[name]
    arguments, expected = case.arguments()
    run(kernel(name, way), arguments, case.grid)
    np.testing.assert_allclose(arguments["o"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_never_more_than_the_stock_default(name: str):
    taken = {way: shared_bytes(kernel(name, way)) for way in ("stock", "best", "insert")}
    assert taken["best"] == CASES[name].least, taken
    assert taken["insert"] <= taken["best"] <= taken["stock"]


def test_the_merge_of_tvm_races():
    faults = []
    for name in CASES:
        try:
            replayed(name, "merged")
        except FaultError:
            faults.append(name)
    assert "three phases" in faults
