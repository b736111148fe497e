# SPDX-License-Identifier: Apache-2.0
"""What competes for a lane's local memory while a group runs, as an ordinary `Problem`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from passes.layer_group.planning.lanes import Lanes
from passes.layer_group.planning.network import Kind, Layer, Tensor
from passes.layer_group.planning.slicing import GroupSlices, TensorSlices
from passes.layer_group.planning.streams import Parts, window_of
from passes.layer_group.planning.time_steps import Life, TimeSteps, lives
from passes.planning import Buffer, Problem
from target_hw.memory import MemoryScope

Pair = tuple[str, str]
"""Operand and result."""

WEIGHT, ACTIVATION, OPERATION = "weight", "activation", "operation"
"""Kinds of items: what is loaded once, what layers hand on, and a layer's working memory."""


@dataclass(frozen=True)
class Item:
    """Something that takes local memory."""

    name: str  # Of the tensor, or of the layer whose working memory it is
    lane_bytes: int  # Bytes a lane; at least one
    life: Life  # When
    kind: str  # ``weight``, ``activation`` or ``operation``


@dataclass(frozen=True)
class LocalMemory:
    """The items of a group."""

    items: tuple[Item, ...]  # In the order of their first use
    rows: int  # Number of time steps; lives count these
    memory: MemoryScope  # One lane's local memory
    name: str = "group"  # For messages
    in_place: tuple[tuple[int, Pair], ...] = ()  # See `in_place_pairs`

    @cached_property
    def item(self) -> dict[str, Item]:
        """The items by name."""
        return {item.name: item for item in self.items}

    @cached_property
    def problem(self) -> Problem:
        """The items as buffers that compete for one memory; positions are time steps."""
        buffers = (Buffer(i.name, i.lane_bytes, i.life.ranges(self.rows)) for i in self.items)
        pairs = tuple(pair for _, pair in self.in_place)
        return Problem(tuple(buffers), self.memory, pairs, name=self.name)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes a lane that are live in each row, a result in place of an operand once."""
        live = [0] * self.rows
        for item in self.items:
            for begin, end in item.life.ranges(self.rows):
                for row in range(begin, end):
                    live[row] += item.lane_bytes
        for row, result in {row: result for row, (_, result) in self.in_place}.items():
            live[row] -= self.item[result].lane_bytes
        return tuple(live)


def item_bytes(slices: GroupSlices, lanes: Lanes) -> dict[str, int]:
    """Return the bytes a lane of each tensor, and of each layer's working memory by its name."""
    streamed = slices.streamed
    sizes = {
        name: tensor_bytes(tensor, lanes, streamed.get(name))
        for name, tensor in slices.tensors.items()
    }
    for layer in slices.group.layers:
        run = slices.streams.get(layer.name)
        parts = None if run is None else run.made.get(layer.name)
        sizes[layer.name] = working_bytes(layer, slices.tensors[layer.output], lanes, parts)
    return sizes


def tensor_bytes(
    slices: TensorSlices, lanes: Lanes, streamed: tuple[Parts, int] | None = None
) -> int:
    """Return the bytes a lane of what is resident of a tensor; see `GroupSlices.streamed`."""
    window = slices.window
    if streamed is not None:
        window = window_of(window, streamed[0].axis, streamed[1])
    return lanes.tensor_bytes(slices.tensor, window)


def working_bytes(
    layer: Layer, made: TensorSlices, lanes: Lanes, parts: Parts | None = None
) -> int:
    """Return the bytes a lane of a layer's working memory for a slice, or a part of a slice."""
    each = layer.buffer_bits if parts is None else dict(layer.part_bits)[parts.axis]
    if not each:
        return 0
    extents = tuple(
        extent if axis is None else axis.made.longest
        for extent, axis in zip(made.tensor.shape, made.axes, strict=True)
    )
    if parts is not None:
        extents = window_of(extents, parts.axis, parts.chunk)
    return -(-each * lanes.elements(made.tensor, extents) // 8)


def of_time_steps(
    slices: GroupSlices, steps: TimeSteps, memory: MemoryScope, sizes: dict[str, int]
) -> LocalMemory:
    """Return the items of a group in time steps, by `sizes` in bytes a lane; none of no bytes."""
    group = slices.group
    life = lives(steps, (*slices.resident, *slices.kept))
    for number, row in enumerate(steps.rows):
        names = tuple(group.layers[position].name for position in row.layers)
        life.update(dict.fromkeys(names, Life(number, number)))
    order = dict.fromkeys(n for x in group.layers for n in (*x.inputs, x.name, x.output))
    items = []
    for name in order:
        if sizes[name] == 0:
            continue
        kind = OPERATION
        if name in slices.tensors:
            weight = group.tensor(name).kind is Kind.WEIGHT
            kind = WEIGHT if weight else ACTIVATION
        items.append(Item(name, sizes[name], life[name], kind))
    in_place = tuple(in_place_pairs(slices, steps, life))
    name = f"{group.index.network.name}: LMEM"
    return LocalMemory(tuple(items), len(steps.rows), memory, name, in_place)


def in_place_pairs(
    slices: GroupSlices, steps: TimeSteps, life: Mapping[str, Life]
) -> Iterator[tuple[int, Pair]]:
    """Yield the time step of each layer whose result may lie where an operand lies, and both.

    The operand is not needed behind its element of the result, nothing is moved of it in that step,
    in which alone both live, and in every slice both hold the same part of tensors alike.
    """
    count = len(steps.rows)
    for number, row in enumerate(steps.rows):
        if row.layer is None:
            continue
        layer = slices.group.layers[row.layer]
        moved = {transfer.tensor for transfer in row.transfers}
        for name in dict.fromkeys(layer.in_place):
            both = _rows(life[name], count) & _rows(life[layer.output], count)
            alone = both == 1 << number and name not in moved
            if alone and layer.name not in slices.streams and _alike(slices, name, layer.output):
                yield number, (name, layer.output)


def _rows(life: Life, count: int) -> int:
    """Return the rows of a life, a bit a row."""
    return sum((1 << end) - (1 << begin) for begin, end in life.ranges(count))


def _alike(slices: GroupSlices, one: str, other: str) -> bool:
    """Whether the same bytes of a lane hold the same element of two tensors in every slice."""
    first, second = slices.tensors[one], slices.tensors[other]
    if slices.window(one) != slices.window(other):
        return False
    return lie_alike(first.tensor, second.tensor) and all(
        x == y if x is None or y is None else (x.letter, x.held.ranges) == (y.letter, y.held.ranges)
        for x, y in zip(first.axes, second.axes, strict=True)
    )


def lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether equal parts of two activations lie in the same bytes of a lane."""
    same = (one.shape, one.axes, one.bits) == (other.shape, other.axes, other.bits)
    return same and one.kind is other.kind is Kind.ACTIVATION and one.aligned == other.aligned
