# SPDX-License-Identifier: Apache-2.0
"""What comes in parts of channels: by the maps between tensors, and by what a kernel reads."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Window, maps_of
from operator_modules import lowered, module
from tvm import relax, te, tirx

from passes.layer_group.analysis.kernel_calls import read_results
from passes.layer_group.analysis.read_kernel import read_kernel
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.loops import part_loops
from passes.layer_group.planning.network import Layer, Network, NetworkIndex, Tensor
from passes.layer_group.planning.spans import needs_parts


@given(
    window=st.builds(Window, st.just(1), *map(st.integers, (1, 1, -1, 0), (4, 4, 2, 4))),
    parts=st.integers(1, 6),
)
@settings(max_examples=200, deadline=None)
def test_parts_follow_parts_where_each_needs_its_own_and_no_more(window, parts):
    made, extent = window.divide * parts, window.stride * parts
    count = gcd(made, extent)
    found = needs_parts(window.along(made, extent).spans, extent)
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
    return part_loops(group, Lanes(lanes, 1), most).get(made[-1].name)


ALONG = (Window(0), Window(1))
MATRIX, LINE = ((4, 36), "wc"), ((4,), "w")
PARTS = {"parts": (1,)}


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
    late = {"sums": (("x", 1),), "after_sums": (("r", 1, 1), ("r", 0, 0))}
    run = sums_of_layers(square, ("y", reads, late))
    assert run.then.loads["r"].axis == run.then.parts.axis == 1
    assert not sums_of_layers(square, ("y", [*reads, ("r", ALONG)], late)).then
    assert not sums_of_layers(square, ("r", [("x", ALONG)], {}), ("y", reads, late)).then
    before = ("q", [("r", ALONG)], {})
    assert not sums_of_layers(square | {"q": ((36, 36), "wc")}, before, ("y", reads, late)).then


def test_only_the_outermost_sum_is_cut():
    """With channels last, TVM sums over rows and columns of the kernel first."""

    def convolution(emit, x, w):
        return emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"))

    (block,) = read_networks(lowered(module([(1, 6, 5, 20), (3, 3, 20, 9)], convolution)))
    (layer,) = block.network.layers
    (weight,) = (name for name, _ in layer.sums)
    assert (weight, 0) in layer.sums  # The first axis of the kernel; not an axis of the image.
    group = NetworkIndex(block.network).group(0, 0)
    assert not any(loop.summed for loop in part_loops(group, Lanes(8, 16), 1).values())


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
    assert call_of(a, b, c, result).after_sums == (late if extent == 12 else ())
