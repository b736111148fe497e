# SPDX-License-Identifier: Apache-2.0
"""Networks under the stock plan and under ours: the same numbers, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tvm
from network_inputs import entry_of, inputs_of
from relax_replay import Replay
from relax_runs import build_together, lower, planned, run
from tvm import relax
from written_layers import Model
from written_networks import WRITTEN

from passes.gmem.relax_functions import plan_gmem
from passes.gmem.transform import GMEMAllocate
from tvm_ext import workloads

STATIC = ("resnet18", "mobilenet_v2", "bert", "llama")
DYNAMIC = "llama_layer_dynamic"
MODELS = (*STATIC, DYNAMIC)
SAMPLE = ("resnet18", DYNAMIC)
STOCK = relax.transform.StaticPlanBlockMemory()
UPPER_BOUNDS = {"sequence": 64}
SMALL_DYNAMIC = replace(
    WRITTEN[DYNAMIC],
    arguments=(64, 4, 2, 96),
    shape=(1, "sequence", 64),
)
"""The layer of unknown length with narrower weights, which are most of what it takes to run."""


def allocate(planner: str, name: str) -> tvm.transform.Pass:
    return GMEMAllocate(planner, upper_bounds=UPPER_BOUNDS if name == DYNAMIC else None)


def module(name: str) -> tvm.IRModule:
    return workloads.model(name) if name in workloads.NETWORKS else WRITTEN[name].build()


def check_equal(mod: tvm.IRModule, plans: dict[str, tvm.transform.Pass | None]) -> None:
    """Run a model under several plans, twice in a row on different inputs."""
    vm = build_together(lower(mod), entry_of(mod), plans)
    for seed in (1, 2):
        arrays = inputs_of(mod, seed)
        results = [run(vm, label, arrays) for label in plans]
        for mine in results[1:]:
            for one, other in zip(results[0], mine, strict=True):
                np.testing.assert_array_equal(one, other)


@cache
def lowered_model(name: str, fuse: bool = True) -> tvm.IRModule:
    return lower(module(name), fuse=fuse)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in SAMPLE else pytest.mark.slow) for x in MODELS],
)
def test_one_storage_at_the_entry_and_weights_by_name(name: str):
    lowered = lowered_model(name)
    before = tvm.IRModule(dict(lowered.functions))
    ours = planned(lowered, allocate("rec_tbl", name))
    tvm.ir.assert_structural_equal(lowered, before)
    tvm.ir.assert_structural_equal(ours, planned(lowered, allocate("rec_tbl", name)))
    main = ours[entry_of(lowered)]
    bindings = [str(b.value) for block in main.body.blocks for b in block.bindings]
    storages = [at for at, text in enumerate(bindings) if "R.memory.alloc_storage" in text]
    assert len(storages) == 1
    assert storages[0] <= (name == DYNAMIC), "only checks of bounds come before"
    layout = main.attrs["tvm_ext.gmem"]
    weights = [weight["name"] for weight in layout["weights"]["tensors"]]
    params = [str(param.name) for param in main.params[1:]]
    assert weights[: len(params)] == params
    assert all(name.startswith("constant") for name in weights[len(params) :])
    if name != DYNAMIC:
        replay = Replay(ours, "main", lambda: True)()
        assert replay.touches > len(layout["activations"]["tensors"])


def test_a_dimension_above_its_bound_is_an_error_when_the_model_runs():
    vm = build_together(
        lower(SMALL_DYNAMIC.build()),
        "forward",
        {"ours": GMEMAllocate(upper_bounds={"sequence": 40})},
    )
    message = "function 'forward': sequence is above 40, for which memory was planned"
    with pytest.raises(RuntimeError, match=message):
        run(vm, "ours", inputs_of(SMALL_DYNAMIC.build(), 1))


def test_without_a_bound_sizes_are_multiples_of_what_is_not_known():
    (found,) = plan_gmem(lowered_model(DYNAMIC))
    main, *symbolic = found.memory.groups
    # Transposed weights are of a constant size.
    assert main.problem.buffers
    units = {str(group.unit) for group in symbolic}
    assert units == {"sequence", "sequence * sequence"}
    assert {left.reason for left in found.memory.left} == {"returned"}
    assert not found.memory.bounds


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SMALL_DYNAMIC, id="narrow"),
        pytest.param(WRITTEN[DYNAMIC], id="wide", marks=pytest.mark.slow),
    ],
)
def test_without_a_bound_a_model_computes_the_same(model: Model):
    check_equal(model.build(), {"stock": STOCK, "ours": GMEMAllocate()})
