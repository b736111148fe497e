# SPDX-License-Identifier: Apache-2.0
"""Networks that the tests of LayerGroup share, and random ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from passes.layer_group.planning.network import Kind, Layer, Network, Tensor, WorkingBuffer
from passes.layer_group.planning.spans import AxisMap, Range, Spans


@dataclass(frozen=True)
class Window:
    """What an index of an output's axis reads of an input's axis, as a rule of its number `i`.

    It reads from ``(i * stride + first) // divide`` to ``(i * stride + last) // divide``, both
    included, as far as the input has them.
    """

    axis: int  # The axis of the output
    stride: int = 1
    divide: int = 1
    first: int = 0
    last: int = 0

    def read(self, index: int, extent: int) -> Range:
        begin = max(0, (index * self.stride + self.first) // self.divide)
        end = min(extent, (index * self.stride + self.last) // self.divide + 1)
        return (begin, end) if begin < end else (0, 0)

    def along(self, made: int, extent: int) -> AxisMap:
        """Return the map of an axis of `made` elements, for an input's axis of `extent`."""
        return AxisMap(self.axis, Spans.of([self.read(index, extent) for index in range(made)]))


Windows = tuple[Window | None, ...]
"""The rule of each axis of an input; None where each index of the output reads the whole axis."""


def maps_of(windows: Windows, made: tuple[int, ...], read: tuple[int, ...]):
    """Return the maps of an input's axes, given the shapes of the output and of the input."""
    pairs = zip(windows, read, strict=True)
    return tuple(window and window.along(made[window.axis], extent) for window, extent in pairs)


def conv_map(
    kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, axis: int = 2
) -> Window:
    return Window(axis, stride, 1, -padding, (kernel - 1) * dilation - padding)


class Builder:
    """Puts a network together, layer by layer; tensors are NCHW."""

    def __init__(self, name: str = "network", bits: int = 8, part_bits: int | None = None) -> None:
        self.name, self.bits, self.part_bits = name, bits, part_bits
        self.tensors: list[Tensor] = []
        self.layers: list[Layer] = []

    def tensor(self, name: str, *shape: int, axes: str = "nchw", **other: object) -> str:
        self.tensors.append(Tensor(name, shape, self.bits, axes[: len(shape)], **other))  # type: ignore[arg-type]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return next(t.shape for t in self.tensors if t.name == name)

    def add(
        self,
        operator: str,
        name: str,
        shape: tuple[int, ...],
        inputs: list[tuple[str, Windows]],
        multiply_adds: int = 0,
    ) -> str:
        output = self.tensor(name, *shape)
        names = tuple(i for i, _ in inputs)
        maps = tuple(maps_of(windows, shape, self.shape(i)) for i, windows in inputs)
        layer = Layer(f"{operator}:{name}", operator, names, output, maps, multiply_adds)
        if self.part_bits is not None:
            own = maps_of(tuple(map(Window, range(len(shape)))), shape, shape)
            buffers = (WorkingBuffer(self.part_bits, shape, own),) if self.part_bits else ()
            layer = replace(layer, buffers=buffers, parts=(1,))
        self.layers.append(layer)
        return output

    def conv(
        self,
        source: str,
        name: str,
        channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        *,
        depthwise: bool = False,
        bias: bool = True,
    ) -> str:
        n, c, h, w = self.shape(source)
        out = [self.extent(e, kernel, stride, padding, dilation) for e in (h, w)]
        weight_channels = 1 if depthwise else c
        weight = self.tensor(
            f"{name}.weight",
            1,
            channels,
            weight_channels,
            kernel * kernel,
            axes="ncww",
            kind=Kind.WEIGHT,
        )
        c_map = Window(1) if depthwise else None
        maps: list[tuple[str, Windows]] = [
            (
                source,
                (
                    Window(0),
                    c_map,
                    conv_map(kernel, stride, padding, dilation, 2),
                    conv_map(kernel, stride, padding, dilation, 3),
                ),
            ),
            (weight, (None, Window(1), None, None)),
        ]
        if bias:
            self.tensors.append(
                Tensor(f"{name}.bias", (1, channels, 1, 1), 32, "nchw", Kind.WEIGHT)
            )
            maps.append((f"{name}.bias", (None, Window(1), None, None)))
        work = n * channels * out[0] * out[1] * weight_channels * kernel * kernel
        made = self.add("conv", name, (n, channels, *out), maps, work)
        if self.part_bits is not None and not depthwise and c > 1:
            sums = ((source, 1), (weight, 2))
            self.layers[-1] = replace(self.layers[-1], sums=sums)
        return made

    def pool(self, source: str, name: str, kernel: int, stride: int, padding: int = 0) -> str:
        n, c, h, w = self.shape(source)
        out = [self.extent(e, kernel, stride, padding) for e in (h, w)]
        maps = (
            Window(0),
            Window(1),
            conv_map(kernel, stride, padding, 1, 2),
            conv_map(kernel, stride, padding, 1, 3),
        )
        return self.add("pool", name, (n, c, *out), [(source, maps)])

    def same(self, operator: str, name: str, *sources: str) -> str:
        maps = tuple(Window(axis) for axis in range(4))
        return self.add(operator, name, self.shape(sources[0]), [(s, maps) for s in sources])

    def concat(self, name: str, first: str, second: str, axis: int) -> str:
        shape = list(self.shape(first))
        offset = shape[axis]
        shape[axis] += self.shape(second)[axis]
        one = tuple(Window(a) for a in range(4))
        two = tuple(
            Window(a, first=-offset, last=-offset) if a == axis else m for a, m in enumerate(one)
        )
        return self.add("concat", name, tuple(shape), [(first, one), (second, two)])

    def upsample(self, source: str, name: str, factor: int) -> str:
        n, c, h, w = self.shape(source)
        maps = (Window(0), Window(1), Window(2, divide=factor), Window(3, divide=factor))
        return self.add("resize", name, (n, c, h * factor, w * factor), [(source, maps)])

    def mean(self, source: str, name: str) -> str:
        n, c, _, _ = self.shape(source)
        maps = (Window(0), Window(1), None, None)
        return self.add("mean", name, (n, c, 1, 1), [(source, maps)])

    def scale(self, source: str, factor: str, name: str) -> str:
        same = tuple(Window(a) for a in range(4))
        broadcast = (Window(0), Window(1), None, None)
        return self.add("multiply", name, self.shape(source), [(source, same), (factor, broadcast)])

    def network(self, *outputs: str) -> Network:
        return Network(tuple(self.tensors), tuple(self.layers), outputs, self.name)

    @staticmethod
    def extent(extent: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
        return (extent + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1


def worked_example(bits: int = 16) -> Network:
    """conv 3x3 - relu - max pool 2x2 - conv 3x3, 56 rows and columns, 64 channels everywhere.

    Its ReLU has bytes of its own, as in the figures that tests compare it with.
    """
    b = Builder("worked example", bits)
    b.tensor("in0", 1, 64, 56, 56)
    b.conv("in0", "t1", 64, 3, 1, 1)
    b.same("relu", "t2", "t1")
    b.pool("t2", "t3", 2, 2)
    b.conv("t3", "t4", 64, 3, 1, 1)
    return b.network("t4")


@st.composite
def random_networks(draw: st.DrawFn, max_layers: int = 8) -> Network:
    """Draw a network with chains, branches, several readers, several outputs and odd extents."""
    b = Builder("random network", draw(st.sampled_from((8, 16, 32))), part_bits=0)
    extents = st.integers(5, 17)
    batch, channels = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    values = [b.tensor("in0", batch, channels, draw(extents), draw(extents))]
    for number in range(draw(st.integers(1, max_layers))):
        name = f"t{number + 1}"
        source = draw(st.sampled_from(values[-3:]))
        h, w = b.shape(source)[2:]
        alike = [v for v in values if b.shape(v) == b.shape(source) and v != source]
        kinds = ["relu", "conv", "upsample"] if max(h, w) <= 17 else ["relu", "conv"]
        kinds += ["pool"] if min(h, w) >= 4 else []
        kinds += ["table", *(["add", "concat"] if alike else [])]
        kinds += ["mean"] if h > 1 else []
        kind = draw(st.sampled_from(kinds))
        if kind == "conv":
            kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
            reach = (kernel - 1) * dilation
            least = reach // 2 if min(h, w) > 1 else -(-reach // 2)  # No result is empty.
            padding = draw(st.integers(least, reach))
            values.append(
                b.conv(
                    source,
                    name,
                    draw(st.integers(1, 12)),
                    kernel,
                    draw(st.integers(1, 2)),
                    padding,
                    dilation,
                    bias=draw(st.booleans()),
                )
            )
        elif kind == "pool":
            kernel = draw(st.integers(2, 3))
            values.append(b.pool(source, name, kernel, draw(st.integers(1, 3)), kernel // 2))
        elif kind == "mean":
            values.append(b.mean(source, name))
        elif kind == "upsample":
            values.append(b.upsample(source, name, 2))
        elif kind == "table":
            table = b.tensor(f"{name}.table", *b.shape(source), kind=Kind.WEIGHT)
            values.append(b.same("add", name, source, table))
        elif kind == "add":
            values.append(b.same("add", name, source, draw(st.sampled_from(alike))))
        elif kind == "concat":
            other, axis = draw(st.sampled_from(alike)), draw(st.sampled_from((1, 2, 3)))
            values.append(b.concat(name, source, other, axis))
        else:
            values.append(b.same("relu", name, source))
    read = {name for layer in b.layers for name in layer.inputs}
    ends = [v for v in values[1:] if v not in read]
    also = draw(st.lists(st.sampled_from(values[1:]), max_size=1))
    return b.network(*dict.fromkeys([*ends, *also]))
