# SPDX-License-Identifier: Apache-2.0
"""Whole networks, made small: the same numbers under the stock plan and under ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from network_inputs import inputs_of
from relax_runs import build_together, run
from written_layers import Model
from written_networks import WRITTEN

from passes.planning import planner_names
from tvm_ext import activation_memory, lowering
from tvm_ext.transform import GMEMAllocate

SMALL = {
    "bert_base": replace(
        WRITTEN["bert_base"],
        arguments=(3, 64, 4, 128, 100),
        shape=(1, 16),
    ),
    "llama_8_layers": replace(
        WRITTEN["llama_8_layers"],
        arguments=(3, 64, 4, 2, 96, 100),
        shape=(1, 16),
    ),
    "unet": replace(WRITTEN["unet"], arguments=(8, 3, 2), shape=(1, 3, 32, 32)),
}
"""Fewer and narrower layers, with all that makes the graph: skips, heads, embeddings."""


def plans(names: list[str]) -> dict[str, tvm.transform.Pass]:
    stock = {"stock": tvm.relax.transform.StaticPlanBlockMemory()}
    return stock | {name: GMEMAllocate(name, target="llvm") for name in names}


def check_equal(model: Model, fuse: bool, names: list[str]) -> None:
    """Run a model under several plans, twice in a row on different inputs."""
    lowered = lowering.capture_relax(model.build(), "llvm", fuse=fuse)
    machine = build_together(lowered, "forward", plans(names))
    seen = []
    for seed in (1, 2):
        arrays = inputs_of(model.build(), seed)
        (stock,) = run(machine, "stock", arrays)
        assert np.isfinite(stock).all()
        assert 1e-3 < stock.std() < 100
        for name in names:
            (ours,) = run(machine, name, arrays)
            np.testing.assert_array_equal(ours, stock, err_msg=name)
        seen.append(stock)
    assert not np.array_equal(*seen)


@pytest.mark.parametrize(
    ("name", "fuse"), [("bert_base", True), ("llama_8_layers", False), ("unet", True)]
)
def test_networks_compute_the_same_as_under_the_stock_plan(name: str, fuse: bool):
    check_equal(SMALL[name], fuse, ["rec_tbl", "best"])


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_networks_compute_the_same_with_every_planner(name: str, fuse: bool):
    check_equal(SMALL[name], fuse, list(planner_names()))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_small_networks_are_at_the_bound(name: str, fuse: bool):
    (memory,) = activation_memory(SMALL[name].build(), fuse=fuse, names=["rec_tbl", "best"])
    assert memory.bytes_of("rec_tbl") <= memory.no_reuse
    assert memory.bytes_of("best") == memory.lower_bound <= memory.stock.nbytes
