# SPDX-License-Identifier: Apache-2.0
"""What a planned group costs in the simulator: transfers and lanes as two pipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod

from passes.layer_group.planning.cost import LANES, TRANSFERS, core_cycles, layer_cycles
from passes.layer_group.planning.network import Box, Layer
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.slicing import TensorSlices
from passes.layer_group.planning.streams import Parts
from passes.layer_group.planning.time_steps import LOAD, Row, Transfer
from passes.planning import Plan, Problem
from passes.simulation import Simulation, Statement, simulate
from target_hw.machine import Machine, Pipe


def group_program(planned: PlannedGroup, chip: Chip, core: int = 0) -> tuple[Statement, ...]:
    """Return all that a core does of a group: transfers, and layers slice by slice.

    The work of the pipe ``GDMA`` is in bytes, that of ``TIU`` in cycles. Only buffers in local
    memory are named.
    """
    slices, cut = planned.slices, planned.cut
    indices = cut.indices()[0 if cut.by_channels else core * cut.turns :]
    last_stage = 2 if planned.steps.pipelined else 0
    items = planned.local.item
    program = []

    def transfer(what: Transfer, index: dict[str, int]) -> None:
        name = what.tensor
        if cut.by_channels and core and what.kind != LOAD:
            return  # Each core has made it, and the first one stores it.
        of = slices.tensors if what.kind == LOAD else slices.stored
        moved = _moved(of[name], index, 1)
        if moved:
            there = (name,) if name in items else ()
            reads, writes = ((), there) if what.kind == LOAD else (there, ())
            program.append(Statement(f"{what.kind} {name}", TRANSFERS, reads, writes, moved))

    for turn in range(cut.turns + last_stage):
        for row in planned.steps.rows:
            for what in row.transfers:
                at = turn - (what.stage if planned.steps.pipelined else 0)
                if 0 <= at < cut.turns:
                    transfer(what, indices[at])
            at = turn - (1 if planned.steps.pipelined else 0)
            if row.layer is None or not 0 <= at < cut.turns:
                continue
            program += _computed(planned, row, indices[at], chip)
    return tuple(program)


def _computed(
    planned: PlannedGroup, row: Row, index: dict[str, int], chip: Chip
) -> Iterator[Statement]:
    """Yield what the layers of a time step do for a slice, with what they move part by part."""
    slices, group = planned.slices, planned.group
    layers = {}
    for layer in (group.layers[position] for position in row.layers):
        elements = _elements(slices.tensors[layer.output].made(index))
        if elements:
            cycles = layer_cycles(chip.machine, chip.lanes, group.index, layer, elements)
            layers[layer.name] = layer, core_cycles(slices, layer, cycles)
    last = group.layers[row.layers[-1]].name
    run = slices.streams.get(last)
    if run is None:
        for layer, cycles in layers.values():
            yield _statement(planned, layer, layer.inputs, (), 0, cycles)
    elif layers:
        # What is left behind the sum is one part more.
        finish = run.finish if last in layers else None
        work = []
        for layer, cycles in layers.values():
            turns = run.parts.turns + (finish is not None and layer.name == last)
            reads = [name for name in layer.inputs if name not in run.late]
            work.append((layer, reads, -(-cycles // turns)))
        yield from _in_parts(planned, index, run.loads, run.stores, run.parts, work)
        if finish is not None:
            layer, _, cycles = work[-1]
            work = [(layer, [*run.late], -(-cycles // finish.count))]
            yield from _in_parts(planned, index, run.late, {}, finish, work)


def _in_parts(
    planned: PlannedGroup,
    index: dict[str, int],
    loads: Mapping[str, Parts],
    stores: Mapping[str, Parts],
    parts: Parts,
    work: Sequence[tuple[Layer, Sequence[str], int]],
) -> Iterator[Statement]:
    """Yield a loop over parts: loads, layers, and stores, side by side.

    `work` has each layer with what it reads and its cycles for a part.
    """
    tensors, stored = planned.slices.tensors, planned.slices.stored
    for part in range(parts.turns + 2):
        for name in loads if part < parts.turns else ():
            moved = _moved(tensors[name], index, parts.count)
            yield Statement(f"load {name}", TRANSFERS, (), (_half(name, part),), moved)
        for layer, reads, cycles in work if 0 < part <= parts.turns else ():
            yield _statement(planned, layer, reads, (*loads, *stores), part - 1, cycles)
        for name in stores if part > 1 else ():
            moved = _moved(stored[name], index, parts.count)
            yield Statement(f"store {name}", TRANSFERS, (_half(name, part - 2),), (), moved)


def _statement(
    planned: PlannedGroup,
    layer: Layer,
    reads: Sequence[str],
    in_halves: Sequence[str],
    part: int,
    cycles: int,
) -> Statement:
    """Return what a layer does in so many cycles; a part of what is `in_halves` is in one half."""
    reads, writes = (
        tuple(
            _half(name, part) if name in in_halves else name
            for name in dict.fromkeys(names)
            if name in planned.local.item
        )
        for names in (reads, (layer.output, layer.name))
    )
    return Statement(layer.name, LANES, reads, writes, cycles)


def _moved(tensor: TensorSlices, index: dict[str, int], parts: int) -> int:
    """Return the bytes of one of so many parts of a slice of a tensor."""
    return -(-_elements(tensor.made(index)) * tensor.tensor.bits // (8 * parts))


def simulate_group(planned: PlannedGroup, chip: Chip) -> Simulation:
    """Run a group in the simulator, with its tensors where its plan puts them."""
    # Cycles of layers are known already, so the lanes do one unit of work in a cycle.
    cores = range(planned.cut.cores)
    pipes = (Pipe(_of_core(LANES, core), "elements", 1) for core in cores)
    machine = Machine((chip.machine[TRANSFERS], *pipes))
    placed = [_in_halves(planned, core) for core in cores]
    # Cores take turns with the one pipe that moves bytes.
    programs = [
        [_on_core(step, core) for step in group_program(planned, chip, core)] for core in cores
    ]
    together = (step for steps in zip_longest(*programs) for step in steps if step is not None)
    return simulate(tuple(together), placed, machine)


def _of_core(name: str, core: int) -> str:
    return f"{name} of core {core}" if core else name


def _on_core(step: Statement, core: int) -> Statement:
    """Return what a core does with its own lanes and memory."""
    reads = tuple(_of_core(name, core) for name in step.reads)
    writes = tuple(_of_core(name, core) for name in step.writes)
    pipe = _of_core(step.pipe, core) if step.pipe == LANES else step.pipe
    return replace(step, pipe=pipe, reads=reads, writes=writes)


def _half(name: str, part: int) -> str:
    return f"{name}, {'odd' if part % 2 else 'even'} parts"


def _in_halves(planned: PlannedGroup, core: int) -> tuple[Problem, Plan]:
    """Return a core's local memory with the two buffers of each tensor that comes in parts."""
    problem, offsets = planned.local.problem, dict(planned.plan.offsets)
    moved = {
        name
        for run in planned.slices.streams.values()
        for name in (*run.loads, *run.stores, *run.late)
    }
    buffers = []
    for buffer in problem.buffers:
        if buffer.name not in moved:
            buffers.append(buffer)
            continue
        (start,) = offsets.pop(buffer.name)
        first = -(-buffer.size // 2)
        for part, at, size in ((0, start, first), (1, start + first, buffer.size - first)):
            name = _half(buffer.name, part)
            buffers.append(replace(buffer, name=name, size=max(1, size)))
            offsets[name] = (at,)
    memory = replace(problem.memory, name=_of_core(problem.memory.name, core), alignment=1)
    own = (replace(buffer, name=_of_core(buffer.name, core)) for buffer in buffers)
    places = {_of_core(name, core): starts for name, starts in offsets.items()}
    return (
        replace(problem, buffers=tuple(own), memory=memory, in_place=()),
        replace(planned.plan, offsets=places),
    )


def _elements(box: Box) -> int:
    return prod(end - begin for begin, end in box)
