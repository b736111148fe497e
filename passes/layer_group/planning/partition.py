# SPDX-License-Identifier: Apache-2.0
"""Where to cut a network into groups: dynamic programming, and from the tail to the head."""

from __future__ import annotations

from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.search import GroupSearch

MOST_LAYERS = 32
"""Layers of a group at most: a kernel of more is too much for the compiler that gets it."""


def tail_to_head(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last`, taking the longest group that fits from the end.

    Among the ways to cut the longest group, the way with the fewest slices is taken, shared by all
    cores if it can be: the batch is cut before the rows. (tpu-mlir, ``GroupMethod``: "simple".)

    The result is in the layers' order, with the number of a layer that fits in no group.
    """
    parts: list[PlannedGroup | int] = []
    end = last
    while end >= first:
        planned = search.longest(end, max(first, end + 1 - MOST_LAYERS))
        parts.append(end if planned is None else planned)
        end = end - 1 if planned is None else planned.numbers[0] - 1
    return parts[::-1]


def dynamic_programming(search: GroupSearch, first: int, last: int) -> list[PlannedGroup | int]:
    """Cut the layers from `first` to `last` into the groups of the lowest price together.

    It is the shortest path: all layers up to one cost least with the best group that ends with it,
    or with the layer alone, and the best cut of what comes before. A group is drafted only where
    its lower bound is less than the best price that is known.

    The result is in the layers' order, with the number of a layer that is in no group.
    """
    lowest = {first: 0}  # The price of all layers before the layer of this number
    chosen: dict[int, PlannedGroup | None] = {}  # The last group of all layers before it
    for end in range(first, last + 1):
        # A layer in no group runs in slices, too, and waits for them.
        alone = max(search.alone[end].price, search.alone_in_slices(end)[0])
        begin = max(first, end + 1 - MOST_LAYERS)
        lowest[end + 1], chosen[end + 1] = search.cheapest(end, lowest, lowest[end] + alone, begin)
    parts: list[PlannedGroup | int] = []
    end = last + 1
    while end > first:
        group = chosen[end]
        parts.append(end - 1 if group is None else group)
        end = end - 1 if group is None else group.numbers[0]
    return parts[::-1]
