# SPDX-License-Identifier: Apache-2.0
"""Why a layer is left: one cause, the neighbour that it lies with, and figures that add up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from networks import Builder
from test_local_memory import MACHINE, T8

from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.planned_group import Chip


def chip_of(capacity):
    return Chip(replace(T8, capacity=capacity, bank_count=1, bank_bytes=None), MACHINE)


def chain(*kernels, channels=64, rows=8, columns=8):
    b = Builder(bits=32)
    made = b.tensor("x", 1, channels, rows, columns)
    for number, kernel in enumerate(kernels):
        name = f"t{number}"
        if kernel:
            made = b.conv(made, name, channels, kernel, 1, kernel // 2, bias=False)
        else:
            made = b.same("relu", name, made)
    return b.network(made)


def refused(network, *names):
    layers = (replace(x, reason="no rule") if x.output in names else x for x in network.layers)
    return replace(network, layers=tuple(layers))


def test_what_a_layer_needs_is_taken_apart():
    capacity = 16384
    left = plan_layer_groups(chain(3, columns=20), chip_of(capacity)).left["conv:t0"]
    needed, weights, others, working, padding, available = map(
        int, re.findall(r"(?<![\w.])\d+", left)
    )
    # Eight lanes; one column of one row of the result needs 3 x 3 of the input, of 8 channels each.
    assert weights == 64 * 64 * 9 * 4 // 8
    assert others == (9 + 1) * 64 * 4 // 8
    assert working == 0
    # Each channel's 9 elements fill units of 4, its one element is padded to 4.
    assert padding == (12 - 9 + 4 - 1) * 64 * 4 // 8
    assert needed == weights + others + working + padding
    assert available == capacity


@pytest.mark.parametrize(
    ("network", "capacity", "layer", "said"),
    [
        (chain(0), 4096, "relu:t0", "no other layer"),
        (refused(chain(0, 0), "t1"), 4096, "relu:t0", "its neighbour 'relu:t1' cannot be grouped"),
        (chain(0, 3), 16384, "relu:t0", "no group with its neighbour 'conv:t1' fits"),
    ],
)
def test_each_cause_has_its_words(network, capacity, layer, said):
    found = plan_layer_groups(network, chip_of(capacity))
    assert re.match(said, found.left[layer]), found.left


def test_what_runs_between_neighbours_is_named():
    b = Builder(bits=32)
    b.tensor("x", 1, 8, 8, 8)
    b.same("relu", "a", "x")
    b.same("sort", "s", "a")
    b.same("add", "b", "a", "s")
    network = refused(b.network("b"), "s")
    found = plan_layer_groups(network, chip_of(4096))
    assert set(found.left) == {"relu:a", "sort:s", "add:b"}
    for layer, other in (("relu:a", "add:b"), ("add:b", "relu:a")):
        reason = found.left[layer]
        assert reason == (
            f"'sort:s', which cannot be grouped, runs between it and its neighbour {other!r}"
        )
