# SPDX-License-Identifier: Apache-2.0
"""Layers in one loop over parts of channels, with one that sums over them or without."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
import pytest
from fixed_groups import LANES, allocations, chip, everything, grouped, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Window, maps_of
from operator_modules import arrays, lowered, module, run
from replay import Replay, check_replay
from tvm import relax, te, tirx

from passes.layer_group.analysis.kernel_calls import read_results
from passes.layer_group.analysis.kernels import read_kernel
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.cuts import Cut
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.layer_groups import by_dependencies, plan_layer_groups
from passes.layer_group.planning.network import Layer, Network, Tensor
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.planning.runs import parts_follow, streams_of

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


def network(name):
    body, shapes, dtype = NETWORKS[name]
    return lowered(module(shapes, body, dtype=dtype), fuse=True)


def layers(name, mod):
    """Return the numbers of the layers that are grouped."""
    return everything(mod)[1 if name in ("projection", "residual") else 0 :]


def planned(name, cut=IN_PARTS):
    mod = network(name)
    (block,) = read_networks(mod)
    numbers = layers(name, mod)
    group = NetworkIndex(block.network).group(numbers[0], numbers[-1])
    found = plan_group(group, cut, chip())
    assert found is not None
    return found


def sums_of(group):
    return [name for name, run in group.slices.streams.items() if run.sums(name)]


def slow_but(*names):
    return sample(NETWORKS, *SUMS, *names)


@pytest.mark.parametrize("h", sample((1, 2), 2))
@pytest.mark.parametrize("name", slow_but("residual", "products"))
def test_parts_compute_the_same(name, h):
    mod = network(name)
    args = arrays(mod)
    cut = replace(IN_PARTS, h=h, w=3 if name == "convolutions" else 1, keep_rows=True)
    found = grouped(mod, {layers(name, mod): cut})
    assert found is not None
    new, (group,) = found
    assert sums_of(group) or name not in SUMS
    assert len(group.slices.streams) >= 2
    for ours, theirs in zip(run(new, args), run(mod, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)


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
    check_replay(planned(name, replace(IN_PARTS, h=h, w=w, keep_rows=True)), LANES)


def test_parts_take_less_memory_and_move_weights_once_a_slice():
    for name in ("feed_forward", "bottleneck", "heads", "residual", "products"):
        whole, parts = planned(name, Cut()), planned(name)
        assert parts.local.most_live < whole.local.most_live
        assert parts.cost.moved == whole.cost.moved
    sliced = planned("residual", replace(IN_PARTS, h=2))
    assert sliced.cost.moved > planned("residual").cost.moved
    assert not set(sliced.slices.resident) & set(sliced.slices.streamed)
    group = planned("heads")
    (loop,) = {id(run): run for run in group.slices.streams.values()}.values()
    assert loop.layers == tuple(layer.name for layer in group.group.layers)
    assert loop.parts.count == 9  # Of 8 heads and, the last one, 6: there are as many lanes.
    assert {group.group.tensor(n).axes[p.axis] for n, p in loop.between.items()} == {"c"}


def test_a_part_that_leaves_the_group_is_stored():
    group = planned("leaving")
    (loop,) = {id(run): run for run in group.slices.streams.values()}.values()
    assert loop.summed is not None
    (stored,) = loop.stores
    assert stored in group.group.outputs
    assert stored not in {t.tensor for row in group.steps.rows for t in row.transfers}


def test_what_is_added_behind_the_sums_comes_in_parts():
    group = planned("projection")
    loop = group.slices.streams[group.group.layers[-1].name]
    ((late, parts),) = loop.late.items()
    assert parts.count > 2
    assert loop.finish == parts
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
    loop = group.slices.streams[last.name]
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
    run = group.slices.streams[layer.name]
    assert run.parts.count > 2
    replay = Replay(group, LANES, 16)
    tensor, parts = [*run.loads.items(), *run.stores.items()][at]
    replay.layouts[tensor].window[parts.axis] = parts.chunk  # As if there was one buffer.
    with pytest.raises(AssertionError, match=f"reads {tensor}"):
        replay.run()


@given(
    window=st.builds(Window, st.just(1), *map(st.integers, (1, 1, -1, 0), (4, 4, 2, 4))),
    parts=st.integers(1, 6),
)
@settings(max_examples=200, deadline=None)
def test_parts_follow_parts_where_each_needs_its_own_and_no_more(window, parts):
    made, extent = window.divide * parts, window.stride * parts
    count = gcd(made, extent)
    index = NetworkIndex(Network((), (), ()))
    found = parts_follow(index, window.along(made, extent).spans, made, extent)
    size, each = made // count, extent // count
    reads = [window.read(at, extent) for at in range(made)]
    needs = (
        {e for a, b in reads[part * size : (part + 1) * size] for e in range(a, b)}
        for part in range(count)
    )
    own = [(part * each, (part + 1) * each - 1) for part in range(count)]
    assert found == (own == [(min(need), max(need)) if need else None for need in needs])


def sums_of_layers(tensors, *layers, lanes=4, most=1, outputs=()):
    """Return the run of the last of some layers, of tensors by their shapes and letters."""
    every = tuple(Tensor(name, shape, 8, axes) for name, (shape, axes) in tensors.items())
    made = []
    for output, reads, options in layers:
        names = tuple(name for name, _ in reads)
        maps = tuple(maps_of(x, tensors[output][0], tensors[name][0]) for name, x in reads)
        made.append(Layer(f"to {output}", "some", names, output, maps, **options))
    group = NetworkIndex(Network(every, tuple(made), outputs)).group(0, len(made) - 1)
    return streams_of(group, Lanes(lanes, 1), most).get(made[-1].name)


ALONG = (Window(0), Window(1))
MATRIX, LINE = ((4, 36), "wc"), ((4,), "w")
PARTS = {"part_bits": ((1, 0),)}


def summed(name, output="z", more=()):
    return output, [(name, (Window(0), None)), *more], {"sums": ((name, 1),)}


def test_parts_have_whole_elements_of_all_that_they_need():
    """Every third element of the sum is one of what is loaded; the lanes are no power of two."""
    tensors = {"x": ((4, 12), "cw"), "y": ((4, 36), "cw"), "z": ((4,), "c")}
    wide = ("y", [("x", (Window(0), Window(1, divide=3)))], PARTS)
    for most in range(1, 12):
        run = sums_of_layers(tensors, wide, summed("y"), lanes=6, most=most)
        sums = run.summed
        assert sums.chunk == 3 * run.loads["x"].chunk
        assert run.loads["x"].count == run.parts.count
        assert most > 1 or sums.chunk == 3


def test_what_a_layer_needs_as_a_whole_is_there_as_a_whole():
    tensors = {"x": MATRIX, "y": MATRIX, "v": MATRIX, "z": LINE}
    same = ("y", [("x", ALONG)], PARTS)
    assert {*sums_of_layers(tensors, same, summed("y")).loads} == {"x"}
    # The sum reads all of it for each part; or in parts of another axis.
    for maps in ((None, None), (Window(0), None)):
        run = sums_of_layers(tensors, same, summed("y", more=[("x", maps)]))
        assert {*run.between} == {"y"}
        assert not run.loads
    square = dict.fromkeys("xyv", ((36, 36), "wc")) | {"z": ((36,), "w")}
    turned = ("v", [("y", ALONG), ("x", (Window(1), Window(0)))], PARTS)
    run = sums_of_layers(square, same, turned, summed("v"))
    assert {*run.between} == {"y", "v"}
    assert not run.loads
    # It is given twice, for another axis of the sum each time.
    products = [("x", (Window(0), None)), ("x", (None, Window(1)))]
    made = ("z", products, {"sums": (("x", 1), ("x", 0))})
    square["z"] = ((36, 36), "ww")
    assert sums_of_layers(square, made) is None
    sums = (("v", 1), *made[2]["sums"])
    more = ("z", [("v", (Window(0), None)), *products], {"sums": sums})
    assert {*sums_of_layers(square, more).loads} == {"v"}


def test_what_is_left_behind_a_sum_is_loaded_in_parts_of_channels_by_it_alone():
    square = {"x": ((36, 36), "wc"), "y": ((36, 36), "wc"), "r": ((36, 36), "wc")}
    reads = [("x", (Window(0), None)), ("r", ALONG)]
    late = {"sums": (("x", 1),), "late": (("r", 1, 1), ("r", 0, 0))}
    run = sums_of_layers(square, ("y", reads, late))
    assert run.late["r"].axis == run.finish.axis == 1
    assert not sums_of_layers(square, ("y", [*reads, ("r", ALONG)], late)).late
    assert not sums_of_layers(square, ("r", [("x", ALONG)], {}), ("y", reads, late)).late
    before = ("q", [("r", ALONG)], {})
    assert not sums_of_layers(square | {"q": ((36, 36), "wc")}, before, ("y", reads, late)).late


def test_only_the_outermost_sum_is_cut():
    """With channels last, TVM sums over rows and columns of the kernel first."""

    def convolution(emit, x, w):
        return emit(OP.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"))

    (block,) = read_networks(lowered(module([(1, 6, 5, 20), (3, 3, 20, 9)], convolution)))
    (layer,) = block.network.layers
    (weight,) = (name for name, _ in layer.sums)
    assert (weight, 0) in layer.sums  # The first axis of the kernel; not an axis of the image.
    group = NetworkIndex(block.network).group(0, 0)
    assert not any(loop.summed for loop in streams_of(group, Lanes(8, 16), 1).values())


@pytest.mark.parametrize(
    ("summand", "along"),
    [
        (lambda a, b, i, j, k: a[i, k] * b[k, j], ((0, 1), (1, 0))),
        (lambda a, b, i, j, k: a[i, k] * b[k, (j + k) % 12], ((0, 1),)),
        (lambda a, b, i, j, k: a[i, (k * 5) % 12] * b[k, j], ((1, 0),)),
        (lambda a, b, i, j, k: a[i, k] * a[i, 0] * b[k, j], ((1, 0),)),
        (lambda a, b, i, j, k: a[k, k] * b[k, j], ((1, 0),)),
    ],
)
def test_what_is_read_along_the_sum_alone_comes_in_parts(summand, along):
    assert call_of(*product(value=summand)).sums == along


def call_of(*tensors):
    """Return the call of a kernel that makes the last of some tensors from the others."""
    count = len(tensors) - 1
    return read_results(read_kernel(te.create_prim_func(list(tensors))))[count]


def product(summands=12, idle=(), value=lambda a, b, i, j, k: a[i, k] * b[k, j]):
    """Return two matrices, and their product, or that of a part."""
    a, b = (te.placeholder((12, 12), name=name) for name in "ab")
    k = te.reduce_axis((0, summands), "k")
    sums = te.compute((12, 12), lambda i, j: te.sum(value(a, b, i, j, k), [*idle, k]), name="s")
    return a, b, sums


def test_a_sum_of_one_summand_and_what_is_read_again_or_not_to_its_end_are_not_cut():
    assert call_of(*product(idle=[te.reduce_axis((0, 1), "idle")])).sums == ((0, 1), (1, 0))
    assert call_of(*product(9)).sums == ()
    a, b, s = product()
    again = te.compute((12, 12), lambda i, j: s[i, j] + b[i, j])
    assert call_of(a, b, again).sums == ((0, 1),)


@pytest.mark.parametrize(
    ("rest", "late"),
    [
        (lambda s, c, i, j: s[i, j] + c[i, j], ((2, 0, 0), (2, 1, 1))),
        (lambda s, c, i, j: s[i, j] + c[j, i], ((2, 1, 0), (2, 0, 1))),
        (lambda s, c, i, j: s[i, j] + c[i, 11 - j], ((2, 0, 0),)),
        # A square that two parts need would be squared twice where it lies.
        (lambda s, c, i, j: s[i, tirx.max(j - 1, 0)] + s[i, j] + c[i, j], ((2, 0, 0),)),
        (lambda s, c, i, j: s[i, j] + c[i, 0], ((2, 0, 0),)),
    ],
)
@pytest.mark.parametrize("extent", [12, 13])
def test_what_is_left_behind_the_sum_is_done_in_parts_of_its_own(rest, late, extent):
    a, b, s = product()
    c = te.placeholder((extent, extent), name="c")
    square = te.compute((12, 12), lambda i, j: s[i, j] * s[i, j], name="t")
    result = te.compute((12, 12), lambda i, j: rest(square, c, i, j))
    assert call_of(a, b, c, result).late == (late if extent == 12 else ())


def transposed():
    """Return a network whose weights are transposed, as kernels, and as it is read."""

    def body(emit, x, w, v):
        y = emit(OP.nn.relu(emit(OP.matmul(x, emit(OP.permute_dims(w))))))
        twice = emit(OP.permute_dims(v))
        return emit(OP.matmul(emit(OP.matmul(y, twice)), twice))

    mod = lowered(module([(1, 6, 8), (40, 8), (40, 40)], body), fuse=True)
    (block,) = read_networks(mod)
    return mod, block.network


def test_a_weight_is_loaded_in_the_order_that_its_only_reader_needs():
    mod, network = transposed()
    layers = network.layers
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
    _, network = transposed()
    layers = (x if x.lays_out else replace(x, reason="no") for x in network.layers)
    network = replace(network, layers=tuple(layers))
    found = plan_layer_groups(network, chip())
    assert list(found.left) == [layer.name for layer in by_dependencies(network).layers]
    assert found.after.moved == found.before.moved
    assert found.folded_after == found.folded_before == 2 * 40 * 8 * 4
