# SPDX-License-Identifier: Apache-2.0
"""Time steps: in which step of a slice each layer computes, and each transfer runs beside it.

Beside a layer other tensors are loaded and stored. Several layers form a software pipeline of three
stages over the slices: while one slice is computed, the first operands of the next are loaded and
the last results of the one before are stored. (tpu-mlir, ``BasicTimeStep``, ``TimeStepMethod`` and
``SwPipeline``.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from passes.layer_group.planning.loops import PartLoop
from passes.layer_group.planning.network import Group

LOAD, STORE = "load", "store"


@dataclass(frozen=True, eq=False)
class Transfer:
    """A tensor's slice that is loaded from global memory, or stored there."""

    tensor: str  # Its name
    kind: str  # ``load`` or ``store``
    stage: int  # It runs for: 0, the slice after the computed one; 1, the same; 2, the one before
    loop: PartLoop | None = None  # The loop in which it comes part by part, if it does


@dataclass(frozen=True)
class Row:
    """One time step."""

    # Positions of the layers that compute, in order: none, one, or those of one loop over parts.
    layers: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()  # The transfers beside them
    loop: PartLoop | None = None  # That of the layers

    def touched(self, group: Group) -> frozenset[str]:
        """Return the names of the tensors that the layers read and make."""
        layers = [group.layers[position] for position in self.layers]
        return frozenset(name for x in layers for name in (*x.inputs, x.output))


@dataclass(frozen=True)
class TimeSteps:
    """The time steps of a slice."""

    group: Group  # The layers
    rows: tuple[Row, ...]  # The steps. All slices run them, in the order of the slices.
    # Whether slices overlap: then the rows run as often as there are slices and twice more.
    pipelined: bool


def time_steps(group: Group, loops: Mapping[str, PartLoop]) -> TimeSteps:
    """Return steps, each of one layer or of the layers of one of the `loops` over parts.

    Beside it the next layer's operands are loaded and the layer before's results stored; what comes
    in parts is moved in the step of its loop. Where there are several steps, the last stores run
    beside the first layer of the next slice, and the first loads beside the last layer of the slice
    before, or after it where it reads them.
    """
    moved = {name for loop in loops.values() for name in loop.moved}
    there = {*group.made, *moved}
    together: list[list[int]] = []
    for position, layer in enumerate(group.layers):
        if layer.name not in loops or loops[layer.name].layers[0] == layer.name:
            together.append([])
        together[-1].append(position)
    rows: list[Row] = []
    stores: tuple[Transfer, ...] = ()
    for at, positions in enumerate([[], *together]):
        following = together[at] if at < len(together) else ()
        read = dict.fromkeys(n for p in following for n in group.layers[p].inputs)
        loads = [name for name in read if name not in there]
        there.update(loads)
        transfers = tuple(Transfer(name, LOAD, min(at, 1)) for name in loads)
        loop = loops.get(group.layers[positions[-1]].name) if positions else None
        in_parts = [
            Transfer(name, kind, 1, one)
            for one in (() if loop is None else loop.loops)
            for kind, names in ((LOAD, one.loads), (STORE, one.stores))
            for name in names
        ]
        rows.append(Row(tuple(positions), (*transfers, *stores, *in_parts), loop))
        stores = tuple(
            Transfer(name, STORE, 1 if following else 2)
            for name in (group.made[position] for position in positions)
            if name not in moved and group.index.leaves(name, group.last)
        )
    first, *middle = rows
    if len(middle) < 2:
        return TimeSteps(group, (first, *middle, Row((), stores)), False)
    middle[0] = replace(middle[0], transfers=middle[0].transfers + stores)
    reads = middle[-1].touched(group)
    early = tuple(t for t in first.transfers if t.tensor not in reads)
    late = tuple(t for t in first.transfers if t.tensor in reads)
    middle[-1] = replace(middle[-1], transfers=middle[-1].transfers + early)
    return TimeSteps(group, (*middle, Row((), late)) if late else tuple(middle), True)


def rebalance(
    steps: TimeSteps,
    compute_cycles: Sequence[int],
    transfer_cycles: Mapping[Transfer, int],
    lane_bytes: Mapping[str, int],
) -> TimeSteps:
    """Move transfers from steps whose transfers take longer than their layers to others.

    A load moves earlier and a store later, never into a step whose layers touch the tensor. The
    move that wins the most cycles is done; among equals the one that holds the fewest bytes for the
    fewest steps longer. Cycles are by row, but for transfers. (tpu-mlir, ``TimeStepMethod``.)
    """
    transfers = [list(row.transfers) for row in steps.rows]
    slack = [
        computing - sum(transfer_cycles[t] for t in row.transfers)
        for row, computing in zip(steps.rows, compute_cycles, strict=True)
    ]
    if min(slack) >= 0:
        return steps
    touched = [row.touched(steps.group) for row in steps.rows]
    for source in range(len(slack)):
        while slack[source] < 0:
            moves = []
            for order, transfer in enumerate(transfers[source]):
                if transfer.loop is not None:
                    continue  # It belongs to its layers.
                cycles = transfer_cycles[transfer]
                won = min(slack[source] + cycles, 0) - slack[source]
                step, to = (-1, source - 1) if transfer.kind == LOAD else (1, source + 1)
                # A load does not come before a step that reads what the slice before has left, nor
                # a store after the step that makes the tensor anew.
                while 0 <= to < len(slack) and transfer.tensor not in touched[to]:
                    if slack[to] > 0:
                        lost = -won - min(slack[to] - cycles, 0)
                        area = lane_bytes[transfer.tensor] * (abs(source - to) + 1)
                        moves.append((lost, area, order, to))
                    to += step
            lost, _, order, to = min(moves, default=(0, 0, 0, 0))
            if lost >= 0:
                break
            transfer = transfers[source].pop(order)
            transfers[to].append(transfer)
            slack[source] += transfer_cycles[transfer]
            slack[to] -= transfer_cycles[transfer]
    rows = [
        row if [*row.transfers] == after else replace(row, transfers=tuple(after))
        for row, after in zip(steps.rows, transfers, strict=True)
    ]
    return replace(steps, rows=tuple(rows))


Live = tuple[tuple[int, int], ...]
"""Half-open ranges of time steps; a life that goes on in the next turn of the steps has two."""


def live_ranges(steps: TimeSteps, everywhere: tuple[str, ...]) -> dict[str, Live]:
    """Return the time steps in which each tensor of the group takes local memory.

    Tensors that are `everywhere` stay for all slices: resident weights, rows that are kept.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage in (0, 1, 2):
        for number, row in enumerate(steps.rows):
            if stage == 1:
                for layer in (steps.group.layers[position] for position in row.layers):
                    first[layer.output] = number
                    last.setdefault(layer.output, number)
                    last.update(dict.fromkeys(layer.inputs, number))
            for transfer in row.transfers:
                if transfer.stage == stage:
                    (first if transfer.kind == LOAD else last)[transfer.tensor] = number
    rows = len(steps.rows)
    live: dict[str, Live] = {}
    for name in steps.group.names:
        begin, end = first[name], last[name] + 1
        live[name] = ((begin, end),) if begin < end else ((0, end), (begin, rows))
    return live | dict.fromkeys(everywhere, ((0, rows),))
