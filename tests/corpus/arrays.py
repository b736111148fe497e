# SPDX-License-Identifier: Apache-2.0
"""Array operators from TVM's operator library: arithmetic, reductions, layouts, sorting, boxes."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import te, tirx, topi
from tvm.topi import vision

from .families import CPU, CPU_CUDA, DEVICES, Case, label, operator, prim, tensor


@operator(CPU)
def activation() -> Iterator[Case]:
    """Activations made of several elementwise steps, each step a buffer of its own."""
    for dtype in ("float32", "float16", "bfloat16"):
        x = tensor((16, 96), dtype)
        yield label("silu", dtype), prim([x], topi.multiply(x, topi.sigmoid(x)))
        half, one = tirx.const(0.5, dtype), tirx.const(1, dtype)
        inner = topi.multiply(x, tirx.const(0.7071, dtype))
        gelu = topi.multiply(topi.multiply(x, half), topi.add(topi.erf(inner), one))
        yield label("gelu", dtype), prim([x], gelu)
        mish = topi.multiply(x, topi.tanh(topi.log(topi.add(topi.exp(x), one))))
        yield label("mish", dtype), prim([x], mish)
        yield label("softplus", dtype), prim([x], topi.nn.softplus(x))
        clipped = topi.clip(topi.add(x, tirx.const(3, dtype)), 0, 6)
        yield label("hardswish", dtype), prim([x], topi.divide(topi.multiply(x, clipped), 6))


@operator(DEVICES)
def reduction() -> Iterator[Case]:
    """Reduce axes to sums, products, extremes and the positions of these."""
    for name in ("sum", "max", "prod"):
        for shape, axis in (((64, 512), 1), ((16, 8, 32), (0, 2)), ((4096,), None)):
            x = tensor(shape)
            yield label(name, shape, axis), prim([x], getattr(topi, name)(x, axis))
    for name in ("argmax", "argmin"):
        x = tensor((32, 100))
        yield name, prim([x], getattr(topi, name)(x, 1))
    x = tensor((32, 100), "bool")
    yield "any", prim([x], topi.any(x, 1))
    x = tensor((32, 100), "float16")
    yield "sum_float16", prim([x], topi.sum(x, 1))


@operator(CPU)
def statistics() -> Iterator[Case]:
    """Moments and norms: reductions that feed reductions."""
    for shape in ((64, 128), (8, 16, 32)):
        x = tensor(shape)
        size = float(shape[-1])
        mean = topi.divide(topi.sum(x, -1, keepdims=True), size)
        centered = topi.subtract(x, mean)
        squares = topi.multiply(centered, centered)
        variance = topi.divide(topi.sum(squares, -1, keepdims=True), size)
        yield label("variance", shape), prim([x], variance)
        scores = topi.divide(centered, topi.sqrt(topi.add(variance, 1e-5)))
        yield label("standard_score", shape), prim([x], scores)
        cubes = topi.multiply(topi.multiply(scores, scores), scores)
        yield label("skewness", shape), prim([x], topi.divide(topi.sum(cubes, -1), size))
        norm = topi.sqrt(topi.sum(topi.multiply(x, x), -1, keepdims=True))
        yield label("l2_normalize", shape), prim([x], topi.divide(x, topi.maximum(norm, norm)))
        highest = topi.max(x, -1, keepdims=True)
        total = topi.sum(topi.exp(topi.subtract(x, highest)), -1, keepdims=True)
        yield label("log_sum_exp", shape), prim([x], topi.add(topi.log(total), highest))


@operator(CPU_CUDA)
def layout() -> Iterator[Case]:
    """Transposes, reshapes, joins and slices."""
    x, y = tensor((8, 24, 32)), tensor((8, 24, 32), name="y")
    yield "transpose", prim([x], topi.transpose(x, (2, 0, 1)))
    yield "flip", prim([x], topi.flip(x, 1))
    yield "reshape", prim([x], topi.reshape(x, (24, 256)))
    yield "concatenate", prim([x, y], topi.concatenate([x, y], 1))
    yield "stack", prim([x, y], topi.stack([x, y], 1))
    yield "split", prim([x], topi.split(x, 3, 1))
    yield "strided_slice", prim([x], topi.strided_slice(x, [0, 2, 1], [8, 20, 31], [1, 2, 3]))
    yield "tile", prim([x], topi.tile(x, (1, 2, 1)))
    yield "repeat", prim([x], topi.repeat(x, 2, 1))
    yield "broadcast", prim([x], topi.broadcast_to(x, (4, 8, 24, 32)))
    yield "where", prim([x, y], topi.where(topi.greater(x, y), x, y))
    yield "triangle", prim([x], topi.trilu(x, tirx.const(0, "int32"), True))
    x = tensor((1, 16, 8, 8))
    yield "space_to_depth", prim([x], topi.nn.space_to_depth(x, 2))
    yield "depth_to_space", prim([x], topi.nn.depth_to_space(x, 2))
    yield "blocked_layout", prim([x], topi.layout_transform(x, "NCHW", "NCHW4c"))
    yield "pad", prim([x], topi.nn.pad(x, [0, 0, 1, 1]))
    yield "mirror_pad", prim([x], topi.nn.mirror_pad(x, [0, 0, 1, 1]))
    yield "space_to_batch", prim([x], topi.nn.space_to_batch_nd(x, [4], [0], [0]))


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


@operator(CPU)
def boxes() -> Iterator[Case]:
    """Filter boxes by score and decode their offsets, for object detection."""
    x = tensor((1, 40, 6))
    count, data, indices = vision.get_valid_counts(x, 0.1, 0, 1)
    yield "valid_counts", prim([x], [count, data, indices])
    scores, offsets = tensor((1, 4, 40), name="scores"), tensor((1, 160), name="offsets")
    anchors = tensor((1, 40, 4), name="anchors")
    out = vision.multibox_transform_loc(scores, offsets, anchors, (1.0, 1.0, 1.0, 1.0))
    yield "multibox", prim([scores, offsets, anchors], out)


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
