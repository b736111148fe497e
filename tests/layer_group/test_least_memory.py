# SPDX-License-Identifier: Apache-2.0
"""The least activation memory: against brute force, and beside what is published."""

from __future__ import annotations

import json
import os
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, random_networks
from test_slicing import elements, sliced_groups

from passes.layer_group.planning.fused_groups import ONE_MEMORY, measure
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.lanes import lane_bytes
from passes.layer_group.planning.least_memory import memory_frontier
from passes.layer_group.planning.slicing import Cut

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TVM_EXT_DATA", ROOT.parent / "shared" / "data")) / "layer_group"


def live_elements(slices, name):
    """Return the most elements of a tensor that wait to be read, counted slice by slice."""
    indices = slices.cut.indices()
    tensor = slices.tensors[name]
    made: dict[tuple[int, ...], list[int]] = {}
    for turn, index in enumerate(indices):
        for element in elements(tensor.made(index)):
            made.setdefault(element, []).append(turn)
    waiting = [set() for _ in indices]
    for turn, index in enumerate(indices):
        for element in elements(tensor.held(index)):
            since = max(t for t in made[element] if t <= turn)
            for between in range(since, turn + 1):
                waiting[between].add(element)
    return max(map(len, waiting))


@given(slices=st.one_of(sliced_groups("h"), sliced_groups("w")))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_windows_and_line_buffers_hold_all_that_waits(slices):
    check_buffers(slices)


@pytest.mark.slow
@given(slices=st.one_of(sliced_groups("h"), sliced_groups("w")))
@settings(max_examples=3000, deadline=None, print_blob=True)
def test_windows_and_line_buffers_of_many_groups(slices):
    check_buffers(slices)


def check_buffers(slices):
    for name, tensor in slices.tensors.items():
        letters = [axis.letter for axis in tensor.axes if axis is not None]
        if len(set(letters)) == len(letters):
            bits = tensor.tensor.bits
            claimed = lane_bytes(ONE_MEMORY, tensor, slices.cut) * 8 // bits
            assert live_elements(slices, name) <= claimed, name


@st.composite
def chains(draw, most=4):
    b = Builder("chain")
    last = b.tensor("x", 1, draw(st.integers(1, 4)), draw(st.integers(6, 12)), 8)
    for number in range(draw(st.integers(1, most))):
        kernel = draw(st.integers(1, 3))
        channels = draw(st.integers(1, 4))
        stride = draw(st.integers(1, 2)) if min(b.shape(last)[2:]) > 4 else 1
        if draw(st.booleans()):
            last = b.conv(last, f"t{number}", channels, kernel, stride, kernel // 2, bias=False)
        else:
            last = b.pool(last, f"t{number}", kernel, stride, kernel // 2)
    return b.network(last)


def check_plans(network, plans):
    index = NetworkIndex(network)
    for plan in plans:
        numbers = [n for g in plan.groups for n in range(g.first, g.last + 1)]
        assert numbers == list(range(len(network.layers)))
        assert plan.peak == max(g.peak for g in plan.groups)
        assert plan.multiply_adds == sum(g.multiply_adds for g in plan.groups)
        for g in plan.groups:
            group = index.group(tuple(range(g.first, g.last + 1)))
            if g.first < g.last:
                assert measure(group, g.cut, dict(g.keep)) == (g.held, g.multiply_adds)
    for low, high in pairwise(plans):
        assert low.peak < high.peak
        assert low.multiply_adds > high.multiply_adds


@given(network=chains())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_frontiers_of_chains_are_what_slices_say(network):
    check_plans(network, memory_frontier(network, most_factor=3.0))


@given(network=random_networks())
@settings(max_examples=25, deadline=None, print_blob=True)
def test_frontiers_of_graphs_are_what_slices_say(network):
    plans = memory_frontier(network, most_factor=1.5)
    check_plans(network, plans)
    assert plans


@given(network=chains(most=3), block=st.sampled_from(((1, 0), (2, 0), (1, 1), (2, 2))))
@settings(max_examples=25, deadline=None, print_blob=True)
def test_no_choice_of_what_is_kept_is_better(network, block):
    # All layers as one group, or each alone: every way to keep halos, by brute force.
    count = len(network.layers)
    index = NetworkIndex(network)
    plans = memory_frontier(network, most_factor=50.0, blocks=(block,))
    group = index.group(tuple(range(count)))
    height, width = group.tensor(network.outputs[0]).shape[2:]
    cut = Cut(h=-(-height // block[0]), w=-(-width // block[1]) if block[1] else 1, inner="w")
    inner = [name for name in group.made if name not in network.outputs]
    for letters in product(("", "h", "w", "hw"), repeat=len(inner)):
        held, work = measure(group, cut, dict(zip(inner, letters, strict=True)))
        assert any(plan.peak <= held and plan.multiply_adds <= work for plan in plans) or (
            work > 50 * sum(layer.multiply_adds for layer in network.layers)
        )


def published(name):
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there")
    description = json.loads((DATA / "chains.json").read_text())[name]
    height, width, channels = description["input"]
    b = Builder(name)
    last = b.tensor("x", 1, channels, height, width)
    for number, layer in enumerate(description["layers"]):
        kernel, stride, padding = (layer[f] for f in ("kernel", "stride", "padding"))
        last = b.conv(
            last,
            f"t{number}",
            layer["channels"],
            kernel,
            stride,
            padding,
            depthwise=layer["op"] == "depthwise",
            bias=False,
        )
    return b.network(last), description["published"]


CHAINS = (
    ("mbv2_w0.35_r144", 27180),
    ("mcunetv2_vww_5fps_r80", 16640),
    ("mcunet_320kb_r176", 90112),
)


@pytest.mark.parametrize(("name", "most"), CHAINS)
def test_published_chains_when_nothing_is_computed_twice(name, most):
    network, _ = published(name)
    (plan,) = memory_frontier(network, most_factor=1.0)
    assert plan.factor == 1.0
    assert plan.peak <= most


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), CHAINS)
def test_published_frontiers(name, most):
    network, points = published(name)
    factor = max(point["mac_factor"] for point in points)
    plans = memory_frontier(network, most_factor=factor)
    check_plans(network, plans)
    for point in points:
        best = min(p.peak for p in plans if p.factor <= point["mac_factor"] + 1e-9)
        assert best <= point["bytes"]
    assert plans[-1].peak <= most
