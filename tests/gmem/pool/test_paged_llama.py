# SPDX-License-Identifier: Apache-2.0
"""LLaMA with a paged KV cache, small: all functions of a server together, on each kind of GPU."""

from __future__ import annotations

import re

import pytest
import tvm
from gpu_counts import STOCK, functions_of, graphs, nbytes
from measured_memory import IdleMachine
from paged_llama import Shape, module_of
from relax_runs import lower
from sweeps import sample
from tvm import relax

from tvm_ext.lowering import known_target
from tvm_ext.transform import GMEMAllocate

SHAPES = {
    "grouped": Shape(2, 64, 8, 2, 160, 96, chunk=40, batch=6),
    "multi-head": Shape(2, 64, 4, 4, 128, 96, chunk=40, batch=6),
}


@pytest.fixture(scope="module", params=sample(SHAPES, "grouped"))
def server(request: pytest.FixtureRequest) -> tuple[Shape, tvm.IRModule]:
    shape = SHAPES[request.param]
    return shape, lower(module_of(shape))


KINDS = ("cuda", "vulkan", "metal", "webgpu", "opencl")


@pytest.mark.parametrize("kind", sample(KINDS, "cuda"))
def test_all_functions_together_take_no_more_than_with_the_stock_plan(server, kind: str):
    shape, lowered = server
    ours, stock = GMEMAllocate(target=known_target(kind))(lowered), STOCK(lowered)
    text = "\n".join(func.script() for func in functions_of(ours).values())
    assert kind == "cuda" or "ensure_zero_offset" not in text
    machines = {"ours": IdleMachine(ours), "stock": IdleMachine(stock)}
    for length, batch in ((shape.chunk, shape.batch), (1, 1), (7, 3)):
        sizes = {"seq_len": length, "batch_size": batch, "draft_len": 2 * batch}
        taken = {name: one.apart(functions_of(ours), sizes) for name, one in machines.items()}
        assert taken["ours"] <= taken["stock"]


def test_kernels_are_captured_as_with_the_stock_plan(server):
    _, lowered = server
    stock = graphs(lowered, STOCK)
    captured, every, regions, kept, most = graphs(
        lowered, GMEMAllocate(target=known_target("cuda"))
    )
    assert captured >= stock[0] > 0
    assert every == stock[1]
    assert regions <= stock[2]
    assert kept <= stock[3]
    assert most <= stock[4]


@pytest.mark.parametrize("kind", ["cuda", "opencl"])
def test_tvm_estimates_what_is_counted_here(server, kind: str):
    _, lowered = server
    ours = GMEMAllocate(target=known_target(kind))(lowered)
    said = relax.analysis.estimate_memory_usage(ours)
    parts = re.findall(
        r"Function (\w+):(?:.|\n)*?With memory planning.*total size ([\d.e-]+) GB", said
    )
    assert {name for name, _ in parts} == set(functions_of(ours))
    # What has a size that only the running program knows is not in TVM's estimate.
    for name, size in parts:
        if name in ("prefill", "decode"):
            counted = nbytes(functions_of(ours)[name]) / 2**30
            assert float(size) == pytest.approx(counted, rel=1e-2)
