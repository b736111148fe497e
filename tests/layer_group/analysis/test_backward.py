# SPDX-License-Identifier: Apache-2.0
"""What a slice needs of its operator's input: read off kernels, against rules and against runs."""

from __future__ import annotations

import networks
import numpy as np
import pytest
import tvm
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from llvm_level import at_level
from networks import Window
from operator_modules import arrays, call, kernels, lowered, module
from sweeps import swept
from tvm import relax, te, tirx, topi

from passes.layer_group.analysis.kernel_calls import read_results
from passes.layer_group.analysis.read_kernel import read_kernel
from passes.layer_group.analysis.read_network import read_networks
from passes.layer_group.planning.spans import AxisMap, Spans


def needed_range(axis_map, output):
    return Spans.of([output]).needed(axis_map.spans).ranges[0]


def maps_of(mod):
    """Return the maps of the one layer's first input, and the shapes of input and output."""
    (block,) = read_networks(lowered(mod))
    (layer,) = block.network.layers
    assert layer.reason == ""
    shapes = {tensor.name: tensor.shape for tensor in block.network.tensors}
    return layer.maps[0], shapes[layer.inputs[0]], shapes[layer.output]


def conv2d(height, *, kernel, stride, pad, dilation=1, groups=1, channels=4):
    return module(
        [(1, channels, height, 5), (channels, channels // groups, kernel, 1)],
        lambda emit, x, w: emit(
            relax.op.nn.conv2d(
                x, w, strides=(stride, 1), padding=(pad, 0), dilation=(dilation, 1), groups=groups
            )
        ),
    )


def pool2d(kind, height, *, kernel, stride, pad):
    operator = {"max": relax.op.nn.max_pool2d, "avg": relax.op.nn.avg_pool2d}[kind]
    return one_input(height, operator, (kernel, 1), (stride, 1), (pad, 0))


def deconv2d(height, *, kernel, stride, pad, output_pad=0):
    return module(
        [(1, 3, height, 5), (3, 2, kernel, 1)],
        lambda emit, x, w: emit(
            relax.op.nn.conv2d_transpose(
                x, w, strides=(stride, 1), padding=(pad, 0), output_padding=(output_pad, 0)
            )
        ),
    )


@st.composite
def windows(draw):
    kernel = draw(st.integers(1, 5))
    dilation = draw(st.integers(1, 3))
    extent = (kernel - 1) * dilation + 1
    height = draw(st.integers(extent, 24))
    return {
        "height": height,
        "kernel": kernel,
        "stride": draw(st.integers(1, 4)),
        "pad": draw(st.integers(0, extent - 1)),
        "dilation": dilation,
    }


def influence(mod, output_height):
    """Return for each output row the input rows that change it, by running the operator."""
    first, *others = arrays(mod, 1)
    first = np.abs(first)
    vm = relax.VirtualMachine(tvm.compile(mod, target=at_level("llvm")), tvm.cpu())
    (base,) = call(vm, [first, *others])
    changes = np.zeros((output_height, first.shape[2]), bool)
    for row in range(first.shape[2]):
        changed = first.copy()
        changed[:, :, row] += 1000
        changes[:, row] = (call(vm, [changed, *others])[0] != base).any(axis=(0, 1, 3))
    return changes


def check_rows(mod, rows_of):
    """Compare what each row of a result needs with the rows that it reads, as a rule has them."""
    axis_maps, (*_, height, _), (*_, made, _) = maps_of(mod)
    reads = [[row for row in rows_of(at) if 0 <= row < height] for at in range(made)]
    if height > 1 and made > 1:  # There is something to cut.
        assert axis_maps[2] == AxisMap(
            2, Spans.of([(min(rows), max(rows) + 1) if rows else (0, 0) for rows in reads])
        )


def conv_case(window, groups):
    kernel, stride, pad, dilation = (window[k] for k in ("kernel", "stride", "pad", "dilation"))
    check_rows(
        conv2d(**window, groups=groups),
        lambda at: [at * stride - pad + k * dilation for k in range(kernel)],
    )


def pool_case(window, kind):
    height, kernel, stride = (window[k] for k in ("height", "kernel", "stride"))
    pad = min(window["pad"], kernel // 2)
    assume(height + 2 * pad >= kernel)
    check_rows(
        pool2d(kind, height, kernel=kernel, stride=stride, pad=pad),
        lambda at: range(at * stride - pad, at * stride - pad + kernel),
    )


def deconv_case(height, kernel, stride, pad):
    assume(kernel >= stride and pad < kernel)
    assume((height - 1) * stride - 2 * pad + kernel > 0)
    check_rows(
        deconv2d(height, kernel=kernel, stride=stride, pad=pad),
        lambda at: [row for row in range(height) if 0 <= at + pad - row * stride < kernel],
    )


CASES = st.one_of(
    st.tuples(st.just(conv_case), windows(), st.sampled_from([1, 2, 4])),
    st.tuples(st.just(pool_case), windows(), st.sampled_from(["max", "avg"])),
    st.tuples(st.just(deconv_case), *map(st.integers, (3, 1, 1, 0), (12, 5, 4, 2))),
)


@swept(36, 450, CASES)
def test_windows_need_what_the_rules_say(case):
    case[0](*case[1:])


def one_input(rows, operator, *given, **options):
    """Return a module with one operator of one tensor of so many rows."""
    return module([(1, 2, rows, 5)], lambda emit, x: emit(operator(x, *given, **options)))


RUN = {
    "convolution": lambda: conv2d(9, kernel=3, stride=2, pad=2, dilation=2),
    "depthwise": lambda: conv2d(8, kernel=3, stride=1, pad=1, groups=4),
    "max pooling": lambda: pool2d("max", 9, kernel=3, stride=2, pad=1),
    "transposed convolution": lambda: deconv2d(6, kernel=4, stride=2, pad=1),
    "slice": lambda: one_input(12, relax.op.strided_slice, [2], [1], [11], [3]),
    "pad": lambda: one_input(6, relax.op.nn.pad, (0, 0, 0, 0, 2, 1, 0, 0)),
    "nearest resize": lambda: one_input(
        6, relax.op.image.resize2d, (9, 5), method="nearest_neighbor", layout="NCHW"
    ),
    "linear resize": lambda: one_input(
        6, relax.op.image.resize2d, (12, 5), method="linear", layout="NCHW"
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_rows_that_change_a_result_are_needed(name):
    mod = RUN[name]()
    axis_maps, _, out = maps_of(mod)
    axis_map = axis_maps[2]
    assert axis_map is not None
    changes = influence(mod, out[2])
    for row in range(out[2]):
        begin, end = needed_range(axis_map, (row, row + 1))
        rows = np.flatnonzero(changes[row])
        if len(rows):
            assert begin <= rows[0]
            assert rows[-1] < end
        if name in ("convolution", "depthwise", "max pooling", "slice", "pad"):
            assert not len(rows) or (begin, end) == (rows[0], rows[-1] + 1)


ALONG, ACROSS, IDENTITY, ROW = map(Window, range(4))


@pytest.mark.parametrize(
    ("operator", "more", "maps"),
    [
        (relax.op.nn.relu, [], (ALONG, ACROSS, IDENTITY, ROW)),
        (relax.op.add, [(4, 1, 1)], (ALONG, ACROSS, IDENTITY, ROW)),
        (lambda x: relax.op.nn.softmax(x, axis=3), [], (ALONG, ACROSS, IDENTITY, None)),
        (lambda x: relax.op.nn.softmax(x, axis=2), [], (ALONG, ACROSS, None, ROW)),
        (lambda x: relax.op.mean(x, axis=[2, 3]), [], (ALONG, ACROSS, None, None)),
        (
            lambda x, g, b: relax.op.nn.layer_norm(x, g, b, axes=[-1]),
            [(5,), (5,)],
            (ALONG, ACROSS, IDENTITY, None),
        ),
        (relax.op.matmul, [(5, 7)], (ALONG, ACROSS, IDENTITY, None)),
    ],
)
def test_operators_without_a_window(operator, more, maps):
    mod = module([(2, 4, 6, 5), *more], lambda emit, *given: emit(operator(*given)))
    found, read, made = maps_of(mod)
    assert found == networks.maps_of(maps, made, read)


@pytest.mark.parametrize(("axis", "rows"), [(1, [(3, 6), (3, 6)]), (2, [(3, 4), (0, 2)])])
def test_a_concatenation_takes_each_part_from_its_input(axis, rows):
    shapes = [(1, 2, 4, 5), (1, 2, 6, 5)] if axis == 2 else [(1, 2, 8, 5), (1, 3, 8, 5)]
    concat = module(shapes, lambda emit, x, y: emit(relax.op.concat([x, y], axis)), inputs=2)
    (block,) = read_networks(lowered(concat))
    (layer,) = block.network.layers
    assert [needed_range(maps[2], (3, 6)) for maps in layer.maps] == rows


def test_reshape_and_transpose_where_an_axis_is_kept():
    mod = module([(1, 16, 24)], lambda emit, x: emit(relax.op.reshape(x, (1, 16, 4, 6))))
    axis_maps, _, _ = maps_of(mod)
    assert axis_maps[1] == Window(1).along(16, 16)
    mod = module([(1, 16, 4, 6)], lambda emit, x: emit(relax.op.permute_dims(x, [0, 2, 1, 3])))
    axis_maps, _, _ = maps_of(mod)
    assert axis_maps[1] == Window(2).along(16, 16)
    assert axis_maps[2] == Window(1).along(4, 4)


def test_an_operator_fused_with_its_neighbours_is_cut_too():
    def body(emit, x, w, s):
        y = emit(relax.op.nn.conv2d(x, w, strides=(2, 1), padding=(1, 0)))
        return emit(relax.op.nn.relu(emit(relax.op.multiply(y, s))))

    mod = module([(1, 3, 21, 5), (4, 3, 3, 1), (4, 1, 1)], body)
    (block,) = read_networks(lowered(mod, fuse=True))
    (layer,) = block.network.layers
    assert layer.operator == "fused_conv2d_multiply_relu"
    assert layer.maps[0][2] == Window(2, stride=2, first=-1, last=1).along(11, 21)
    assert layer.buffers == (), "each step takes the place of the one before"


ranges = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda x: (min(x), max(x)))


@settings(max_examples=200)
@example([(8, 9)] + [(0, 9)] * 8, False, [(0, 2)])  # The ends alone rise, or the begins.
@example([(0, 9)] + [(0, 1)] * 8, False, [(0, 2)])
@given(st.lists(ranges, min_size=9, max_size=9), st.booleans(), st.lists(ranges, min_size=1))
def test_ranges_need_what_each_of_their_indices_needs(table, rising, looked_up):
    if rising:  # As windows are, of which the ends are looked up alone.
        begins, ends = (sorted(x) for x in zip(*table, strict=True))
        table = [*zip(begins, ends, strict=True)]
    found = Spans.of(looked_up).needed(Spans.of(table)).ranges
    for (begin, end), needed in zip(looked_up, found, strict=True):
        read = {index for row in table[begin:end] for index in range(*row)}
        assert needed == ((min(read), max(read) + 1) if read else (0, 0))


def test_tensors_of_a_concatenation_have_their_rows():
    heights, width, boxes = (10, 7, 3), 9, 3

    def body(emit, *images):
        parts = []
        for image in images:
            height = int(image.ty.shape.values[2])
            last = emit(relax.op.permute_dims(image, [0, 2, 3, 1]))
            parts.append(emit(relax.op.reshape(last, (1, height * width * boxes, 4))))
        return emit(relax.op.concat(parts, 1))

    shapes = [(1, 4 * boxes, height, width) for height in heights]
    (block,) = read_networks(lowered(module(shapes, body, inputs=3), fuse=True))
    (layer,) = block.network.layers
    begin, each = 0, width * boxes
    for maps, height in zip(layer.maps, heights, strict=True):
        part = Window(1, 1, each, -begin, -begin)
        assert maps[2] == part.along(sum(heights) * each, height)
        assert maps[1].axis == 2
        begin += height * each


def test_rows_of_many_points_are_found_by_algebra():
    heads, size, rows = 16, 128, 1 << 20
    x = te.placeholder((1, rows, heads * size), "float16", name="x")
    parts = topi.reshape(x, (1, rows, heads, size))
    half = size // 2
    turned = te.compute(
        parts.shape,
        lambda b, s, h, d: tirx.if_then_else(
            d < half, -parts[b, s, h, d + half], parts[b, s, h, d - half]
        ),
    )
    moved = topi.transpose(turned, (0, 2, 1, 3))
    (reads,) = read_results(read_kernel(te.create_prim_func([x, moved])))[1].maps
    width = heads * size
    each = Window(1, size, 1, 0, size - 1).along(heads, width)
    assert reads == (None, AxisMap(2, Spans.identity(rows)), each)


@pytest.mark.parametrize(
    ("columns", "window"), [(1 << 10, Window(0, 1, 1, 0, (1 << 10) - 1)), (1 << 11, None)]
)
def test_of_an_index_of_too_many_points_all_is_read(columns, window):
    shape = (1 << 12, columns)
    x = te.placeholder((8191,), name="x")
    many = te.compute(shape, lambda h, w: x[h + w])
    (found,) = read_results(read_kernel(te.create_prim_func([x, many])))[1].maps
    assert found == networks.maps_of((window,), shape, x.shape)


def test_a_kernel_that_nobody_wrote_a_rule_for():
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def blur(x: T.Buffer((1, 2, 20, 7), "float32"), y: T.Buffer((1, 2, 9, 7), "float32")):
        for n, c, h, w in T.grid(1, 2, 9, 7):
            with T.sblock("blur"):
                vn, vc, vh, vw = T.axis.remap("SSSS", [n, c, h, w])
                y[vn, vc, vh, vw] = (x[vn, vc, vh * 2, vw] + x[vn, vc, vh * 2 + 3, vw]) * T.float32(
                    0.5
                )

    kernel = read_kernel(blur)
    reads = read_results(kernel)[1].reads
    assert reads[0][2] == Window(2, stride=2, first=0, last=3).along(9, 20)
    assert reads[0][3] == Window(3).along(7, 7)


def test_kernels_are_read_once_for_all_calls():
    def body(emit, x):
        for _ in range(5):
            x = emit(relax.op.nn.relu(x))
        return x

    mod = lowered(module([(1, 2, 6, 5)], body))
    assert len(kernels(mod)) == 1
    (block,) = read_networks(mod)
    assert len({id(call.reads) for call in block.calls.values()}) == 1
