# SPDX-License-Identifier: Apache-2.0
"""Small networks of kinds that are built today, for the tests of LayerGroup."""

from __future__ import annotations

import numpy as np
from tvm import relax

OP, NN = relax.op, relax.op.nn


def const(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype), dtype)


class Net:
    """Emits operators, with random weights as constants."""

    def __init__(self, emit, dtype):
        self.emit, self.dtype, self.rng = emit, dtype, np.random.default_rng(0)

    def weight(self, *shape, dtype=None):
        dtype = dtype or self.dtype
        if dtype.startswith("int"):
            return const(self.rng.integers(-8, 8, shape), dtype)
        return const(self.rng.uniform(-1, 1, shape) / np.sqrt(max(1, shape[0] // 2)), dtype)

    def conv(self, x, channels, kernel=3, stride=1, *, padding=None, groups=1, dilation=1):
        padding = (kernel - 1) * dilation // 2 if padding is None else padding
        inputs = size(x)[1]
        y = NN.conv2d(
            x,
            self.weight(channels, inputs // groups, kernel, kernel),
            strides=(stride, stride),
            padding=(padding, padding),
            dilation=(dilation, dilation),
            groups=groups,
        )
        return self.emit(OP.add(self.emit(y), self.weight(1, channels, 1, 1)))

    def conv1d(self, x, channels, kernel, stride=1, *, padding=0, dilation=1):
        y = NN.conv1d(
            x,
            self.weight(channels, size(x)[1], kernel),
            strides=stride,
            padding=padding,
            dilation=dilation,
        )
        return self.emit(OP.add(self.emit(y), self.weight(1, channels, 1)))

    def dense(self, x, outputs):
        y = self.emit(OP.matmul(x, self.weight(size(x)[-1], outputs)))
        return self.emit(OP.add(y, self.weight(outputs)))

    def norm(self, x):
        channels = size(x)[-1]
        return self.emit(NN.layer_norm(x, self.weight(channels), self.weight(channels), axes=[-1]))

    def add(self, a, b):
        return self.emit(OP.add(a, b))

    def multiply(self, a, b):
        return self.emit(OP.multiply(a, b))

    def relu(self, x):
        return self.emit(NN.relu(x))

    def reshape(self, x, *shape):
        return self.emit(OP.reshape(x, shape))

    def permute(self, x, *axes):
        return self.emit(OP.permute_dims(x, list(axes)))

    def concat(self, parts, axis):
        return self.emit(OP.concat(list(parts), axis))

    def part(self, x, axis, begin, end):
        return self.emit(OP.strided_slice(x, [axis], [begin], [end]))

    def split(self, x, count, axis):
        parts = self.emit(OP.split(x, count, axis))
        return [self.emit(relax.TupleGetItem(parts, number)) for number in range(count)]

    def attention(self, query, key, value, heads, *masks):
        """Attention of (batch, tokens, channels)."""
        batch, tokens, channels = size(query)
        shape = (heads, channels // heads)
        query = self.permute(self.reshape(query, batch, tokens, *shape), 0, 2, 1, 3)
        key = self.permute(self.reshape(key, batch, size(key)[1], *shape), 0, 2, 3, 1)
        value = self.permute(self.reshape(value, batch, size(value)[1], *shape), 0, 2, 1, 3)
        scores = self.multiply(self.emit(OP.matmul(query, key)), const(0.3, self.dtype))
        for mask in masks:
            scores = self.add(scores, mask)
        y = self.emit(OP.matmul(self.emit(NN.softmax(scores)), value))
        return self.reshape(self.permute(y, 0, 2, 1, 3), batch, tokens, channels)


def size(x):
    return [int(extent) for extent in x.ty.shape.values]


def network(name):
    """Return the module of a network, whose function `main` takes its inputs."""
    body, specs, *dtype = NETWORKS[name]
    dtype = dtype[0] if dtype else "float32"
    types = [spec if isinstance(spec[0], tuple) else (spec, dtype) for spec in specs]
    params = [relax.Var(f"x{i}", relax.TensorType(*spec)) for i, spec in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs={"num_input": len(params)}):
        with builder.dataflow():
            made = body(Net(builder.emit, dtype), *params)
            made = builder.emit_output(relax.Tuple(made) if isinstance(made, list) else made)
        builder.emit_func_output(made)
    return builder.get()


def window_attention(net, x):
    """Two blocks of a Swin transformer: windows of 4x4, in the second one shifted by two."""

    def roll(y, by):
        for axis in (1, 2):
            y = net.concat([net.part(y, axis, by, 8), net.part(y, axis, 0, by)], axis)
        return y

    def windows(y, *shape):
        return net.permute(net.reshape(y, *shape), 0, 2, 1, 3, 4)

    apart = np.where(np.random.default_rng(1).random((4, 1, 16, 16)) < 0.3, -100, 0)
    for shifted in (False, True):
        y = roll(net.norm(x), 2) if shifted else net.norm(x)
        y = net.reshape(windows(y, 2, 4, 2, 4, 12), 4, 16, 12)
        query, key, value = net.split(net.dense(y, 36), 3, 2)
        masks = [net.weight(1, 2, 16, 16), *([const(apart)] if shifted else [])]
        y = net.dense(net.attention(query, key, value, 2, *masks), 12)
        y = net.reshape(windows(y, 2, 2, 4, 4, 12), 1, 8, 8, 12)
        x = net.add(x, roll(y, 6) if shifted else y)
        x = net.add(x, net.dense(net.emit(NN.gelu(net.dense(net.norm(x), 24))), 12))
    return x


def grouped_queries(net, x, cos, sin):
    """A layer of a language model: rotary positions, four queries to a key, a gated product."""
    tokens, hidden, heads, keys = 20, 32, 8, 2

    def norm(y):
        return net.emit(NN.rms_norm(y, net.weight(hidden), axes=[-1]))

    def heads_of(y, count):
        y = net.emit(OP.matmul(y, net.weight(hidden, count * 4)))
        return net.permute(net.reshape(y, 1, tokens, count, 4), 0, 2, 1, 3)

    def turned(y):
        other = net.concat([net.emit(OP.negative(net.part(y, 3, 2, 4))), net.part(y, 3, 0, 2)], 3)
        return net.add(net.multiply(y, cos), net.multiply(other, sin))

    y = norm(x)
    query, key, value = turned(heads_of(y, heads)), turned(heads_of(y, keys)), heads_of(y, keys)
    key, value = (net.emit(OP.repeat(part, heads // keys, 1)) for part in (key, value))
    scores = net.emit(OP.matmul(query, net.permute(key, 0, 1, 3, 2)))
    later = const(np.triu(np.full((tokens, tokens), -1e4), 1), net.dtype)
    scores = net.emit(NN.softmax(net.add(scores, later)))
    y = net.permute(net.emit(OP.matmul(scores, value)), 0, 2, 1, 3)
    x = net.add(x, net.dense(net.reshape(y, 1, tokens, hidden), hidden))
    y = norm(x)
    return net.add(
        x, net.dense(net.multiply(net.emit(NN.silu(net.dense(y, 48))), net.dense(y, 48)), hidden)
    )


def detector(net, x):
    """Classes and boxes of three scales, each in one list of boxes."""
    x = net.relu(net.conv(x, 8, 3, 2))
    classes, boxes = [], []
    for channels in (8, 12, 16):
        x = net.relu(net.conv(x, channels, 3, 2))
        for found in (classes, boxes):
            _, _, height, width = size(x)
            last = net.permute(net.conv(x, 12), 0, 2, 3, 1)
            found.append(net.reshape(last, 1, height * width * 3, 4))
    return [net.emit(NN.softmax(net.concat(classes, 1))), net.concat(boxes, 1)]


def unet(net, x):
    skips = []
    for channels in (4, 8):
        x = net.relu(net.conv(x, channels))
        skips.append(x)
        x = net.emit(NN.max_pool2d(x, (2, 2), (2, 2)))
    x = net.relu(net.conv(x, 16))
    for skip in reversed(skips):
        _, channels, _, _ = size(skip)
        weight = net.weight(size(x)[1], channels, 2, 2)
        x = net.emit(NN.conv2d_transpose(x, weight, strides=(2, 2)))
        x = net.relu(net.conv(net.concat([skip, x], 1), channels))
    return net.conv(x, 3, 1)


def squeeze_and_excite(net, x):
    """Inverted residuals with a gate of each channel, as MobileNetV3 has them."""

    def hard_sigmoid(y):
        three, six = const(3, net.dtype), const(6, net.dtype)
        return net.emit(OP.divide(net.emit(OP.clip(net.add(y, three), 0, 6)), six))

    x = net.relu(net.conv(x, 8, 3, 2))
    for stride in (1, 2):
        y = net.conv(x, 24, 1)
        y = net.multiply(y, hard_sigmoid(y))
        y = net.conv(y, 24, 5, stride, groups=24)
        gate = net.relu(net.conv(net.emit(OP.mean(y, [2, 3], keepdims=True)), 6, 1))
        y = net.conv(net.multiply(y, hard_sigmoid(net.conv(gate, 24, 1))), 8, 1)
        x = net.add(x, y) if stride == 1 else y
    return net.dense(net.emit(OP.mean(x, [2, 3])), 10)


def integers(net, x):
    """A residual block in int8: sums in int32, scaled in int64 by a factor for each channel."""

    def conv(y, channels, stride=1, kernel=3):
        weight = net.weight(channels, size(y)[1], kernel, kernel, dtype="int8")
        pad, step = kernel // 2, (stride, stride)
        y = NN.conv2d(y, weight, strides=step, padding=(pad, pad), out_dtype="int32")
        return net.add(net.emit(y), net.weight(1, channels, 1, 1, dtype="int32"))

    def scaled(y, least=-128):
        factor = const(np.arange(size(y)[1]).reshape(1, -1, 1, 1) * 3 + 77, "int64")
        y = net.multiply(net.emit(OP.astype(y, "int64")), factor)
        y = net.add(y, const(1 << 13, "int64"))
        y = net.add(net.emit(OP.right_shift(y, const(14, "int64"))), const(-3, "int64"))
        return net.emit(OP.astype(net.emit(OP.clip(y, least, 127)), "int8"))

    x = scaled(conv(x, 8, 2))
    y, short = scaled(conv(scaled(conv(x, 16, 2), 0), 16)), scaled(conv(x, 16, 2, 1))
    y, short = (net.emit(OP.astype(part, "int32")) for part in (y, short))
    y = net.emit(OP.clip(net.add(y, short), 0, 127))
    y = net.emit(OP.astype(y, "int8"))
    y = net.emit(OP.sum(net.emit(OP.astype(y, "int32")), [2, 3]))
    y = net.emit(OP.astype(net.emit(OP.right_shift(y, const(4, "int32"))), "int8"))
    return net.emit(OP.matmul(y, net.weight(16, 10, dtype="int8"), out_dtype="int32"))


def convnext(net, x):
    x = net.conv(x, 12, 4, 4, padding=0)
    for _ in range(2):
        y = net.norm(net.permute(net.conv(x, 12, 7, groups=12), 0, 2, 3, 1))
        y = net.dense(net.emit(NN.gelu(net.dense(y, 48))), 12)
        x = net.add(x, net.permute(net.multiply(y, net.weight(12)), 0, 3, 1, 2))
    return net.conv(x, 16, 2, 2, padding=0)


def dilations(net, x):
    """Depthwise convolutions of several dilations beside a mean of the image."""
    x = net.relu(net.conv(x, 8, 3, 2))
    height, width = size(x)[2:]
    parts = [net.relu(net.conv(net.conv(x, 8, dilation=d, groups=8), 8, 1)) for d in (1, 2, 4)]
    mean = net.relu(net.conv(net.emit(OP.mean(x, [2, 3], keepdims=True)), 8, 1))
    parts.append(net.emit(OP.broadcast_to(mean, (1, 8, height, width))))
    return net.conv(net.relu(net.conv(net.concat(parts, 1), 8, 1)), 5, 1)


def generator(net, x):
    """Transposed convolutions of even and odd kernels."""
    x = net.reshape(net.dense(x, 16 * 16), 1, 16, 4, 4)
    for channels, kernel, pad, more in ((12, 4, 1, 0), (8, 3, 1, 1), (4, 5, 2, 1)):
        weight = net.weight(size(x)[1], channels, kernel, kernel)
        x = NN.conv2d_transpose(
            x, weight, strides=(2, 2), padding=(pad, pad), output_padding=(more, more)
        )
        x = net.relu(net.emit(x))
    return net.emit(OP.tanh(net.conv(x, 3)))


def cells(net, steps, hidden, memory):
    """Five steps of an LSTM cell."""
    of_input, of_hidden, bias = net.weight(8, 48), net.weight(12, 48), net.weight(48)
    made = []
    for step in range(5):
        x = net.reshape(net.part(steps, 1, step, step + 1), 4, 8)
        gates = [net.emit(OP.matmul(x, of_input)), net.emit(OP.matmul(hidden, of_hidden))]
        gates = net.split(net.add(net.add(*gates), bias), 4, 1)
        take, keep, give = (net.emit(OP.sigmoid(gate)) for gate in gates[:3])
        new = net.multiply(take, net.emit(OP.tanh(gates[3])))
        memory = net.add(net.multiply(keep, memory), new)
        hidden = net.multiply(give, net.emit(OP.tanh(memory)))
        made.append(net.reshape(hidden, 4, 1, 12))
    return [net.concat(made, 1), hidden, memory]


def sound(net, x):
    """Gated one-dimensional convolutions of growing dilation."""
    x = net.emit(NN.gelu(net.conv1d(x, 8, 10, 5)))
    skip = None
    for dilation in (1, 2, 4):
        gate, value = (net.conv1d(x, 8, 3, padding=dilation, dilation=dilation) for _ in range(2))
        y = net.multiply(net.emit(OP.tanh(value)), net.emit(OP.sigmoid(gate)))
        one = net.conv1d(y, 6, 1)
        skip = one if skip is None else net.add(skip, one)
        x = net.add(x, net.conv1d(y, 8, 1))
    y = NN.conv1d_transpose(net.relu(skip), net.weight(6, 4, 4), strides=2, padding=1)
    return net.conv1d(net.emit(y), 1, 1)


def of_a_batch(net, x):
    x = net.relu(net.conv(x, 6))
    x = net.relu(net.add(net.conv(net.relu(net.conv(x, 6)), 6), x))
    x = net.relu(net.conv(net.emit(NN.avg_pool2d(x, (2, 2), (2, 2))), 12))
    return net.dense(net.emit(OP.mean(x, [2, 3])), 10)


def shuffled_channels(net, x):
    x = net.relu(net.conv(x, 12, 3, 2))
    for _ in range(2):
        kept, y = net.split(x, 2, 1)
        y = net.relu(net.conv(net.conv(net.relu(net.conv(y, 6, 1)), 6, groups=6), 6, 1))
        _, _, height, width = size(y)
        x = net.reshape(net.concat([kept, y], 1), 1, 2, 6, height, width)
        x = net.reshape(net.permute(x, 0, 2, 1, 3, 4), 1, 12, height, width)
    return x


NETWORKS = {
    "window attention": (window_attention, [(1, 8, 8, 12)]),
    "grouped queries": (grouped_queries, [(1, 20, 32), (1, 1, 20, 4), (1, 1, 20, 4)]),
    "detector": (detector, [(1, 3, 33, 30)]),
    "U-Net": (unet, [(1, 3, 24, 20)]),
    "squeeze and excite": (squeeze_and_excite, [(1, 3, 24, 24)]),
    "integers": (integers, [((1, 3, 24, 24), "int8")]),
    "ConvNeXt": (convnext, [(1, 3, 40, 40)]),
    "dilations": (dilations, [(1, 3, 32, 32)]),
    "generator": (generator, [(1, 20)]),
    "LSTM cells": (cells, [(4, 5, 8), (4, 12), (4, 12)]),
    "sound": (sound, [(1, 1, 600)]),
    "batch of four": (of_a_batch, [(4, 3, 14, 12)]),
    "shuffled channels": (shuffled_channels, [(1, 3, 24, 24)]),
    "grouped queries in f16": (
        grouped_queries,
        [(1, 20, 32), (1, 1, 20, 4), (1, 1, 20, 4)],
        "float16",
    ),
    "batch of four in f16": (of_a_batch, [(4, 3, 14, 12)], "float16"),
}
"""For each network its body and the shapes of its inputs."""
