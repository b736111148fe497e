# SPDX-License-Identifier: Apache-2.0
"""Loops over parts: layers that make their channels part by part; the last one may sum them.

A layer whose weights are large makes its channels in parts. The weights of a part are loaded into
one of two buffers while the part before computes from the other one, anew for each slice. The same
holds for an input if a part of the result needs only the same channels of it, such as the other
operand of an addition, and for a result that nothing else in the group reads: its parts are stored.

A layer that sums over channels can add them part by part to sums that stay in local memory, with
its weights in parts of the reduction axis. The layers before it in the loop make a part of these
channels: the tensors between them are never there as a whole.

Loops are found from the last layer of a group to the first one. A layer joins the loop after it if
all its readers are in the loop and read its result in parts, and if it can be made in these parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, lcm, prod

import numpy as np

from passes.layer_group.planning.cut import CHANNELS
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Group, Kind, Layer, Tensor, channels_of
from passes.layer_group.planning.spans import AxisPart, Spans, needs_parts


@dataclass(frozen=True)
class Parts:
    """An axis of a tensor in parts."""

    axis: int
    extent: int  # Elements of the axis
    chunk: int  # Elements of a part
    cores: int = 1  # They share the parts: each has as many, one after the other.

    @property
    def count(self) -> int:
        """The number of parts."""
        return -(-self.extent // self.chunk)

    @property
    def turns(self) -> int:
        """The number of parts that a core has."""
        return self.count // self.cores

    @cached_property
    def made(self) -> AxisPart:
        """The elements that each part has."""
        begin = np.arange(0, self.extent, self.chunk)
        return AxisPart(CHANNELS, Spans(begin, np.minimum(begin + self.chunk, self.extent)))

    @cached_property
    def held(self) -> AxisPart:
        """The elements there with each part where parts are moved: the core's next part, too."""
        begin, end = self.made.spans.begin, self.made.spans.end.copy()
        follows = np.arange(1, self.count) % self.turns > 0
        end[:-1][follows] = end[1:][follows]
        return AxisPart(CHANNELS, Spans(begin, end))


@dataclass(frozen=True, eq=False)
class PartLoop:
    """Layers in one loop over parts; all their axes in parts have as many parts."""

    layers: tuple[str, ...]  # Their names, in order
    made: Mapping[str, Parts]  # By name, for each tensor that a layer makes in parts: the axis
    # The reduction axis of the last layer, if it sums over the parts. Its result is whole.
    summed: Parts | None = None
    # By name, for each tensor of which parts alone are resident.
    loads: Mapping[str, Parts] = field(default_factory=dict)
    stores: Mapping[str, Parts] = field(default_factory=dict)
    between: Mapping[str, Parts] = field(default_factory=dict)  # Made and read in the loop alone
    # A second loop, over parts of the result, that finishes the sums with what it loads.
    then: PartLoop | None = None

    @cached_property
    def parts(self) -> Parts:
        """One of the axes that are in parts."""
        return self.summed or next(iter(self.made.values()))

    @property
    def loops(self) -> tuple[PartLoop, ...]:
        """The loop, and the second one if there is one."""
        return (self,) if self.then is None else (self, self.then)

    def sums(self, layer: str) -> bool:
        """Return whether a layer of this name sums over the parts."""
        return self.summed is not None and layer == self.layers[-1]

    @cached_property
    def moved(self) -> dict[str, Parts]:
        """The tensors that are loaded or stored in parts."""
        return {n: p for x in self.loops for n, p in (*x.loads.items(), *x.stores.items())}


def window_of(shape: tuple[int, ...], axis: int, window: int) -> tuple[int, ...]:
    """Return extents with another one on one axis."""
    return (*shape[:axis], window, *shape[axis + 1 :])


def part_loops(group: Group, lanes: Lanes, part_bytes: int, cores: int = 1) -> dict[str, PartLoop]:
    """Return the loop of each layer of a group that computes part by part, by the layer's name.

    Tensors of a part take about `part_bytes` bytes a lane for each layer. A layer that can sum over
    parts, or be made in parts, takes the role with the longer loop, or else with fewer bytes of
    whole tensors. Where `cores` share the parts, no core needs what another one makes: no other
    layer of the group reads what is made in a loop, and no sum is over parts.
    """
    found: dict[str, PartLoop] = {}
    position = len(group.layers) - 1
    while part_bytes and position >= 0:
        ways = list(_ways(group, lanes, part_bytes, cores, position))
        way = min(ways, key=lambda x: (-len(x.positions), x.whole_bytes()), default=None)
        loop = None if way is None else way.closed()
        found |= {} if loop is None else dict.fromkeys(loop.layers, loop)
        position -= 1 if way is None else len(way.positions)
    return found


def _ways(
    group: Group, lanes: Lanes, part_bytes: int, cores: int, position: int
) -> Iterator[_Open]:
    """Yield the loops whose last layer a layer can be: it sums over parts, or is made in parts."""
    layer = group.layers[position]
    output, axis = group.tensor(layer.output), group.tensor(layer.output).axes.find("c")
    summed = {name: axis for name, axis in layer.sums if layer.inputs.count(name) == 1}
    inputs = [name for name in summed if group.tensor(name).kind is Kind.ACTIVATION]
    if cores == 1 and any(group.readers(name)[-1] <= position for name in inputs):
        extent = group.tensor(layer.sums[0][0]).shape[layer.sums[0][1]]
        way = _Open(group, lanes, part_bytes, extent, sums=True, positions=[position])
        way.wanted |= {name: summed.get(name) for name in layer.inputs}
        yield way.with_those_before()
    able = axis in layer.parts and channels_of(output) > lanes.count
    if able and not (cores > 1 and group.readers(layer.output)):
        way = _Open(group, lanes, part_bytes, output.shape[axis], cores)
        way.make(position, axis)
        yield way.with_those_before()


@dataclass(eq=False)
class _Open:
    """A loop while layers are put before it; a part is the same share of all axes in parts."""

    group: Group
    lanes: Lanes
    most: int  # Bytes a lane of the parts of each layer
    extent: int  # Elements of the axis of the last layer that is in parts, of its sum if it sums
    cores: int = 1  # They share the parts.
    sums: bool = False  # Whether the last layer sums over the parts
    positions: list[int] = field(default_factory=list)  # The last layer first
    made: dict[str, int] = field(default_factory=dict)  # Tensors made in parts: the axis
    # Tensors that layers read: the axis that they read in parts, or None for the whole tensor.
    wanted: dict[str, int | None] = field(default_factory=dict)

    @property
    def _last(self) -> Layer:
        return self.group.layers[self.positions[0]]

    def with_those_before(self) -> _Open:
        """Put the layers before the others that belong to them; return the loop."""
        for position in range(self.positions[0] - 1, -1, -1):
            layer = self.group.layers[position]
            axis = self.wanted.get(layer.output)
            alone = set(self.positions).issuperset(self.group.readers(layer.output))
            if axis is None or axis not in layer.parts or not alone:
                break
            self.make(position, axis)
        return self

    def make(self, position: int, axis: int) -> None:
        """Let a layer make its result in parts of an axis.

        A tensor that is read in two ways is resident as a whole.
        """
        self.positions.append(position)
        group, layer = self.group, self.group.layers[position]
        self.made[layer.output] = axis
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            pairs = zip(maps, group.tensor(name).shape, strict=True)
            follows = (
                at
                for at, (m, n) in enumerate(pairs)
                if m is not None and m.axis == axis and needs_parts(m.spans, n)
            )
            read = next(follows, None)
            self.wanted[name] = read if self.wanted.get(name, read) == read else None

    @cached_property
    def _inside(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """The axes of tensors loaded in parts, stored in parts, and in parts between layers."""
        group, found = self.group, (dict[str, int](), dict[str, int](), dict[str, int]())
        for name, axis in {**self.wanted, **dict(reversed(self.made.items()))}.items():
            made = name in self.made
            if made != group.makes(name):
                continue  # Layers before the loop make it: it is there as a whole.
            if axis is not None and set(self.positions).issuperset(group.readers(name)):
                stored = made and group.index.leaves(name, group.last)
                found[1 if stored else 2 if made else 0][name] = axis
        return found

    @cached_property
    def _afterwards(self) -> dict[str, tuple[int, int]]:
        """Inputs that can be loaded in parts after the sum: an axis of each, and the result's."""
        group, layer = self.group, self._last
        return {
            name: (axis, to)
            for name, axis, to in layer.after_sums
            if self.sums
            and not group.makes(name)
            and group.tensor(name).kind is Kind.ACTIVATION
            and group.readers(name) == (self.positions[0],)
            and layer.inputs.count(name) == 1
            and group.tensor(layer.output).axes[to] == "c"
        }

    def whole_bytes(self) -> int:
        """Bytes a lane of whole activations, and of a whole sum, beside the parts."""
        parted = {name for tensors in (*self._inside, self._afterwards) for name in tensors}
        layers = [self.group.layers[position] for position in self.positions]
        names = dict.fromkeys(name for x in layers for name in (*x.inputs, x.output))
        whole = [self.group.tensor(name) for name in names if name not in parted]
        held = sum(self.lanes.tensor_bytes(x, x.shape) for x in whole if x.kind is Kind.ACTIVATION)
        if not self.sums:
            return held
        output = self.group.tensor(self._last.output)
        bits = sum(buffer.bits * prod(buffer.shape) for buffer in self._last.buffers)
        return held + self.lanes.working_bytes(output, output.shape, bits)

    def closed(self) -> PartLoop | None:
        """Return the loop; None if it cannot have two parts."""
        chunk = self._chunk()
        if chunk is None:
            return None

        def parts(axes: Mapping[str, int]) -> dict[str, Parts]:
            extents = {name: self.group.tensor(name).shape[axis] for name, axis in axes.items()}
            return {
                name: Parts(axis, extents[name], chunk * extents[name] // self.extent, self.cores)
                for name, axis in axes.items()
            }

        names = tuple(self.group.layers[position].name for position in reversed(self.positions))
        summed = Parts(0, self.extent, chunk) if self.sums else None
        made = parts(dict(reversed(self.made.items())))
        loads, stores, between = map(parts, self._inside)
        return PartLoop(names, made, summed, loads, stores, between, self._then())

    def _then(self) -> PartLoop | None:
        """Return the loop that finishes the sum, and loads parts for that."""
        axes = {to for _, to in self._afterwards.values()}
        if len(axes) != 1:
            return None
        (axis,), least = axes, self.lanes.count
        extent = self.group.tensor(self._last.output).shape[axis]
        tensors = [(self.group.tensor(name), at) for name, (at, _) in self._afterwards.items()]
        each = sum(self._part_bytes(tensor, at, least) for tensor, at in tensors)
        chunk = least * max(1, self.most // max(1, 2 * each))
        if chunk >= extent:
            return None
        loads = {tensor.name: Parts(at, extent, chunk) for tensor, at in tensors}
        made = {self._last.output: Parts(axis, extent, chunk)}
        return PartLoop((self._last.name,), made, loads=loads)

    def _chunk(self) -> int | None:
        """Return the elements of a part; None if there is but one part.

        All that is made in parts has one of its channels, at least, in each lane.
        """
        tensor, extent = self.group.tensor, self.extent
        axes = [item for tensors in (*self._inside, self.made) for item in tensors.items()]
        # The fewest elements of which each other axis has a whole number.
        unit = lcm(*(extent // gcd(extent, tensor(name).shape[axis]) for name, axis in axes))
        most = self.most * len(self.positions)
        across = [
            channels_of(tensor(name))
            for name, axis in self.made.items()
            if tensor(name).axes[axis] == "c"
        ]
        least = unit * self.lanes.count
        if across:
            full = (self.lanes.count * extent // gcd(self.lanes.count * extent, n) for n in across)
            least = lcm(unit, *full)
        while not across and least > unit and self._bytes_of(least) > most:
            least = max(1, least // unit // 2) * unit
        blocks = -(-self.extent // least)
        count = -(-blocks // max(1, most // max(1, self._bytes_of(least))))
        # As few parts as fit, equally many for each core; larger parts if no number is equal.
        turns = -(-count // self.cores)
        numbers = (*range(turns, blocks + 1), *range(turns - 1, 0, -1))
        chunks = (-(-blocks // (each * self.cores)) * least for each in numbers)
        chunk = next((c for c in chunks if -(-self.extent // c) % self.cores == 0), self.extent)
        return chunk if chunk < self.extent else None

    def _bytes_of(self, chunk: int) -> int:
        """Return bytes per lane of parts of `chunk` elements; those moved are double-buffered."""
        return sum(
            self._part_bytes(tensor, axis, times * chunk * tensor.shape[axis] // self.extent)
            for tensors, times in zip(self._inside, (2, 2, 1), strict=True)
            for tensor, axis in ((self.group.tensor(name), axis) for name, axis in tensors.items())
        )

    def _part_bytes(self, tensor: Tensor, axis: int, elements: int) -> int:
        window = window_of(tensor.shape, axis, min(elements, tensor.shape[axis]))
        return self.lanes.tensor_bytes(tensor, window)
