# SPDX-License-Identifier: Apache-2.0
"""Random networks for LayerGroup: chains with branches, of many operators, at odd sizes.

Kernels have several results where a tensor is split: a part goes on alone, or both are joined the
other way around or interleaved, behind a normalization or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from network_families import norm, parts_of
from operator_modules import Shape, module
from tvm import relax

OP = relax.op
Step = Callable[[Any, list[Any], Any], Any]
"""What an operator does, given what emits, all tensors that were made so far, and the weights."""


@st.composite
def networks(draw: Any) -> Any:
    """Draw a Relax module of convolutions, pooling, element-wise operators, skips and joins."""
    batch = draw(st.integers(1, 2))
    channels = draw(st.sampled_from((2, 3, 4, 5, 11)))  # More than lanes are made in parts.
    height, width = (draw(st.integers(low, high)) for low, high in ((5, 17), (3, 6)))
    count = draw(st.integers(2, 5))
    choices = [
        (draw(st.sampled_from(KINDS)), draw(st.integers(0, 3)), draw(st.integers(1, 3)))
        for _ in range(count)
    ]
    more_outputs = draw(st.booleans())
    shapes: list[Shape] = [(batch, channels, height, width)]
    steps, results = [], [shapes[0]]
    for choice in choices:
        step, result = _step(*choice, channels, shapes, results)
        steps.append(step)
        results.append(result)

    def body(emit: Any, *params: Any) -> Any:
        made = [params[0]]
        for step in steps:
            made.append(step(emit, made, params))
        return [made[-1], made[len(made) // 2]] if more_outputs and len(made) > 3 else made[-1]

    return module(shapes, body)


KINDS = (
    *("conv", "depthwise", "pool", "average", "relu", "softmax", "skip", "join", "up", "rows"),
    *("part", "swap", "shuffle", "norm"),
)


def _step(
    kind: str, back: int, kernel: int, channels: int, shapes: list[Shape], results: list[Shape]
) -> tuple[Step, Shape]:
    """Return what an operator does, and the shape of its result.

    The shapes of its weights are appended to `shapes`; `results` are those of what was made before.
    """
    n, c, h, w = current = results[-1]
    at, pad = len(shapes), kernel // 2
    windows = h + 2 * pad - kernel
    stride = 2 if h > 6 and (back == 1 or kind in ("pool", "average")) else 1
    if kind == "conv":
        shapes.append((channels, c, kernel, 1))
        step = _last(OP.nn.conv2d, at, strides=(stride, 1), padding=(pad, 0))
        return step, (n, channels, windows // stride + 1, w)
    if kind == "depthwise":
        shapes.append((c, 1, kernel, 1))
        return _last(OP.nn.conv2d, at, padding=(pad, 0), groups=c), (n, c, windows + 1, w)
    if kind in ("pool", "average"):
        operator = OP.nn.max_pool2d if kind == "pool" else OP.nn.avg_pool2d
        window = {"pool_size": (kernel, 1), "strides": (stride, 1), "padding": (pad, 0)}
        return _last(operator, **window), (n, c, windows // stride + 1, w)
    if kind == "softmax":
        return _last(OP.nn.softmax, axis=3), current
    if kind == "up":
        size = (h + h // 2 + 1, w)
        options = {"size": size, "method": "nearest_neighbor", "layout": "NCHW"}
        return _last(OP.image.resize2d, **options), (n, c, *size)
    if kind == "rows":
        rows = {"axes": [2], "begin": [min(1, h - 1)], "end": [h], "strides": [1]}
        return _last(OP.strided_slice, **rows), (n, c, max(1, h - 1), w)
    if kind in ("part", "swap") and c > 1:
        first = min(kernel, c - 1)
        made = current if kind == "swap" else (n, c - first, h, w)
        return _split(first, kind == "swap"), made
    if kind == "shuffle" and c % 2 == 0:
        return _shuffle(current), current
    if kind == "norm":
        shapes += [(c,)] * 3
        return _norm(at), current
    other = _match(kind, back, results) if kind in ("skip", "join") else None
    if other is None:
        return _last(OP.nn.relu), current
    if kind == "skip":
        return lambda emit, made, _params: emit(OP.add(made[-1], made[other])), current
    joined = (n, c + results[other][1], h, w)
    return lambda emit, made, _p: emit(OP.concat([made[-1], made[other]], axis=1)), joined


def _match(kind: str, back: int, results: list[Shape]) -> int | None:
    """Return an earlier tensor that fits beside the last one."""
    last = len(results) - 1
    n, c, *image = results[-1]
    for at in range(max(0, last - 1 - back), last):
        other = results[at]
        if other == (n, c, *image) or (kind == "join" and (other[0], *other[2:]) == (n, *image)):
            return at
    return None


def _last(operator: Any, weight: int | None = None, **options: Any) -> Step:
    """Apply an operator to the last tensor, and to the weight of a number."""

    def step(emit: Any, made: Any, params: Any) -> Any:
        more = [] if weight is None else [params[weight]]
        return emit(operator(made[-1], *more, **options))

    return step


def _split(first: int, joined: bool) -> Step:
    """Keep the last channels alone, or put them in front of the first ones."""

    def step(emit: Any, made: Any, _params: Any) -> Any:
        front, behind = parts_of(emit, made[-1], [first], 1)
        return emit(OP.concat([behind, front], axis=1)) if joined else behind

    return step


def _shuffle(shape: Shape) -> Step:
    """Interleave two halves of the channels, and keep them apart as two results again."""
    n, c, h, w = shape

    def step(emit: Any, made: Any, _params: Any) -> Any:
        y = emit(OP.reshape(made[-1], (n, 2, c // 2, h, w)))
        y = emit(OP.permute_dims(y, [0, 2, 1, 3, 4]))
        a, b = parts_of(emit, emit(OP.reshape(y, shape)), 2, 1)
        return emit(OP.concat([emit(OP.nn.relu(b)), a], axis=1))

    return step


def _norm(at: int) -> Step:
    """Normalize by a mean, scale and shift for each channel."""

    def step(emit: Any, made: Any, params: Any) -> Any:
        mean, gamma, beta = params[at : at + 3]
        variance = emit(OP.add(emit(OP.multiply(mean, mean)), relax.const(1, "float32")))
        return norm(emit, made[-1], gamma, beta, mean, variance)

    return step
