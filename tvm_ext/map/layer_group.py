# SPDX-License-Identifier: Apache-2.0
"""The memory map of a network in groups: local memory a lane, beside each group's time steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from tvm.ir import IRModule
from tvm.target import Target

from passes.layer_group import (
    GROUP_BUDGET,
    STORE,
    LayerGroupOptions,
    PlannedGroup,
    place,
    plan_groups,
)
from passes.planning import Plan, Problem, solve
from tvm_ext.layer_group_report import check_local_memory, lowered
from tvm_ext.map.memory_map import BufferNote, Listing, ScopeMap, Shown
from tvm_ext.planned.placements import MapOptions, planned

_STAGES = (" for the next slice", "", " of the slice before")


def layer_group_maps(mod: IRModule, target: Target, shown: MapOptions) -> Iterator[Shown]:
    """Plan the local memory of each group of layers with every planner.

    Bytes are those in one lane, positions the time steps of a slice. Yielded are a memory for each
    group, and a line for each layer in no group. Raises ValueError as `LayerGroup` does.
    """
    check_local_memory(target)
    options = LayerGroupOptions(target)
    for block in plan_groups(lowered(mod), options):
        yield from (f"{layer}: {reason}" for layer, reason in block.groups.left.items())
        for number, group in enumerate(block.groups.groups):
            name = f"{block.groups.network.name}, group {number}"
            problem = group.local.problem
            placements = tuple(
                planned(problem, planner, solver=partial(_solve, group, planner))
                for planner in shown.names(problem)
            )
            yield ScopeMap(name, placements, *_read(name, group))


def _solve(group: PlannedGroup, planner: str, problem: Problem) -> Plan:
    """Plan a group as `LayerGroup` does; a plan that does not fit is shown as well."""
    return place(group.local, planner) or solve(problem, planner, GROUP_BUDGET)


def _read(name: str, group: PlannedGroup) -> tuple[Listing, dict[str, BufferNote]]:
    """Write a group's time steps as lines, and find the lines that read and write each item."""
    layers, cut = group.group.layers, group.cut
    cores = f" on {cut.cores} cores along {cut.shared}" if cut.shared else ""
    slices = f"{cut.n} of the batch, {cut.h} of the rows, {cut.w} of the columns{cores}"
    lines = [f"for slice in range({cut.steps}):  # {slices}; halos: {group.halo}"]
    reads: defaultdict[str, dict[int, None]] = defaultdict(dict)
    writes: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for number, row in enumerate(group.steps.rows):
        parts = []
        for layer in (layers[position] for position in row.layers):
            for read in layer.inputs:
                reads[read][len(lines)] = None
            for made in (layer.output, layer.name):
                writes[made][len(lines)] = None
            parts.append(f"{layer.output} = {layer.operator}({', '.join(layer.inputs)})")
        for streamed in row.streamed:
            writes[streamed][len(lines)] = None
            parts.append(f"load {streamed} part by part")
        for moved in row.transfers:
            (reads if moved.kind == STORE else writes)[moved.tensor][len(lines)] = None
            is_resident = moved.tensor in group.slices.resident
            stage = _STAGES[moved.stage] if group.steps.pipelined and not is_resident else ""
            parts.append(f"{moved.kind} {moved.tensor}{' once' if is_resident else stage}")
        lines.append(f"    step {number}: {' | '.join(parts)}")
    notes = {
        item: BufferNote(
            what=_what(group, item), reads=tuple(reads[item]), writes=tuple(writes[item])
        )
        for item in group.local.sizes
    }
    return Listing(tuple(lines), tuple(range(1, len(lines))), name), notes


def _what(group: PlannedGroup, name: str) -> str:
    if name not in group.slices.tensors:
        return f"working memory of {name}"
    tensor = group.group.tensor(name)
    shape = " × ".join(map(str, tensor.shape))
    stays = ", stays between slices" if name in (*group.slices.kept, *group.slices.resident) else ""
    return f"{tensor.kind.value}, {tensor.bits} bits × {shape} in all{stays}"
