# SPDX-License-Identifier: Apache-2.0
"""Runs: layers of a group in one loop over parts, of which the last one may sum over the parts.

A layer that sums over the channels of what it reads can add them part by part to sums that stay in
local memory. So the layers before it make a part of the channels, what is parallel in that axis
does the same part, and the sum takes it up: what lies between them is never there as a whole.
Weights are loaded in parts on both sides, those of the sum along the axis that it sums over. A sum
whose operand comes from outside is a run of one layer: the operand is loaded in parts.

Which layers form a run is found from the last layer of a group to the first one. A layer joins the
run behind it if that reads its result in parts, and if it can be made in these parts; else the run
is closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import lcm

from passes.layer_group.planning.group import Group, channels_of
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import AxisMap, Kind
from passes.layer_group.planning.slicing import Cut
from passes.layer_group.planning.streams import LayerRun, Parts, window_of

Along = tuple[int, int | Fraction]
"""An axis that is in parts, and its elements for each element of the axis of the sum."""


def streams_of(group: Group, lanes: Lanes, cut: Cut) -> dict[str, LayerRun]:
    """Return the loop of each layer of a group that computes part by part, by the layer's name.

    Weights and other tensors of a part take about `Cut.part_bytes` bytes a lane for each layer. A
    layer that could sum, or be made in parts, does what leaves fewer bytes of whole tensors to its
    run. Where cores share the parts, nothing goes from core to core: of what is made in a run,
    other layers of the group read nothing, no sum is one over parts of several cores, and all
    other layers are made by each core.
    """
    found: dict[str, LayerRun] = {}
    position = len(group.layers) - 1
    while cut.part_bytes and position >= 0:
        ways = _ways(group, lanes, cut, position)
        run = min(ways, key=lambda run: run.whole_bytes, default=None)
        found |= {} if run is None else run.closed
        position -= 1 if run is None else len(run.positions)
    return found


def _ways(group: Group, lanes: Lanes, cut: Cut, position: int) -> list[_Growing]:
    """Return the runs that a layer can be the last one of: it sums over parts, or is made so."""
    layer, cores = group.layers[position], cut.cores if cut.by_channels else 1
    output, readers = group.tensor(layer.output), group.readers(layer.output)
    ways = []
    if cores == 1 and any(
        group.tensor(name).kind is Kind.ACTIVATION and group.readers(name)[-1] <= position
        for name, _ in layer.sums
        if layer.inputs.count(name) == 1
    ):
        name, axis = layer.sums[0]
        ways.append(_Growing(group, lanes, cut.part_bytes, group.tensor(name).shape[axis]))
        ways[-1].sum_up(position)
    axis = output.axes.find("c")
    able = axis in dict(layer.part_bits) and channels_of(output) > lanes.count
    if able and not (cores > 1 and readers):
        ways.append(_Growing(group, lanes, cut.part_bytes, output.shape[axis], cores))
        ways[-1].make(position, (axis, 1))
    for run in ways:
        run.grow()
    return ways


@dataclass(eq=False)
class _Growing:
    """A run while layers are put before it."""

    group: Group
    lanes: Lanes
    most: int  # As `Cut.part_bytes`
    extent: int  # Elements of the axis of the sum
    cores: int = 1  # They share the parts.
    positions: list[int] = field(default_factory=list)  # The last layer first
    made: dict[int, Along] = field(default_factory=dict)  # By position: what is made in parts
    sums: bool = False  # Whether the last layer sums over the parts
    wanted: dict[str, Along] = field(default_factory=dict)  # What the layers read in parts
    whole: set[str] = field(default_factory=set)  # What one of them reads as a whole

    def grow(self) -> None:
        """Put all layers before the last one that belong to it."""
        before = self.positions[-1] - 1
        while before >= 0 and self.joined_by(before):
            before -= 1

    def joined_by(self, position: int) -> bool:
        """Put a layer before the others; False if it does not belong to them."""
        group, layer = self.group, self.group.layers[position]
        along = self.wanted.get(layer.output)
        inside = all(reader in self.positions for reader in group.readers(layer.output))
        if along is None or not inside or along[0] not in dict(layer.part_bits):
            return False
        self.make(position, along)
        return True

    def sum_up(self, position: int) -> None:
        """Let a layer sum over the parts."""
        self.positions.append(position)
        self.sums = True
        layer = self.group.layers[position]
        along = {name: axis for name, axis in layer.sums if layer.inputs.count(name) == 1}
        for name in layer.inputs:
            self._want(name, (along[name], 1) if name in along else None)

    def make(self, position: int, along: Along) -> None:
        """Let a layer make its result in parts."""
        self.positions.append(position)
        self.made[position] = along
        layer = self.group.layers[position]
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            shape = self.group.tensor(name).shape
            follows = (
                (axis, each)
                for axis, m in enumerate(maps)
                if m is not None and m.axis == along[0]
                for each in [part_through(m, along[1])]
                if each is not None and shape[axis] == self.extent * each
            )
            self._want(name, next(follows, None))

    def _want(self, name: str, along: Along | None) -> None:
        if along is None or self.wanted.get(name, along) != along:
            self.whole.add(name)
        if name in self.whole:
            self.wanted.pop(name, None)
        elif along is not None:
            self.wanted[name] = along

    @cached_property
    def _passing(self) -> tuple[dict[str, Along], dict[str, Along], dict[str, Along]]:
        """Return what is loaded and what is stored in parts, and what lies between in parts."""
        group, inside = self.group, set(self.positions)
        made = {group.made[position]: along for position, along in self.made.items()}
        loads = {n: x for n, x in self.wanted.items() if n not in group.made}
        loads, made = (
            {n: x for n, x in tensors.items() if inside.issuperset(group.readers(n))}
            for tensors in (loads, made)
        )
        stores = {n: x for n, x in made.items() if n in group.outputs}
        return loads, stores, {n: x for n, x in made.items() if n not in stores}

    @cached_property
    def _late(self) -> dict[str, tuple[int, int]]:
        """Return what can be loaded in parts behind the sum: an axis of each, and the result's."""
        group, position = self.group, self.positions[0]
        layer = group.layers[position]
        return {
            name: (axis, to)
            for name, axis, to in layer.late
            if self.sums
            and name in group.inputs
            and group.readers(name) == (position,)
            and layer.inputs.count(name) == 1
            and group.tensor(layer.output).axes[to] == "c"
        }

    @cached_property
    def whole_bytes(self) -> int:
        """Bytes a lane of whole activations, and of a whole sum, beside the parts."""
        passing = {name for tensors in (*self._passing, self._late) for name in tensors}
        layers = [self.group.layers[position] for position in self.positions]
        names = dict.fromkeys(name for x in layers for name in (*x.inputs, x.output))
        tensors = [self.group.tensor(name) for name in names if name not in passing]
        total = sum(
            self.lanes.tensor_bytes(x, x.shape) for x in tensors if x.kind is Kind.ACTIVATION
        )
        if self.sums:
            layer = self.group.layers[self.positions[0]]
            output = self.group.tensor(layer.output)
            total += layer.buffer_bits * self.lanes.elements(output, output.shape) // 8
        return total

    @cached_property
    def closed(self) -> dict[str, LayerRun]:
        """The run for each of its layers; nothing if it cannot have two parts."""
        group = self.group
        layers = [group.layers[position] for position in reversed(self.positions)]
        made = {group.made[position]: along for position, along in self.made.items()}
        loads, stores, between = self._passing
        chunk = self._chunk
        if chunk is None:
            return {}

        def parts(tensors: dict[str, Along]) -> dict[str, Parts]:
            return {
                n: Parts(axis, int(self.extent * each), int(chunk * each), self.cores)
                for n, (axis, each) in tensors.items()
            }

        of_made = parts(made)
        run = LayerRun(
            tuple(layer.name for layer in layers),
            {layer.name: of_made[layer.output] for layer in layers if layer.output in made},
            Parts(0, self.extent, chunk) if self.sums else None,
            parts(loads),
            parts(stores),
            parts(between),
            *self._finish(),
        )
        return {layer.name: run for layer in layers}

    def _finish(self) -> tuple[Parts | None, dict[str, Parts]]:
        """Return the parts in which the sum is finished, and those of what is loaded for that."""
        axes = {to for _, to in self._late.values()}
        if len(axes) != 1:
            return None, {}
        output = self.group.tensor(self.group.layers[self.positions[0]].output)
        (axis,), least = axes, self.lanes.count
        extent = output.shape[axis]
        tensors = {self.group.tensor(name): at for name, (at, _) in self._late.items()}
        each = sum(
            self.lanes.tensor_bytes(x, window_of(x.shape, at, least)) for x, at in tensors.items()
        )
        chunk = least * max(1, self.most // max(1, 2 * each))
        if chunk >= extent:
            return None, {}
        late = {name: Parts(at, extent, chunk) for name, (at, _) in self._late.items()}
        return Parts(axis, extent, chunk), late

    @cached_property
    def _chunk(self) -> int | None:
        """Return the elements of a part; None if there is but one part.

        All that is made in parts has one of its channels, at least, in each lane.
        """
        made = {self.group.made[position]: along for position, along in self.made.items()}
        in_parts = (along for tensors in (*self._passing, made) for along in tensors.values())
        unit = lcm(*(each.denominator for _, each in in_parts))
        most = self.most * len(self.positions)
        across = [
            Fraction(each * channels_of(tensor), tensor.shape[axis])
            for tensor, (axis, each) in zip(
                map(self.group.tensor, made), made.values(), strict=True
            )
            if tensor.axes[axis] == "c"
        ]
        least = unit * self.lanes.count
        if across:
            filling = (self.lanes.count / each for each in across)
            least = lcm(unit, *(elements.numerator for elements in filling))
        while not across and least > unit and self._bytes_of(least) > most:
            least = max(1, least // unit // 2) * unit
        blocks = -(-self.extent // least)
        count = -(-blocks // max(1, most // max(1, self._bytes_of(least))))
        # As few parts as do, equally many for each core; larger ones where there is no such number.
        turns = -(-count // self.cores)
        numbers = (*range(turns, blocks + 1), *range(turns - 1, 0, -1))
        chunks = (-(-blocks // (each * self.cores)) * least for each in numbers)
        chunk = next((c for c in chunks if -(-self.extent // c) % self.cores == 0), self.extent)
        return chunk if chunk < self.extent else None

    def _bytes_of(self, chunk: int) -> int:
        """Return the bytes a lane of parts of so many elements, two of all that is moved."""
        total, (loads, stores, between) = 0, self._passing
        for tensors, times in ((loads, 2), (stores, 2), (between, 1)):
            for name, (axis, each) in tensors.items():
                tensor = self.group.tensor(name)
                elements = min(int(times * chunk * each), tensor.shape[axis])
                total += self.lanes.tensor_bytes(tensor, window_of(tensor.shape, axis, elements))
        return total


def part_through(m: AxisMap, each: int | Fraction) -> int | Fraction | None:
    """Return how many elements a part needs through a map; None if parts would overlap."""
    exact = 0 <= m.first < m.divide and -m.divide <= m.last - m.stride < 0
    found = Fraction(each * m.stride, m.divide)
    # A whole number is far quicker to work with.
    return (found if found.denominator > 1 else int(found)) if exact else None
