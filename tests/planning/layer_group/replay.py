"""Runs a planned group on a memory that remembers which element lies in which byte.

It shares no code with what slices and places: what a layer reads is asked element by element, and
the rows run turn by turn as a chip would run them, load before compute before store.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from passes.planning.layer_group.network import AxisMap, Box
from passes.planning.layer_group.planned_group import PlannedGroup


def read_by(m: AxisMap, element: int, extent: int) -> range:
    """Return what one element of an output's axis reads of an input's axis."""
    low = (element * m.stride + m.first) // m.divide
    high = (element * m.stride + m.last) // m.divide
    return range(max(low, 0), min(high + 1, extent))


class Replay:
    def __init__(self, planned: PlannedGroup) -> None:
        self.planned = planned
        self.slices, self.group = planned.slices, planned.group
        self.indices = planned.cut.indices()
        self.bytes: dict[int, object] = {}
        self.computed: dict[str, int] = dict.fromkeys(self.group.made, 0)

    def run(self) -> None:
        rows, slices = self.planned.steps.rows, len(self.indices)
        for turn in range(slices + 2):
            for row in rows:
                if self.planned.steps.pipelined:
                    self.row(row, [turn, turn - 1, turn - 2])
                elif turn < slices:
                    self.row(row, [turn] * 3)

    def row(self, row, turns: list[int]) -> None:
        used, made = set(), set()
        if row.layer is not None:
            layer = self.group.layers[row.layer]
            used, made = {*layer.inputs, layer.output}, {layer.output}
        for transfer in row.transfers:
            # A result may be stored while another layer reads it.
            assert transfer.tensor not in (used if transfer.kind == "load" else made)
            turn = turns[transfer.stage]
            once = transfer.tensor in self.slices.resident
            if transfer.kind == "load" and 0 <= turn < (1 if once else len(self.indices)):
                box = self.slices.tensors[transfer.tensor].made(self.indices[turn])
                self.write(transfer.tensor, turn, box)
        if row.layer is not None and 0 <= turns[1] < len(self.indices):
            self.compute(row.layer, turns[1])
        for transfer in row.transfers:
            turn = turns[transfer.stage]
            if transfer.kind == "store" and 0 <= turn < len(self.indices):
                box = self.slices.stored[transfer.tensor].made(self.indices[turn])
                self.expect(transfer.tensor, turn, box)

    def compute(self, position: int, turn: int) -> None:
        layer = self.group.layers[position]
        made = self.slices.tensors[layer.output].made(self.indices[turn])
        if all(begin == end for begin, end in made):
            return
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            shape = self.group.tensor(name).shape
            box = []
            for m, extent in zip(maps, shape, strict=True):
                if m is None:
                    box.append((0, extent))
                    continue
                reads = [read_by(m, o, extent) for o in range(*made[m.axis])]
                found = [e for read in reads for e in read]
                box.append((min(found), max(found) + 1) if found else (0, 0))
            if all(begin < end for begin, end in box):
                self.expect(name, turn, tuple(box))
        item = self.planned.local.item.get(layer.name)
        if item is not None:
            at = self.planned.plan.offsets[layer.name][0]
            self.bytes.update(dict.fromkeys(range(at, at + item.lane_bytes), layer.name))
        self.write(layer.output, turn, made)
        self.computed[layer.output] += len(self.elements(layer.output, made))

    def elements(self, name: str, box: Box) -> list[tuple[int, ...]]:
        """Return the coordinates on the axes that are cut; other axes are there as a whole."""
        axes = self.slices.tensors[name].axes
        return list(
            product(*(range(*r) for r, axis in zip(box, axes, strict=True) if axis is not None))
        )

    def cells(self, name: str, turn: int, box: Box) -> Iterator[tuple[range, tuple[int, ...]]]:
        """Yield the bytes of each element of a box, and its coordinates.

        An axis whose halo is kept is a circular buffer; any other begins with the slice.
        """
        slices = self.slices.tensors[name]
        held = slices.held(self.indices[turn])
        axes = [
            (axis.window, axis.letter in slices.keep, begin)
            for axis, (begin, _) in zip(slices.axes, held, strict=True)
            if axis is not None
        ]
        count = 1
        for window, _, _ in axes:
            count *= window
        size = self.planned.local.item[name].lane_bytes
        at = self.planned.plan.offsets[name][0]
        for element in self.elements(name, box):
            cell = 0
            for coordinate, (window, keeps, begin) in zip(element, axes, strict=True):
                slot = coordinate % window if keeps else coordinate - begin
                assert 0 <= slot < window, (name, element, held)
                cell = cell * window + slot
            yield range(at + cell * size // count, at + (cell + 1) * size // count), element

    def write(self, name: str, turn: int, box: Box) -> None:
        if any(begin == end for begin, end in box):
            return
        for place, element in self.cells(name, turn, box):
            self.bytes.update(dict.fromkeys(place, (name, element)))

    def expect(self, name: str, turn: int, box: Box) -> None:
        for place, element in self.cells(name, turn, box):
            for byte in place:
                there = self.bytes.get(byte)
                expected = (name, element)
                assert there == expected, f"slice {turn} reads {expected}, finds {there}"


def check_replay(planned: PlannedGroup) -> Replay:
    """Run a group; every read must find the element that it expects."""
    replay = Replay(planned)
    replay.run()
    return replay
