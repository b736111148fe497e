# SPDX-License-Identifier: Apache-2.0
"""Graphs of many tensor expressions in one function: a buffer for each intermediate result.

Here storage planning has most to do: results of several sizes and types die at different times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tvm import te, tirx, topi
from tvm.topi import nn

from .families import CPU, Case, label, operator, prim, tensor


@operator(CPU)
def chain() -> Iterator[Case]:
    """Chains of elementwise steps: two buffers would do, or one where a step can be in place."""
    for length in (2, 3, 5, 9, 16):
        for dtype in ("float32", "float16", "int32"):
            x = tensor((24, 40), dtype)
            out = x
            for i in range(length):
                out = topi.multiply(topi.add(out, tirx.const(i + 1, dtype)), out)
            yield label(length, dtype), prim([x], out)


@operator(CPU)
def chain_transposed() -> Iterator[Case]:
    """Chains of transposes, none of which can be in place."""
    for length in (2, 3, 4, 7):
        for shape in ((32, 32), (16, 48), (8, 4, 16)):
            x = tensor(shape)
            out = x
            for _ in range(length):
                out = topi.exp(topi.transpose(out))
            yield label(length, shape), prim([x], out)


@operator(CPU)
def chain_shrinking() -> Iterator[Case]:
    """Chains whose results halve or double in size at each step."""
    for size in (256, 1024):
        x = tensor((size, 8))
        down = [x]
        while int(down[-1].shape[0]) > 8:
            down.append(_halve(down[-1]))
        yield label("halving", size), prim([x], down[-1])
        up = down[-1]
        while int(up.shape[0]) < size:
            up = topi.tanh(topi.repeat(up, 2, 0))
        yield label("hourglass", size), prim([x], up)
        out = down[-1]
        for skip in reversed(down[:-1]):
            out = topi.add(topi.repeat(out, 2, 0), skip)
        yield label("pyramid", size), prim([x], out)


def _halve(x: te.Tensor) -> te.Tensor:
    rows, columns = x.shape
    return te.compute(
        (rows // 2, columns), lambda i, j: (x[2 * i, j] + x[2 * i + 1, j]) * 0.5, name="halve"
    )


@operator(CPU)
def chain_mixed_types() -> Iterator[Case]:
    """Chains that change type at each step: equal bits, and unequal."""
    for name, dtypes in (
        ("same_width", ("int32", "float32", "uint32", "float32")),
        ("quantized", ("int8", "int32", "float32", "int8", "int32", "float32")),
        ("half", ("float16", "float32", "float16", "float32")),
        ("narrowing", ("float64", "float32", "float16", "int8")),
        ("bytes", ("uint8", "int8", "bool", "uint8")),
    ):
        x = tensor((48, 64))
        out = x
        for dtype in (*dtypes, *dtypes):
            out = topi.cast(topi.flip(out, 1), dtype)
        yield name, prim([x], out)


@operator(CPU)
def diamond() -> Iterator[Case]:
    """One result with several users, joined later: it stays live across the branches."""
    for width in (2, 3, 5):
        for depth in (1, 2, 4):
            x = tensor((20, 50))
            root = topi.exp(x)
            branches = []
            for i in range(width):
                branch = root
                for j in range(depth):
                    branch = topi.add(topi.tanh(branch), float(i + j))
                branches.append(branch)
            yield label(width, depth), prim([x], topi.elemwise_sum(branches))


@operator(CPU)
def residual() -> Iterator[Case]:
    """Residual blocks one after the other: a long and a short live range each."""
    for blocks in (1, 2, 4):
        for dtype in ("float32", "float16"):
            x, w = tensor((16, 64), dtype), tensor((64, 64), dtype, "w")
            out = x
            for _ in range(blocks):
                hidden = nn.relu(nn.dense(out, w, None, dtype))
                out = topi.add(out, nn.dense(hidden, w, None, dtype))
            yield label(blocks, dtype), prim([x, w], out)


@operator(CPU)
def densely_connected() -> Iterator[Case]:
    """Layers that read the results of all layers before them (Huang et al., 2017)."""
    for layers in (2, 3, 5):
        x = tensor((1, 8, 12, 12))
        weights = [tensor((8, 8 * (i + 1), 1, 1), name=f"w{i}") for i in range(layers)]
        features = [x]
        for w in weights:
            joined = topi.concatenate(features, 1) if len(features) > 1 else features[0]
            features.append(nn.relu(nn.conv2d_nchw(joined, w, 1, 0, 1)))
        yield label(layers), prim([x, *weights], features[-1])


@operator(CPU)
def perceptron() -> Iterator[Case]:
    """Multi-layer perceptrons with layers of several widths."""
    for widths in ((64, 64, 64), (32, 128, 64, 16), (256, 32, 256, 32), (96, 48, 24, 12, 6)):
        for dtype in ("float32", "float16"):
            x = tensor((8, widths[0]), dtype)
            weights = [tensor((m, n), dtype, f"w{i}") for i, (n, m) in enumerate(pairwise(widths))]
            out = x
            for w in weights:
                out = nn.relu(nn.dense(out, w, None, dtype))
            yield label(widths, dtype), prim([x, *weights], nn.softmax(out))


@operator(CPU)
def convolutions() -> Iterator[Case]:
    """Stacks of padded convolutions: the padded image dies after each."""
    for depth in (2, 3, 5):
        for stride in (1, 2):
            x, w = tensor((1, 16, 32, 32)), tensor((16, 16, 3, 3), name="w")
            out = x
            for _ in range(depth):
                out = nn.relu(nn.conv2d_nchw(out, w, stride, 1, 1))
            yield label(depth, stride), prim([x, w], out)


@operator(CPU)
def separable() -> Iterator[Case]:
    """Inverted residual blocks of MobileNetV2 as one function."""
    for channels, hidden, image in ((8, 48, 14), (16, 64, 28)):
        x = tensor((1, channels, image, image))
        expand = tensor((hidden, channels, 1, 1), name="expand")
        filters = tensor((hidden, 1, 3, 3), name="filters")
        project = tensor((channels, hidden, 1, 1), name="project")
        out = topi.clip(nn.conv2d_nchw(x, expand, 1, 0, 1), 0.0, 6.0)
        out = topi.clip(nn.depthwise_conv2d_nchw(out, filters, 1, 1, 1), 0.0, 6.0)
        out = topi.add(x, nn.conv2d_nchw(out, project, 1, 0, 1))
        yield label(channels, hidden, image), prim([x, expand, filters, project], out)


@operator(CPU)
def attention() -> Iterator[Case]:
    """Self-attention in one function, masked or not."""
    for length, size, dtype in ((32, 32, "float32"), (64, 32, "float32"), (32, 64, "float16")):
        for causal in (False, True):
            q, k, v = (tensor((4, length, size), dtype, name) for name in "qkv")
            scores = topi.divide(nn.batch_matmul(q, k, None, dtype), tirx.const(6, dtype))
            scores = _hide_future(scores) if causal else scores
            weights = nn.softmax(scores)
            out = nn.batch_matmul(weights, v, None, dtype, False, False)
            kind = "causal" if causal else "full"
            yield label(kind, length, size, dtype), prim([q, k, v], topi.transpose(out, (1, 0, 2)))


def _hide_future(scores: te.Tensor) -> te.Tensor:
    lowest = tirx.min_value(scores.dtype)
    return te.compute(
        scores.shape,
        lambda b, i, j: tirx.Select(j <= i, scores[b, i, j], lowest),
        name="masked",
    )


@operator(CPU)
def transformer() -> Iterator[Case]:
    """Put all the operators of a transformer layer in one function."""
    for length, hidden in ((16, 32), (32, 64)):
        x = tensor((length, hidden))
        weights = {n: tensor((hidden, hidden), name=n) for n in ("wq", "wk", "wv", "wo", "up")}
        scale = tensor((hidden,), name="scale")
        normed = nn.rms_norm(x, scale, [1])
        q, k, v = (nn.dense(normed, weights[n]) for n in ("wq", "wk", "wv"))
        mixed = topi.matmul(nn.softmax(nn.dense(q, k)), v)
        out = topi.add(x, nn.dense(mixed, weights["wo"]))
        normed = nn.rms_norm(out, scale, [1])
        gate = topi.multiply(normed, topi.sigmoid(normed))
        out = topi.add(out, nn.dense(gate, weights["up"]))
        yield label(length, hidden), prim([x, *weights.values(), scale], out)


@operator(CPU)
def image_pipeline() -> Iterator[Case]:
    """Image processing in stages, after the examples of Halide (Ragan-Kelley et al., 2013)."""
    for size in (48, 96):
        x = tensor((size, size))
        blurred = _blur(_blur(x, 0), 1)
        yield label("blur", size), prim([x], blurred)
        inner = topi.strided_slice(x, [1, 1], [size - 1, size - 1])
        detail = topi.subtract(inner, blurred)
        yield label("unsharp_mask", size), prim([x], topi.add(inner, topi.multiply(detail, 2.0)))
        yield label("harris", size), prim([x], _harris(x))
        levels = [x]
        while len(levels) < 4:
            levels.append(_halve(topi.transpose(_halve(levels[-1]))))
        yield label("pyramid", size), prim([x], topi.exp(levels[-1]))


def _blur(x: te.Tensor, axis: int) -> te.Tensor:
    shape = [d - 2 if i == axis else d for i, d in enumerate(x.shape)]

    def window(i: Any, j: Any) -> Any:
        at = [(i + k, j) if axis == 0 else (i, j + k) for k in range(3)]
        return (x[at[0]] + x[at[1]] + x[at[2]]) / 3.0

    return te.compute(shape, window, name=f"blur{axis}")


def _harris(x: te.Tensor) -> te.Tensor:
    """Detect corners (Harris and Stephens, 1988)."""
    rows, columns = (d - 1 for d in x.shape)
    dy = te.compute((rows, columns), lambda i, j: x[i + 1, j] - x[i, j], name="dy")
    dx = te.compute((rows, columns), lambda i, j: x[i, j + 1] - x[i, j], name="dx")
    sums = [_blur(_blur(topi.multiply(a, b), 0), 1) for a, b in ((dx, dx), (dx, dy), (dy, dy))]
    determinant = topi.subtract(topi.multiply(sums[0], sums[2]), topi.multiply(sums[1], sums[1]))
    trace = topi.add(sums[0], sums[2])
    return topi.subtract(determinant, topi.multiply(topi.multiply(trace, trace), 0.04))


@operator(CPU)
def butterfly() -> Iterator[Case]:
    """Run the stages of a fast Walsh-Hadamard transform, each on the whole array."""
    for log_size in (4, 6, 8):
        size = 1 << log_size
        x = tensor((size,))
        out = x
        for stage in range(log_size):
            out = _butterfly(out, 1 << stage)
        yield label(size), prim([x], out)


def _butterfly(x: te.Tensor, stride: int) -> te.Tensor:
    def cross(i: Any) -> Any:
        first = (i // stride) % 2 == 0
        return tirx.if_then_else(first, x[i] + x[i + stride], x[i - stride] - x[i])

    return te.compute(x.shape, cross, name=f"stage{stride}")


@operator(CPU)
def solver() -> Iterator[Case]:
    """Iterate a linear solver, unrolled: matrix-vector products and vector updates."""
    for size, steps in ((32, 2), (32, 5), (64, 3)):
        matrix, b = tensor((size, size), name="matrix"), tensor((size,), name="b")
        estimate = residue = b
        for _ in range(steps):
            product = topi.matmul(matrix, topi.reshape(residue, (size, 1)))
            step = topi.multiply(topi.reshape(product, (size,)), 0.1)
            estimate = topi.add(estimate, step)
            residue = topi.subtract(residue, step)
        yield label(size, steps), prim([matrix, b], estimate)


@operator(CPU)
def several_outputs() -> Iterator[Case]:
    """Graphs with several results, which are parameters and never shared."""
    for count in (2, 4):
        x = tensor((32, 32))
        shared = topi.exp(topi.transpose(topi.tanh(x)))
        steps = [topi.transpose(topi.add(shared, float(i))) for i in range(count)]
        outputs = [topi.sqrt(step) for step in steps]
        yield label(count), prim([x], outputs)


@operator(CPU)
def dynamic_chain() -> Iterator[Case]:
    """Chains on symbolic shapes: buffers of sizes known only to be equal."""
    for length in (2, 4, 8):
        n, m = te.var("n"), te.var("m")
        for name, shape in (("vector", (n,)), ("rows", (n, 64)), ("matrix", (n, m))):
            x = tensor(shape)
            out = x
            for _ in range(length):
                out = topi.exp(topi.flip(out, 0))
            yield label(name, length), prim([x], out)
