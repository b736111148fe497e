# SPDX-License-Identifier: Apache-2.0
"""A memory map as a picture: a row for each memory, a column for each plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_ext.drawing.memory_map import memory_map, memory_maps
from tvm_ext.drawing.picture import INK, need_matplotlib
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import Placement, ScopeMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 4.4
"""Inches of one map among those of several memories."""
_BOX = (0.13, 0.23, 0.62, 0.57)
"""Where a map is in its part of the figure; on the right stand the names of its lines."""
_TITLE = 0.5
"""Inches above all maps."""


def picture(shown: MemoryMap) -> Figure:
    """Draw a memory map with matplotlib; raise ImportError if that is not there."""
    if len(shown.scopes) == 1:
        (scope,) = shown.scopes
        figure = memory_maps(
            (
                (_title(shown, scope, placement), placement.problem, placement.plan)
                for placement in scope.placements
            ),
            labels=labels_of(scope),
        )
        for axes in figure.axes:
            _draw_rules(axes, scope)
        return figure
    need_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    columns, rows = max(len(scope.placements) for scope in shown.scopes), len(shown.scopes)
    height = _HEIGHT * rows + _TITLE
    with style.context("default"):
        figure = Figure(figsize=(_WIDTH * columns, height), facecolor="none")
        figure.text(
            0.13 / columns,
            1 - 0.3 / height,
            shown.title,
            fontsize=13,
            fontweight="bold",
            color=INK,
            parse_math=False,
        )
        for row, scope in enumerate(shown.scopes):
            for column, placement in enumerate(scope.placements):
                left, bottom, width, inner = _BOX
                at = (
                    (column + left) / columns,
                    (rows - 1 - row + bottom) * _HEIGHT / height,
                    width / columns,
                    inner * _HEIGHT / height,
                )
                axes = figure.add_axes(at, facecolor="none")
                memory_map(
                    placement.problem,
                    placement.plan,
                    title=_title(shown, scope, placement),
                    ax=axes,
                    labels=labels_of(scope),
                )
                _draw_rules(axes, scope)
    return figure


def _draw_rules(axes: Axes, scope: ScopeMap) -> None:
    for line in scope.listing.rules if scope.listing else ():
        axes.axvline(line, color=INK, linewidth=0.8, zorder=5)


def labels_of(scope: ScopeMap) -> dict[str, str]:
    """Return what a picture calls each buffer, by its name, where its notes have a label."""
    return {name: note.label for name, note in scope.notes.items() if note.label}


def _title(shown: MemoryMap, scope: ScopeMap, placement: Placement) -> str:
    if len(shown.scopes) == 1:
        return f"{shown.title}, {scope.name}: {placement.label}"
    several = len({one.function for one in shown.scopes}) > 1
    return f"{scope.function + ' ' if several else ''}{scope.name}: {placement.label}"
