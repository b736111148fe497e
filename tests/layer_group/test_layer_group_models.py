# SPDX-License-Identifier: Apache-2.0
"""Whole networks on the memories of four chips: built with groups, they give the same."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from network_inputs import entry_of, inputs_of
from operator_modules import call
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested
from tvm.target import Target
from written_layers import Model
from written_networks import WRITTEN, UNet

from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.transform import LayerGroupOptions, plan_groups
from passes.planning import check
from tvm_ext import workloads
from tvm_ext.layer_group_report import layer_groups, lowered
from tvm_ext.relax_passes import relax_pipeline

CHIPS = ("bm1684x", "bm1688", "cv184x", "cv181x")


class VGG11(nn.Module):
    """The convolutions of VGG-11 with their ReLUs and poolings."""

    def __init__(self):
        widths = (3, 64, 128, 256, 256, 512, 512, 512, 512)
        self.convs = nn.ModuleList([nn.Conv2D(a, b, 3, padding=1) for a, b in pairwise(widths)])

    def forward(self, image):
        x = image
        for at, conv in enumerate(self.convs):
            x = op.relu(conv(x))
            if at in (0, 1, 3, 5, 7):
                x = wrap_nested(relax.op.nn.max_pool2d(x._expr, (2, 2), (2, 2)), "pool")
        return x


_IMAGE = (1, 3, 224, 224)
_SMALL = (1, 3, 128, 128)
NETWORKS = {
    "resnet18": lambda: workloads.NETWORKS["resnet18"],
    "mobilenet_v2": lambda: workloads.NETWORKS["mobilenet_v2"],
    "bert_layer": lambda: WRITTEN["bert_layer"],
    "unet": lambda: Model("U-Net of 16 channels", UNet, (16, 4, 2), _SMALL),
    "vgg11": lambda: Model("VGG-11 without its classifier", VGG11, (), _IMAGE),
}


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        pytest.param(name, chip, marks=() if at == 0 else pytest.mark.slow)
        for at, (name, chip) in enumerate(product(["bert_layer", "resnet18"], CHIPS))
    ],
)
def test_plans_of_a_network_are_verified(name, chip):
    mod = lowered(NETWORKS[name]().build())
    for block in plan_groups(mod, LayerGroupOptions(Target(f"sophgo/{chip}"))):
        groups = block.groups
        for group in groups.groups:
            check(group.local.problem, group.plan)
        assert groups.moved_least <= groups.moved_after <= groups.moved_before
        names = [layer.name for group in groups.groups for layer in group.group.layers]
        grouped = {layer.name for group in groups.groups for layer in group.group.layers}
        folded = [x.name for x in groups.network.layers if x.lays_out and x.name not in groups.left]
        # What lays out a weight for a layer of a group is in none, and need not run.
        index = NetworkIndex(groups.network)
        for layer in groups.network.layers:
            if layer.lays_out:
                (reader,) = index.readers[layer.output]
                assert (layer.name in folded) == (groups.network.layers[reader].name in grouped)
        every = [*names, *groups.left, *folded]
        assert sorted(every) == sorted(x.name for x in groups.network.layers)


@pytest.mark.slow
def test_most_of_a_network_is_grouped_where_it_fits():
    report = layer_groups(NETWORKS["resnet18"]().build(), "sophgo/bm1684x")
    assert sum(len(group.layers) for group in report.groups) >= 20
    assert report.moved_after < 0.7 * report.moved_before


def built(mod, target, layer_group):
    pipeline = relax_pipeline(target, layer_group=layer_group)
    executable = tvm.compile(mod, target=at_level(target), relax_pipeline=pipeline)
    return relax.VirtualMachine(executable, tvm.cpu())


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_groups_gives_the_same_on_every_chip(name):
    model = NETWORKS[name]()
    mod = model.build()
    plain = built(mod, f"sophgo/{CHIPS[0]}-llvm", False)
    inputs = [inputs_of(mod, seed) for seed in (0, 1)]
    expected = [call(plain, arrays, entry_of(mod)) for arrays in inputs]
    for chip in CHIPS:
        grouped = built(mod, f"sophgo/{chip}-llvm", True)
        for arrays, results in zip(inputs, expected, strict=True):
            for ours, theirs in zip(call(grouped, arrays, entry_of(mod)), results, strict=True):
                np.testing.assert_array_equal(ours, theirs)
