# SPDX-License-Identifier: Apache-2.0
"""Operators of TVM's library, and graphs of many in one function, a buffer for each result.

Of families whose functions meet the same steps of storage planning, one is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import te, tirx, topi
from tvm.topi import nn

from .families import CPU, CPU_CUDA, DEVICES, Case, label, operator, prim, tensor


@operator(CPU_CUDA)
def conv1d() -> Iterator[Case]:
    """One-dimensional convolutions."""
    for dtype in ("float32", "float16"):
        x, w = tensor((2, 32, 128), dtype), tensor((64, 32, 3), dtype, "w")
        yield label("ncw", dtype), prim([x, w], nn.conv1d_ncw(x, w, 1, "SAME", 1, dtype))
    x, w = tensor((2, 128, 32)), tensor((3, 32, 64), name="w")
    yield "nwc", prim([x, w], nn.conv1d_nwc(x, w, 2, "VALID", 1, "float32"))
    x, w = tensor((2, 32, 128)), tensor((64, 8, 3), name="w")
    yield "group", prim([x, w], nn.group_conv1d_ncw(x, w, 1, 1, 1, 4, "float32"))


@operator(DEVICES)
def dense() -> Iterator[Case]:
    """Fully connected layers, some with a bias, in several types."""
    for m, k, n, dtype, out_dtype in (
        (1, 512, 1000, "float32", "float32"),
        (64, 256, 256, "float32", "float32"),
        (64, 256, 256, "float16", "float16"),
        (64, 256, 256, "float16", "float32"),
        (64, 256, 256, "int8", "int32"),
    ):
        x, w = tensor((m, k), dtype), tensor((n, k), dtype, "w")
        yield label((m, k, n), dtype, out_dtype), prim([x, w], nn.dense(x, w, None, out_dtype))
        bias = tensor((n,), out_dtype, "bias")
        out = topi.maximum(nn.dense(x, w, bias, out_dtype), topi.full((1,), out_dtype, 0))
        yield label("bias_relu", (m, k, n), dtype, out_dtype), prim([x, w, bias], out)


@operator(CPU_CUDA)
def softmax_variants() -> Iterator[Case]:
    """Softmax with a fast exponential, and its logarithm."""
    for shape in ((64, 128), (2, 8, 32)):
        x = tensor(shape)
        yield label("fast", shape), prim([x], nn.fast_softmax(x))
        x = tensor(shape)
        yield label("log", shape), prim([x], nn.log_softmax(x))


@operator(CPU_CUDA)
def rms_norm() -> Iterator[Case]:
    """Root mean square normalization."""
    for shape, dtype in (((64, 1024), "float32"), ((64, 1024), "float16"), ((1, 8, 96), "float32")):
        x, w = tensor(shape, dtype), tensor(shape[-1:], dtype, "w")
        yield label(shape, dtype), prim([x, w], nn.rms_norm(x, w, [len(shape) - 1]))


@operator(CPU)
def pool_gradient() -> Iterator[Case]:
    """Gradients of pooling."""
    for mode in ("max", "avg"):
        grad, x = tensor((1, 8, 14, 14), name="grad"), tensor((1, 8, 28, 28))
        out = nn.pool_grad(grad, x, [2, 2], [2, 2], [0, 0, 0, 0], mode)
        yield mode, prim([grad, x], out)


@operator(CPU)
def sort() -> Iterator[Case]:
    """Sorting and selecting, which the CPU leaves to a packed function."""
    x = tensor((16, 64))
    yield "sort", prim([x], topi.sort(x))
    yield "argsort", prim([x], topi.argsort(x, dtype="int32"))
    for k in (1, 8):
        yield label("topk", k), prim([x], topi.topk(x, k))
    smoothed = topi.divide(topi.add(topi.exp(x), topi.tanh(x)), 2.0)
    yield "sort_smoothed", prim([x], topi.exp(topi.sort(topi.multiply(smoothed, x))))


@operator(DEVICES)
def dynamic_shape() -> Iterator[Case]:
    """Operators on shapes with symbolic dimensions."""
    n, m = te.var("n"), te.var("m")
    x, y = tensor((n, 128)), tensor((n, m), name="y")
    yield "softmax_rows", prim([x], topi.nn.softmax(x))
    yield "softmax", prim([y], topi.nn.softmax(y))
    yield "exp", prim([y], topi.exp(y))
    yield "sum", prim([y], topi.sum(y, 1))
    a, b = tensor((n, 64), name="a"), tensor((m, 64), name="b")
    yield "dense", prim([a, b], topi.nn.dense(a, b))
    w = tensor((128,), name="w")
    yield "rms_norm", prim([x, w], topi.nn.rms_norm(x, w, [1]))


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
