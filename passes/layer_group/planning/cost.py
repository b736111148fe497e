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

from collections.abc import Callable
from dataclasses import dataclass

from passes.layer_group.planning.group import Group, bytes_of, element_count
from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.slicing import GroupSlices
from passes.layer_group.planning.time_steps import LOAD, TimeSteps, Transfer, rebalance
from target_hw.machine import Machine

TRANSFERS, LANES = "GDMA", "TIU"
"""The pipes of a machine with lanes: transfers to and from global memory; all computing."""


@dataclass(frozen=True)
class GroupCost:
    """What it takes to run a group."""

    cycles: int  # From the first load to the last store
    # The sums over all slices, as if nothing else had to be waited for.
    compute_cycles: int
    transfer_cycles: int
    moved: int  # Bytes between global and local memory
    # Rows of the tensors that are computed in the group, each time that they are made again.
    repeated_rows: int


def layer_cycles(machine: Machine, lanes: Lanes, group: Group, layer: Layer, elements: int) -> int:
    """Return the cycles of a layer that makes so many elements of its output.

    Parameters
    ----------
    machine : Machine
        With a pipe `LANES`.
    lanes : Lanes
        The chip's lanes.
    group : Group
        What the layer is in.
    layer : Layer
        Which one.
    elements : int
        Of its output, those that are made again each time.
    """
    if not elements:
        return 0
    output = group.tensor(layer.output)
    bits = max(group.tensor(name).bits for name in (*layer.inputs[:1], layer.output))
    channels = 1
    for letter, extent in zip(output.axes, output.shape, strict=True):
        channels *= extent if letter == "c" else 1
    lines = -(-channels // lanes.count)
    # Elements if all lanes had a channel to work on.
    padded = -(-elements * lines * lanes.count // channels)
    work = -(-layer.multiply_adds * padded // element_count(output))
    together = max(1, lanes.eu_bytes * 8 // bits) * lanes.count
    return max(machine[LANES].cycles(work, bits), -(-padded // together))


def moved_bytes(slices: GroupSlices, transfer: Transfer) -> int:
    """Return the bytes that a transfer moves for all slices together."""
    tensor = slices.group.tensor(transfer.tensor)
    if transfer.kind != LOAD:
        return bytes_of(tensor)
    return -(-slices.tensors[transfer.tensor].made_elements(slices.cut) * tensor.bits // 8)


def group_cost(
    slices: GroupSlices,
    steps: TimeSteps,
    machine: Machine,
    lanes: Lanes,
    lane_bytes: dict[str, int],
    *,
    balance: bool = True,
) -> tuple[GroupCost, TimeSteps]:
    """Return the cost of a group, and its time steps, with transfers moved if that wins cycles.

    Parameters
    ----------
    slices : GroupSlices
        The slices.
    steps : TimeSteps
        Before re-balancing.
    machine : Machine
        With the pipes `TRANSFERS` and `LANES`.
    lanes : Lanes
        The chip's lanes.
    lane_bytes : dict of str to int
        Bytes a lane of each tensor, for ties when transfers are moved.
    balance : bool
        Whether transfers may move to other steps.
    """
    group, count = slices.group, slices.cut.steps
    computed = [
        layer_cycles(
            machine, lanes, group, layer, slices.tensors[layer.output].made_elements(slices.cut)
        )
        for layer in group.layers
    ]
    moved: dict[Transfer, int] = {}
    cycles: dict[Transfer, int] = {}
    held = set(slices.resident)
    pipe = machine[TRANSFERS]
    for row in steps.rows:
        for transfer in row.transfers:
            moved[transfer] = moved_bytes(slices, transfer)
            times = 1 if transfer.tensor in held else count
            cycles[transfer] = pipe.cycles(-(-moved[transfer] // times))
    if balance:
        steps = rebalance(
            steps, lambda layer: -(-computed[layer] // count), cycles.__getitem__, lane_bytes
        )
    total = pipelined_cycles(
        steps, lambda layer: -(-computed[layer] // count), cycles.__getitem__, count, held
    )
    transferred = sum(c * (1 if t.tensor in held else count) for t, c in cycles.items())
    repeated = sum(slices.repeated_rows(name) for name in group.made)
    cost = GroupCost(total, sum(computed), transferred, sum(moved.values()), repeated)
    return cost, steps


def pipelined_cycles(
    steps: TimeSteps,
    compute_cycles: Callable[[int], int],
    transfer_cycles: Callable[[Transfer], int],
    slices: int,
    held: set[str],
) -> int:
    """Return the cycles of all slices, filling and draining counted.

    Parameters
    ----------
    steps : TimeSteps
        The steps.
    compute_cycles, transfer_cycles : callable
        Cycles of a layer by its position in the group, and of a transfer, for one slice.
    slices : int
        How many slices.
    held : set of str
        Names of what is loaded once, with the first slice, if there is more than one.
    """
    stages = 3 if steps.pipelined else 1
    held = held if slices > 1 else set()

    def turn(first: int, last: int, with_held: int) -> int:
        """Return the cycles of one turn of the rows in which stages `first` to `last` run.

        Held tensors of stage `with_held` are loaded, too.
        """
        if not steps.pipelined:
            first, last = 0, 2
        cycles = 0
        for row in steps.rows:
            moving = sum(
                transfer_cycles(t)
                for t in row.transfers
                if first <= t.stage <= last
                and (t.tensor not in held or not steps.pipelined or t.stage == with_held)
            )
            computing = 0
            if row.layer is not None and first <= 1 <= last:
                computing = compute_cycles(row.layer)
            cycles += max(computing, moving)
        return cycles

    if not steps.pipelined:
        once = turn(0, 2, 1)
        held_cycles = [
            sum(transfer_cycles(t) for t in row.transfers if t.tensor in held) for row in steps.rows
        ]
        again = sum(
            max(
                0 if row.layer is None else compute_cycles(row.layer),
                sum(transfer_cycles(t) for t in row.transfers) - loaded,
            )
            for row, loaded in zip(steps.rows, held_cycles, strict=True)
        )
        return once + again * (slices - 1)
    total = 0
    for last in range(stages):
        first = max(last - (slices - 1), 0)
        total += turn(first, last, last)
    if slices > stages:
        total += turn(0, stages - 1, -1) * (slices - stages)
    first = max(stages - 1 - (slices - 1), 0)
    for start in range(first + 1, stages):
        total += turn(start, stages - 1, -1)
    return total
