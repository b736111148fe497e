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

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Layer, NetworkIndex
from passes.layer_group.planning.slicing import GroupSlices
from passes.layer_group.planning.time_steps import LOAD, TimeSteps, Transfer, rebalance
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
    bits, channels = index.work_bits[layer.output], index.channels[layer.output]
    lines = -(-channels // lanes.count)
    # Elements if all lanes had a channel to work on.
    padded = -(-elements * lines * lanes.count // channels)
    work = -(-layer.multiply_adds * padded // index.elements[layer.output])
    together = max(1, lanes.eu_bytes * 8 // bits) * lanes.count
    return max(machine[LANES].cycles(work, bits), -(-padded // together))


def moved_bytes(slices: GroupSlices, transfer: Transfer) -> int:
    """Return the bytes that are loaded or stored for all slices together."""
    if transfer.kind != LOAD:
        return slices.group.index.bytes[transfer.tensor]
    loaded, cut = slices.tensors[transfer.tensor], slices.cut
    elements = loaded.made_elements
    if cut.by_channels and not loaded.is_in_parts:
        elements *= cut.cores  # Of what comes in parts, each core loads its own.
    return -(-elements * loaded.tensor.bits // 8)


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
    computing: list[int] = []  # By row, cycles of a slice
    resident = frozenset(slices.resident)
    transfers: dict[Transfer, int] = {}  # Cycles of a slice
    for row in steps.rows:
        layers = (slices.group.layers[at] for at in row.layers)
        computing.append(sum(_slice_cycles(slices, machine, lanes, layer) for layer in layers))
        # Parts that come together start up once.
        at_once: dict[Hashable, list[Transfer]] = {}
        for one in row.transfers:
            at_once.setdefault((one.loop, one.kind) if one.loop else one, []).append(one)
        for together in at_once.values():
            first, nbytes = together[0], sum(moved_bytes(slices, x) for x in together)
            times = 1 if first.tensor in resident else cut.turns
            parts = None if first.loop is None else first.loop.parts
            pieces = times * cut.cores if parts is None else parts.count * cut.steps
            each = pipe.cycles(-(-nbytes // pieces)) * cut.cores
            moved += nbytes
            transfers.update(dict.fromkeys(together, 0))
            transfers[first] = each * (1 if parts is None else parts.turns)
            # A layer waits for the first part that is loaded, and for the last one to be stored.
            computing[-1] += 0 if parts is None else each
    if balance:
        steps = rebalance(steps, computing, transfers, lane_bytes)
    total = pipelined_cycles(steps, computing, transfers, cut.turns, resident)
    moving = sum(n * (1 if t.tensor in resident else cut.turns) for t, n in transfers.items())
    return Cost(total, moved, total + moving), steps


def _slice_cycles(slices: GroupSlices, machine: Machine, lanes: Lanes, layer: Layer) -> int:
    """Return what a core takes of the cycles of a layer, whose parts cores may share."""
    elements, loop = slices.tensors[layer.output].made_elements, slices.loops.get(layer.name)
    every = layer_cycles(machine, lanes, slices.group.index, layer, elements)
    cycles = -(-every // slices.cut.steps)
    if loop is None or loop.parts.cores == 1:
        return cycles
    # All parts of the first core are whole.
    return -(-cycles * loop.parts.turns * loop.parts.chunk // loop.parts.extent)


def pipelined_cycles(
    steps: TimeSteps,
    computing: Sequence[int],
    transfers: Mapping[Transfer, int],
    slices: int,
    resident: Collection[str],
) -> int:
    """Return the cycles of all slices, filling and draining counted, by those of one slice.

    Tensors that are `resident` are loaded once, with the first slice.
    """
    middle = int(steps.pipelined)
    turns = slices + 2 * middle

    # By row, for each transfer: the turn of its first time, the number of times, the cycles of one.
    moved = [
        [
            (t.stage * middle, 1 if t.tensor in resident else slices, transfers[t])
            for t in row.transfers
        ]
        for row in steps.rows
    ]

    def turn(number: int) -> int:
        """Return the cycles of all rows in the turn of this number."""
        runs, cycles = 0 <= number - middle < slices, 0
        for row, compute in zip(moved, computing, strict=True):
            moving = 0
            for begin, times, each in row:
                moving += each if 0 <= number - begin < times else 0
            cycles += max(compute if runs else 0, moving)
        return cycles

    # All turns between the first three and the last two are alike.
    alike = max(0, turns - 6)
    edges = [number for number in range(turns) if not 3 < number <= 3 + alike]
    return sum(map(turn, edges)) + alike * (turn(3) if alike else 0)
