# SPDX-License-Identifier: Apache-2.0
"""What the pass plans beside what is published: bytes of local memory, and time to plan.

    python benchmarks/layer_group.py [--only chains,cascader,fused,cores,parts,deep,twin]

- ``chains``: three networks of msf-CNN in the RAM of a microcontroller, as msf-CNN counts: what a
  layer or a group reads and makes, but for the network's input and output, and what is between.
  Its groups are counted with the slices of their inputs, which msf-CNN does not say it counts, too.
- ``cascader``: TVM's former Ethos-U cascader on its own two networks: bytes of intermediates. Its
  figures hold a constant of 704 and of 384 bytes, and do not count how often inputs are loaded.
- ``fused``: the front of VGG-E, whose five convolutions fused-layer CNN runs as one.
- ``cores``: million cycles and MiB moved by BM1688 with one core, with slices shared by two, and as
  the pass has it: the table of docs/layer_group.md.
- ``parts``: MiB moved by chips of little local memory, and the same with no layer in parts.
- ``deep``: seconds to group networks of up to 1,000 layers, and how they grow.
- ``twin``: CPU seconds to compile networks for a chip's twin, with groups and without, in pairs.

All are planned by the pass, the first three for a memory of one lane, without weights.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import test_libraries  # noqa: F401 - lets the next ones be found
import tvm
from ablation import LAYER_GROUP
from instances import DATA
from layer_group_pairs import chip_named, networks_of
from tvm.target import Target

import tvm_ext
from passes.layer_group.planning.layer_groups import plan_layer_groups
from passes.layer_group.planning.network import Kind, Layer, Network, Tensor
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.spans import AxisMap, AxisMaps, Spans
from passes.pass_errors import deep_stack
from target_hw import microcontroller
from target_hw.sophgo import CHIPS, MACHINES
from tvm_ext import workloads

KIB = 1024


def _same(axis: int, extent: int) -> AxisMap:
    return AxisMap(axis, Spans.identity(extent))


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
        maps = [_same(0, 1), None if operator == "conv" else _same(1, channels)]
        shape = [1, channels]
        for axis in (0, 1):
            reach = (kernel[axis] - 1) * dilation[axis]
            before, after = padding[axis], padding[axis + 2]
            shape.append((extents[axis] + before + after - reach - 1) // stride[axis] + 1)
            begin = np.arange(shape[-1]) * stride[axis] - before
            end = np.minimum(begin + reach + 1, extents[axis])
            maps.append(AxisMap(axis + 2, Spans.between(np.maximum(begin, 0), end)))
        work = channels * shape[2] * shape[3] * kernel[0] * kernel[1]
        inputs: list[tuple[str, AxisMaps]] = [(source, tuple(maps))]
        if operator == "pool":
            work = 0
        else:
            taps = (c if operator == "conv" else 1) * kernel[0] * kernel[1]
            work *= c if operator == "conv" else 1
            if self.weights:
                weight = f"weight{len(self.layers)}"
                lies = (1, channels, taps)
                self.tensors[weight] = Tensor(weight, lies, self.bits, "ncw", Kind.WEIGHT)
                inputs.append((weight, (None, _same(1, channels), None)))
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
        same = tuple(_same(axis, extent) for axis, extent in enumerate(self.shape(sources[0])))
        inputs = [(source, same) for source in sources]
        return self.add(operator, self.shape(sources[0]), inputs, 0)

    def add(
        self,
        operator: str,
        shape: tuple[int, ...],
        inputs: list[tuple[str, AxisMaps]],
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


def one_lane(capacity: int, tag: str = "st/stm32f746") -> Chip:
    """Return a microcontroller of which so many bytes of RAM are free."""
    memory = replace(microcontroller.CHIPS[tag]["local.LMEM"], capacity=capacity)
    return Chip(memory, microcontroller.MACHINES[tag], "first_fit")


def ladder(low: int, high: int) -> Iterator[int]:
    """Yield capacities from a low one to a high one, each a third above the one before."""
    while low < high:
        yield low
        low += -(-low // 3)
    yield high


def chains() -> None:
    """Compare with msf-CNN: bytes of RAM at a factor of multiply-adds over those of all layers."""
    data = json.loads((Path(DATA) / "layer_group" / "chains.json").read_text())
    for name, chain in data.items():
        height, width, channels = chain["input"]
        builder = NetworkBuilder(name, 8, (channels, height, width))
        last = "x"
        for layer in chain["layers"]:
            kernel, stride, pad = layer["kernel"], layer["stride"], layer["padding"]
            sizes = ((kernel, kernel), (stride, stride), (pad, pad, pad, pad))
            last = builder.window(layer["op"], last, layer["channels"], *sizes)
        network = builder.network(last)
        whole = ram_bytes(network, [], ())
        found = {(whole, 1.0)}
        ram = microcontroller.CHIPS["st/stm32f746"]["local.LMEM"].capacity or 0
        for capacity, halo in product(ladder(1024, min(whole, ram)), ("keep", "recompute")):
            groups = plan_layer_groups(network, one_lane(capacity), halo=halo)
            inside = [layer for group in groups.groups for layer in group.group.numbers]
            alone = [x for at, x in enumerate(groups.network.layers) if at not in inside]
            work = sum(layer.multiply_adds for layer in alone)
            for group in groups.groups:
                work += sum(computed(group, layer) for layer in group.group.layers)
            factor = work / sum(layer.multiply_adds for layer in network.layers)
            found.add((ram_bytes(groups.network, alone, groups.groups), factor))
        print(f"{name}: {whole:,} bytes layer by layer")
        for point in chain["published"]:
            ours = min(one for one in found if one[1] <= point["mac_factor"] + 0.005)
            verdict = "fewer" if ours[0] < point["bytes"] else "NOT fewer"
            print(
                f"  published {point['bytes']:,} at {point['mac_factor']:.2f}; the pass "
                f"{ours[0]:,} at {ours[1]:.2f}: {verdict}",
                flush=True,
            )


def computed(group: PlannedGroup, layer: Layer) -> int:
    """Return the multiply-adds that all slices of a group do for a layer."""
    made = group.slices.tensors[layer.output].made_elements
    return layer.multiply_adds * made // group.group.index.elements[layer.output]


def ram_bytes(network: Network, alone: Sequence[Layer], groups: Sequence[PlannedGroup]) -> int:
    """Return the bytes that groups and layers take at most; of all layers, if none are given."""
    sizes = {tensor.name: tensor.bytes for tensor in network.tensors}
    sizes["x"] = 0
    sizes.update(dict.fromkeys(network.outputs, 0))
    needs = [
        sum(sizes[name] for name in (*layer.inputs, layer.output))
        for layer in (alone if alone or groups else network.layers)
    ]
    for group in groups:
        outside = sum(sizes[name] for name in (*group.group.loaded, *group.group.outputs))
        needs.append(outside + group.plan.peak)
    return max(needs)


def one_group(network: Network) -> dict[int, PlannedGroup]:
    """Return the network as one group, by times that its inputs and outputs are moved in percent.

    It is the one of the fewest bytes between its layers that the pass makes of it in a memory of
    some size, rows that two slices need kept.
    """
    best: dict[int, PlannedGroup] = {}
    for capacity in ladder(64, sum(tensor.bytes for tensor in network.tensors)):
        found = plan_layer_groups(network, one_lane(capacity), search="tail_to_head", halo="keep")
        if len(found.groups) == 1 and not found.left:
            (group,) = found.groups
            moved = round(100 * group.cost.moved / found.moved_least)
            if moved not in best or between(group) < between(best[moved]):
                best[moved] = group
    return best


def between(group: PlannedGroup) -> int:
    """Return the bytes of what is between the layers of a group."""
    outputs = group.group.outputs
    names = (name for name in group.group.made if name not in outputs)
    return sum(group.local.sizes[name] for name in names)


def describe(network: Network) -> Iterator[str]:
    """Say what a network takes as one group, with what is loaded once and with what takes least."""
    best = one_group(network)
    moved = min(best, default=100)
    least = min(best, key=lambda moved: between(best[moved]), default=100)
    for times in dict.fromkeys((moved, least) if best else ()):
        group = best[times]
        yield (
            f"  {group.cut}: {between(group):,} bytes between layers, "
            f"{group.plan.peak:,} ({group.plan.peak / KIB:.0f} KiB) with the slices of input and "
            f"output, which move {times / 100:.2f} times"
        )


def cascader() -> None:
    """Compare with the Ethos-U cascader: bytes of what is between the layers."""
    double = NetworkBuilder("double_conv2d", 8, (16, 321, 212))
    first = double.window("conv", "x", 16, (3, 2), dilation=(2, 1))
    double_network = double.network(double.window("conv", first, 16, (1, 1), (3, 2)))
    mixed = NetworkBuilder("depthwise2d_conv2d_pooling", 8, (16, 80, 75))
    last = mixed.window("conv", "x", 16, (3, 2))
    # Its ReLU is part of it.
    last = mixed.window("depthwise", last, 16, (3, 3))
    last = mixed.window("conv", last, 16, (3, 2), padding=(1, 0, 1, 1))
    mixed_network = mixed.network(mixed.window("pool", last, 16, (3, 3), padding=(1, 1, 1, 1)))
    for network, constant, before, after in (
        (double_network, 704, 1_067_520, (14_208, 4_080)),
        (mixed_network, 384, 180_288, (15_200, 14_432)),
    ):
        figures = " or ".join(f"{nbytes - constant:,}" for nbytes in after)
        print(
            f"{network.name}: published {before - constant:,} to {figures} bytes without a "
            f"constant of {constant}; layer by layer {ram_bytes(network, [], ()):,}"
        )
        print(*describe(network), sep="\n")


def fused() -> None:
    """Compare with fused-layer CNN on the front of VGG-E."""
    builder = NetworkBuilder("VGG-E front", 32, (3, 224, 224))
    last = "x"
    for channels, pooled in ((64, False), (64, True), (128, False), (128, True), (256, False)):
        last = builder.conv(last, channels, 3)
        if pooled:
            last = builder.window("pool", last, channels, (2, 2), (2, 2))
    network = builder.network(last)
    print(f"{network.name}: published 362 KB on chip, 3.6 MB moved")
    print(*describe(network), sep="\n")


def cores() -> None:
    """Say what the two cores of BM1688 win, with slices shared, and channels too."""
    chip = chip_named("bm1688")
    one = {**dict(chip.memory.facts), "cores": 1}
    alone = replace(chip, memory=replace(chip.memory, facts=tuple(one.items())))
    for name in ("bert_base", "bert_layer", "LLaMA of 512", "resnet50", "resnet18"):
        networks = networks_of(name)
        ways = [planned(networks, alone)]
        with LAYER_GROUP["channels on cores"]():
            ways.append(planned(networks, chip))
        ways.append(planned(networks, chip))
        cells = (f"{three(cycles / 1e6)}, {three(moved / KIB**2)} MiB |" for cycles, moved in ways)
        print(f"| {name} |", *cells, flush=True)


def three(number: float) -> str:
    """Return the first three digits of a number below a thousand."""
    return f"{number:#.3g}".rstrip(".")


def parts() -> None:
    """Say what layers in parts win."""
    small = (("resnet50", "cv184x"), ("bert_layer", "cv184x"))
    for name, tag in (*small, ("mobilenet_v2", "cv181x"), ("bert_layer", "cv181x")):
        networks, chip = networks_of(name), chip_named(tag)
        _, moved = planned(networks, chip)
        with LAYER_GROUP["parts"]():
            _, whole = planned(networks, chip)
        print(f"{name} on {tag}: {moved / KIB**2:.1f} MiB, {whole / KIB**2:.1f} without parts")


def planned(networks: Sequence[Network], chip: Chip) -> tuple[int, int]:
    """Return the cycles of networks in groups, and the bytes that are moved."""
    found = [plan_layer_groups(network, chip, halo="cheapest").after for network in networks]
    return sum(cost.cycles for cost in found), sum(cost.moved for cost in found)


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
        with deep_stack:  # As the pass does
            found = plan_layer_groups(deep_network(layers), chip)
        seconds = time.process_time() - begin
        growth = "" if before is None else f", {seconds / before:.2f} times for twice the layers"
        print(
            f"{layers} layers on {tag}: {len(found.groups)} groups, {len(found.left)} left, "
            f"{found.before.moved / found.after.moved:.1f} times fewer bytes moved; "
            f"{seconds:.2f} s{growth}",
            flush=True,
        )
        before = seconds


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
    compile_seconds(workloads.model("mobilenet_v2"), target, False)  # What is loaded once.
    for name in ("resnet18", "resnet50", "bert", "bert_base"):
        mod = workloads.model(name)
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
    known = {"chains": chains, "cascader": cascader, "fused": fused, "cores": cores}
    known |= {"parts": parts, "deep": deep, "twin": twin}
    parser.add_argument("--only", default=",".join(known))
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        if name not in known:
            parser.error(f"unknown part {name!r}; there are: {', '.join(known)}")
        known[name]()


if __name__ == "__main__":
    main()
