# SPDX-License-Identifier: Apache-2.0
"""What a group costs: cycles of its slices, and bytes moved between global and local memory.

The model, all of it in this file:

- A transfer takes its bytes over the bandwidth, and a start-up.
- A layer takes its multiply-adds over those of a cycle, where lanes without a channel to work on
  do nothing; and at least its output's elements over what the lanes' execution units write in a
  cycle. What a slice computes again counts again.
- A time step takes the longer one of its layer and its transfers.
- Slices overlap in three stages: filling and draining the pipeline count, and what is resident is
  loaded once. (tpu-mlir, ``CycleCalculator``.)

All slices of a group count as the average one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from passes.layer_group.planning.group import (
    NetworkIndex,
    channels_of,
)
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.slicing import GroupSlices
from passes.layer_group.planning.time_steps import LOAD, TimeSteps, Transfer, rebalance
from target_hw.machine import Machine

TRANSFERS, LANES = "GDMA", "TIU"
"""The pipes of a machine with lanes: transfers to and from global memory; all computing."""


@dataclass(frozen=True)
class Cost:
    """What a group takes, or a layer."""

    cycles: int  # From the first load to the last store
    moved: int  # Bytes between global and local memory
    # What groups are compared by: `cycles`, and those of all transfers once more. A byte that is
    # moved while the lanes compute takes no time, but bandwidth.
    price: int


@dataclass(frozen=True)
class GroupCost(Cost):
    """What it takes to run a group."""

    # Rows of the tensors that are computed in the group, each time that they are made again.
    repeated_rows: int


def cost_alone(index: NetworkIndex, machine: Machine, lanes: Lanes, number: int) -> Cost:
    """Return what a layer takes in no group, with the layers that lay out its weights.

    It computes while its tensors are moved, each once.
    """
    layer = index.network.layers[number]
    cycles = moved = price = 0
    for one in () if layer.lays_out else (layer, *index.layouts(layer.inputs)):
        nbytes = sum(index.bytes[name] for name in (*dict.fromkeys(one.inputs), one.output))
        moving = machine[TRANSFERS].cycles(nbytes)
        takes = max(layer_cycles(machine, lanes, index, one, index.elements[one.output]), moving)
        cycles, moved, price = cycles + takes, moved + nbytes, price + takes + moving
    return Cost(cycles, moved, price)


def layer_cycles(
    machine: Machine, lanes: Lanes, index: NetworkIndex, layer: Layer, elements: int
) -> int:
    """Return the cycles of a layer that makes so many elements of its output."""
    if not elements:
        return 0
    output = index.tensors[layer.output]
    bits = max(index.tensors[name].bits for name in (*layer.inputs[:1], layer.output))
    channels = channels_of(output)
    lines = -(-channels // lanes.count)
    # Elements if all lanes had a channel to work on.
    padded = -(-elements * lines * lanes.count // channels)
    work = -(-layer.multiply_adds * padded // index.elements[layer.output])
    together = max(1, lanes.eu_bytes * 8 // bits) * lanes.count
    return max(machine[LANES].cycles(work, bits), -(-padded // together))


def moved_bytes(slices: GroupSlices, name: str, kind: str) -> int:
    """Return the bytes of a tensor that are loaded or stored for all slices together."""
    tensor, cut = slices.group.tensor(name), slices.cut
    if kind != LOAD:
        return tensor.bytes
    elements = slices.tensors[name].made_elements
    if cut.by_channels and name not in slices.streamed:
        elements *= cut.cores  # Of what comes in parts, each core loads its own.
    return -(-elements * tensor.bits // 8)


def core_cycles(slices: GroupSlices, layer: Layer, cycles: int) -> int:
    """Return what a core takes of the cycles of a layer, whose parts cores may share."""
    run = slices.streams.get(layer.name)
    if run is None or run.parts.cores == 1:
        return cycles
    # All parts of the first core are whole.
    return -(-cycles * run.parts.turns * run.parts.chunk // run.parts.extent)


def group_cost(
    slices: GroupSlices,
    steps: TimeSteps,
    machine: Machine,
    lanes: Lanes,
    lane_bytes: dict[str, int],
    *,
    balance: bool = True,
) -> tuple[GroupCost, TimeSteps]:
    """Return the cost of a group, and its time steps, with transfers moved if that wins cycles."""
    # Cores compute side by side, and share what moves a byte.
    group, count, cores = slices.group, slices.cut.turns, slices.cut.cores
    moved: dict[Transfer, int] = {}
    cycles: dict[Transfer, int] = {}
    held = set(slices.resident)
    pipe = machine[TRANSFERS]
    # For one slice: a layer waits for the first part of what it loads in parts, and for the last
    # one to be stored; the others pass by meanwhile.
    computing = []
    for layer in group.layers:
        elements = slices.tensors[layer.output].made_elements
        all_slices = layer_cycles(machine, lanes, group.index, layer, elements)
        computing.append(core_cycles(slices, layer, -(-all_slices // slices.cut.steps)))
    streaming: dict[int, int] = {}
    streamed = 0
    for row in steps.rows:
        if row.layer is None:
            continue
        if row.earlier:
            computing[row.layer] += sum(computing[position] for position in row.earlier)
        run = slices.streams.get(group.layers[row.layer].name)
        if run is None:
            continue
        loaded = sum(moved_bytes(slices, name, LOAD) for name in run.loads)
        stored = sum(group.index.bytes[name] for name in run.stores)
        parts, at = run.parts.count, row.layer
        each = [pipe.cycles(-(-n // (parts * slices.cut.steps))) for n in (loaded, stored) if n]
        waits = sum(each) * cores
        streaming[at] = waits * run.parts.turns
        for name, late in run.late.items():
            # What is left behind the sums waits for the first part of what it needs.
            nbytes = moved_bytes(slices, name, LOAD)
            first = pipe.cycles(-(-nbytes // (late.count * slices.cut.steps))) * cores
            waits, streaming[at] = waits + first, streaming[at] + first * late.count
            loaded += nbytes
        computing[at] += waits
        streamed += loaded + stored
    for row in steps.rows:
        for transfer in row.transfers:
            moved[transfer] = moved_bytes(slices, transfer.tensor, transfer.kind)
            times = 1 if transfer.tensor in held else count
            cycles[transfer] = pipe.cycles(-(-moved[transfer] // (times * cores))) * cores
    if balance:
        steps = rebalance(steps, computing, cycles, lane_bytes, streaming)
    total = pipelined_cycles(steps, computing, cycles, count, held, streaming)
    transferred = sum(c * (1 if t.tensor in held else count) for t, c in cycles.items())
    transferred += sum(streaming.values()) * count
    repeated = sum(slices.repeated_rows(name) for name in group.made)
    moving = sum(moved.values()) + streamed
    return GroupCost(total, moving, total + transferred, repeated), steps


def pipelined_cycles(
    steps: TimeSteps,
    compute_cycles: Sequence[int],
    transfer_cycles: Mapping[Transfer, int],
    slices: int,
    held: set[str],
    streamed_cycles: Mapping[int, int],
) -> int:
    """Return the cycles of all slices, filling and draining counted.

    `compute_cycles` are by a layer's position in the group; all cycles are those of one slice. What
    is `held` is loaded once, with the first slice; what is streamed, beside its layer.
    """
    first_slice = {t: t.stage * steps.pipelined for row in steps.rows for t in row.transfers}
    middle = int(steps.pipelined)
    turns = slices + 2 * middle

    def turn(number: int) -> int:
        """Return the cycles of all rows in the turn of this number."""
        cycles = 0
        for row in steps.rows:
            moving = 0
            for transfer in row.transfers:
                at = number - first_slice[transfer]
                if at == 0 or (0 < at < slices and transfer.tensor not in held):
                    moving += transfer_cycles[transfer]
            computing = 0
            if row.layer is not None and 0 <= number - middle < slices:
                computing = compute_cycles[row.layer]
                moving += streamed_cycles.get(row.layer, 0)
            cycles += max(computing, moving)
        return cycles

    # All turns between the first three and the last two are alike.
    alike = max(0, turns - 6)
    edges = [number for number in range(turns) if not 3 < number <= 3 + alike]
    return sum(map(turn, edges)) + alike * (turn(3) if alike else 0)
