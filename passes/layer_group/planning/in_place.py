# SPDX-License-Identifier: Apache-2.0
"""Results that may lie where an operand lies: in local memory, both at one address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from passes.layer_group.planning.network import Kind, Tensor
from passes.layer_group.planning.slicing import GroupSlices
from passes.layer_group.planning.time_steps import Life, TimeSteps

Pair = tuple[str, str]
"""Operand and result."""


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
