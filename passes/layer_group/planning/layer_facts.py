# SPDX-License-Identifier: Apache-2.0
"""What the search asks of each layer again and again."""

from __future__ import annotations

from dataclasses import dataclass

from passes.layer_group.planning.cost import LANES, TRANSFERS, layer_cycles
from passes.layer_group.planning.group import NetworkIndex, bytes_of, channels_of, element_count
from passes.layer_group.planning.network import AxisMap, Kind, Layer, Tensor
from passes.layer_group.planning.planned_group import Chip
from passes.layer_group.planning.repeats import Repeats
from passes.layer_group.planning.slicing import LETTERS
from passes.layer_group.planning.streams import Stream, stream_of


@dataclass(frozen=True)
class Alone:
    """What a layer takes that is in no group: it computes while its tensors are moved."""

    moved: int  # Bytes: each tensor once
    cycles: int
    price: int  # As in `GroupCost`

    @classmethod
    def of(cls, index: NetworkIndex, chip: Chip, number: int) -> Alone:
        """Return what a layer takes, with those that lay out its weights."""
        layer = index.network.layers[number]
        if layer.lays_out:
            return cls(0, 0, 0)
        found = cls(0, 0, 0)
        for one in (layer, *index.layouts(layer.inputs)):
            names = (*dict.fromkeys(one.inputs), one.output)
            moved = sum(bytes_of(index.tensors[name]) for name in names)
            elements = element_count(index.tensors[one.output])
            group = index.group((number,))
            computing = layer_cycles(chip.machine, chip.lanes, group, one, elements)
            moving = chip.machine[TRANSFERS].cycles(moved)
            cycles = found.cycles + max(computing, moving)
            found = cls(found.moved + moved, cycles, found.price + max(computing, moving) + moving)
        return found


class LayerFacts:
    """Facts of the layers of a network on a chip, worked out once."""

    def __init__(self, index: NetworkIndex, chip: Chip) -> None:
        self.index = index
        self.chip = chip
        self.repeats = Repeats(index)
        lanes = chip.lanes
        self._lane_bytes: dict[tuple[str, tuple[int, ...]], int] = {}
        self._repeats: dict[int, bool] = {}
        self._lanes_pipe = chip.machine[LANES]
        self._transfer_pipe = chip.machine[TRANSFERS]
        self._transfers: dict[int, int] = {}
        self._work: list[tuple[float, float, int]] = []
        for layer in index.network.layers:
            output = index.tensors[layer.output]
            bits = max(index.tensors[n].bits for n in (*layer.inputs[:1], layer.output))
            channels = channels_of(output)
            idle = -(-channels // lanes.count) * lanes.count / channels
            together = max(1, lanes.eu_bytes * 8 // bits) * lanes.count
            share = layer.multiply_adds / max(1, element_count(output))
            self._work.append((idle / together, idle * share, bits))

    def lane_bytes(self, tensor: Tensor, extents: tuple[int, ...]) -> int:
        """Return the bytes a lane of a part of a tensor."""
        key = (tensor.name, extents)
        if key not in self._lane_bytes:
            self._lane_bytes[key] = self.chip.lanes.tensor_bytes(tensor, extents)
        return self._lane_bytes[key]

    def stream(self, number: int, part_bytes: int) -> Stream | None:
        """Return the parts that a layer is made in."""
        return stream_of(self.index, self.chip.lanes, number, part_bytes)

    def repeats_rows(self, number: int) -> bool:
        """Whether slices of a layer's rows may need rows, or whole tensors, that others need."""
        if number not in self._repeats:
            self._repeats[number] = self._may_repeat(self.index.network.layers[number])
        return self._repeats[number]

    def _may_repeat(self, layer: Layer) -> bool:
        output = self.index.tensors[layer.output]
        rows = output.axes.find("h")
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            tensor = self.index.tensors[name]
            at = tensor.axes.find("h")
            letters = {output.axes[m.axis] for m in maps if m is not None}
            if tensor.kind is Kind.WEIGHT and not letters & set(LETTERS):
                continue
            follows = [axis for axis, m in enumerate(maps) if m is not None and m.axis == rows]
            if follows != [at] or maps[at] != AxisMap(rows):
                return True
            if tensor.shape[at] != output.shape[rows]:
                return True
        return False

    def compute_cycles(self, number: int, elements: float) -> float:
        """Return the cycles in which a layer makes so many elements of its output."""
        by_output, by_multiply_adds, bits = self._work[number]
        work = self._lanes_pipe.cycles(int(elements * by_multiply_adds), bits)
        return max(work, elements * by_output)

    def transfer_cycles(self, nbytes: float) -> int:
        """Return the cycles in which so many bytes are loaded or stored."""
        whole = int(nbytes)
        if whole not in self._transfers:
            self._transfers[whole] = self._transfer_pipe.cycles(whole)
        return self._transfers[whole]
