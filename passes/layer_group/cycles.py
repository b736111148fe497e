# SPDX-License-Identifier: Apache-2.0
"""What a planned group costs in the simulator: transfers and lanes as two pipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from passes.layer_group.planning.cost import LANES, TRANSFERS, core_cycles, layer_cycles
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.runs import Parts
from passes.layer_group.planning.slicing import TensorSlices
from passes.layer_group.planning.time_steps import LOAD, STORE, Row
from passes.planning import Plan, Problem
from passes.simulation import Simulation, Statement, simulate
from target_hw.machine import Machine, Pipe

_Index = Mapping[str, int]
"""A slice, by its index on each axis."""


def simulate_group(planned: PlannedGroup, chip: Chip) -> Simulation:
    """Run a group in the simulator, with its tensors where its plan puts them.

    Cores do the same side by side, so the lanes are those of the first core.
    """
    # Cycles of layers are known already, so the lanes do one unit of work in a cycle.
    machine = Machine((chip.machine[TRANSFERS], Pipe(LANES, "elements", 1)))
    return simulate(group_program(planned, chip), [_in_halves(planned)], machine)


def group_program(planned: PlannedGroup, chip: Chip) -> tuple[Statement, ...]:
    """Return all that the first core does of a group: transfers, and layers slice by slice.

    The work of the pipe ``GDMA`` is in bytes, with those of the other cores, which take turns with
    it; that of ``TIU`` is in cycles. Only buffers in local memory are named.
    """
    slices, cut = planned.slices, planned.cut
    pipelined = int(planned.steps.pipelined)
    indices = cut.indices()[: cut.turns]
    program: list[Statement] = []
    for turn in range(cut.turns + 2 * pipelined):
        for row in planned.steps.rows:
            for transfer in row.transfers:
                at, loads = turn - transfer.stage * pipelined, transfer.kind == LOAD
                if not 0 <= at < cut.turns:
                    continue
                tensor = (slices.tensors if loads else slices.stored)[transfer.tensor]
                # Where cores share channels, each has made what the first one stores.
                cores = 1 if cut.by_channels and not loads else cut.cores
                moved = _moved(tensor, indices[at], 1) * cores
                if moved:
                    program.append(_transfer(transfer.kind, transfer.tensor, "", moved))
            if row.layers and 0 <= turn - pipelined < cut.turns:
                program += _computed(planned, row, indices[turn - pipelined], chip)
    return tuple(program)


def _computed(planned: PlannedGroup, row: Row, index: _Index, chip: Chip) -> Iterator[Statement]:
    """Yield the statements of a time step's layers for a slice, with transfers part by part."""
    slices, group = planned.slices, planned.group
    layers = []
    for layer in (group.layers[position] for position in row.layers):
        elements = prod(b - a for a, b in slices.tensors[layer.output].made(index))
        if elements:
            cycles = layer_cycles(chip.machine, chip.lanes, group.index, layer, elements)
            layers.append((layer, core_cycles(slices, layer, cycles)))
    last = group.layers[row.layers[-1]].name
    run = slices.streams.get(last)
    if run is None:
        for layer, cycles in layers:
            yield _statement(planned, layer, layer.inputs, cycles, (), 0)
    elif layers:
        # What is left behind the sum is one part more.
        work, finish = [], None
        for layer, cycles in layers:
            finish = run.finish if layer.name == last else None
            cycles = -(-cycles // (run.parts.turns + (finish is not None)))
            work.append((layer, [name for name in layer.inputs if name not in run.late], cycles))
        yield from _in_parts(planned, index, run.parts, run.loads, run.stores, work)
        if finish is not None:
            layer, _, cycles = work[-1]
            behind = [(layer, [*run.late], -(-cycles // finish.count))]
            yield from _in_parts(planned, index, finish, run.late, (), behind)


def _in_parts(
    planned: PlannedGroup,
    index: _Index,
    parts: Parts,
    loads: Iterable[str],
    stores: Iterable[str],
    work: Sequence[tuple[Layer, Sequence[str], int]],
) -> Iterator[Statement]:
    """Yield a loop over parts: loads, layers, and stores, side by side.

    `work` has each layer with what it reads and its cycles for a part.
    """
    tensors, stored, cores = planned.slices.tensors, planned.slices.stored, planned.cut.cores
    for part in range(parts.turns + 2):
        for name in loads if part < parts.turns else ():
            moved = _moved(tensors[name], index, parts.count) * cores
            yield _transfer(LOAD, name, _half(part), moved)
        for layer, reads, cycles in work if 0 < part <= parts.turns else ():
            yield _statement(planned, layer, reads, cycles, (*loads, *stores), part - 1)
        for name in stores if part > 1 else ():
            moved = _moved(stored[name], index, parts.count) * cores
            yield _transfer(STORE, name, _half(part - 2), moved)


def _transfer(kind: str, name: str, half: str, moved: int) -> Statement:
    reads, writes = ((), (name + half,)) if kind == LOAD else ((name + half,), ())
    return Statement(f"{kind} {name}", TRANSFERS, reads, writes, moved)


def _statement(
    planned: PlannedGroup,
    layer: Layer,
    reads: Sequence[str],
    cycles: int,
    in_halves: Sequence[str],
    part: int,
) -> Statement:
    """Return a layer's statement; a tensor `in_halves` has each part in one of its halves."""

    def cells(names: Sequence[str]) -> tuple[str, ...]:
        own = (name for name in dict.fromkeys(names) if name in planned.local.sizes)
        return tuple(name + _half(part) if name in in_halves else name for name in own)

    return Statement(layer.name, LANES, cells(reads), cells((layer.output, layer.name)), cycles)


def _moved(tensor: TensorSlices, index: _Index, parts: int) -> int:
    """Return the bytes of one of so many parts of a slice of a tensor."""
    elements = prod(end - begin for begin, end in tensor.made(index))
    return -(-elements * tensor.tensor.bits // (8 * parts))


def _half(part: int) -> str:
    return f", {'odd' if part % 2 else 'even'} parts"


def _in_halves(planned: PlannedGroup) -> tuple[Problem, Plan]:
    """Return the local memory with the two buffers of each tensor that is moved in parts."""
    problem, offsets = planned.local.problem, dict(planned.plan.offsets)
    runs = planned.slices.streams.values()
    moved = {name for run in runs for name in (*run.loads, *run.stores, *run.late)}
    buffers = []
    for buffer in problem.buffers:
        if buffer.name not in moved:
            buffers.append(buffer)
            continue
        (start,) = offsets.pop(buffer.name)
        first = -(-buffer.size // 2)
        for part, size in ((0, first), (1, max(1, buffer.size - first))):
            name = buffer.name + _half(part)
            buffers.append(replace(buffer, name=name, size=size))
            offsets[name] = (start + part * first,)
    memory = replace(problem.memory, alignment=1)
    halves = replace(problem, buffers=tuple(buffers), memory=memory, in_place=())
    return halves, replace(planned.plan, offsets=offsets)
