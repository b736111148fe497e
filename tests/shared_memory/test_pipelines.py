# SPDX-License-Identifier: Apache-2.0
"""Kernels with stages: as few bytes as TVM's default takes, with no more barriers, and no races."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pipelines
import pytest
import tvm
from block_replay import replay
from opencl_runs import lowered, run, shared_bytes
from tagged_bytes import FaultError
from tvm.target import Target

import tvm_ext

CUDA = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
ASYNC = {"tirx.use_async_copy": True}
# By name: the kernel, what it computes, elements of input and result, rounds, and bytes at best.
CASES: dict[str, tuple[Any, Callable[..., np.ndarray], int, int, tuple[int, ...], int]] = {
    "in turns": (pipelines.in_turns, pipelines.of_turns, 384, 64, (), 512),
    "three stages": (pipelines.three_stages, pipelines.of_stages, 512, 512, (), 1024),
    "rounds": (pipelines.rounds_of_rounds, pipelines.of_rounds, 64, 64, (3, 2), 768),
    "no inner rounds": (pipelines.rounds_of_rounds, pipelines.of_rounds, 64, 64, (3, 0), 768),
    "no rounds": (pipelines.rounds_of_rounds, pipelines.of_rounds, 64, 64, (0, 2), 768),
    "types": (pipelines.several_types, pipelines.of_types, 64, 64, (), 640),
    "copies": (pipelines.copied_ahead, pipelines.of_copies, 1024, 64, (), 2048),
}
WAYS: dict[str, Any] = {
    "best": tvm_ext.use_plan_shared_memory,
    "insert": lambda: tvm_ext.use_plan_shared_memory(barriers="insert"),
}


def arguments(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    _, compute, count, size, rounds, _ = CASES[name]
    given = np.random.default_rng(0).standard_normal(count).astype("float32")
    numbers = {"n": np.array(rounds, "int32")} if rounds else {}
    expected = compute(given, *numbers.values())
    return {"a": given, **numbers, "o": np.zeros(size, "float32")}, expected


def kernel(name: str, **options: Any) -> Any:
    if name == "copies":
        options |= {"target": CUDA, "config": ASYNC}
    return lowered(CASES[name][0], **options)


def quick(*names: str) -> list[Any]:
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", quick("in turns", "no rounds", "copies"))
def test_no_two_threads_meet_in_a_byte(name: str):
    stock = kernel(name)
    for way, order in (("best", "random"), ("insert", "backward")):
        ours = kernel(name, within=WAYS[way])
        given, expected = arguments(name)
        replay(ours, given, (1,), order)
        np.testing.assert_allclose(given["o"], expected, rtol=1e-4, atol=1e-5)
        assert shared_bytes(ours) == CASES[name][-1] <= shared_bytes(stock)
        barriers = [one.script().count("tvm_storage_sync") for one in (ours, stock)]
        # Behind a loop, to keep its next round apart from what follows takes one of its own.
        assert barriers[0] <= barriers[1] + 1


@pytest.mark.parametrize("name", quick("in turns"))
def test_a_device_computes_the_same(name: str):
    if name == "types":
        pytest.skip("PoCL has no float16")
    given, expected = arguments(name)
    run(lowered(CASES[name][0], WAYS["best"]), given, (1,))
    np.testing.assert_allclose(given["o"], expected, rtol=1e-4, atol=1e-5)


def test_a_copy_that_nobody_waits_for_is_seen():
    text = pipelines.copied_ahead.script().replace(
        '"async_wait_inflight_count": 0', '"async_wait_inflight_count": 1'
    )
    assert text != pipelines.copied_ahead.script()
    func = tvm.script.from_source(text)
    given, _ = arguments("copies")
    with pytest.raises(FaultError, match="to which a copy is on its way"):
        replay(lowered(func, target=CUDA, config=ASYNC), given, (1,))
