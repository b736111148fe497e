# SPDX-License-Identifier: Apache-2.0
"""Layers that add up rows slice by slice, such as the mean of an image: in the same order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fixed_groups import chip, everything, grouped
from networks import Builder
from operator_modules import arrays, lowered, module, run
from replay import check_replay
from tvm import relax, te

from passes.layer_group.analysis.networks import read_networks
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.planned_group import plan_group
from passes.layer_group.planning.slicing import Cut

OP, NN = relax.op, relax.op.nn
IMAGE, WEIGHT = (2, 5, 13, 9), (6, 5, 3, 3)


def conv(emit, x, w):
    return emit(NN.relu(emit(NN.conv2d(x, w, padding=(1, 1)))))


def mean(emit, x, w):
    return emit(OP.mean(conv(emit, x, w), [2, 3]))


def mean_beside_image(emit, x, w):
    y = conv(emit, x, w)
    return [emit(OP.mean(y, [2, 3], keepdims=True)), y]


def variance(emit, x, w):
    y = conv(emit, x, w)
    return emit(OP.sqrt(emit(OP.mean(emit(OP.multiply(y, y)), [2, 3], keepdims=True))))


def largest(emit, x, w):
    return emit(OP.max(conv(emit, x, w), [2, 3]))


def mean_of_last_channels(emit, x, w):
    y = emit(OP.permute_dims(conv(emit, x, w), [0, 2, 3, 1]))
    return emit(OP.mean(y, [1, 2]))


def weighted(emit, x, w):
    factors = relax.const(np.arange(6, dtype="float32").reshape(1, 6, 1, 1), "float32")
    return emit(OP.sum(emit(OP.multiply(conv(emit, x, w), factors)), [2, 3]))


def with_factors(emit, x, w):
    """Reads factors of channels and of rows with each element, and more in another order."""
    factors = [relax.const(np.arange(n, dtype="float32"), "float32") for n in (6, 13, 25)]
    at, column = te.reduce_axis((0, 13), "at"), te.reduce_axis((0, 9), "column")

    def body(image, a, b, d):
        def value(n, c):
            return image[n, c, at, column] * a[c] * b[at] + d[24 - 2 * at]

        return te.compute((2, 6), lambda n, c: te.sum(value(n, c), axis=[at, column]))

    return relax.BlockBuilder.current().emit_te(body, conv(emit, x, w), *factors)


SUMS = [mean, weighted, variance, largest, mean_of_last_channels, with_factors]


CUTS = [(Cut(h=4), "h"), (Cut(n=2, h=13), ""), (Cut(n=2, h=3, cores=2), "h"), (Cut(n=2), "")]
CASES = [(mean_beside_image, "float32", *cut) for cut in CUTS]
CASES += [(body, "float32", *CUTS[0]) for body in SUMS] + [(mean, "float16", *CUTS[1])]


@pytest.mark.parametrize(("body", "dtype", "cut", "keep"), CASES)
def test_a_sum_over_slices_has_the_same_bits(body, dtype, cut, keep):
    mod = lowered(module([IMAGE, WEIGHT], body, dtype=dtype), fuse=True)
    found = grouped(mod, {everything(mod): cut}, keep=keep)
    assert found is not None
    (planned,) = found[1]
    added = [name for name, slices in planned.slices.tensors.items() if slices.adds]
    assert len(added) == (cut.h > 1)
    check_replay(planned)
    args = arrays(mod)
    for ours, theirs in zip(run(found[0], args), run(mod, args), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def mean_of_columns(emit, x, w):
    return emit(OP.mean(conv(emit, x, w), [3]))


def without_mean(emit, x, w):
    y = conv(emit, x, w)
    return emit(OP.subtract(y, emit(OP.mean(y, [2, 3], keepdims=True))))


def rounded(emit, x, w):
    """Of another size than the sum, which would need memory of its own in all slices."""
    wide = emit(OP.astype(conv(emit, x, w), "float64"))
    return emit(OP.astype(emit(OP.mean(wide, [2, 3])), "float32"))


def scaled(emit, x, w):
    """Reads more once the sum is there."""
    factors = relax.const(np.arange(6, dtype="float32"), "float32")
    return emit(OP.multiply(emit(OP.mean(conv(emit, x, w), [2, 3])), factors))


def from_below(emit, x, w):
    return emit(OP.sum(emit(OP.flip(conv(emit, x, w), 2)), [2, 3]))


def summed_up(y, rows, index):
    at = te.reduce_axis((0, rows), "at")

    def body(image):
        return te.compute((2, 6), lambda n, c: te.sum(image[n, c, at, index(at)], axis=at))

    return relax.BlockBuilder.current().emit_te(body, y)


def of_some_rows(emit, x, w):
    return summed_up(conv(emit, x, w), 7, lambda _: 0)


def diagonal(emit, x, w):
    y = emit(OP.strided_slice(conv(emit, x, w), [2], [0], [9]))
    return summed_up(y, 9, lambda at: at)


OTHERS = [mean_of_columns, without_mean, rounded, scaled, of_some_rows, from_below, diagonal, conv]


@pytest.mark.parametrize("body", OTHERS)
def test_other_sums_are_not_cut(body):
    (block,) = read_networks(lowered(module([IMAGE, WEIGHT], body), fuse=True))
    assert not any(layer.adds or layer.reason for layer in block.network.layers)


def group_of(*outputs, rows=24):
    b = Builder("network", 16)
    b.tensor("in0", 2, 16, rows, 20)
    b.conv("in0", "t1", 32, 3, 1, 1)
    b.mean("t1", "t2")
    b.conv("t2", "t3", 32, 1)
    net = b.network(*outputs)
    return NetworkIndex(net)


def test_a_sum_is_whole_where_the_group_reads_it():
    index = group_of("t3")
    for layers, adds in (((0, 1), True), ((0, 1, 2), False)):
        planned = plan_group(index.group(layers), Cut(n=2, h=1 if not adds else 6), chip(256))
        assert planned.slices.tensors["t2"].adds == adds
        check_replay(planned)


def test_no_sum_is_shared_by_cores_or_cut_in_columns():
    group = group_of("t2").group((0, 1))
    assert plan_group(group, Cut(h=4), chip(256)) is not None
    assert plan_group(group, Cut(h=4, cores=2), chip(256)) is None
    assert plan_group(group, Cut(h=4, w=2), chip(256)) is None
    assert plan_group(group, Cut(n=2, h=4, cores=2), chip(256)) is not None


def test_the_replay_sees_a_sum_that_does_not_stay():
    planned = plan_group(group_of("t2").group((0, 1)), Cut(n=2, h=6), chip(256), "h")
    check_replay(planned)
    offsets = {**planned.plan.offsets, "t2": planned.plan.offsets["t1"]}
    with pytest.raises(AssertionError, match=r"the sum t2 is gone|reads t1"):
        check_replay(replace(planned, plan=replace(planned.plan, offsets=offsets)))


def test_an_image_that_is_no_more_than_summed_up_is_never_stored():
    index = group_of("t3", rows=200)
    found = plan_layer_groups(index.network, chip(32))
    assert found.moved_after < 1.05 * found.moved_least
    assert found.groups[0].group.outputs == ("t2",)
    assert found.groups[0].cut.h > 1
