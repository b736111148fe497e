# SPDX-License-Identifier: Apache-2.0
"""Small networks in the shapes of many families, with kernels of several results among them."""

from __future__ import annotations

from typing import Any

from operator_modules import module
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T


def parts_of(emit: Any, x: Any, sections: Any, axis: int) -> list[Any]:
    """Split a tensor."""
    count = sections if isinstance(sections, int) else len(sections) + 1
    parts = emit(op.split(x, sections, axis))
    return [emit(relax.TupleGetItem(parts, at)) for at in range(count)]


def norm(emit: Any, x: Any, *params: Any) -> Any:
    """Normalize by kept means and variances."""
    together = emit(op.nn.batch_norm(x, *params, axis=1, training=False))
    return emit(relax.TupleGetItem(together, 0))


def conv(emit: Any, x: Any, w: Any, padding: int = 1, **options: Any) -> Any:
    return emit(op.nn.conv2d(x, w, padding=padding, **options))


def split_and_joined():
    """Half of the channels pass two convolutions, the other half none; both are joined."""

    def body(emit, x, w, v, u):
        a, b = parts_of(emit, emit(op.nn.silu(conv(emit, x, w, 0))), 2, 1)
        more = emit(op.add(b, conv(emit, emit(op.nn.silu(conv(emit, b, v))), v)))
        return conv(emit, emit(op.concat([a, b, more], axis=1)), u, 0)

    return module([(2, 6, 11, 7), (10, 6, 1, 1), (5, 5, 3, 3), (8, 15, 1, 1)], body)


def shuffled_channels(channels=16, size=6, blocks=2):
    """Half of the channels pass a depthwise convolution, then both halves are interleaved."""
    half = channels // 2

    def body(emit, x, *params):
        for at in range(0, len(params), 5):
            a, b = parts_of(emit, x, 2, 1)
            b = norm(emit, conv(emit, b, params[at], groups=half), *params[at + 1 : at + 5])
            y = emit(op.reshape(emit(op.concat([a, b], axis=1)), (1, 2, half, size, size)))
            x = emit(op.reshape(emit(op.permute_dims(y, [0, 2, 1, 3, 4])), x.ty.shape))
        return x

    return module([(1, channels, size, size), *[(half, 1, 3, 3), *[(half,)] * 4] * blocks], body)


def uneven_parts():
    """Three parts of a convolution's channels, normalized, go three ways and out."""

    def body(emit, x, w, *params):
        y = norm(emit, conv(emit, x, w), *params)
        a, b, c = parts_of(emit, y, [3, 8], 1)
        pooled = emit(op.nn.max_pool2d(b, (3, 3), (1, 1), (1, 1)))
        return [emit(op.nn.relu(a)), pooled, emit(op.add(c, c))]

    return module([(1, 4, 9, 6), (12, 4, 3, 3), (12,), (12,), (12,), (12,)], body)


def parts_of_rows():
    """Rows in three parts, of which the last ones are read by a pooling."""

    def body(emit, x, w):
        y = conv(emit, x, w)
        a, b, c = parts_of(emit, emit(op.nn.relu(y)), [4, 9], 2)
        b = emit(op.nn.avg_pool2d(b, (2, 2), (2, 2), ceil_mode=True))
        return [emit(op.concat([c, a], axis=2)), b]

    return module([(2, 3, 14, 5), (6, 3, 3, 3)], body)


def window_attention(shift=1):
    """Windows of 4x4 of an image that is shifted, attention in each with two heads."""
    size, window, width, heads = 8, 4, 8, 2
    count, tokens = (size // window) ** 2, window * window

    def rolled(emit, x, by):
        for axis in (1, 2):
            behind, front = parts_of(emit, x, [by % size], axis)
            x = emit(op.concat([front, behind], axis=axis))
        return x

    def body(emit, x, g, b, qkv, project, bias):
        def by_head(y):
            y = emit(op.reshape(y, (count, tokens, heads, width // heads)))
            return emit(op.permute_dims(y, [0, 2, 1, 3]))

        y = rolled(emit, emit(op.nn.layer_norm(x, g, b, axes=[-1])), shift)
        grid = (1, size // window, window, size // window, window, width)
        y = emit(op.permute_dims(emit(op.reshape(y, grid)), [0, 1, 3, 2, 4, 5]))
        y = emit(op.matmul(emit(op.reshape(y, (count, tokens, width))), qkv))
        q, k, v = (by_head(part) for part in parts_of(emit, y, 3, 2))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        scores = emit(op.add(emit(op.multiply(scores, relax.const(0.5, "float32"))), bias))
        y = emit(op.matmul(emit(op.nn.softmax(scores, -1)), v))
        y = emit(op.reshape(emit(op.permute_dims(y, [0, 2, 1, 3])), (count, tokens, width)))
        y = emit(op.matmul(y, project))
        y = emit(op.reshape(y, (1, size // window, size // window, window, window, width)))
        y = emit(op.permute_dims(y, [0, 1, 3, 2, 4, 5]))
        y = rolled(emit, emit(op.reshape(y, (1, size, size, width))), -shift)
        return emit(op.add(x, y))

    shapes = [(1, size, size, width), (width,), (width,), (width, 3 * width), (width, width)]
    return module([*shapes, (1, heads, tokens, tokens)], body)


def softmax_with_its_parts():
    """A softmax as an attention on tiles has it: the maximum and the sum go out, too."""

    def body(emit, x, w, v):
        scores = emit(op.matmul(x, w))
        most = emit(op.max(scores, axis=[-1], keepdims=True))
        powers = emit(op.exp(emit(op.subtract(scores, most))))
        total = emit(op.sum(powers, axis=[-1], keepdims=True))
        return [emit(op.divide(emit(op.matmul(powers, v)), total)), most, total]

    return module([(2, 17, 8), (8, 12), (12, 8)], body)


def moved():
    """Elements that are flipped, tiled, repeated, padded, and taken in steps."""

    def body(emit, x, w):
        y = emit(op.flip(conv(emit, x, w), axis=2))
        y = emit(op.strided_slice(y, [2, 3], [1, 0], [12, 6], [2, 1]))
        y = emit(op.nn.pad(y, [0, 0, 0, 0, 1, 2, 0, 1], "reflect"))
        y = emit(op.nn.relu(emit(op.repeat(y, 2, axis=3))))
        return emit(op.add(emit(op.flip(y, axis=1)), y))

    return module([(1, 3, 12, 6), (6, 3, 3, 3)], body)


def channels_to_space():
    def body(emit, x, w, v):
        y = emit(op.reshape(conv(emit, x, w), (1, 2, 2, 2, 9, 5)))
        y = emit(op.reshape(emit(op.permute_dims(y, [0, 1, 4, 2, 5, 3])), (1, 2, 18, 10)))
        return conv(emit, emit(op.nn.leakyrelu(y)), v)

    return module([(1, 3, 9, 5), (8, 3, 3, 3), (4, 2, 3, 3)], body)


def group_norms():
    def body(emit, x, w, g, b):
        y = emit(op.nn.group_norm(conv(emit, x, w), g, b, 2, 1, [2, 3]))
        return emit(op.add(emit(op.nn.gelu(y)), emit(op.nn.instance_norm(y, g, b, 1, [2, 3]))))

    return module([(2, 3, 9, 5), (6, 3, 3, 3), (6,), (6,)], body)


@T.prim_func(s_tir=True)
def best_and_where(
    x: T.Buffer((T.int64(2), T.int64(15), T.int64(9)), "float32"),
    best: T.Buffer((T.int64(2), T.int64(15)), "float32"),
    total: T.Buffer((T.int64(2), T.int64(15)), "float32"),
):
    """Two results of one block: the largest of a row, and the sum of its squares."""
    for i, j, k in T.grid(T.int64(2), T.int64(15), T.int64(9)):
        with T.sblock("best"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                best[vi, vj] = T.float32(-1000)
                total[vi, vj] = T.float32(0)
            best[vi, vj] = T.max(best[vi, vj], x[vi, vj, vk])
            total[vi, vj] = total[vi, vj] + x[vi, vj, vk] * x[vi, vj, vk]


def two_results_of_one_block():
    """A kernel of one block with two results, of which one is scaled and both go out."""
    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (2, 15, 6)), ("w", (6, 9)))
    )
    kernel = builder.add_func(best_and_where, "best_and_where")
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(op.matmul(x, w))
            types = [relax.TensorType((2, 15), "float32")] * 2
            both = builder.emit(relax.call_tir(kernel, relax.Tuple([y]), types))
            best, total = (builder.emit(relax.TupleGetItem(both, at)) for at in (0, 1))
            scaled = builder.emit(op.divide(best, total))
            result = builder.emit_output(relax.Tuple([scaled, total, builder.emit(op.exp(best))]))
        builder.emit_func_output(result)
    return builder.get()


FAMILIES: dict[str, Any] = {
    function.__name__: function
    for function in (
        split_and_joined,
        shuffled_channels,
        uneven_parts,
        parts_of_rows,
        window_attention,
        softmax_with_its_parts,
        moved,
        channels_to_space,
        group_norms,
        two_results_of_one_block,
    )
}
