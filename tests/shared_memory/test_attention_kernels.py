# SPDX-License-Identifier: Apache-2.0
"""TVM's own attention kernels: replayed at small sizes, and measured at the sizes of models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from attention import KERNELS, SMALL
from block_replay import replay
from opencl_runs import lowered, run, shared_bytes, source_of
from sweeps import sample
from tagged_bytes import FaultError
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.target import Target

import tvm_ext

INSERT = partial(tvm_ext.use, "PlanSharedMemory", barriers="insert")


@pytest.mark.parametrize("name", sample(KERNELS, "decode"))
def test_no_two_threads_meet_in_a_byte(name: str):
    case = KERNELS[name]()
    kernel = lowered(case.func, INSERT, target=SMALL)
    replay(kernel, case.arguments, case.grid, "random")
    np.testing.assert_allclose(case.arguments["output"], case.expected, rtol=1e-4, atol=1e-5)
    assert "((float*)arena" not in source_of(kernel)  # Which has no address space.


@pytest.mark.parametrize("name", sample(KERNELS, "prefill"))
def test_a_device_computes_the_same(name: str):
    case = KERNELS[name]()
    run(lowered(case.func, INSERT, target=SMALL), case.arguments, case.grid)
    np.testing.assert_allclose(case.arguments["output"], case.expected, rtol=1e-4, atol=1e-5)


def test_the_merge_of_tvm_races_in_decode():
    case = KERNELS["decode"]()
    kernel = lowered(case.func, target=SMALL, config={"tirx.merge_static_smem": True})
    with pytest.raises(FaultError):
        replay(kernel, case.arguments, case.grid, "random")


# Sizes of models: 32 heads of 128 elements, 8 of keys and values

LARGE = Target(
    {
        "kind": "cuda",
        "arch": "sm_61",
        "max_num_threads": 1024,
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
    host="llvm",
)
FUNCTIONS: dict[str, Callable[[], Any]] = {
    "decode": lambda: kv_cache._attention_decode(8, 32, 128, "float16", False, {}, LARGE),
    "prefill": lambda: kv_cache._attention_prefill(8, 32, 128, "float16", False, {}, LARGE),
    "ragged": lambda: kv_cache._attention_prefill_ragged(8, 32, 128, 128, "float16", {}, LARGE),
    "latent": lambda: kv_cache._attention_prefill_mla(16, 512, 64, "float16", False, LARGE),
}


@cache
def function(name: str) -> Any:
    return FUNCTIONS[name]()


@pytest.mark.parametrize(
    ("name", "existing", "insert"),
    [
        ("decode", 16_512, 8_320),
        pytest.param("prefill", 24_832, 24_832, marks=pytest.mark.slow),
        pytest.param("ragged", 24_832, 24_832, marks=pytest.mark.slow),
        pytest.param("latent", 28_256, 28_256, marks=pytest.mark.slow),
    ],
)
def test_bytes_are_as_few_as_barriers_allow(name: str, existing: int, insert: int):
    taken = {
        within: lowered(function(name), within, target=LARGE)
        for within in (partial(tvm_ext.use, "PlanSharedMemory"), INSERT)
    }
    assert [shared_bytes(kernel) for kernel in taken.values()] == [existing, insert]
    barriers = [kernel.script().count("tvm_storage_sync") for kernel in taken.values()]
    assert barriers[1] - barriers[0] == (name == "decode")
