# SPDX-License-Identifier: Apache-2.0
"""Contents of a lane's local memory while a group runs, over time, as an ordinary `Problem`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Kind, Layer
from passes.layer_group.planning.slicing import GroupSlices, TensorSlices, region_needed
from passes.layer_group.planning.time_steps import Live, TimeSteps, live_ranges
from passes.planning import Buffer, Problem
from target_hw.memory import MemoryScope

Pair = tuple[str, str]
"""Operand and result."""


@dataclass(frozen=True, eq=False)
class LocalMemory:
    """The tensors and the working memory of a group: bytes a lane, and when they are live."""

    # By the tensor's name, or the layer's for its working memory, in the order of their first use.
    sizes: Mapping[str, int]
    live: Mapping[str, Live]  # Time steps, by name
    rows: int  # Number of time steps
    memory: MemoryScope  # One lane's local memory
    name: str = "group"  # For messages
    in_place: tuple[tuple[int, Pair], ...] = ()  # See `in_place_pairs`

    @cached_property
    def problem(self) -> Problem:
        """The same as buffers that compete for one memory; positions are time steps."""
        buffers = (Buffer(name, size, self.live[name]) for name, size in self.sizes.items())
        pairs = tuple(pair for _, pair in self.in_place)
        return Problem(tuple(buffers), self.memory, pairs, name=self.name)

    @cached_property
    def bank_bytes(self) -> int:
        """Bytes a lane of one bank; 0 where it is not known."""
        banks = dict(self.memory.facts).get("banks", 0)
        return (self.memory.capacity or 0) // banks if banks else 0

    @cached_property
    def most_live(self) -> int:
        """Bytes a lane that are live in one time step, at most; a result in place counts once."""
        change = [0] * (self.rows + 1)
        lives = [(size, live) for name, size in self.sizes.items() for live in self.live[name]]
        results = {row: result for row, (_, result) in self.in_place}
        lives += [(-self.sizes[result], (row, row + 1)) for row, result in results.items()]
        for size, (begin, end) in lives:
            change[begin] += size
            change[end] -= size
        return max(accumulate(change))


def lane_bytes(slices: GroupSlices, lanes: Lanes) -> dict[str, int]:
    """Return the bytes a lane of each tensor, and of each layer's working memory by its name."""
    sizes = {
        name: lanes.tensor_bytes(tensor.tensor, slices.window(name))
        for name, tensor in slices.tensors.items()
    }
    for layer in slices.group.layers:
        sizes[layer.name] = working_bytes(layer, slices.in_parts(layer), lanes)
    return sizes


def working_bytes(layer: Layer, made: TensorSlices, lanes: Lanes) -> int:
    """Return the bytes a lane of a layer's working memory for what it makes at once."""
    bits = 0
    for buffer in layer.buffers:
        region = region_needed(made, buffer.maps, buffer.shape)
        bits += buffer.bits * prod(max(1, part.spans.longest) for part in region)
    extents = tuple(part.spans.longest for part in made.makes)
    return lanes.working_bytes(made.tensor, extents, bits) if bits else 0


def of_time_steps(
    slices: GroupSlices, steps: TimeSteps, memory: MemoryScope, sizes: Mapping[str, int]
) -> LocalMemory:
    """Return what takes local memory in time steps, by `sizes` in bytes a lane."""
    group = slices.group
    live = live_ranges(steps, (*slices.resident, *slices.kept))
    for number, row in enumerate(steps.rows):
        for position in row.layers:
            live[group.layers[position].name] = ((number, number + 1),)
    order = dict.fromkeys(n for x in group.layers for n in (*x.inputs, x.name, x.output))
    return LocalMemory(
        {name: sizes[name] for name in order if sizes[name]},
        live,
        len(steps.rows),
        memory,
        f"{group.index.network.name}: LMEM",
        tuple(in_place_pairs(slices, steps, live)),
    )


def in_place_pairs(
    slices: GroupSlices, steps: TimeSteps, live: Mapping[str, Live]
) -> Iterator[tuple[int, Pair]]:
    """Yield the time step of each layer whose result may lie where an operand lies, and both.

    Both live together in that step alone, in which the operand is not moved, and hold the same part
    of tensors alike in every slice.
    """
    for number, row in enumerate(steps.rows):
        layers = (slices.group.layers[position] for position in row.layers)
        moved = {transfer.tensor for transfer in row.transfers}
        for layer in (x for x in layers if x.name not in slices.loops):
            for name in (n for n in dict.fromkeys(layer.in_place) if n not in moved):
                alone = _steps(live[name]) & _steps(live[layer.output]) == {number}
                if alone and _alike(slices.tensors[name], slices.tensors[layer.output]):
                    yield number, (name, layer.output)


def _steps(live: Live) -> set[int]:
    return {step for begin, end in live for step in range(begin, end)}


def _alike(one: TensorSlices, other: TensorSlices) -> bool:
    """Return whether a byte of a lane holds the same element of two tensors in every slice."""
    x, y = one.tensor, other.tensor
    same = (x.shape, x.axes, x.bits) == (y.shape, y.axes, y.bits)
    return same and x.kind is y.kind is Kind.ACTIVATION and one.holds == other.holds
