# SPDX-License-Identifier: Apache-2.0
"""Networks that others wrote, exported from PyTorch: planned for chips, built, and run.

What is run begins with local memory full of NaN, and loads, stores and copies outside of a buffer
are caught: see `guarded_memory`.
"""

from __future__ import annotations

from functools import cache

import pytest
from network_inputs import inputs_of
from operator_modules import check_against_stock
from tvm.target import Target

from passes.layer_group.planning.layer_groups import SEARCHES
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.search import HALOS
from passes.layer_group.transform import LayerGroupOptions, plan_groups
from passes.planning import verify
from tvm_ext import workloads
from tvm_ext.relax_passes import relax_stages

CHIPS = ("bm1684x", "bm1688", "cv181x", "cv184x")
BUILT = ("shufflenet", "squeezenet", "bert", "gpt2", "llama", "t5", "whisper")
"""Networks that TVM compiles, and a CPU runs in seconds."""


@cache
def as_kernels(name):
    """Return a network behind fusion, where groups are made."""
    target = Target("llvm")
    mod = workloads.model(name)
    with target:
        for one in relax_stages(target).first:
            mod = one(mod)
    return mod


@pytest.mark.slow
@pytest.mark.parametrize("halo", HALOS)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", [n for n in workloads.NETWORKS if "dynamic" not in n])
def test_groups_of_a_network(name, chip, search, halo):
    """All groups are written, within capacity, and move less; each layer is in one, or left."""
    options = LayerGroupOptions(Target(f"sophgo/{chip}-llvm"), search, halo)
    for planned in plan_groups(as_kernels(name), options):
        groups = planned.groups
        assert not [reason for reason in groups.left.values() if "cannot be written" in reason]
        assert groups.moved_least <= groups.after.moved <= groups.before.moved
        for group in groups.groups:
            assert verify(group.local.problem, group.plan) == ()
        grouped = [layer.name for group in groups.groups for layer in group.group.layers]
        network = groups.network
        folded = [x.name for x in network.layouts if x.name not in groups.left]
        every = [*grouped, *groups.left, *folded]
        assert sorted(every) == sorted(x.name for x in (*network.layers, *network.layouts))
        # What lays out a weight for a layer of a group is in none, and need not run.
        index = NetworkIndex(groups.network)
        for layer in network.layouts:
            (reader,) = index.readers[layer.output]
            assert (layer.name in folded) == (network.layers[reader].name in grouped)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", BUILT)
def test_a_network_gives_the_same(name, chip):
    mod = workloads.model(name)
    args = inputs_of(mod, seed=0)
    target = Target({**Target(f"sophgo/{chip}-llvm").export(), "opt-level": 2})
    assert check_against_stock(mod, target, args) > 0
