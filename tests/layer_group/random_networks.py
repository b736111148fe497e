# SPDX-License-Identifier: Apache-2.0
"""Random networks for LayerGroup: chains with branches, of many operators, at odd sizes."""

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


KINDS = ("conv", "depthwise", "pool", "average", "relu", "softmax", "skip", "join", "up", "rows")


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
        else:
            at = _match(kind, back, earlier, current)
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


def _with(kind: str, at: int) -> Any:
    def step(emit: Any, made: Any, _params: Any) -> Any:
        if kind == "skip":
            return emit(relax.op.add(made[-1], made[at]))
        return emit(relax.op.concat([made[-1], made[at]], axis=1))

    return step
