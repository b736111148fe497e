# SPDX-License-Identifier: Apache-2.0
"""Layers that make their channels in parts, while their weights are loaded part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixed_groups import LANES, chip, everything, grouped, sample
from operator_modules import arrays, lowered, module, run
from replay import Replay, check_replay
from tvm import relax

from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_groups import by_dependencies, plan_layer_groups
from passes.layer_group.planning.planned_group import plan_group

OP = relax.op


def convolutions(emit, x, w, scale, depthwise, v):
    y = emit(OP.nn.relu(emit(OP.multiply(emit(OP.nn.conv2d(x, w, padding=(1, 1))), scale))))
    y = emit(OP.nn.conv2d(y, depthwise, padding=(1, 1), groups=20))
    return emit(OP.nn.conv2d(y, v))


def residual(emit, x, w, v, u):
    # The other operand is loaded in parts.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1)))))
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(y, v, padding=(1, 1)))))
    return emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(y, u, padding=(1, 1))), x))))


def products(emit, x, w, bias, v):
    y = emit(OP.nn.gelu(emit(OP.add(emit(OP.matmul(x, w)), bias))))
    return emit(OP.nn.softmax(emit(OP.matmul(y, v))))


def sums(emit, x, w, v):
    # The sums lie in working memory: those of a part, and not of all channels.
    y = emit(OP.nn.conv2d(x, w, padding=(1, 1), out_dtype="int32"))
    y = emit(OP.astype(emit(OP.right_shift(y, relax.const(7, "int32"))), "int8"))
    y = emit(OP.nn.conv2d(y, v, out_dtype="int32"))
    return emit(OP.astype(emit(OP.right_shift(y, relax.const(5, "int32"))), "int8"))


NETWORKS = {
    "convolutions": (
        convolutions,
        [(1, 4, 12, 6), (20, 4, 3, 3), (20, 1, 1), (20, 1, 3, 3), (33, 20, 1, 1)],
        "float32",
    ),
    "residual": (
        residual,
        [(1, 28, 9, 6), (20, 28, 3, 3), (20, 20, 3, 3), (28, 20, 3, 3)],
        "float32",
    ),
    "products": (products, [(1, 6, 8), (8, 40), (40,), (40, 17)], "float32"),
    "sums": (sums, [(1, 4, 6, 5), (28, 4, 3, 3), (24, 28, 1, 1)], "int8"),
}


PARTS = Cut(part_bytes=1)

CUTS = {
    "convolutions": (PARTS, Cut(h=2, w=3, keep_rows=True, part_bytes=1)),
    "residual": (PARTS, Cut(h=3, keep_rows=True, part_bytes=1)),
    "products": (Cut(h=3, keep_rows=True, part_bytes=1),),
    "sums": (PARTS, Cut(h=2, w=2, part_bytes=1)),
}


def network(name):
    body, shapes, dtype = NETWORKS[name]
    return lowered(module(shapes, body, dtype=dtype), fuse=True)


def layers(name, mod):
    """Return the numbers of the layers that are grouped."""
    return everything(mod)[1 if name == "residual" else 0 :]


def planned(name, cut):
    mod = network(name)
    (block,) = read_networks(mod)
    numbers = layers(name, mod)
    group = NetworkIndex(block.network).group(numbers[0], numbers[-1])
    found = plan_group(group, cut, chip())
    assert found is not None
    return found


@pytest.mark.parametrize("name", sample(NETWORKS, "residual", "products"))
def test_parts_compute_the_same(name):
    mod = network(name)
    args = arrays(mod)
    expected = run(mod, args)
    for cut in CUTS[name]:
        found = grouped(mod, {layers(name, mod): cut})
        assert found is not None
        new, (group,) = found
        assert len(group.slices.streams) >= 2
        for ours, theirs in zip(run(new, args), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", sample(NETWORKS, "residual", "products"))
@pytest.mark.parametrize("keep", sample((True, False), True))
def test_replay_finds_every_part(name, keep):
    for h, w in ((1, 1), (2, 1), (3, 2)):
        if w == 1 or name != "products":
            cut = Cut(h=h, w=w, keep_rows=keep, part_bytes=1)
            check_replay(planned(name, cut), LANES)


def test_parts_take_less_memory_and_move_weights_once_a_slice():
    for name in ("residual", "products"):
        whole, parts, sliced = (
            planned(name, cut) for cut in (Cut(), PARTS, Cut(h=2, part_bytes=1))
        )
        assert parts.local.most_live < whole.local.most_live
        assert parts.cost.moved == whole.cost.moved
        assert sliced.cost.moved > parts.cost.moved
        assert not set(sliced.slices.resident) & set(sliced.slices.streamed)


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", ["products", "residual"])
def test_a_part_in_the_place_of_the_one_that_computes_is_seen(name, at):
    group = planned(name, PARTS)
    layer = group.group.layers[-1] if name == "residual" else group.group.layers[0]
    run = group.slices.streams[layer.name]
    assert run.parts.count > 2
    replay = Replay(group, LANES, 16)
    tensor, parts = [*run.loads.items(), *run.stores.items()][at]
    replay.layouts[tensor].window[parts.axis] = parts.chunk  # As if there was one buffer.
    with pytest.raises(AssertionError, match=f"reads {tensor}"):
        replay.run()


def transposed(emit, x, w, v):
    y = emit(OP.nn.relu(emit(OP.matmul(x, emit(OP.permute_dims(w))))))
    twice = emit(OP.permute_dims(v))
    return emit(OP.matmul(emit(OP.matmul(y, twice)), twice))


def test_a_weight_is_loaded_in_the_order_that_its_only_reader_needs():
    mod = lowered(module([(1, 6, 8), (40, 8), (40, 40)], transposed), fuse=True)
    (block,) = read_networks(mod)
    layers = block.network.layers
    first, second = (layer for layer in layers if "transpose" in layer.operator)
    assert (first.lays_out, second.lays_out) == (True, False)  # Two layers read the second.
    args = arrays(mod)
    (expected,) = run(mod, args)
    groups = {tuple(n for n, layer in enumerate(layers) if not layer.lays_out): Cut(part_bytes=1)}
    found = grouped(mod, groups)
    assert found is not None
    new, (group,) = found
    assert {first.output, *first.inputs} & set(group.group.loaded) == {first.output}
    assert first.output in group.slices.streamed
    np.testing.assert_array_equal(run(new, args)[0], expected)


def test_what_lays_out_a_weight_runs_where_its_reader_is_left():
    mod = lowered(module([(1, 6, 8), (40, 8), (40, 40)], transposed), fuse=True)
    (block,) = read_networks(mod)
    layers = tuple(
        layer if layer.lays_out else replace(layer, reason="no") for layer in block.network.layers
    )
    network = replace(block.network, layers=layers)
    found = plan_layer_groups(network, chip())
    assert list(found.left) == [layer.name for layer in by_dependencies(network).layers]
    assert found.moved_after == found.moved_before
    assert found.folded_after == found.folded_before == 2 * 40 * 8 * 4
