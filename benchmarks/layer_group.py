# SPDX-License-Identifier: Apache-2.0
"""What the pass plans beside what is published: bytes of local memory, and time to plan.

    python benchmarks/layer_group.py [--only cascader,fused,deep,twin]

- ``cascader``: TVM's former Ethos-U cascader on its own two networks: bytes of intermediates. Its
  figures hold a constant of 704 and of 384 bytes.
- ``fused``: the front of VGG-E, whose five convolutions fused-layer CNN runs as one.
- ``deep``: seconds to group networks of up to 1,000 layers, and how they grow.
- ``twin``: CPU seconds to compile networks for a chip's twin, with groups and without, in pairs.

The first two are planned by the pass for a memory of one lane without weights: the fewest bytes in
which the network is one group that keeps the rows that two slices need.
"""

from __future__ import annotations

import argparse
import random
import time

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.target import Target

import tvm_ext
from passes.layer_group.planning.group import bytes_of
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.network import AxisMap, InputMap, Kind, Layer, Network, Tensor
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope
from target_hw.sophgo import CHIPS, MACHINES
from tvm_ext.workloads.models import MODELS, ConvNorm, Model
from tvm_ext.workloads.networks import Bert

KIB = 1024


class NetworkBuilder:
    """Puts a network together, layer by layer; tensors are NCHW with a batch of 1.

    Parameters
    ----------
    name : str
        The network's name.
    bits : int
        Of one element.
    shape : tuple of int
        Channels, rows and columns of its input.
    weights : bool
        Whether convolutions have weights.
    """

    def __init__(
        self, name: str, bits: int, shape: tuple[int, int, int], weights: bool = False
    ) -> None:
        self.name, self.bits, self.weights = name, bits, weights
        self.tensors = {"x": Tensor("x", (1, *shape), bits, "nchw")}
        self.layers: list[Layer] = []

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the elements of a tensor on each axis."""
        return self.tensors[name].shape

    def window(
        self,
        operator: str,
        source: str,
        channels: int,
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilation: tuple[int, int] = (1, 1),
    ) -> str:
        """Add a convolution, a depthwise one or a pool; padding above, left, below, right."""
        _, c, *extents = self.shape(source)
        maps: list[AxisMap | None] = [AxisMap(0), None if operator == "conv" else AxisMap(1)]
        shape = [1, channels]
        for axis in (0, 1):
            reach = (kernel[axis] - 1) * dilation[axis]
            before, after = padding[axis], padding[axis + 2]
            shape.append((extents[axis] + before + after - reach - 1) // stride[axis] + 1)
            maps.append(AxisMap(axis + 2, stride[axis], 1, -before, reach - before))
        work = channels * shape[2] * shape[3] * kernel[0] * kernel[1]
        inputs: list[tuple[str, InputMap]] = [(source, tuple(maps))]
        if operator == "pool":
            work = 0
        else:
            taps = (c if operator == "conv" else 1) * kernel[0] * kernel[1]
            work *= c if operator == "conv" else 1
            if self.weights:
                weight = f"weight{len(self.layers)}"
                self.tensors[weight] = Tensor(
                    weight, (1, channels, taps), self.bits, "ncw", Kind.WEIGHT, False
                )
                inputs.append((weight, (None, AxisMap(1), None)))
        return self.add(operator, tuple(shape), inputs, work)

    def conv(self, source: str, channels: int, kernel: int, stride: int = 1) -> str:
        """Add a square convolution that pads to the same extent."""
        pad = kernel // 2
        return self.window(
            "conv", source, channels, (kernel, kernel), (stride, stride), (pad, pad, pad, pad)
        )

    def depthwise(self, source: str, stride: int = 1) -> str:
        """Add a depthwise convolution of 3 x 3."""
        channels = self.shape(source)[1]
        return self.window("depthwise", source, channels, (3, 3), (stride, stride), (1, 1, 1, 1))

    def same(self, operator: str, *sources: str) -> str:
        """Add an element-wise layer."""
        same = tuple(AxisMap(axis) for axis in range(4))
        return self.add(operator, self.shape(sources[0]), [(s, same) for s in sources], 0)

    def add(
        self,
        operator: str,
        shape: tuple[int, ...],
        inputs: list[tuple[str, InputMap]],
        work: int,
    ) -> str:
        """Add a layer with these inputs and their maps, and so many multiply-adds."""
        name = f"t{len(self.layers)}"
        self.tensors[name] = Tensor(name, shape, self.bits, "nchw")
        names, maps = tuple(i for i, _ in inputs), tuple(m for _, m in inputs)
        self.layers.append(Layer(f"{operator}{name[1:]}", operator, names, name, maps, work))
        return name

    def network(self, output: str) -> Network:
        """Return what was put together."""
        return Network(tuple(self.tensors.values()), tuple(self.layers), (output,), self.name)


def one_lane(capacity: int) -> Chip:
    """Return a chip with a flat memory of so many bytes."""
    memory = MemoryScope("local.LMEM", capacity, facts=(("lanes", 1), ("eu_bytes", 1)))
    pipes = (Pipe("GDMA", "bytes", 1), Pipe("TIU", "multiply-adds", 1))
    return Chip(memory, Machine(pipes), "first_fit")


def least_group(network: Network) -> PlannedGroup:
    """Return a network as one group in the fewest bytes in which the pass makes one of it."""
    low, high = 0, sum(bytes_of(tensor) for tensor in network.tensors)
    best = None
    while low + 1 < high:
        capacity = (low + high) // 2
        found = plan_layer_groups(network, one_lane(capacity), search="tail_to_head", halo="keep")
        if len(found.groups) == 1 and not found.left:
            best, high = found.groups[0], capacity
        else:
            low = capacity
    assert best is not None, "the network fits as a whole"
    return best


def describe(network: Network) -> str:
    """Say what a network takes as one group."""
    group = least_group(network)
    sizes = {item.name: item.lane_bytes for item in group.local.items}
    between = sum(sizes[name] for name in group.group.made if name not in network.outputs)
    once = sum(bytes_of(group.group.tensor(name)) for name in ("x", *network.outputs))
    return (
        f"{group.cut.h} x {group.cut.w} slices, intermediates {between:,} bytes, with the slices "
        f"of input and output {group.plan.peak:,} ({group.plan.peak / KIB:.0f} KiB); "
        f"{group.cost.moved / once:.2f} times the bytes of input and output are moved"
    )


def cascader() -> None:
    """Compare with the Ethos-U cascader: bytes of what is between the layers."""
    double = NetworkBuilder("double_conv2d", 8, (16, 321, 212))
    first = double.window("conv", "x", 16, (3, 2), dilation=(2, 1))
    double_network = double.network(double.window("conv", first, 16, (1, 1), (3, 2)))
    mixed = NetworkBuilder("depthwise2d_conv2d_pooling", 8, (16, 80, 75))
    last = mixed.window("conv", "x", 16, (3, 2))
    last = mixed.window("depthwise", last, 16, (3, 3))
    last = mixed.same("relu", last)
    last = mixed.window("conv", last, 16, (3, 2), padding=(1, 0, 1, 1))
    mixed_network = mixed.network(mixed.window("pool", last, 16, (3, 3), padding=(1, 1, 1, 1)))
    for network, published in ((double_network, 4080), (mixed_network, 14432)):
        print(f"{network.name}: published {published:,} bytes; {describe(network)}")


def fused() -> None:
    """Compare with fused-layer CNN on the front of VGG-E."""
    builder = NetworkBuilder("VGG-E front", 32, (3, 224, 224))
    last = "x"
    for channels, pooled in ((64, False), (64, True), (128, False), (128, True), (256, False)):
        last = builder.conv(last, channels, 3)
        if pooled:
            last = builder.window("pool", last, channels, (2, 2), (2, 2))
    network = builder.network(last)
    print(f"{network.name}: published 362 KB on chip; {describe(network)}")


def deep_network(layers: int) -> Network:
    """Return a random network of convolutions, additions and element-wise layers."""
    choose = random.Random(layers)
    builder = NetworkBuilder(f"{layers} layers", 8, (16, 64, 64), weights=True)
    before = last = "x"
    for _ in range(layers):
        kind = choose.choice(("conv", "depthwise", "relu", "add"))
        if kind == "add" and before != last and builder.shape(before) == builder.shape(last):
            made = builder.same("add", last, before)
        elif kind == "conv":
            made = builder.conv(last, choose.choice((16, 32, 64)), choose.choice((1, 3)))
        elif kind == "depthwise":
            made = builder.depthwise(last)
        else:
            made = builder.same("relu", last)
        before, last = last, made
    return builder.network(last)


def deep() -> None:
    """Time the search for groups."""
    tag = "sophgo/cv184x"
    chip = Chip(CHIPS[tag]["local.LMEM"], MACHINES[tag])
    plan_layer_groups(deep_network(8), chip)  # Planners compile their inner loop when first asked.
    before = None
    for layers in (125, 250, 500, 1000):
        begin = time.process_time()
        found = plan_layer_groups(deep_network(layers), chip)
        seconds = time.process_time() - begin
        growth = "" if before is None else f", {seconds / before:.2f} times for twice the layers"
        print(
            f"{layers} layers on {tag}: {len(found.groups)} groups, {len(found.left)} left, "
            f"{found.moved_before / found.moved_after:.1f} times fewer bytes moved; "
            f"{seconds:.2f} s{growth}",
            flush=True,
        )
        before = seconds


class Bottleneck(nn.Module):
    """The residual block of ResNet-50."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        self.reduce = ConvNorm(channels_in, channels, 1)
        self.conv = ConvNorm(channels, channels, 3, stride)
        self.expand = ConvNorm(channels, 4 * channels, 1)
        reshapes = stride != 1 or channels_in != 4 * channels
        self.shortcut = ConvNorm(channels_in, 4 * channels, 1, stride) if reshapes else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """Apply the block to a tensor of shape ``(n, channels_in, h, w)``."""
        out = self.expand(op.relu(self.conv(op.relu(self.reduce(x)))))
        return op.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet50(nn.Module):
    """ResNet-50 for images of 224x224, without its pooling and classifier."""

    def __init__(self) -> None:
        self.stem = ConvNorm(3, 64, 7, stride=2)
        blocks, before = [], 64
        for channels, count, stride in ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(before, channels, stride if number == 0 else 1))
                before = 4 * channels
        self.blocks = nn.ModuleList(blocks)

    def forward(self, image: nn.Tensor) -> nn.Tensor:
        """Map an image of shape ``(1, 3, 224, 224)`` to features."""
        x = op.relu(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return x


@tvm.instrument.pass_instrument
class PassTime:
    """Takes the CPU seconds of one pass."""

    def __init__(self, name: str) -> None:
        self.timed, self.seconds = name, 0.0

    def run_before_pass(self, _mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        """Take the time."""
        if info.name == self.timed:
            self.seconds -= time.process_time()

    def run_after_pass(self, _mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        """Take the time again."""
        if info.name == self.timed:
            self.seconds += time.process_time()


def compile_seconds(mod: tvm.IRModule, target: Target, layer_group: bool) -> tuple[float, float]:
    """Return the CPU seconds to compile a network, and those of grouping among them."""
    grouping = PassTime("tvm_ext.LayerGroup")
    pipeline = tvm_ext.relax_pipeline(target, layer_group=layer_group)
    begin = time.process_time()
    with tvm.transform.PassContext(opt_level=3, instruments=[grouping]):
        tvm.compile(mod, target, relax_pipeline=pipeline)
    return time.process_time() - begin, grouping.seconds


def twin() -> None:
    """Time what compiling a chip's twin costs."""
    tag = "sophgo/bm1684x-llvm"
    target = Target(tag)
    image, tokens = (1, 3, 224, 224), (1, 128)
    four = (4, *MODELS["bert_base"].arguments[1:])
    networks = {
        "resnet18": MODELS["resnet18"],
        "ResNet-50": Model("", ResNet50, (), image, image),
        "BERT of 4 layers": Model("", Bert, four, tokens, tokens, four[-1]),
        "bert_base": MODELS["bert_base"],
    }
    compile_seconds(MODELS["mobilenet_v2"].build(), target, False)  # What is loaded once.
    for name, model in networks.items():
        mod = model.build()
        alone, _ = compile_seconds(mod, target, False)
        together, grouping = compile_seconds(mod, target, True)
        print(
            f"{name} on {tag}: {alone:.2f} s, with groups "
            f"{together:.2f} s, of which the pass {grouping:.2f}; {together / alone:.1f} times, "
            f"without the pass {(together - grouping) / alone:.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"cascader": cascader, "fused": fused, "deep": deep, "twin": twin}
    parser.add_argument("--only", default=",".join(parts))
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        if name not in parts:
            parser.error(f"unknown part {name!r}; there are: {', '.join(parts)}")
        parts[name]()


if __name__ == "__main__":
    main()
