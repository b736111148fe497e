# SPDX-License-Identifier: Apache-2.0
"""The least activation memory at a price in multiply-adds: fused groups for one flat memory.

Microcontrollers have one memory, and what fills it is the largest pair of activations. Groups whose
layers run slice by slice hold only a window of each tensor between their layers: a few rows, or a
few rows of a few columns, and of what the next slices read again they either keep a copy or
compute it again. This finds, for each number of multiply-adds, groups, slices and what to keep so
that the peak is lowest.

A group takes its inputs and outputs whole, all other tensors that live across it, and the windows
and line buffers of the tensors between its layers: of those of which nothing is kept, the ones that
one layer reads and makes. Network inputs and outputs are not counted, nor
are weights, which are in flash memory. (The count of msf-CNN, Huang et al., NeurIPS 2025, whose
groups compute halos again; line buffers are those of fused-layer CNN, Alwani et al., MICRO 2016.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.layer_group.planning.fused_groups import (
    FusedGroup,
    Limits,
    groups_ending_with,
    whole_bytes,
)
from passes.layer_group.planning.group import NetworkIndex
from passes.layer_group.planning.network import Network

BLOCKS = ((1, 0), (2, 0), (4, 0), (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (8, 8), (16, 16))
"""Rows and columns of a group's output that a slice makes, to try; 0 columns are all of them."""


@dataclass(frozen=True)
class MemoryPlan:
    """A network as fused groups."""

    groups: tuple[FusedGroup, ...]  # In the order in which they run
    peak: int  # Bytes of the largest
    multiply_adds: int  # The sum
    factor: float  # Multiply-adds over those of the network layer by layer


def memory_frontier(
    network: Network,
    *,
    most_factor: float = 2.0,
    blocks: Sequence[tuple[int, int]] = BLOCKS,
    most_bytes: int | None = None,
) -> tuple[MemoryPlan, ...]:
    """Return the plans of which none has both a lower peak and fewer multiply-adds than another.

    Dynamic programming over cut points. Within a group, a second one over its tensors from the
    last to the first decides what is kept: how much of a tensor the slices make depends only on
    what they make of the next one, so that a few states per tensor describe all choices. Groups
    that are no chain keep everything.

    Parameters
    ----------
    network : Network
        The layers in an order in which they can run; batch 1.
    most_factor : float
        Multiply-adds that a plan may have, over those of the network layer by layer.
    blocks : sequence of (int, int)
        As `BLOCKS`.
    most_bytes : int, optional
        Plans with a higher peak are of no interest.

    Returns
    -------
    tuple of MemoryPlan
        By peak, the lowest first. Empty if there is none within the limits.

    Raises
    ------
    ValueError
        If the network is not well formed.
    """
    index = NetworkIndex(network)
    count = len(network.layers)
    total = sum(layer.multiply_adds for layer in network.layers)
    layer_by_layer = max((whole_bytes(index, n, n) for n in range(count)), default=0)
    highest = layer_by_layer if most_bytes is None else min(most_bytes, layer_by_layer)
    # Nothing that takes more bytes than the best plan without repeated work is of interest.
    plans = _frontier(index, blocks, Limits(highest, 0))
    if plans:
        highest = plans[0][0]
    if most_factor > 1:
        again = int(total * (most_factor - 1))
        plans = _undominated([*plans, *_frontier(index, blocks, Limits(highest, again))])
    return tuple(
        MemoryPlan(groups, peak, work, work / max(1, total)) for peak, work, groups in plans
    )


_Way = tuple[int, int, tuple[FusedGroup, ...]]
"""Peak, multiply-adds and groups."""


def _frontier(index: NetworkIndex, blocks: Sequence[tuple[int, int]], limits: Limits) -> list[_Way]:
    """Return the best ways to run the network within limits."""
    layers = index.network.layers
    ways: list[list[_Way]] = [[(0, 0, ())]]
    before = 0
    for last, layer in enumerate(layers):
        before += layer.multiply_adds
        options = [
            (max(peak, group.peak), work + group.multiply_adds, (*groups, group))
            for group in groups_ending_with(index, last, blocks, limits)
            for peak, work, groups in ways[group.first]
        ]
        ways.append(
            _undominated(
                [o for o in options if o[0] <= limits.bytes and o[1] <= before + limits.work]
            )
        )
    return ways[-1]


def _undominated(options: list[_Way]) -> list[_Way]:
    """Return the ways of which none has both a lower peak and less work than another."""
    kept: list[_Way] = []
    for option in sorted(options, key=lambda o: (o[0], o[1], len(o[2]))):
        if not kept or option[1] < kept[-1][1]:
            kept.append(option)
    return kept
