# SPDX-License-Identifier: Apache-2.0
"""The cost of a group: cycles of its slices, and bytes between global and local memory.

The model, all of it in this file:

- A transfer takes its bytes over the bandwidth, and a start-up.
- A layer takes its multiply-adds over those of a cycle, where lanes without a channel to work on
  do nothing; and at least its output's elements over what the lanes' execution units write in a
  cycle. Elements that a slice computes again count again.
- A time step takes the longer one of its layer and its transfers.
- Slices overlap in three stages: filling and draining the pipeline count, and what is resident is
  loaded once. (tpu-mlir, ``CycleCalculator``.) All slices count as the average one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.loops import Parts
from passes.layer_group.planning.network import Layer, NetworkIndex
from passes.layer_group.planning.slicing import GroupSlices
from passes.layer_group.planning.time_steps import LOAD, Row, TimeSteps, Transfer, rebalance
from target_hw.machine import Machine

TRANSFERS, LANES = "GDMA", "TIU"
"""The pipes of a machine with lanes: transfers to and from global memory; all computing."""


@dataclass(frozen=True)
class Cost:
    """The cost of a group, or of a layer."""

    cycles: int  # From the first load to the last store
    moved: int  # Bytes between global and local memory
    # The price of a group: `cycles`, and those of all transfers once more, which take
    # bandwidth even where they take no time.
    price: int


def total(costs: Iterable[Cost]) -> Cost:
    """Return what groups and layers take one after the other."""
    each = [(cost.cycles, cost.moved, cost.price) for cost in costs]
    return Cost(*map(sum, zip((0, 0, 0), *each, strict=True)))


def cost_alone(index: NetworkIndex, machine: Machine, lanes: Lanes, number: int) -> Cost:
    """Return what a layer takes in no group, with the layers that lay out its weights.

    It computes while its tensors are moved, each once.
    """
    layer, costs = index.network.layers[number], []
    for one in (layer, *index.layouts(layer.inputs)):
        nbytes = sum(index.bytes[name] for name in (*dict.fromkeys(one.inputs), one.output))
        moving = machine[TRANSFERS].cycles(nbytes)
        takes = max(layer_cycles(machine, lanes, index, one, index.elements[one.output]), moving)
        costs.append(Cost(takes, nbytes, takes + moving))
    return total(costs)


def layer_cycles(
    machine: Machine, lanes: Lanes, index: NetworkIndex, layer: Layer, elements: int
) -> int:
    """Return the cycles of a layer that makes so many elements of its output."""
    if not elements:
        return 0
    bits = max(index.tensors[name].bits for name in (*layer.inputs[:1], layer.output))
    channels = index.channels[layer.output]
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
        return slices.group.index.bytes[name]
    elements = slices.tensors[name].made_elements
    if cut.by_channels and name not in slices.parted:
        elements *= cut.cores  # Of what comes in parts, each core loads its own.
    return -(-elements * tensor.bits // 8)


def group_cost(
    slices: GroupSlices,
    steps: TimeSteps,
    machine: Machine,
    lanes: Lanes,
    lane_bytes: Mapping[str, int],
    *,
    balance: bool = True,
) -> tuple[Cost, TimeSteps]:
    """Return the cost of a group, and its time steps, with transfers moved if that wins cycles."""
    # Cores compute side by side, and share what moves a byte.
    cut, pipe, moved = slices.cut, machine[TRANSFERS], 0
    computing, parted_cycles = [], []  # By row, cycles of a slice
    for row in steps.rows:
        cycles = sum(
            _slice_cycles(slices, machine, lanes, slices.group.layers[at]) for at in row.layers
        )
        # A layer waits for the first part of what it loads in parts, and for the last one to be
        # stored; the others pass by meanwhile.
        parted_cycles.append(0)
        for nbytes, parts in _parted(slices, row):
            first = pipe.cycles(-(-nbytes // (parts.count * cut.steps))) * cut.cores
            cycles, moved = cycles + first, moved + nbytes
            parted_cycles[-1] += first * parts.turns
        computing.append(cycles)
    resident = frozenset(slices.resident)
    transfers: dict[Transfer, int] = {}
    for row in steps.rows:
        for transfer in row.transfers:
            nbytes = moved_bytes(slices, transfer.tensor, transfer.kind)
            times = 1 if transfer.tensor in resident else cut.turns
            transfers[transfer] = pipe.cycles(-(-nbytes // (times * cut.cores))) * cut.cores
            moved += nbytes
    if balance:
        steps = rebalance(steps, computing, transfers, lane_bytes, parted_cycles)
    total = pipelined_cycles(steps, computing, transfers, cut.turns, resident, parted_cycles)
    moving = sum(n * (1 if t.tensor in resident else cut.turns) for t, n in transfers.items())
    return Cost(total, moved, total + moving + sum(parted_cycles) * cut.turns), steps


def _slice_cycles(slices: GroupSlices, machine: Machine, lanes: Lanes, layer: Layer) -> int:
    """Return what a core takes of the cycles of a layer, whose parts cores may share."""
    elements, loop = slices.tensors[layer.output].made_elements, slices.loops.get(layer.name)
    every = layer_cycles(machine, lanes, slices.group.index, layer, elements)
    cycles = -(-every // slices.cut.steps)
    if loop is None or loop.parts.cores == 1:
        return cycles
    # All parts of the first core are whole.
    return -(-cycles * loop.parts.turns * loop.parts.chunk // loop.parts.extent)


def _parted(slices: GroupSlices, row: Row) -> Iterator[tuple[int, Parts]]:
    """Yield bytes that are moved in parts beside a row, and these parts."""
    loop = slices.loops.get(slices.group.layers[row.layers[-1]].name) if row.layers else None
    for one in () if loop is None else loop.loops:
        loaded = sum(moved_bytes(slices, name, LOAD) for name in one.loads)
        stored = sum(slices.group.index.bytes[name] for name in one.stores)
        yield from ((nbytes, one.parts) for nbytes in (loaded, stored) if nbytes)


def pipelined_cycles(
    steps: TimeSteps,
    computing: Sequence[int],
    transfers: Mapping[Transfer, int],
    slices: int,
    resident: Collection[str],
    parted_cycles: Sequence[int],
) -> int:
    """Return the cycles of all slices, filling and draining counted, by those of one slice.

    Tensors that are `resident` are loaded once, with the first slice.
    """
    middle = int(steps.pipelined)
    turns = slices + 2 * middle

    def turn(number: int) -> int:
        """Return the cycles of all rows in the turn of this number."""
        cycles = 0
        for row, compute, parted in zip(steps.rows, computing, parted_cycles, strict=True):
            moving = 0
            for transfer in row.transfers:
                at = number - transfer.stage * middle
                if at == 0 or (0 < at < slices and transfer.tensor not in resident):
                    moving += transfers[transfer]
            runs = 0 <= number - middle < slices
            cycles += max(compute * runs, moving + parted * runs)
        return cycles

    # All turns between the first three and the last two are alike.
    alike = max(0, turns - 6)
    edges = [number for number in range(turns) if not 3 < number <= 3 + alike]
    return sum(map(turn, edges)) + alike * (turn(3) if alike else 0)
