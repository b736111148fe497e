# SPDX-License-Identifier: Apache-2.0
"""Time steps: in which step of a slice each layer computes, and each transfer runs beside it.

A step computes one layer, while transfers that this layer does not need load and store other
tensors. With more than one layer the steps form a software pipeline of three stages over the
slices: while one slice is computed, the first operands of the next are loaded and the last
results of the one before are stored. (tpu-mlir, ``BasicTimeStep``, ``TimeStepMethod`` and
``SwPipeline``.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from passes.layer_group.planning.group import Group
from passes.layer_group.planning.streams import LayerRun

LOAD, STORE = "load", "store"


@dataclass(frozen=True)
class Transfer:
    """A tensor's slice that is loaded from global memory, or stored there."""

    tensor: str  # Its name
    kind: str  # ``load`` or ``store``
    # 0: it runs for the slice after the one that is computed. 1: for this one. 2: for the one
    # before.
    stage: int


@dataclass(frozen=True)
class Row:
    """One time step."""

    layer: int | None  # Position in the group's layers of the one that computes; None if none does
    transfers: tuple[Transfer, ...] = ()  # What runs beside it
    streamed: tuple[str, ...] = ()  # What it loads part by part for the slice
    # Positions of those that compute before it in the same loop over parts.
    earlier: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Positions of all that compute in the step, in order."""
        return self.earlier if self.layer is None else (*self.earlier, self.layer)

    def touched(self, group: Group) -> dict[str, None]:
        """Return the names of the tensors that these read and make."""
        layers = [group.layers[position] for position in self.layers]
        return dict.fromkeys(name for x in layers for name in (*x.inputs, x.output))


@dataclass(frozen=True)
class TimeSteps:
    """The time steps of a slice."""

    group: Group  # The layers
    rows: tuple[Row, ...]  # The steps. All slices run them, in the order of the slices.
    # Whether slices overlap: then the rows run as often as there are slices and twice more.
    pipelined: bool


def nearest(group: Group, streams: Mapping[str, LayerRun] = MappingProxyType({})) -> TimeSteps:
    """Return steps without overlap of slices: operands are loaded one step before their layer.

    Row 0 loads what the first layer reads, row ``i + 1`` computes layer ``i``, or the layers of run
    ``i``, while the next layer's operands are loaded and the layer before's results stored, and the
    last row stores. What comes in parts is loaded and stored in the row of its run.
    """
    passing = {name for run in streams.values() for name in run.held}
    there = {*group.made, *passing}
    outputs = {name for name in group.outputs if name not in passing}
    together: list[list[int]] = []
    for position, layer in enumerate(group.layers):
        run = streams.get(layer.name)
        if run is not None and run.layers[0] != layer.name:
            together[-1].append(position)
        else:
            together.append([position])
    computing = []
    for *earlier, last in together:
        run = streams.get(group.layers[last].name)
        parts = () if run is None else (*run.loads, *run.late)
        computing.append(Row(last, (), parts, tuple(earlier)))
    rows: list[Row] = []
    stores: tuple[Transfer, ...] = ()
    for row in [Row(None), *computing]:
        at = len(rows)
        loads = []
        if at < len(computing):
            loads = [name for name in computing[at].touched(group) if name not in there]
        there.update(loads)
        transfers = tuple(Transfer(name, LOAD, min(at, 1)) for name in loads)
        rows.append(replace(row, transfers=transfers + stores))
        stage = 1 if at < len(computing) else 2
        made = (group.made[position] for position in row.layers)
        stores = tuple(Transfer(name, STORE, stage) for name in made if name in outputs)
    return TimeSteps(group, (*rows, Row(None, stores)), False)


def pipeline(steps: TimeSteps) -> TimeSteps:
    """Let slices overlap: the first loads and the last stores move beside layers.

    The last stores run beside the first layer of the next slice; the first loads beside the last
    layer of the slice before, or after it where it reads them. One layer alone stays as it is.
    """
    first, *middle, last = steps.rows
    if len(middle) < 2:
        return steps
    middle[0] = replace(middle[0], transfers=middle[0].transfers + last.transfers)
    reads = middle[-1].touched(steps.group)
    early = tuple(t for t in first.transfers if t.tensor not in reads)
    late = tuple(t for t in first.transfers if t.tensor in reads)
    middle[-1] = replace(middle[-1], transfers=middle[-1].transfers + early)
    rows = (*middle, Row(None, late)) if late else tuple(middle)
    return TimeSteps(steps.group, rows, True)


def rebalance(
    steps: TimeSteps,
    compute_cycles: Sequence[int],
    transfer_cycles: Mapping[Transfer, int],
    lane_bytes: Mapping[str, int],
    streamed_cycles: Mapping[int, int],
) -> TimeSteps:
    """Move transfers from steps whose transfers take longer than their layer to others.

    A load moves earlier and a store later, never into a step whose layer touches the tensor. The
    move that wins the most cycles is done, if it wins any; among equals the one that holds the
    fewest bytes for the fewest steps longer. (tpu-mlir, ``TimeStepMethod``.)
    """
    rows = list(steps.rows)
    slack = [
        (0 if row.layer is None else compute_cycles[row.layer])
        - sum(transfer_cycles[t] for t in row.transfers)
        - (0 if row.layer is None else streamed_cycles.get(row.layer, 0))
        for row in rows
    ]
    for source in range(len(rows)):
        while slack[source] < 0:
            moves = []
            for order, transfer in enumerate(rows[source].transfers):
                cycles = transfer_cycles[transfer]
                won = min(slack[source] + cycles, 0) - slack[source]
                for to in _destinations(steps.group, rows, source, transfer):
                    if slack[to] > 0:
                        profit = won + min(slack[to] - cycles, 0)
                        area = lane_bytes[transfer.tensor] * (abs(source - to) + 1)
                        moves.append((-profit, area, order, to, transfer, cycles))
            if not moves:
                break
            lost, _, _, to, transfer, cycles = min(moves, key=lambda move: move[:4])
            if lost >= 0:
                break
            kept = tuple(t for t in rows[source].transfers if t != transfer)
            rows[source] = replace(rows[source], transfers=kept)
            rows[to] = replace(rows[to], transfers=(*rows[to].transfers, transfer))
            slack[source] += cycles
            slack[to] -= cycles
    return replace(steps, rows=tuple(rows))


def _destinations(group: Group, rows: list[Row], source: int, transfer: Transfer) -> list[int]:
    """Return the rows that a transfer may move to: earlier for a load, later for a store.

    A load may not come before a step that still reads what the slice before has left there, nor a
    store after the step that makes the tensor anew.
    """
    step = -1 if transfer.kind == LOAD else 1
    found = []
    row = source + step
    while 0 <= row < len(rows):
        if transfer.tensor in rows[row].touched(group):
            break
        found.append(row)
        row += step
    return found


@dataclass(frozen=True)
class Life:
    """The rows in which a tensor or buffer takes local memory, both ends included."""

    # Rows. If `last` is before `first`, the life wraps: it goes on in the next turn of the rows,
    # for the next slice.
    first: int
    last: int
    # Whether it stays for all slices: a resident weight, rows that are kept.
    everywhere: bool = False

    def ranges(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Return it as half-open ranges of ``rows`` positions; a life that wraps has two."""
        if self.everywhere:
            return ((0, rows),)
        if self.first <= self.last:
            return ((self.first, self.last + 1),)
        return ((0, self.last + 1), (self.first, rows))


def lives(steps: TimeSteps, everywhere: tuple[str, ...]) -> dict[str, Life]:
    """Return the life of every tensor of the group, in the order of `Group.names`."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for stage in (0, 1, 2):
        for number, row in enumerate(steps.rows):
            if row.layer is not None and stage == 1:
                for layer in (steps.group.layers[position] for position in row.layers):
                    first[layer.output] = number
                    last.setdefault(layer.output, number)
                    last.update(dict.fromkeys(layer.inputs, number))
                first.update(dict.fromkeys(row.streamed, number))
            for transfer in row.transfers:
                if transfer.stage == stage and transfer.kind == LOAD:
                    first[transfer.tensor] = number
                elif transfer.stage == stage:
                    last[transfer.tensor] = number
    return {name: Life(first[name], last[name], name in everywhere) for name in steps.group.names}
