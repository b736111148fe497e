# SPDX-License-Identifier: Apache-2.0
"""Why a layer is left: one cause, the neighbour that it lies with, and figures that add up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from networks import Builder, random_networks
from test_local_memory import MACHINE, T8

from passes.layer_group.planning.dependencies import by_dependencies
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.planned_group import Chip, plan_group
from passes.layer_group.planning.search import KEEPS
from passes.layer_group.planning.slicing import Cut


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


def in_parts(network):
    return replace(
        network, layers=tuple(replace(layer, part_bits=((1, 0),)) for layer in network.layers)
    )


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
        (
            in_parts(chain(1, 1, columns=1, rows=160, channels=256)),
            12000,
            "conv:t0",
            r"a group with its neighbour 'conv:t1' fits, but would move \d+ bytes, and \d+ move",
        ),
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


@given(network=random_networks(max_layers=5))
@settings(max_examples=15, deadline=None, print_blob=True)
def test_groups_that_are_said_not_to_fit_do_not(network):
    chip = chip_of(900)
    found = plan_layer_groups(network, chip, halo="cheapest")
    index = NetworkIndex(by_dependencies(network))
    numbers = {layer.name: n for n, layer in enumerate(index.network.layers)}
    spans = {number: (number, number) for number in numbers.values()}
    spans |= {n: (g.numbers[0], g.numbers[-1]) for g in found.groups for n in g.numbers}
    for layer, reason in found.left.items():
        if not reason.startswith("no group with"):
            continue
        named = re.findall(r"'(.+?)'", reason)
        assert named
        for other in named:
            both = sorted((numbers[layer], numbers[other]))
            group = index.group(tuple(range(spans[both[0]][0], spans[both[1]][1] + 1)))
            height = max(tensor.shape[2] for tensor in network.tensors)
            for batch in {1, network.tensors[0].shape[0]}:
                for rows in range(1, height + 1):
                    for keep in KEEPS["cheapest"]:
                        assert plan_group(group, Cut(batch, rows), chip, keep) is None
