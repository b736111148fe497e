# SPDX-License-Identifier: Apache-2.0
"""Groups of layers beside what is published: activation memory, bytes moved, and time to plan.

    python benchmarks/layer_group.py [--data DIRECTORY] [--only chains,cascader,...]

- ``chains``: three TinyML networks, beside msf-CNN's frontier of peak bytes and factor of
  multiply-adds, and MCUNetV2's heuristic (``chains.json`` in DIRECTORY, by default the folder
  ``layer_group`` in ``TVM_EXT_DATA``). A line a published point: the lowest peak at no more
  multiply-adds, and the groups that cut columns, too.
- ``cascader``: TVM's former Ethos-U cascader on its own two networks: bytes of intermediates.
- ``fused``: the front of VGG-E, whose five convolutions fused-layer CNN runs as one.
- ``mobilenet``: MobileNetV2 at 224, int8, with its residuals.
- ``deep``: seconds to group networks of up to 1,000 layers, and how they grow.

Weights are not counted, nor are inputs and outputs of a network. Nothing is repeated at a factor
of 1.00: halos are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passes.layer_group.planning.fused_groups import ONE_MEMORY, measure
from passes.layer_group.planning.group import NetworkIndex, bytes_of
from passes.layer_group.planning.lanes import lane_bytes, line_extents
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.least_memory import MemoryPlan, memory_frontier
from passes.layer_group.planning.network import AxisMap, InputMap, Kind, Layer, Network, Tensor
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.planning.slicing import Cut, slice_group
from target_hw.sophgo import CHIPS, MACHINES

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
    """

    def __init__(self, name: str, bits: int, shape: tuple[int, int, int]) -> None:
        self.name, self.bits = name, bits
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


def chain_network(name: str, description: dict[str, Any]) -> Network:
    """Return a network of ``chains.json``."""
    height, width, channels = description["input"]
    builder = NetworkBuilder(name, 8, (channels, height, width))
    last = "x"
    for layer in description["layers"]:
        kernel, stride, pad = (layer[field] for field in ("kernel", "stride", "padding"))
        last = builder.window(
            layer["op"],
            last,
            layer["channels"],
            (kernel, kernel),
            (stride, stride),
            (pad, pad, pad, pad),
        )
    return builder.network(last)


def best_within(frontier: tuple[MemoryPlan, ...], factor: float) -> MemoryPlan | None:
    """Return the plan of the lowest peak with at most this factor of multiply-adds."""
    return next((plan for plan in frontier if plan.factor <= factor + 1e-9), None)


def chains(data: Path) -> None:
    """Compare with msf-CNN and MCUNetV2 on three chains."""
    for name, description in json.loads((data / "chains.json").read_text()).items():
        network = chain_network(name, description)
        most = max(point["mac_factor"] for point in description["published"])
        begin = time.process_time()
        frontier = memory_frontier(network, most_factor=most)
        seconds = time.process_time() - begin
        index = NetworkIndex(network)
        alone = max(
            sum(
                bytes_of(index.tensors[n])
                for n in (layer.inputs[0], layer.output)
                if n not in ("x", network.outputs[0])
            )
            for layer in network.layers
        )
        print(
            f"{name}: {len(network.layers)} layers, layer by layer {alone:,} bytes; {seconds:.1f} s"
        )
        points = [(1.0, None), *((p["mac_factor"], p["bytes"]) for p in description["published"])]
        for factor, published in dict(points).items():
            plan = best_within(frontier, factor)
            assert plan is not None
            columns = sum(group.cut.w > 1 for group in plan.groups)
            beside = f"published {published:9,}" if published else " " * 19
            verdict = "" if not published else "better" if plan.peak < published else "no better"
            print(
                f"   factor {factor:6.4f}: {beside}   ours {plan.peak:8,} at {plan.factor:6.4f}, "
                f"{len(plan.groups)} groups, {columns} cut in columns   {verdict}"
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
        group = NetworkIndex(network).group(tuple(range(len(network.layers))))
        rows = Cut(h=group.tensor(network.outputs[0]).shape[2], inner="h")
        whole = sum(bytes_of(group.tensor(n)) for n in group.made if n not in network.outputs)
        by_rows, work = measure(group, rows, "h")
        assert work == sum(layer.multiply_adds for layer in network.layers)
        best = memory_frontier(network, most_factor=1.0)[0]
        print(
            f"{network.name}: intermediates {whole:,} bytes; published {published:,}; rows kept "
            f"{by_rows:,}, rows and columns kept {best.peak:,}; nothing is computed twice"
        )


def fused() -> None:
    """Compare with fused-layer CNN on the front of VGG-E."""
    builder = NetworkBuilder("VGG-E front", 32, (3, 224, 224))
    last = "x"
    for channels, pooled in ((64, False), (64, True), (128, False), (128, True), (256, False)):
        last = builder.conv(last, channels, 3)
        if pooled:
            last = builder.window("pool", last, channels, (2, 2), (2, 2))
    network = builder.network(last)
    group = NetworkIndex(network).group(tuple(range(len(network.layers))))
    separate = sum(
        bytes_of(group.tensor(layer.inputs[0])) + bytes_of(group.tensor(layer.output))
        for layer in network.layers
    )
    moved = bytes_of(group.tensor("x")) + bytes_of(group.tensor(last))
    print(
        f"{network.name}: layer by layer {separate / KIB**2:.1f} MiB moved, published 3.6 MB with "
        f"362 KB on chip; as one group {moved / KIB**2:.2f} MiB, input and output once"
    )
    for cut in (Cut(h=56, inner="h"), Cut(h=56, w=56, inner="w")):
        slices = slice_group(group, cut, "hw")
        kept = 0
        for name in ("x", *group.made):
            tensor = slices.tensors[name]
            rows = tensor.axes[2]
            line = line_extents(tensor, cut)
            if line is None and rows is not None and rows.kept:
                line = (1, tensor.tensor.shape[1], rows.kept, tensor.tensor.shape[3])
            kept += ONE_MEMORY.tensor_bytes(tensor.tensor, line) if line else 0
        held, work = measure(group, cut, "hw")
        held += lane_bytes(ONE_MEMORY, slices.tensors["x"], cut)
        assert work == sum(layer.multiply_adds for layer in network.layers)
        print(
            f"   {cut.h} x {cut.w} slices: {kept:,} bytes ({kept / KIB:.0f} KiB) of rows stay from "
            f"one line of slices to the next; with the slices themselves {held / KIB:.0f} KiB"
        )


def mobilenet() -> None:
    """Report MobileNetV2 at 224, int8; MCUNetV2 needs 172 KiB."""
    builder = NetworkBuilder("MobileNetV2", 8, (3, 224, 224))
    last = builder.conv("x", 32, 3, 2)
    settings = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expansion, channels, repeats, first_stride in settings:
        for number in range(repeats):
            source, inner = last, builder.shape(last)[1] * expansion
            if expansion > 1:
                last = builder.conv(last, inner, 1)
            last = builder.depthwise(last, first_stride if number == 0 else 1)
            last = builder.conv(last, channels, 1)
            if number > 0:
                last = builder.same("add", source, last)
    last = builder.conv(last, 1280, 1)
    network = builder.network(last)
    begin = time.process_time()
    frontier = memory_frontier(network, most_factor=1.0)
    plan = frontier[0]
    print(
        f"{network.name}, int8 at 224: {plan.peak / KIB:.2f} KiB of activations in "
        f"{len(plan.groups)} groups, nothing computed twice; published 172 KiB; "
        f"{time.process_time() - begin:.1f} s"
    )


def deep_network(layers: int) -> Network:
    """Return a random network of convolutions, additions and element-wise layers."""
    choose = random.Random(layers)
    builder = NetworkBuilder(f"{layers} layers", 8, (16, 64, 64))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    data = Path(os.environ.get("TVM_EXT_DATA", "data")) / "layer_group"
    parser.add_argument("--data", type=Path, default=data)
    parts: dict[str, Callable[[], None]] = {
        "chains": lambda: chains(arguments.data),
        "cascader": cascader,
        "fused": fused,
        "mobilenet": mobilenet,
        "deep": deep,
    }
    parser.add_argument("--only", default=",".join(parts))
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        if name not in parts:
            parser.error(f"unknown part {name!r}; there are: {', '.join(parts)}")
        parts[name]()


if __name__ == "__main__":
    main()
