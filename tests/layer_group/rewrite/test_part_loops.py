# SPDX-License-Identifier: Apache-2.0
"""Layers in one loop over parts of channels, with one that sums over them or without."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fixed_groups import LANES, allocations, block_of, chip, everything, grouped
from operator_modules import arrays, check_same, lowered, module, run
from replay import Replay, check_replay
from sweeps import sample
from tvm import relax

from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import plan_group

OP = relax.op


NETWORKS = {}
SUMS = []  # Each fused is a run of all its layers, of which the last one sums.


def network_of(*shapes, dtype="float32", sums=True):
    """Enter a network, by what it does with tensors of some shapes."""

    def enter(body):
        NETWORKS[body.__name__] = body, shapes, dtype
        SUMS.extend([body.__name__] * sums)
        return body

    return enter


@network_of((1, 6, 8), (8, 36), (8, 36), (36, 17))
def feed_forward(emit, x, w, gate, v):
    y = emit(OP.multiply(emit(OP.nn.silu(emit(OP.matmul(x, gate)))), emit(OP.matmul(x, w))))
    return emit(OP.matmul(y, v))


@network_of((1, 12, 9, 5), (36, 12, 1, 1), (36, 1, 3, 3), (12, 36, 1, 1))
def bottleneck(emit, x, w, depthwise, v):
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w))))
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(y, depthwise, padding=(1, 1), groups=36))))
    return emit(OP.add(emit(OP.nn.conv2d(y, v)), x))


@network_of((1, 9, 5, 12), (1, 1, 12, 36), (1, 1, 36, 12))
def channels_last(emit, x, w, v):
    # Two sums of one summand stand before the one that is cut.
    last = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return emit(OP.nn.conv2d(emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, **last)))), v, **last))


@network_of((1, 28, 9, 5), (4, 28, 1, 1), (80, 4, 1, 1), (28, 80, 3, 3), (28, 1, 1))
def projection(emit, x, u, w, v, bias):
    # The first layer is not in the group. What is added to the sums is loaded in parts of the
    # result, behind all parts of the sums.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(emit(OP.nn.relu(emit(OP.nn.conv2d(x, u)))), w))))
    y = emit(OP.add(emit(OP.nn.conv2d(y, v, padding=(1, 1))), bias))
    return emit(OP.nn.relu(emit(OP.add(y, x))))


@network_of((1, 6, 24), *[(24, 140)] * 3, (140, 24))
def heads(emit, x, wq, wk, wv, wo):
    def split(w, order):
        y = emit(OP.reshape(emit(OP.matmul(x, w)), (1, 6, 70, 2)))
        return emit(OP.permute_dims(y, order))

    q, k, v = (split(w, [0, 2, 3, 1] if w is wk else [0, 2, 1, 3]) for w in (wq, wk, wv))
    scores = emit(OP.nn.softmax(emit(OP.matmul(q, k))))
    y = emit(OP.permute_dims(emit(OP.matmul(scores, v)), [0, 2, 1, 3]))
    return emit(OP.add(emit(OP.matmul(emit(OP.reshape(y, (1, 6, 140))), wo)), x))


@network_of((1, 5, 8, 6), (60, 5, 3, 3), (9, 60, 1, 1))
def leaving(emit, x, w, v):
    # What the first makes in parts leaves the group, too, so that its parts are stored.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1)))))
    return [y, emit(OP.nn.conv2d(y, v))]


@network_of((1, 4, 6, 5), (60, 4, 3, 3), (7, 60, 3, 3), dtype="int8")
def whole_numbers(emit, x, w, v):
    # The first layer's sums lie in working memory: those of a part, and not of all channels. The
    # second one's are finished with the last part.
    for weight, bits in ((w, 7), (v, 5)):
        x = emit(OP.nn.conv2d(x, weight, padding=(1, 1), out_dtype="int32"))
        x = emit(OP.astype(emit(OP.right_shift(x, relax.const(bits, "int32"))), "int8"))
    return x


@network_of((1, 4, 12, 6), (20, 4, 3, 3), (20, 1, 1), (20, 1, 3, 3), (33, 20, 1, 1), sums=False)
def convolutions(emit, x, w, scale, depthwise, v):
    y = emit(OP.nn.relu(emit(OP.multiply(emit(OP.nn.conv2d(x, w, padding=(1, 1))), scale))))
    y = emit(OP.nn.conv2d(y, depthwise, padding=(1, 1), groups=20))
    return emit(OP.nn.conv2d(y, v))


@network_of((1, 28, 9, 6), (20, 28, 3, 3), (20, 20, 3, 3), (28, 20, 3, 3), sums=False)
def residual(emit, x, w, v, u):
    # The other operand is loaded in parts.
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1)))))
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(y, v, padding=(1, 1)))))
    return emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(y, u, padding=(1, 1))), x))))


@network_of((1, 6, 8), (8, 40), (40,), (40, 17), sums=False)
def products(emit, x, w, bias, v):
    y = emit(OP.nn.gelu(emit(OP.add(emit(OP.matmul(x, w)), bias))))
    return emit(OP.nn.softmax(emit(OP.matmul(y, v))))


IN_PARTS = Cut(part_bytes=1)


@cache
def network(name):
    body, shapes, dtype = NETWORKS[name]
    return lowered(module(shapes, body, dtype=dtype), fuse=True)


def layers(name, mod):
    """Return the numbers of the layers that are grouped."""
    return everything(mod)[1 if name in ("projection", "residual") else 0 :]


@cache
def planned(name, cut=IN_PARTS):
    mod = network(name)
    numbers = layers(name, mod)
    group = NetworkIndex(block_of(mod).network).group(numbers[0], numbers[-1])
    found = plan_group(group, cut, chip())
    assert found is not None
    return found


def sums_of(group):
    return [name for name, run in group.slices.loops.items() if run.sums(name)]


def slow_but(*names):
    return sample(NETWORKS, *SUMS, *names)


@pytest.mark.parametrize("h", sample((1, 2), 2))
@pytest.mark.parametrize("name", slow_but("residual", "products", "channels_last"))
def test_parts_compute_the_same(name, h):
    mod = network(name)
    args = arrays(mod)
    cut = replace(IN_PARTS, keep_rows=True)
    cut = replace(cut, h=h, w=3 if name == "convolutions" else 1)
    found = grouped(mod, {layers(name, mod): cut})
    assert found is not None
    new, (group,) = found
    assert sums_of(group) or name not in SUMS
    assert len(group.slices.loops) >= 2
    check_same(run(new, args), run(mod, args))


@pytest.mark.parametrize("name", ["projection", "whole_numbers"])
def test_each_item_is_one_allocation_with_an_address(name):
    mod = network(name)
    found = grouped(mod, {layers(name, mod): IN_PARTS}, form="address")
    assert found is not None
    new, (group,) = found
    kernel = next(f for v, f in new.functions.items() if "group_0" in str(v.name_hint))
    at = sorted(int(buffer.ty.allocated_addr[0]) for buffer in allocations(kernel))
    assert at == sorted(starts[0] for starts in group.plan.offsets.values())


@pytest.mark.parametrize("slices", sample([(1, 1), (2, 1), (3, 1), (3, 2)], (3, 1), (3, 2)))
@pytest.mark.parametrize("name", slow_but("residual", "products"))
def test_replay_finds_every_part(name, slices):
    h, w = slices
    w = w if name in ("residual", "convolutions") else 1
    check_replay(planned(name, replace(IN_PARTS, keep_rows=True, h=h, w=w)), LANES)


def test_parts_take_less_memory_and_move_weights_once_a_slice():
    for name in ("feed_forward", "bottleneck", "heads", "residual", "products"):
        whole, parts = planned(name, Cut()), planned(name)
        assert parts.local.most_live < whole.local.most_live
        assert parts.cost.moved == whole.cost.moved
    sliced = planned("residual", replace(IN_PARTS, h=2))
    assert sliced.cost.moved > planned("residual").cost.moved
    in_parts = {name for name, one in sliced.slices.tensors.items() if one.is_in_parts}
    assert in_parts
    assert not {*sliced.slices.resident, *sliced.slices.kept} & in_parts
    group = planned("heads")
    (loop,) = {id(run): run for run in group.slices.loops.values()}.values()
    assert loop.layers == tuple(layer.name for layer in group.group.layers)
    assert loop.parts.count == 9  # Of 8 heads and, the last one, 6: there are as many lanes.
    assert {group.group.tensor(n).axes[p.axis] for n, p in loop.between.items()} == {"c"}


def test_a_part_that_leaves_the_group_is_stored():
    group = planned("leaving")
    (loop,) = {id(run): run for run in group.slices.loops.values()}.values()
    assert loop.summed is not None
    (stored,) = loop.stores
    assert stored in group.group.outputs
    assert [t.loop for row in group.steps.rows for t in row.transfers if t.tensor == stored] == [
        loop
    ]


def test_what_is_added_behind_the_sums_comes_in_parts():
    group = planned("projection")
    loop = group.slices.loops[group.group.layers[-1].name]
    ((late, parts),) = loop.then.loads.items()
    assert parts.count > 2
    assert loop.then.parts == parts
    plan, whole = group.plan, planned("projection", Cut())
    assert group.local.sizes[late] < whole.local.sizes[late]
    # Both parts of it in the place of sums that are not finished are seen.
    moved = replace(plan, offsets={**plan.offsets, late: plan.offsets[group.group.made[-1]]})
    with pytest.raises(AssertionError):
        Replay(replace(group, plan=moved), LANES, 16).run()


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_do_not_stay_are_seen(name):
    group = planned(name)
    last = [layer for layer in group.group.layers if layer.name in sums_of(group)][-1]
    offsets = group.plan.offsets
    loop = group.slices.loops[last.name]
    taken = next(
        n for n in (*loop.between, *loop.loads) if offsets[n][0] != offsets[last.output][0]
    )
    moved = replace(group.plan, offsets={**offsets, taken: offsets[last.output]})
    with pytest.raises(AssertionError):
        Replay(replace(group, plan=moved), LANES, 16).run()


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", ["products", "residual"])
def test_a_part_in_the_place_of_the_one_that_computes_is_seen(name, at):
    group = planned(name, IN_PARTS)
    layer = group.group.layers[-1] if name == "residual" else group.group.layers[0]
    run = group.slices.loops[layer.name]
    assert run.parts.count > 2
    replay = Replay(group, LANES, 16)
    tensor, parts = [*run.loads.items(), *run.stores.items()][at]
    replay.layouts[tensor].window[parts.axis] = parts.chunk  # As if there was one buffer.
    with pytest.raises(AssertionError, match=f"reads {tensor}"):
        replay.run()


def transposed():
    """Return a network whose weights are transposed, as kernels, and as it is read."""

    def body(emit, x, w, v):
        y = emit(OP.nn.relu(emit(OP.matmul(x, emit(OP.permute_dims(w))))))
        twice = emit(OP.permute_dims(v))
        return emit(OP.matmul(emit(OP.matmul(y, twice)), twice))

    mod = lowered(module([(1, 6, 8), (40, 8), (40, 40)], body), fuse=True)
    return mod, block_of(mod).network


def test_a_weight_is_loaded_in_the_order_that_its_only_reader_needs():
    mod, network = transposed()
    (first,) = network.layouts
    assert "transpose" in first.operator
    # Two layers read the second.
    assert sum("transpose" in layer.operator for layer in network.layers) == 1
    args = arrays(mod)
    (expected,) = run(mod, args)
    found = grouped(mod, {everything(mod): Cut(part_bytes=1)})
    assert found is not None
    new, (group,) = found
    assert {first.output, *first.inputs} & set(group.group.loaded) == {first.output}
    assert group.slices.tensors[first.output].is_in_parts
    np.testing.assert_array_equal(run(new, args)[0], expected)


def test_what_lays_out_a_weight_runs_where_its_reader_is_left():
    _, network = transposed()
    layers = tuple(replace(x, reason="no") for x in network.layers)
    found = plan_layer_groups(replace(network, layers=layers), chip())
    assert sorted(found.left) == sorted(x.name for x in (*network.layouts, *layers))
    assert found.after.moved == found.before.moved
    assert found.folded_after == found.folded_before == 2 * 40 * 8 * 4


def test_a_loop_holds_as_a_whole_what_other_layers_make():
    """Queries and keys are made by loops of their own, and the scores read them head by head."""
    index = NetworkIndex(block_of(network("heads")).network)
    scores = next(n for n, x in enumerate(index.network.layers) if "softmax" in x.operator)
    found = plan_group(index.group(0, scores), IN_PARTS, chip())
    assert found is not None
    loops = {loop.layers: loop for loop in found.slices.loops.values()}
    made = {layer.name: layer.output for layer in found.group.layers}
    product = next(x for x in found.group.layers if x.name == next(iter(loops))[0])
    assert {*product.inputs} <= {made[names[-1]] for names in loops}, "other loops make them"
    for names, loop in loops.items():
        assert {*loop.between, *loop.stores} <= {made[name] for name in names}
