# SPDX-License-Identifier: Apache-2.0
"""Tensors of which every second element is loaded, or every third: no layer reads what is between.

A 1x1 convolution of stride 2 reads every second row of every second column. What is loaded for it
is a tensor of its own, without what lies between, and its reader's maps go one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from passes.layer_group.planning.network import AxisMap, InputMap, Kind, Tensor

Steps = tuple[tuple[int, int], ...]
"""For each axis of a tensor the distance of what is loaded, in elements, and the first of it."""


def steps_of(tensor: Tensor, maps: Sequence[InputMap]) -> Steps | None:
    """Return what of a tensor is loaded for readers with these maps; None if that is all.

    Channels lie across the lanes, and all of them are loaded.
    """
    if tensor.kind is Kind.WEIGHT:
        return None
    steps = tuple(
        (1, 0) if letter == "c" else _step([axes[axis] for axes in maps])
        for axis, letter in enumerate(tensor.axes)
    )
    return steps if any(step > 1 for step, _ in steps) else None


def _step(maps: Sequence[AxisMap | None]) -> tuple[int, int]:
    points = [m for m in maps if m is not None and m.divide == 1 and m.first == m.last]
    if not points or len(points) < len(maps):
        return 1, 0
    first = points[0].first
    step = gcd(*(m.stride for m in points), *(m.first - first for m in points))
    return step, first % step


def loaded_tensor(tensor: Tensor, steps: Steps) -> Tensor:
    """Return what is loaded of a tensor, as a tensor of its own."""
    shape = (
        -(-(extent - first) // step)
        for extent, (step, first) in zip(tensor.shape, steps, strict=True)
    )
    return replace(tensor, shape=tuple(shape))


def loaded_maps(maps: InputMap, steps: Steps) -> InputMap:
    """Return the maps of a reader of a tensor for what is loaded of it."""
    return tuple(
        m
        if m is None or step == 1
        else replace(
            m,
            stride=m.stride // step,
            first=(m.first - first) // step,
            last=(m.last - first) // step,
        )
        for m, (step, first) in zip(maps, steps, strict=True)
    )


def skipped(steps: Steps | None) -> int:
    """Return how many elements of memory are read for one that is loaded.

    Memory is read in bursts, and along the last axis elements follow each other.
    """
    return 1 if steps is None else steps[-1][0]
