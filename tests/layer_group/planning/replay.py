# SPDX-License-Identifier: Apache-2.0
"""Runs a planned group on lanes that remember which element lies in which byte.

What a plan decides is taken as the program: how many slices there are, which halos stay, what each
slice loads, computes and stores, in which time step, and the addresses. What must come of it is
worked out here from the network's layers alone, element by element: what each slice needs, how many
bytes of a lane that takes and where in them each element lies. The rows run turn by turn as a chip
would run them, load before compute before store.
"""

from __future__ import annotations

from math import prod

import numpy as np
from slice_boxes import Box, Layout, held_box, hull, indices_of, made_box, part_of, read_of

from passes.layer_group.planning.planned_group import PlannedGroup


class Replay:
    def __init__(self, planned: PlannedGroup, lanes: int, eu_bytes: int) -> None:
        self.planned, self.slices, self.group = planned, planned.slices, planned.group
        self.lanes, self.eu_bytes = lanes, eu_bytes
        self.indices = indices_of(planned.cut)
        # Cores that share the slices; others share the parts of each.
        self.sharing = 1 if planned.cut.by_channels else planned.cut.cores
        self.memory = np.zeros((lanes, planned.plan.peak), np.int64)
        self.numbers: dict[str, np.ndarray] = {}
        first = 1
        self.network, self.layers = self.group.index, self.group.layers
        for name in self.group.names:
            shape = self.shape(name)
            self.numbers[name] = np.arange(first, first + prod(shape)).reshape(shape)
            first += prod(shape)
        # What comes in parts: the axis, and elements that are there at once.
        self.parts = {}
        for run in planned.slices.loops.values():
            # A core that has but one part needs no room for the next one.
            two = min(2, run.parts.turns)
            for tensors, times in (
                (run.loads, two),
                (run.stores, two),
                (run.then.loads if run.then else {}, 2),
                (run.between, 1),
            ):
                for name, p in tensors.items():
                    self.parts[name] = (p.axis, min(times * p.chunk, p.extent))
        self.layouts = {name: self.layout(name) for name in self.group.names}
        self.stored = {n: np.zeros(self.group.tensor(n).shape, int) for n in self.group.outputs}
        self.computed = dict.fromkeys(self.group.made, 0)
        self.moved = 0  # Bytes that are loaded and stored, by all cores

    def shape(self, name: str) -> tuple[int, ...]:
        return self.network.tensors[name].shape

    def elements(self, box: Box) -> list[np.ndarray]:
        """Return the indices in a tensor that a box of it has."""
        return [np.arange(*part) for part in box]

    # ---------------------------------------------------------------- what a slice needs

    def check_needs(self) -> None:
        """Each slice makes all that it needs and that is not there.

        What a slice needs begins with the part of the outputs that it stores. A layer computes a
        whole range of rows, so a need is one range an axis.
        """
        needs: dict[str, list[list[np.ndarray]]] = {name: [] for name in self.group.names}
        for index in self.indices:
            for name, parts in needs.items():
                parts.append([np.array([], int) for _ in self.shape(name)])
                if name in self.group.outputs:
                    parts[-1] = [
                        np.arange(*part) for part in made_box(self.slices.stored[name], index)
                    ]
        for layer in reversed(self.layers):
            self.check_made(layer.output, needs[layer.output])
            for number, index in enumerate(self.indices):
                box = made_box(self.slices.tensors[layer.output], index)
                made = [np.arange(*part) for part in box]
                for at, name in enumerate(layer.inputs):
                    read = self.read(layer, at, made)
                    if all(map(len, made)) and all(map(len, read)):
                        before = needs[name][number]
                        needs[name][number] = list(map(hull, before, read))
        for name in self.group.loaded:
            self.check_made(name, needs[name])

    def read(self, layer, at: int, made: list[np.ndarray]) -> list[np.ndarray]:
        """Return the indices that a layer reads of one of its inputs."""
        shape = self.shape(layer.inputs[at])
        return [read_of(m, made, extent) for m, extent in zip(layer.maps[at], shape, strict=True)]

    def check_made(self, name: str, needs: list[list[np.ndarray]]) -> None:
        """Check what each slice makes of a tensor, with what stays of the slices before."""
        slices = self.slices.tensors[name]
        there = np.zeros(self.shape(name), bool)
        before = self.indices[0]
        for number, (index, part) in enumerate(zip(self.indices, needs, strict=True)):
            first = number % (len(self.indices) // self.sharing) == 0  # The first slice of a core.
            if first or any(index[x] != before[x] for x in index if x not in slices.keep):
                there[:] = False
            before = index
            box = made_box(slices, index)
            there[np.ix_(*self.elements(box))] = True
            for at in np.argwhere(~there[np.ix_(*part)])[:1]:
                lacking = [int(axis[i]) for axis, i in zip(part, at, strict=True)]
                raise AssertionError(f"slice {number} needs {name} {lacking}, makes {box}")

    # --------------------------------------------------------------------------- the lanes

    def layout(self, name: str) -> Layout:
        """Return how a tensor lies in the lanes, as large as the largest slice of it is."""
        slices = self.slices.tensors[name]
        boxes = [held_box(slices, index) for index in self.indices]
        window = [max(end - begin for begin, end in axis) for axis in zip(*boxes, strict=True)]
        if name in self.parts:
            axis, window[axis] = self.parts[name]
        layout = Layout(slices.tensor, window, self.lanes, self.eu_bytes)
        share = self.planned.local.sizes.get(name, 0)
        assert layout.size <= share, f"{name} takes {layout.size} bytes a lane of {share}"
        return layout

    def cells(
        self, name: str, turn: int, box: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return lane, byte and number of each element of a box.

        An axis whose halo is kept is a circular buffer; any other begins with the slice.
        """
        slices, layout = self.slices.tensors[name], self.layouts[name]
        slots = []
        held = held_box(slices, self.indices[turn])
        for at, (part, window, indices, (begin, _)) in enumerate(
            zip(slices.holds, layout.window, box, held, strict=True)
        ):
            circular = part.letter != "" and part.letter in slices.keep
            circular = circular or (name in self.parts and self.parts[name][0] == at)
            slot = indices % window if circular else indices - begin
            assert ((slot >= 0) & (slot < window)).all(), (name, turn, indices, begin, window)
            slots.append(slot)
        lane, byte = layout.of(slots)
        return lane, byte + self.planned.plan.offsets[name][0], self.numbers[name][np.ix_(*box)]

    def write(self, name: str, turn: int, box: Box) -> None:
        lane, byte, number = self.cells(name, turn, self.elements(box))
        for k in range(self.layouts[name].bytes):
            self.memory[lane, byte + k] = number

    def expect(self, name: str, turn: int, box: list[np.ndarray]) -> None:
        lane, byte, number = self.cells(name, turn, box)
        for k in range(self.layouts[name].bytes):
            there = self.memory[lane, byte + k]
            for wrong in np.argwhere(there != number)[:1]:
                at = [int(axis[i]) for axis, i in zip(box, wrong, strict=True)]
                raise AssertionError(f"slice {turn} reads {name} {at}, finds {there[tuple(wrong)]}")

    # ---------------------------------------------------------------------------- the rows

    def run(self) -> None:
        self.check_needs()
        cut, count = self.planned.cut, len(self.indices) // self.sharing
        for self.core in range(cut.cores):
            # Each core has a memory of its own; where they share parts, all have all slices.
            self.memory[:] = 0
            begin = self.core * count if self.sharing > 1 else 0
            self.mine = range(begin, begin + count)
            for turn in range(begin, begin + count + 2):
                for row in self.planned.steps.rows:
                    if self.planned.steps.pipelined:
                        self.row(row, [turn, turn - 1, turn - 2])
                    elif turn in self.mine:
                        self.row(row, [turn] * 3)
        for name, times in self.stored.items():
            assert (times == 1).all(), f"{name} is stored {times.min()} to {times.max()} times"

    def row(self, row, turns: list[int]) -> None:
        layers = [self.layers[position] for position in row.layers]
        made = {layer.output for layer in layers}
        used = made.union(*(layer.inputs for layer in layers))
        transfers = [transfer for transfer in row.transfers if transfer.loop is None]
        for transfer in transfers:
            # A result may be stored while another layer reads it.
            assert transfer.tensor not in (used if transfer.kind == "load" else made)
            turn = turns[transfer.stage]
            if transfer.kind == "load" and turn in self.mine:
                box = made_box(self.slices.tensors[transfer.tensor], self.indices[turn])
                self.load(transfer.tensor, turn, box)
        if row.layers and turns[1] in self.mine:
            self.compute(row.layers, turns[1])
        for transfer in transfers:
            turn = turns[transfer.stage]
            if transfer.kind == "store" and turn in self.mine:
                box = made_box(self.slices.stored[transfer.tensor], self.indices[turn])
                if self.sharing == self.planned.cut.cores or self.core == 0:
                    self.store(transfer.tensor, turn, box)

    def compute(self, positions: tuple[int, ...], turn: int) -> None:
        layers = [self.layers[position] for position in positions]
        boxes = [
            made_box(self.slices.tensors[layer.output], self.indices[turn]) for layer in layers
        ]
        some = [all(begin < end for begin, end in box) for box in boxes]
        if not any(some):
            return
        run = self.slices.loops.get(layers[0].name)
        assert run is None or run.layers == tuple(layer.name for layer in layers)
        if run is None:
            self.overwrite_working(positions[0])
            self.compute_part(positions[0], turn, boxes[0])
            return
        # The next part is loaded while one computes: both orders have to do.
        mine = run.parts.turns
        begin = self.core * mine if run.parts.cores > 1 else 0
        self.move_parts(run.loads, turn, begin)
        for at in range(begin, begin + mine):
            if at + 1 < begin + mine:
                self.move_parts(run.loads, turn, at + 1)
            for position, layer, box in zip(positions, layers, boxes, strict=True):
                if not all(begin < end for begin, end in box):
                    continue
                if run.sums(layer.name):
                    finish = run.then is not None
                    self.add_part(position, turn, box, run.summed, at, finish)
                    continue
                self.overwrite_working(position)
                parts = run.made[layer.output]
                self.compute_part(position, turn, part_of(box, parts, at))
            # A part is stored while the next one computes.
            if at > begin:
                self.move_parts(run.stores, turn, at - 1, stores=True)
        self.move_parts(run.stores, turn, begin + mine - 1, stores=True)
        for position, layer, box in zip(positions, layers, boxes, strict=True):
            finishes = run.then is not None and run.sums(layer.name)
            if finishes and all(begin < end for begin, end in box):
                self.finish(position, turn, box, run.then.parts, run.then.loads)

    def move_parts(self, tensors, turn: int, at: int, *, stores: bool = False) -> None:
        for name, parts in tensors.items():
            slices = (self.slices.stored if stores else self.slices.tensors)[name]
            box = part_of(made_box(slices, self.indices[turn]), parts, at)
            (self.store if stores else self.load)(name, turn, box)

    def overwrite_working(self, position: int) -> None:
        layer = self.layers[position]
        if layer.buffers and layer.name in self.planned.local.sizes:
            self.working(layer)[:] = -1 - position

    def working(self, layer) -> np.ndarray:
        begin = self.planned.plan.offsets[layer.name][0]
        return self.memory[:, begin : begin + self.planned.local.sizes[layer.name]]

    def finish(self, position: int, turn: int, box: Box, parts, late) -> None:
        """Make the result of sums part by part, which stay until their part is made."""
        layer = self.layers[position]
        if layer.buffers:
            assert (self.working(layer) == -1 - position).all(), f"no sums of {layer.name}"
        self.move_parts(late, turn, 0)
        for at in range(parts.count):
            if at + 1 < parts.count:
                self.move_parts(late, turn, at + 1)
            part = part_of(box, parts, at)
            self.expect_sums(position, turn, part)
            self.compute_part(position, turn, part, only=late)

    def expect_sums(self, position: int, turn: int, box: Box, added: int | None = None) -> None:
        """Expect the sums of a part of a result, of all parts that are added or of some."""
        name = self.layers[position].output
        lane, byte, number = self.cells(name, turn, [np.arange(*axis) for axis in box])
        for k in range(self.layouts[name].bytes):
            there = self.memory[lane, byte + k]
            assert (there == -number * 1000 - (added or 0)).all(), f"sums of {name} are not there"

    def add_part(self, position: int, turn: int, box: Box, parts, at: int, finish: bool) -> None:
        """Add a part to sums, which nothing may touch from the first part to the last one."""
        layer = self.layers[position]
        if at:
            self.expect_sums(position, turn, box, at)
        if layer.buffers:
            there = self.working(layer)
            assert at == 0 or (there == -1 - position).all(), f"sums of {layer.name} are not there"
            there[:] = -1 - position
        along = dict(layer.sums)
        begin = at * parts.chunk
        part = np.arange(begin, min(begin + parts.chunk, parts.extent))
        made = [np.arange(*axis) for axis in box]
        run = self.slices.loops[layer.name]
        for name, maps in zip(layer.inputs, layer.maps, strict=True):
            shape = self.shape(name)
            read = [read_of(m, made, extent) for m, extent in zip(maps, shape, strict=True)]
            if name in along:
                assert len(read[along[name]]) == parts.extent
                read[along[name]] = part
            if all(len(axis) for axis in read) and name not in (run.then.loads if run.then else {}):
                self.expect(name, turn, read)
        is_last = part[-1] == parts.extent - 1
        if is_last and not finish:
            self.write(layer.output, turn, box)
            self.computed[layer.output] += prod(len(axis) for axis in made)
            return
        lane, byte, number = self.cells(layer.output, turn, made)
        for k in range(self.layouts[layer.output].bytes):
            self.memory[lane, byte + k] = -number * 1000 - (0 if is_last else at + 1)

    def load(self, name: str, turn: int, box: Box) -> None:
        self.write(name, turn, box)
        self.moved += prod(end - begin for begin, end in box) * self.layouts[name].bytes

    def store(self, name: str, turn: int, box: Box) -> None:
        part = [np.arange(*axis) for axis in box]
        self.moved += prod(map(len, part)) * self.layouts[name].bytes
        self.expect(name, turn, part)
        self.stored[name][np.ix_(*part)] += 1

    def compute_part(self, position: int, turn: int, box: Box, only=None) -> None:
        layer = self.layers[position]
        made = [np.arange(*part) for part in box]
        self.expect_inputs(layer, turn, made, only)
        self.write(layer.output, turn, box)
        self.computed[layer.output] += prod(len(axis) for axis in made)

    def expect_inputs(self, layer, turn: int, made: list[np.ndarray], only=None) -> None:
        for at, name in enumerate(layer.inputs):
            if only is not None and name not in only:
                continue
            read = self.read(layer, at, made)
            if all(len(axis) for axis in read):
                self.expect(name, turn, read)


def check_replay(planned: PlannedGroup, lanes: int = 8, eu_bytes: int = 16) -> Replay:
    """Run a group; every read must find the element that it expects."""
    replay = Replay(planned, lanes, eu_bytes)
    replay.run()
    return replay
