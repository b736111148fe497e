# SPDX-License-Identifier: Apache-2.0
"""The regions that a stage of a kernel reads for a part of its output, derived from its loads.

For each axis of a buffer: which indices are read for one index of one axis of what is written.

An index is simplified under the conditions of its load, and evaluated at all points of its space.
Of a large one, every slice reads the whole axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from passes.ir import NotAnIndexError, rounds_products, tir, values_of
from passes.layer_group.analysis.read_kernel import Kernel
from passes.layer_group.analysis.stages import ElementLoad, Stage, variables_in
from passes.layer_group.planning.spans import NOWHERE, AxisMap, AxisMaps, Ints, Spans

_MOST_POINTS = 1 << 22
"""Points of an index space that is looked at."""


def stage_reads(kernel: Kernel, stage: Stage) -> dict[int, AxisMaps]:
    """Return the maps of each buffer that one stage reads, along the axes of the stage's result."""
    found: dict[int, list[tuple[dict[int, Spans], ...]]] = {}
    for access in stage.reads:
        shape = kernel.shapes[access.buffer]
        ways = tuple(
            _ways(stage, access, index, extent)
            for index, extent in zip(access.indices, shape, strict=True)
        )
        found.setdefault(access.buffer, []).append(ways)
    return {
        buffer: tuple(_narrowest(column) for column in zip(*loads, strict=True))
        for buffer, loads in found.items()
    }


def _narrowest(loads: Sequence[dict[int, Spans]]) -> AxisMap | None:
    """Return the narrowest way to see all loads of an axis along one axis of the result."""
    maps = (
        AxisMap(axis, reduce(Spans.union, (ways[axis] for ways in loads)))
        for axis in loads[0]
        if all(axis in ways for ways in loads)
    )
    return min(maps, key=lambda m: (_width(m.spans), m.axis), default=None)


def _width(spans: Spans) -> float:
    """Return the indices that an eighth of the result reads, on average of those that read any."""
    count = len(spans.begin)
    eighths = np.linspace(0, count, min(count, 8), endpoint=False, dtype=int)
    sizes = np.maximum.reduceat(spans.end, eighths) - np.minimum.reduceat(spans.begin, eighths)
    return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0


Table = tuple[Ints, Ints]
"""First and last index that is read, for each value of a variable."""


def _ways(stage: Stage, access: ElementLoad, index: Any, extent: int) -> dict[int, Spans]:
    """Return what one load reads of an axis, by each of the stage's axes that it follows."""
    if extent == 1:
        return {}  # There is nothing to find out.
    analyzer, extents = tir.Analyzer(), {}
    for var, n in (*zip(stage.spatial, stage.extents, strict=True), *stage.inner):
        zero, count = tir.IntConstant(var.ty, 0), tir.IntConstant(var.ty, n)
        analyzer.bind(var, tir.Range.from_min_extent(zero, count))
        extents[var.__chandle__()] = n
    guards = list(_terms(access.guards))
    with ExitStack() as known:
        for guard in guards:
            for plain in _terms([analyzer.simplify(guard)]):
                if isinstance(plain, tir.Comparison):
                    known.enter_context(analyzer.constraint_scope(plain))
        index = analyzer.simplify(index)
    used = list(variables_in(index))
    axes = [a for a, var in enumerate(stage.spatial) if var.__chandle__() in used]
    if not axes or any(key not in extents for key in used):
        return {}
    points = _at_points(index, {key: extents[key] for key in used}, guards)
    if points is None:
        return {}
    found = {}
    for axis in axes:
        own = used.index(stage.spatial[axis].__chandle__())
        others = tuple(at for at in range(len(used)) if at != own)
        # The least and the greatest index over all values of all other variables.
        first, last = points[0].min(axis=others), points[1].max(axis=others)
        found[axis] = Spans.between(np.maximum(first, 0), np.minimum(last, extent - 1) + 1)
    return found


def _at_points(index: Any, extents: Mapping[int, int], guards: Sequence[Any]) -> Table | None:
    """Return the least and the greatest index read at each point; none where a condition fails.

    Each variable, given by its handle with its extent, has an axis of the tables. None where there
    are too many points.
    """
    grid = tuple(extents.values())
    if prod(grid) > _MOST_POINTS:
        return None
    of = dict(zip(extents, np.indices(grid, sparse=True), strict=True))
    ways = (False, True) if any(map(rounds_products, (index, *guards))) else (False,)
    with np.errstate(all="ignore"):  # Points that are not read may divide by zero.
        try:
            found = [np.broadcast_to(values_of(index, of, fused), grid) for fused in ways]
        except NotAnIndexError:
            return None
        read = np.ones(grid, dtype=bool)
        for guard in guards:
            try:
                read = read & reduce(np.logical_or, (values_of(guard, of, f) for f in ways))
            except NotAnIndexError:
                continue  # The condition is of other variables, and may hold.
    first, last = (reduce(of_both, found).astype(np.int64) for of_both in (np.minimum, np.maximum))
    return np.where(read, first, NOWHERE), np.where(read, last, -NOWHERE)


def _terms(guards: Sequence[Any]) -> Iterator[Any]:
    """Yield conditions that all hold where all guards hold."""
    for guard in guards:
        if isinstance(guard, tir.And):
            yield from _terms((guard.a, guard.b))
        else:
            yield guard
