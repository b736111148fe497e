# SPDX-License-Identifier: Apache-2.0
"""Networks as LayerGroup sees them: layers, tensors, weights, letters and reasons."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from operator_modules import (
    arrays,
    call,
    check_against_stock,
    check_same,
    lowered,
    module,
    run,
)
from sweeps import sample
from test_layer_group_pass import TINY, build
from tvm import relax

from passes.layer_group.analysis.read_network import NOT_PURE, read_networks
from passes.layer_group.planning.network import Kind, NetworkIndex
from tvm_ext.report.readers.groups import layer_groups

OP = relax.op


def network(mod):
    (block,) = read_networks(lowered(mod))
    NetworkIndex(block.network)  # It is well formed.
    return block.network


def letters(mod):
    return {tensor.name: tensor.axes for tensor in network(mod).tensors}


def two_convolutions(layout="NCHW", kernel="OIHW", **options):
    shapes = {
        "NCHW": [(1, 4, 20, 9), (8, 4, 3, 3), (8, 8, 3, 3)],
        "NHWC": [(1, 20, 9, 4), (3, 3, 4, 8), (3, 3, 8, 8)],
    }[layout]

    def conv(emit, x, w):
        return emit(OP.nn.conv2d(x, w, padding=(1, 1), data_layout=layout, kernel_layout=kernel))

    def body(emit, x, w, v):
        return conv(emit, emit(OP.nn.relu(conv(emit, x, w))), v)

    return module(shapes, body, **options)


def without_attribute(mod):
    new = tvm.IRModule(dict(mod.functions.items()))
    new.update_func(new.get_global_var("main"), mod["main"].without_attr("num_input"))
    return new


def test_letters_of_convolutions():
    assert letters(two_convolutions()) == {
        "p0": "nchw",
        "p1": "cwww",
        "lv": "nchw",
        "lv1": "nchw",
        "p2": "cwww",
        "lv2": "nchw",
    }
    last = letters(two_convolutions("NHWC", "HWIO"))
    assert {last[name] for name in ("p0", "lv", "lv1", "lv2")} == {"nhwc"}


def test_letters_of_a_sequence_and_its_attention():
    def body(emit, x, w):
        y = emit(OP.reshape(emit(OP.matmul(x, w)), (1, 12, 4, 5)))
        return emit(OP.permute_dims(y, [0, 2, 1, 3]))

    found = letters(module([(1, 12, 16), (16, 20)], body))
    assert [found[name] for name in ("p0", "p1", "lv", "lv1", "lv2")] == [
        "nhc",
        "wc",
        "nhc",
        # What a head has are channels, too.
        "nhcc",
        "nchc",
    ]


def test_only_pieces_of_channels_are_channels():
    def body(emit, x, w):
        y = emit(OP.reshape(emit(OP.nn.conv2d(x, w)), (1, 2, 3, 4, 6, 10)))
        return emit(OP.permute_dims(y, [0, 2, 1, 3, 4, 5]))

    found = letters(module([(1, 5, 24, 10), (6, 5, 1, 1)], body))
    assert [found[name] for name in ("lv", "lv1", "lv2")] == ["nchw", "ncchww", "ncchww"]


def test_an_image_that_is_normalized_with_a_weight_for_each_pixel_has_its_channels():
    def body(emit, x, w, scale, shift):
        y = emit(relax.op.nn.conv2d(x, w))
        return emit(relax.op.nn.layer_norm(y, scale, shift, axes=[2, 3]))

    mod = module([(1, 8, 12, 10), (4, 8, 1, 1), (12, 10), (12, 10)], body)
    found = letters(mod)
    assert {axes for name, axes in found.items() if name in ("p0", "lv")} == {"nchw"}
    assert "c" not in found["p2"]


def test_channels_that_are_joined_are_no_rows():
    def body(emit, x, w):
        return emit(OP.matmul(emit(OP.concat([x, x], 1)), w))

    assert letters(module([(16, 32), (64, 8)], body))["lv"] == "nc"


@pytest.mark.parametrize("rows", [8, 10])
def test_as_many_rows_as_a_weight_has_elements_are_no_channels(rows):
    """One kernel adds up the rows, and then the channels with a weight, which are eight."""

    def pooled_and_weighed(x, w):
        i, j, k = (tvm.te.reduce_axis((0, n)) for n in (x.shape[2], x.shape[3], 8))
        pooled = tvm.te.compute((1, 8), lambda n, c: tvm.te.sum(x[n, c, i, j], [i, j]))
        return tvm.te.compute((1, 3), lambda n, o: tvm.te.sum(pooled[n, k] * w[k, o], k))

    b = relax.BlockBuilder()
    shapes = ((1, 8, rows, 6), (8, 8, 3, 3), (8, 3))
    x, w, v = (relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes))
    with b.function("main", [x, w, v], attrs={"num_input": 1}):
        with b.dataflow():
            y = b.emit(OP.nn.conv2d(x, w, padding=(1, 1)))
            last = b.emit_output(b.call_te(pooled_and_weighed, y, v))
        b.emit_func_output(last)
    found = letters(b.get())
    assert found["p0"] == found["lv"] == "nchw"


def test_what_comes_from_token_numbers_lies_as_what_is_computed_of_it():
    def body(emit, tokens, table, w):
        tokens = emit(OP.astype(tokens, "int32"))
        x = emit(OP.take(table, tokens, axis=0, mode="clip"))
        keys = emit(OP.permute_dims(emit(OP.matmul(x, emit(OP.permute_dims(w)))), [0, 2, 1]))
        return emit(OP.matmul(emit(OP.nn.softmax(emit(OP.matmul(x, keys)))), x))

    found = network(module([(1, 12), (40, 12), (12, 12)], body))
    letters = {tensor.name: tensor.axes for tensor in found.tensors}
    made = [letters[layer.output] for layer in found.layers]
    # Cast, rows of the table, projection, keys, scores, softmax, result; the transposed weight.
    assert made == ["nh", "nhc", "nhc", "nch", "nhc", "nhc", "nhc"]
    assert [letters[layer.output] for layer in found.layouts] == ["wc"]


def test_weights_with_and_without_the_attribute():
    for mod in (two_convolutions(), without_attribute(two_convolutions())):
        kinds = {tensor.name: tensor.kind for tensor in network(mod).tensors}
        assert kinds["p0"] is Kind.ACTIVATION
        assert kinds["p1"] is kinds["p2"] is Kind.WEIGHT
    assert letters(without_attribute(two_convolutions())) == letters(two_convolutions())


def test_constants_are_weights_and_what_another_block_makes_is_none():
    b = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 9, 6), "float32"))
    one = relax.const(np.ones((1, 4, 9, 6), "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            y = b.emit_output(OP.exp(x))
        b.emit(OP.print(y, format="{}"))
        with b.dataflow():
            last = b.emit_output(OP.add(b.emit(OP.multiply(y, one)), one))
        b.emit_func_output(last)
    tensors = read_networks(lowered(b.get()))[-1].network.tensors
    weights = [tensor.name for tensor in tensors if tensor.kind is Kind.WEIGHT]
    assert len(tensors) == 4
    assert weights == ["constant"]


def test_operations_are_counted():
    layer = network(two_convolutions()).layers[0]
    assert layer.multiply_adds == 8 * 20 * 9 * 4 * 3 * 3


def test_what_a_block_hands_on_is_an_output():
    def body(emit, x):
        first = emit(OP.nn.relu(x))
        second = emit(OP.exp(first))
        return [emit(OP.nn.relu(second)), first]

    assert set(network(module([(1, 2, 4, 4)], body)).outputs) == {"lv", "lv2"}


def test_what_a_result_is_computed_of_is_an_output():
    """A function may return what no variable stands for, until it is normalized."""
    ty = relax.TensorType((1, 4, 9, 6), "float32")
    x, y, z = (relax.Var(name, ty) for name in "xyz")
    typed = relax.BlockBuilder().normalize
    bindings = [relax.VarBinding(y, typed(OP.exp(x))), relax.VarBinding(z, typed(OP.negative(y)))]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], typed(OP.add(y, z)))
    (block,) = read_networks(tvm.IRModule({"main": relax.Function([x], body, ty)}))
    assert block.network.outputs == ("y", "z")


def test_softmax_needs_working_memory_and_normalization_along_the_rows_more():
    # A pooling reads other rows than its result's, so they are rows.
    def pooled(axis):
        pool = {"pool_size": (3, 3), "padding": (1, 1)}
        return lambda emit, x: emit(OP.nn.softmax(emit(OP.nn.max_pool2d(x, **pool)), axis=axis))

    last = network(module([(1, 2, 8, 16)], pooled(3)))
    rows = network(module([(1, 2, 8, 1)], pooled(2)))
    # The exponentials lie in the result's place; a maximum and a sum a row do not.
    assert [(x.bits, x.shape) for x in last.layers[1].buffers] == [(32, (1, 2, 8))] * 2
    # A slice of the result needs the exponentials of all rows.
    assert (32, (1, 2, 8, 1), None) in [
        (x.bits, x.shape, x.maps[2]) for x in rows.layers[1].buffers
    ]


def test_within_a_kernel_what_a_later_stage_reads_keeps_its_memory():
    """Two kernels of a convolution and four stages, of which the last two read earlier ones."""

    def stages(emit, x, y):
        for _ in range(2):
            a = emit(OP.nn.conv2d(x, y, padding=(1, 1)))
            b = emit(OP.exp(a))
            c = emit(OP.subtract(emit(OP.abs(b)), a))
            x = emit(OP.add(c, b))
        return x

    mod = module([(1, 8, 16, 16), (8, 8, 3, 3)], stages)
    target = at_level("sophgo/bm1684x-llvm")
    assert check_against_stock(mod, target, [0.1 * x for x in arrays(mod)]) == 1


def test_a_block_with_effects_is_left_alone():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 4, 4), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        y = builder.emit(OP.nn.relu(x))
        builder.emit(OP.print(y, format="{}"))
        builder.emit_func_output(builder.emit(OP.exp(y)))
    (block,) = read_networks(lowered(builder.get()))
    assert {layer.reason for layer in block.network.layers} == {NOT_PURE}


ODD = {
    "channels last": lambda: two_convolutions("NHWC", "HWIO"),
    "no attribute": lambda: without_attribute(two_convolutions()),
    "half precision": lambda: two_convolutions(dtype="float16"),
    "one axis": lambda: module(
        [(1, 4, 40), (8, 4, 3), (8, 8, 3)],
        lambda emit, x, w, v: emit(
            OP.nn.conv1d(emit(OP.nn.relu(emit(OP.nn.conv1d(x, w, padding=1)))), v, padding=1)
        ),
    ),
    "rows of numbers": lambda: module(
        [(12, 16), (16, 20), (20, 8)],
        lambda emit, x, w, v: emit(OP.matmul(emit(OP.nn.relu(emit(OP.matmul(x, w)))), v)),
    ),
    "batch normalization": lambda: module(
        [(1, 4, 20, 9), (8, 4, 3, 3), (8,), (8,), (8,), (8,)],
        lambda emit, x, w, g, b, m, v: emit(
            relax.TupleGetItem(
                emit(
                    OP.nn.batch_norm(
                        emit(OP.nn.conv2d(x, w, padding=(1, 1))), g, b, m, v, 1, training=False
                    )
                ),
                0,
            )
        ),
    ),
    "constants": lambda: module(
        [(1, 4, 20, 9)],
        lambda emit, x: emit(
            OP.nn.max_pool2d(
                emit(
                    OP.nn.conv2d(x, relax.const(np.ones((8, 4, 3, 3), "float32")), padding=(1, 1))
                ),
                (2, 2),
                (2, 2),
            )
        ),
    ),
    "integers": lambda: module(
        [(1, 4, 20, 9), (8, 4, 3, 3)],
        lambda emit, x, w: emit(
            OP.astype(
                emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1), out_dtype="int32")))),
                "int8",
            )
        ),
        dtype="int8",
    ),
}


@pytest.mark.parametrize(
    "name", sample(ODD, "channels last", "no attribute", "one axis", "integers")
)
def test_odd_networks_are_grouped_and_right(name):
    mod = ODD[name]()
    target = f"{TINY}-llvm"
    assert layer_groups(mod, target, fuse=False).groups
    grouped = build(mod, target, fuse=False, layer_group=True)
    args = arrays(mod)
    check_same(call(grouped, args), run(mod, args))
