# SPDX-License-Identifier: Apache-2.0
"""Operators of neural network layers, from TVM's operator library."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import topi
from tvm.topi import nn

from .families import CPU, CPU_CUDA, DEVICES, Case, label, operator, prim, tensor

# --------------------------------------------------------------------------------- convolutions


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


@operator(CPU_CUDA)
def conv2d_nchw() -> Iterator[Case]:
    """Two-dimensional convolutions, channels first."""
    for image, channels, filters, size, stride, dilation, dtype in (
        (56, 64, 64, 3, 1, 1, "float32"),
        (56, 64, 64, 3, 1, 1, "float16"),
        (56, 64, 128, 3, 2, 1, "float32"),
        (28, 32, 32, 3, 1, 2, "float32"),
        (14, 256, 256, 1, 1, 1, "float32"),
        (30, 3, 16, 7, 2, 1, "bfloat16"),
    ):
        x = tensor((1, channels, image, image), dtype)
        w = tensor((filters, channels, size, size), dtype, "w")
        out = nn.conv2d_nchw(x, w, stride, size // 2, dilation, dtype)
        yield (
            label(x_shape(image, channels), filters, size, stride, dilation, dtype),
            prim([x, w], out),
        )


@operator(CPU_CUDA)
def conv2d_nhwc() -> Iterator[Case]:
    """Two-dimensional convolutions, channels last."""
    for image, channels, filters, size, stride, dtype, out_dtype in (
        (56, 64, 64, 3, 1, "float32", "float32"),
        (28, 128, 128, 3, 2, "float32", "float32"),
        (28, 64, 64, 3, 1, "float16", "float16"),
        (28, 64, 64, 3, 1, "float16", "float32"),
        (28, 64, 64, 1, 1, "int8", "int32"),
        (28, 64, 64, 3, 1, "int8", "int32"),
    ):
        x = tensor((1, image, image, channels), dtype)
        w = tensor((size, size, channels, filters), dtype, "w")
        out = nn.conv2d_nhwc(x, w, stride, size // 2, 1, out_dtype)
        yield (
            label(x_shape(image, channels), filters, size, stride, dtype, out_dtype),
            prim([x, w], out),
        )


@operator(CPU)
def conv2d_winograd() -> Iterator[Case]:
    """Convolutions by Winograd's algorithm: a chain of small transforms around a product."""
    for image, channels, dtype in ((14, 64, "float32"), (28, 32, "float32"), (14, 32, "float16")):
        x, w = tensor((1, image, image, channels), dtype), tensor((3, 3, channels, channels), dtype)
        out = nn.conv2d_winograd_nhwc(x, w, 1, 1, 1, dtype)
        yield label("nhwc", x_shape(image, channels), dtype), prim([x, w], out)
        x, w = tensor((1, channels, image, image), dtype), tensor((channels, channels, 3, 3), dtype)
        out = nn.conv2d_winograd_nchw(x, w, 1, 1, 1, dtype)
        yield label("nchw", x_shape(image, channels), dtype), prim([x, w], out)


@operator(CPU)
def conv2d_transpose() -> Iterator[Case]:
    """Transposed convolutions: dilate, pad and flip before the sum of products."""
    for stride, padding, dtype in ((2, 1, "float32"), (1, 0, "float32"), (2, 1, "float16")):
        x, w = tensor((1, 32, 16, 16), dtype), tensor((32, 16, 4, 4), dtype, "w")
        out = nn.conv2d_transpose_nchw(x, w, (stride, stride), (padding,) * 4, dtype, (0, 0))
        yield label("nchw", stride, padding, dtype), prim([x, w], out)
    x, w = tensor((1, 32, 64)), tensor((32, 16, 4), name="w")
    yield "ncw", prim([x, w], nn.conv1d_transpose_ncw(x, w, 2, (1, 1), "float32", (0,)))
    x, w = tensor((1, 8, 8, 8, 8)), tensor((8, 8, 3, 3, 3), name="w")
    out = nn.conv3d_transpose_ncdhw(x, w, (2, 2, 2), (1, 1, 1), "float32", (0, 0, 0))
    yield "ncdhw", prim([x, w], out)


@operator(CPU)
def conv2d_special() -> Iterator[Case]:
    """Deformable convolution, correlation, dilation and bit-serial convolution."""
    x, w = tensor((1, 16, 14, 14)), tensor((16, 16, 3, 3), name="w")
    offset = tensor((1, 18, 14, 14), name="offset")
    out = nn.deformable_conv2d_nchw(x, offset, w, (1, 1), (1, 1), (1, 1), 1, 1, "float32")
    yield "deformable", prim([x, offset, w], out)
    a, b = tensor((1, 8, 16, 16)), tensor((1, 8, 16, 16), name="y")
    yield "correlation", prim([a, b], nn.correlation_nchw(a, b, 3, 4, 1, 2, 4, True))
    x, w = tensor((1, 8, 20, 20)), tensor((8, 3, 3), name="w")
    yield "dilation2d", prim([x, w], topi.image.dilation2d_nchw(x, w, 1, 1, 1))
    x, w = tensor((1, 14, 14, 32), "uint8"), tensor((3, 3, 32, 16), "uint8", "w")
    out = nn.bitserial_conv2d_nhwc(x, w, 1, 1, 2, 1, "uint32", "int16", False)
    yield "bitserial", prim([x, w], out)


# -------------------------------------------------------------------------------- matrix products


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


@operator(CPU)
def dense_bfloat16() -> Iterator[Case]:
    """Layers in bfloat16, which the CPU pipeline computes in float32."""
    for m, k, n in ((16, 64, 64), (64, 256, 128)):
        x, w = tensor((m, k), "bfloat16"), tensor((n, k), "bfloat16", "w")
        yield label("dense", (m, k, n)), prim([x, w], nn.dense(x, w, None, "bfloat16"))
        hidden = nn.relu(nn.dense(x, w, None, "bfloat16"))
        yield label("dense_relu_softmax", (m, k, n)), prim([x, w], nn.softmax(hidden))


@operator(CPU_CUDA)
def batch_matmul() -> Iterator[Case]:
    """Batched matrix products, with either operand transposed."""
    for batch, size, dtype, left, right in (
        (4, 64, "float32", False, True),
        (4, 64, "float32", True, False),
        (12, 64, "float16", False, False),
        (2, 32, "int8", False, True),
    ):
        a, b = tensor((batch, size, size), dtype), tensor((batch, size, size), dtype, "y")
        out_dtype = "int32" if dtype == "int8" else dtype
        out = nn.batch_matmul(a, b, None, out_dtype, left, right)
        yield label(batch, size, dtype, f"{left:d}{right:d}"), prim([a, b], out)


# ------------------------------------------------------------------------ softmax, norms and pools


@operator(DEVICES)
def softmax() -> Iterator[Case]:
    """Softmax over the last axis or another."""
    for shape, axis, dtype in (
        ((64, 128), -1, "float32"),
        ((64, 128), -1, "float16"),
        ((8, 12, 64, 64), -1, "float32"),
        ((1, 1000), -1, "float32"),
        ((4, 32, 56), 1, "float32"),
    ):
        x = tensor(shape, dtype)
        yield label(shape, axis, dtype), prim([x], nn.softmax(x, axis))
    x = tensor((32, 256), "float64")
    yield "32x256_float64", prim([x], nn.softmax(x))


@operator(CPU_CUDA)
def softmax_variants() -> Iterator[Case]:
    """Softmax with a fast exponential, and its logarithm."""
    for shape in ((64, 128), (2, 8, 32)):
        x = tensor(shape)
        yield label("fast", shape), prim([x], nn.fast_softmax(x))
        x = tensor(shape)
        yield label("log", shape), prim([x], nn.log_softmax(x))


@operator(CPU_CUDA)
def layer_norm() -> Iterator[Case]:
    """Layer normalization over the last axes."""
    for shape, count, dtype in (
        ((16, 768), 1, "float32"),
        ((16, 768), 1, "float16"),
        ((2, 64, 256), 1, "float32"),
        ((2, 16, 16, 8), 2, "float32"),
    ):
        x = tensor(shape, dtype)
        gamma, beta = tensor(shape[-count:], dtype, "gamma"), tensor(shape[-count:], dtype, "beta")
        out = nn.layer_norm(x, gamma, beta, list(range(len(shape) - count, len(shape))))
        yield label(shape, count, dtype), prim([x, gamma, beta], out)


@operator(CPU_CUDA)
def rms_norm() -> Iterator[Case]:
    """Root mean square normalization."""
    for shape, dtype in (((64, 1024), "float32"), ((64, 1024), "float16"), ((1, 8, 96), "float32")):
        x, w = tensor(shape, dtype), tensor(shape[-1:], dtype, "w")
        yield label(shape, dtype), prim([x, w], nn.rms_norm(x, w, [len(shape) - 1]))


@operator(CPU)
def group_norm() -> Iterator[Case]:
    """Group and instance normalization."""
    for dtype in ("float32", "float16"):
        x = tensor((2, 32, 14, 14), dtype)
        gamma, beta = tensor((32,), dtype, "gamma"), tensor((32,), dtype, "beta")
        out = nn.group_norm(x, gamma, beta, 8, 1, [2, 3])
        yield label("group", dtype), prim([x, gamma, beta], out)
        out = nn.instance_norm(x, gamma, beta, 1, [2, 3])
        yield label("instance", dtype), prim([x, gamma, beta], out)


@operator(CPU)
def batch_norm() -> Iterator[Case]:
    """Batch normalization for inference and for training, which has three results."""
    for training in (False, True):
        x = tensor((4, 16, 14, 14))
        channels = [tensor((16,), name=n) for n in ("gamma", "beta", "mean", "variance")]
        outs = nn.batch_norm(x, *channels, 1, 1e-5, True, True, training, 0.1)
        yield "training" if training else "inference", prim([x, *channels], outs)


@operator(CPU)
def local_response_norm() -> Iterator[Case]:
    """Local response normalization."""
    for shape, axis in (((1, 16, 14, 14), 1), ((1, 14, 14, 16), 3)):
        x = tensor(shape)
        yield label(shape, axis), prim([x], nn.lrn(x, 5, axis))


@operator(DEVICES)
def pool() -> Iterator[Case]:
    """Pooling in one, two and three dimensions, and adaptive pooling."""
    x = tensor((1, 16, 57))
    yield "max1d", prim([x], nn.pool1d(x, [3], [2], [1], [1, 1], "max"))
    for mode in ("max", "avg"):
        for dtype in ("float32", "float16"):
            x = tensor((1, 32, 56, 56), dtype)
            out = nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], mode)
            yield label(mode, "2d", dtype), prim([x], out)
        x = tensor((1, 28, 28, 32))
        out = nn.pool2d(x, [2, 2], [2, 2], [1, 1], [0, 0, 0, 0], mode, layout="NHWC")
        yield label(mode, "nhwc"), prim([x], out)
        x = tensor((1, 8, 8, 14, 14))
        out = nn.pool3d(x, [2, 2, 2], [2, 2, 2], [1, 1, 1], [0] * 6, mode)
        yield label(mode, "3d"), prim([x], out)
        x = tensor((1, 64, 14, 14))
        yield label("adaptive", mode), prim([x], nn.adaptive_pool(x, (3, 3), mode))
        yield label("global", mode), prim([x], nn.global_pool(x, mode))


@operator(CPU)
def pool_gradient() -> Iterator[Case]:
    """Gradients of pooling."""
    for mode in ("max", "avg"):
        grad, x = tensor((1, 8, 14, 14), name="grad"), tensor((1, 8, 28, 28))
        out = nn.pool_grad(grad, x, [2, 2], [2, 2], [0, 0, 0, 0], mode)
        yield mode, prim([grad, x], out)


def x_shape(image: int, channels: int) -> str:
    """Label a square image."""
    return f"{image}x{image}x{channels}"
