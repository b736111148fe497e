# SPDX-License-Identifier: Apache-2.0
"""Exports of torchvision and transformers: at most the stock plan, at the bound, the same numbers.

Each network is planned fused and not, for devices with offsets and with whole slots, in the written
order and in another one; those that run in seconds are built and run under both plans, and under
CUDA graphs, which are emulated.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from cuda_graph_runs import GraphMachine
from gpu_counts import captured, rewritten
from measured_memory import allocated_at
from network_inputs import entry_of, inputs_of
from relax_runs import STOCK, build, planned, run, under_each
from sweeps import sample

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.relax.bindings import signature_variables
from tvm_ext import lower_bound, solve, workloads
from tvm_ext.lowering import Reordered, capture_relax, known_target
from tvm_ext.transform import GMEMAllocate

PAGE = 4096

SMALL = ("bert", "llama", "t5", "whisper", "squeezenet")  # Built and run in seconds


@cache
def lowered(name: str, kind: str, fuse: bool) -> tvm.IRModule:
    return capture_relax(workloads.model(name), known_target(kind), fuse=fuse)


def nbytes(mod: tvm.IRModule, page: int = 1) -> int:
    """Return the bytes that a call allocates in pages, at 2 of a dimension without a bound."""
    function = mod[entry_of(mod)]
    symbols = signature_variables(function)
    return allocated_at(function, {str(variable.name): 2 for variable in symbols}, page)


@pytest.mark.parametrize("fuse", sample((True, False), True))
@pytest.mark.parametrize("name", sample(workloads.NETWORKS, "bert"))
def test_plans_are_at_most_stocks_and_at_the_bound(name: str, fuse: bool):
    mod = lowered(name, "llvm", fuse)
    (found,) = plan_gmem(mod)
    assert solve(found.problem).peak == lower_bound(found.problem)
    assert nbytes(GMEMAllocate()(mod)) <= nbytes(STOCK(mod))


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.NETWORKS)
def test_whole_slots_are_at_most_stocks(name: str):
    mod = lowered(name, "llvm", True)  # TVM's schedules for GPUs do not take every network.
    ours = GMEMAllocate(target=known_target("opencl"))(mod)
    assert "ensure_zero_offset" not in ours[entry_of(ours)].script()
    # Slots are chosen for TVM's pool, which takes whole pages.
    assert nbytes(ours, PAGE) <= nbytes(STOCK(mod), PAGE)


@pytest.mark.slow
@pytest.mark.parametrize("name", tuple(workloads.NETWORKS))
def test_another_order_takes_no_more(name: str):
    target = known_target("llvm")
    ordered = capture_relax(
        workloads.model(name), target, between=Reordered(GMEMOptions(target=target))
    )
    peaks = [
        solve(plan_gmem(mod)[0].problem).peak for mod in (ordered, lowered(name, "llvm", True))
    ]
    assert peaks[0] <= peaks[1]


@pytest.mark.parametrize("name", sample(SMALL, "bert"))
def test_results_are_those_under_the_stock_plan(name: str):
    mod = lowered(name, "llvm", True)
    entry, arrays = entry_of(mod), inputs_of(mod, 0)
    call = lambda machine: run(machine, entry, arrays)  # noqa: E731
    (stock, ours), results = under_each(mod, call, STOCK, GMEMAllocate(), heaps=False)
    assert ours <= stock
    np.testing.assert_equal(*results)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_cuda_graphs_capture_as_much_and_compute_the_same(name: str):
    mod = lowered(name, "llvm", True)
    ours = GMEMAllocate(target={"kind": "cuda", "arch": "sm_61"})
    both = [captured(rewritten(mod, plan)) for plan in (STOCK, ours)]
    assert both[0].kernels == both[1].kernels
    assert both[1].kept <= both[0].kept
    entry, graphs, plain = entry_of(mod), GraphMachine(mod, ours), build(planned(mod, None), None)
    inputs = int(mod[entry].attrs["num_input"])
    weights = inputs_of(mod, 0)[inputs:]
    kept = [tvm.runtime.tensor(weight) for weight in weights]  # Graphs read them where they are.
    for seed in (0, 1):
        given = inputs_of(mod, seed)[:inputs]
        mine = graphs.run(entry, [*given, *kept])
        theirs = run(plain, entry, [*given, *weights])
        np.testing.assert_equal(mine, theirs)
