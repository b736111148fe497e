# SPDX-License-Identifier: Apache-2.0
"""Random networks for LayerGroup: chains with branches, of many operators, at odd sizes.

Kernels have several results where a tensor is split: a part goes on alone, or both are joined the
other way around or interleaved, behind a normalization or not.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from operator_modules import module
from tvm import relax


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
    shapes: list[tuple[int, ...]] = [(batch, channels, height, width)]
    steps = _steps(choices, shapes, channels)

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


def _steps(choices: Any, shapes: list[tuple[int, ...]], channels: int) -> list[Any]:
    """Return what each operator does; it appends the shapes of its weights to `shapes`."""
    steps = []
    current = shapes[0]
    earlier = [current]
    for kind, back, kernel in choices:
        n, c, h, w = current
        pad = kernel // 2
        if kind == "conv":
            at = len(shapes)
            shapes.append((channels, c, kernel, 1))
            stride = 2 if back == 1 and h > 6 else 1
            steps.append(_conv(at, stride, pad, 1))
            current = (n, channels, (h + 2 * pad - kernel) // stride + 1, w)
        elif kind == "depthwise":
            at = len(shapes)
            shapes.append((c, 1, kernel, 1))
            steps.append(_conv(at, 1, pad, c))
            current = (n, c, h + 2 * pad - kernel + 1, w)
        elif kind in ("pool", "average"):
            stride = 2 if h > 6 else 1
            steps.append(_pool(kind, kernel, stride, pad))
            current = (n, c, (h + 2 * pad - kernel) // stride + 1, w)
        elif kind == "relu":
            steps.append(lambda emit, made, _p: emit(relax.op.nn.relu(made[-1])))
        elif kind == "softmax":
            steps.append(lambda emit, made, _p: emit(relax.op.nn.softmax(made[-1], axis=3)))
        elif kind == "up":
            size = (h + h // 2 + 1, w)
            steps.append(_resize(size))
            current = (n, c, *size)
        elif kind == "rows":
            steps.append(_rows(h))
            current = (n, c, max(1, h - 1), w)
        elif kind in ("part", "swap") and c > 1:
            first = min(kernel, c - 1)
            steps.append(_split(first, kind == "swap"))
            current = current if kind == "swap" else (n, c - first, h, w)
        elif kind == "shuffle" and c % 2 == 0:
            steps.append(_shuffle(current))
        elif kind == "norm":
            at = len(shapes)
            shapes += [(c,)] * 3
            steps.append(_norm(at))
        else:
            joins = kind in ("skip", "join")
            at = _match(kind, back, earlier, current) if joins else None
            if at is None:
                steps.append(lambda emit, made, _p: emit(relax.op.nn.relu(made[-1])))
            else:
                steps.append(_with(kind, at))
                if kind == "join":
                    current = (n, c + earlier[at][1], h, w)
        earlier.append(current)
    return steps


def _match(kind: str, back: int, earlier: list[Any], current: Any) -> int | None:
    """Return an earlier tensor that fits beside the current one."""
    for at in range(max(0, len(earlier) - 2 - back), len(earlier) - 1):
        other = earlier[at]
        if other == current or (
            kind == "join" and (other[0], *other[2:]) == (current[0], *current[2:])
        ):
            return at
    return None


def _conv(at: int, stride: int, pad: int, groups: int) -> Any:
    def step(emit: Any, made: Any, params: Any) -> Any:
        return emit(
            relax.op.nn.conv2d(
                made[-1], params[at], strides=(stride, 1), padding=(pad, 0), groups=groups
            )
        )

    return step


def _pool(kind: str, kernel: int, stride: int, pad: int) -> Any:
    operator = relax.op.nn.max_pool2d if kind == "pool" else relax.op.nn.avg_pool2d

    def step(emit: Any, made: Any, _params: Any) -> Any:
        return emit(operator(made[-1], (kernel, 1), (stride, 1), (pad, 0)))

    return step


def _resize(size: tuple[int, int]) -> Any:
    def step(emit: Any, made: Any, _params: Any) -> Any:
        return emit(
            relax.op.image.resize2d(made[-1], size, method="nearest_neighbor", layout="NCHW")
        )

    return step


def _rows(height: int) -> Any:
    def step(emit: Any, made: Any, _params: Any) -> Any:
        return emit(relax.op.strided_slice(made[-1], [2], [min(1, height - 1)], [height], [1]))

    return step


def _split(first: int, joined: bool) -> Any:
    """Keep the last channels alone, or put them in front of the first ones."""

    def step(emit: Any, made: Any, _params: Any) -> Any:
        parts = emit(relax.op.split(made[-1], [first], axis=1))
        front, behind = (emit(relax.TupleGetItem(parts, at)) for at in (0, 1))
        return emit(relax.op.concat([behind, front], axis=1)) if joined else behind

    return step


def _shuffle(shape: tuple[int, ...]) -> Any:
    """Interleave two halves of the channels, and keep them apart as two results again."""
    n, c, h, w = shape

    def step(emit: Any, made: Any, _params: Any) -> Any:
        y = emit(relax.op.reshape(made[-1], (n, 2, c // 2, h, w)))
        y = emit(relax.op.permute_dims(y, [0, 2, 1, 3, 4]))
        parts = emit(relax.op.split(emit(relax.op.reshape(y, shape)), 2, axis=1))
        a, b = (emit(relax.TupleGetItem(parts, at)) for at in (0, 1))
        return emit(relax.op.concat([emit(relax.op.nn.relu(b)), a], axis=1))

    return step


def _norm(at: int) -> Any:
    """Normalize by a mean, scale and shift for each channel."""

    def step(emit: Any, made: Any, params: Any) -> Any:
        mean, gamma, beta = params[at : at + 3]
        variance = emit(
            relax.op.add(emit(relax.op.multiply(mean, mean)), relax.const(1, "float32"))
        )
        together = relax.op.nn.batch_norm(
            made[-1], gamma, beta, mean, variance, axis=1, training=False
        )
        return emit(relax.TupleGetItem(emit(together), 0))

    return step


def _with(kind: str, at: int) -> Any:
    def step(emit: Any, made: Any, _params: Any) -> Any:
        if kind == "skip":
            return emit(relax.op.add(made[-1], made[at]))
        return emit(relax.op.concat([made[-1], made[at]], axis=1))

    return step
