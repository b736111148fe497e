# SPDX-License-Identifier: Apache-2.0
"""Networks of many branches, by short generators: what the order of operators can be tried on.

The cells of NASNet-A, AmoebaNet-A and DARTS (second order) are transcribed from their papers, as
are the random graphs of RandWire and the nested decoder of UNet++. Batch normalization is a scale
and a shift; the networks are for comparing orders, not for comparing bytes with the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import tvm
from network_builder import Network, double_conv, module_of, tensor
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn


def _of_image(body: Callable[[Network, Any], Any], size: int) -> tvm.IRModule:
    return module_of(body, {"x": tensor(1, 3, size, size)})


def relu_conv(net: Network, x: Any, channels: int, kernel: int = 1, stride: int = 1) -> Any:
    """Convolve what is cut off."""
    return net.conv_norm(net.relu(x), channels, kernel, stride)


def separable(
    net: Network, x: Any, kernel: int, stride: int, dilation: int = 1, times: int = 2
) -> Any:
    """Convolve by channel and then by pixel, twice as a rule."""
    channels = int(x.ty.shape[1])
    for step in range(times):
        x = net.conv(net.relu(x), channels, kernel, 1 if step else stride, channels, dilation)
        x = net.conv_norm(x, channels, 1)
    return x


def halved(net: Network, x: Any, channels: int) -> Any:
    """Return an image of half the size, as DARTS' factorized reduction: two strided halves."""
    x = net.relu(x)
    parts = [net.conv(x, channels - channels // 2, 1, 2), net.conv(x, channels // 2, 1, 2)]
    return net.normalized(net.concat(parts))


def classified(net: Network, x: Any, classes: int = 10) -> Any:
    """Return the logits of an image."""
    x = net.mean(x, 2, 3)
    return net.emit(op.matmul(x, net.weight(int(x.ty.shape[1]), classes)))


# ------------------------------------------------------------------------------- networks of cells


@dataclass(frozen=True)
class Cells:
    """Two cells: of each step what it does to which two earlier results, and what is joined."""

    normal: tuple[tuple[str, int], ...]
    normal_joined: tuple[int, ...]
    reduction: tuple[tuple[str, int], ...]
    reduction_joined: tuple[int, ...]


def _steps(text: str) -> tuple[tuple[str, int], ...]:
    words = text.split()
    return tuple((word, int(source)) for word, source in zip(words[::2], words[1::2], strict=True))


NASNET = Cells(
    _steps("sep5 1 sep3 0 sep5 0 sep3 0 avg 1 skip 0 avg 0 avg 0 sep3 1 skip 1"),
    (0, 2, 3, 4, 5, 6),
    _steps("sep5 1 sep7 0 max 1 sep7 0 avg 1 sep5 0 skip 3 avg 2 sep3 2 max 1"),
    (3, 4, 5, 6),
)
AMOEBA = Cells(
    _steps("avg 0 max 1 sep3 0 sep5 2 sep3 0 avg 3 sep3 1 skip 1 skip 0 avg 1"),
    (4, 5, 6),
    _steps("avg 0 sep3 1 max 0 sep7 2 sep7 0 avg 1 max 0 max 1 rows7 0 sep3 5"),
    (3, 4, 6),
)
DARTS = Cells(
    _steps("sep3 0 sep3 1 sep3 0 sep3 1 sep3 1 skip 0 skip 0 dil3 2"),
    (2, 3, 4, 5),
    _steps("max 0 max 1 skip 2 max 1 max 0 skip 2 skip 2 max 1"),
    (2, 3, 4, 5),
)


def _edge(net: Network, kind: str, x: Any, stride: int) -> Any:
    channels = int(x.ty.shape[1])
    if kind == "skip":
        return x if stride == 1 else halved(net, x, channels)
    if kind in ("max", "avg"):
        pool = nn.max_pool2d if kind == "max" else nn.avg_pool2d
        return net.emit(pool(x, (3, 3), stride, 1))
    if kind == "rows7":
        x = net.relu(x)
        for shape in ((1, 7), (7, 1)):
            weight = net.weight(channels, channels, *shape)
            strides = (stride if shape[0] > 1 else 1, stride if shape[1] > 1 else 1)
            x = net.emit(nn.conv2d(x, weight, strides, (shape[0] // 2, shape[1] // 2)))
        return net.normalized(x)
    if kind == "dil3":
        return separable(net, x, 3, stride, dilation=2, times=1)
    return separable(net, x, int(kind[-1]), stride)


def cell(
    net: Network, cells: Cells, first: Any, second: Any, channels: int, reduction: bool
) -> Any:
    """Write one cell of two inputs."""
    smaller = int(first.ty.shape[2]) != int(second.ty.shape[2])
    states = [
        halved(net, first, channels) if smaller else relu_conv(net, first, channels),
        relu_conv(net, second, channels),
    ]
    steps = cells.reduction if reduction else cells.normal
    for one, other in zip(steps[::2], steps[1::2], strict=True):
        results = [
            _edge(net, kind, states[source], 2 if reduction and source < 2 else 1)
            for kind, source in (one, other)
        ]
        states.append(net.add(*results))
    joined = cells.reduction_joined if reduction else cells.normal_joined
    return net.concat([states[index] for index in joined])


def cells_at_32(cells: Cells, channels: int, repeats: int = 6) -> tvm.IRModule:
    """Return three stacks of cells for an image of 32x32."""

    def body(net: Network, image: Any) -> Any:
        stem = net.conv_norm(image, 3 * channels, 3)
        return _stacks(net, cells, (stem, stem), channels, repeats)

    return _of_image(body, 32)


def cells_at_224(cells: Cells, channels: int, repeats: int = 4) -> tvm.IRModule:
    """Return the same for an image of 224x224, behind a convolution and two reductions."""

    def body(net: Network, image: Any) -> Any:
        stem = net.conv_norm(image, channels // 4, 3, 2)
        one = cell(net, cells, stem, stem, channels // 4, True)
        two = cell(net, cells, stem, one, channels // 2, True)
        return _stacks(net, cells, (one, two), channels, repeats)

    return _of_image(body, 224)


def _stacks(
    net: Network, cells: Cells, states: tuple[Any, Any], channels: int, repeats: int
) -> Any:
    for stack in range(3):
        if stack:
            channels *= 2
            states = states[1], cell(net, cells, *states, channels, True)
        for _ in range(repeats):
            states = states[1], cell(net, cells, *states, channels, False)
    return classified(net, net.relu(states[1]))


# ---------------------------------------------------------------------------------- other networks


def randwire(seed: int, nodes: int = 32, degree: int = 4, rewired: float = 0.75) -> tvm.IRModule:
    """Return RandWire: three stages, each a small-world graph of Watts and Strogatz."""
    random = Random(seed)

    def stage(net: Network, x: Any, channels: int) -> Any:
        edges = set()
        for node in range(nodes):
            for step in range(1, degree // 2 + 1):
                other = (node + step) % nodes
                if random.random() < rewired:
                    free = [
                        n
                        for n in range(nodes)
                        if n != node and (min(n, node), max(n, node)) not in edges
                    ]
                    other = random.choice(free)
                edges.add((min(node, other), max(node, other)))
        made: list[Any] = []
        for node in range(nodes):
            inputs = [made[a] for a, b in sorted(edges) if b == node]
            stride = 1 if inputs else 2
            total = inputs[0] if inputs else x
            for one in inputs[1:]:
                total = net.add(total, one)
            total = net.relu(total)
            wide = int(total.ty.shape[1])
            depthwise = net.conv(total, wide, 3, stride, wide)
            made.append(net.conv_norm(depthwise, channels, 1))
        ends = [made[node] for node in range(nodes) if all(a != node for a, _ in edges)]
        total = ends[0]
        for one in ends[1:]:
            total = net.add(total, one)
        return total

    def body(net: Network, image: Any) -> Any:
        x = net.conv_norm(image, 39, 3, 2)
        x = relu_conv(net, x, 78, 3, 2)
        for channels in (78, 156, 312):
            x = stage(net, x, channels)
        return classified(net, net.relu(x))

    return _of_image(body, 224)


def unet_plus_plus(depth: int = 5, channels: int = 16, size: int = 256) -> tvm.IRModule:
    """Return UNet++: a decoder reads all that stand before it on its level, and the one below."""

    def body(net: Network, x: Any) -> Any:
        rows: list[list[Any]] = []
        for level in range(depth):
            if level:
                x = net.max_pool(rows[-1][0])
            rows.append([double_conv(net, x, channels << level)])
            for at in range(level - 1, -1, -1):
                below = rows[at + 1][-1]
                extent = int(below.ty.shape[2]) * 2
                up = net.emit(op.image.resize2d(below, (extent, extent), method="nearest_neighbor"))
                rows[at].append(double_conv(net, net.concat([*rows[at], up]), channels << at))
        return net.conv(rows[0][-1], 1, 1)

    return _of_image(body, size)


def training_step(kind: str) -> tvm.IRModule:
    """Return one step's loss and gradients of an MLP, a small ResNet or a transformer's layer."""

    def body(net: Network) -> Any:
        x = _FORWARD[kind](net)
        return op.sum(net.emit(op.multiply(x, x)))

    mod = module_of(body, {})
    return relax.transform.Gradient("main", require_grads=list(mod["main"].params)[1:])(mod)


def _mlp(net: Network) -> Any:
    x = net.weight(128, 784)
    for inputs, outputs in ((784, 512), (512, 512), (512, 256), (256, 10)):
        x = net.emit(op.matmul(x, net.weight(inputs, outputs)))
        x = net.relu(net.add(x, net.weight(outputs)))
    return x


def _resnet(net: Network) -> Any:
    x = net.conv(net.weight(4, 3, 32, 32), 16, 3)
    for _ in range(4):
        inner = net.relu(net.conv(x, 16, 3))
        x = net.relu(net.add(x, net.conv(inner, 16, 3)))
    return net.mean(x, 2, 3)


def _transformer(net: Network, width: int = 128, rows: int = 64) -> Any:
    def times(x: Any, y: Any) -> Any:
        return net.emit(op.matmul(x, y))

    x = net.weight(rows, width)
    for _ in range(2):
        q, k, v = (times(x, net.weight(width, width)) for _ in range(3))
        scores = net.emit(nn.softmax(times(q, net.emit(op.permute_dims(k)))))
        x = net.add(x, times(times(scores, v), net.weight(width, width)))
        inner = net.relu(times(x, net.weight(width, 4 * width)))
        x = net.add(x, times(inner, net.weight(4 * width, width)))
    return x


_FORWARD = {"mlp": _mlp, "resnet": _resnet, "transformer": _transformer}

NETWORKS: dict[str, Callable[[], tvm.IRModule]] = {
    "nasnet_cifar": lambda: cells_at_32(NASNET, 32),
    "nasnet_imagenet": lambda: cells_at_224(NASNET, 44),
    "amoeba_cifar": lambda: cells_at_32(AMOEBA, 36),
    "amoeba_imagenet": lambda: cells_at_224(AMOEBA, 48),
    "darts_cifar": lambda: cells_at_32(DARTS, 36),
    "darts_imagenet": lambda: cells_at_224(DARTS, 48),
    **{f"randwire_{seed}": lambda seed=seed: randwire(seed) for seed in range(3)},
    "unet_plus_plus": unet_plus_plus,
    **{f"train_{kind}": lambda kind=kind: training_step(kind) for kind in _FORWARD},
}
