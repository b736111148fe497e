"""A memory map as a picture: a row for each memory, a column for each plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_ext.drawing import memory_map, memory_maps
from tvm_ext.map.model import MemoryMap, Placement, ScopeMap
from tvm_ext.picture import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 5.2
"""Inches of one map among those of several memories."""
_BOX = (0.13, 0.13, 0.62, 0.68)
"""Where a map is in its part of the figure; on the right stand the names of its lines."""


def picture(shown: MemoryMap) -> Figure:
    """Draw a memory map.

    Parameters
    ----------
    shown : MemoryMap
        What to draw.

    Returns
    -------
    matplotlib.figure.Figure
        `tvm_ext.picture.save` writes it to a file.

    Raises
    ------
    ImportError
        If there is no matplotlib.
    """
    if len(shown.scopes) == 1:
        (scope,) = shown.scopes
        return memory_maps(
            (_title(shown, scope, placement), placement.problem, placement.plan)
            for placement in scope.placements
        )
    need_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    columns = max(len(scope.placements) for scope in shown.scopes)
    with style.context("default"):
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * len(shown.scopes)))
        for row, scope in enumerate(shown.scopes):
            for column, placement in enumerate(scope.placements):
                left, bottom, width, height = _BOX
                at = (
                    (column + left) / columns,
                    (len(shown.scopes) - 1 - row + bottom) / len(shown.scopes),
                    width / columns,
                    height / len(shown.scopes),
                )
                memory_map(
                    placement.problem,
                    placement.plan,
                    title=_title(shown, scope, placement),
                    ax=figure.add_axes(at),
                )
    return figure


def _title(shown: MemoryMap, scope: ScopeMap, placement: Placement) -> str:
    several = len({one.function for one in shown.scopes}) > 1
    function = f"{scope.function} " if several else f"{shown.title} "
    return f"{function}{scope.name}: {placement.label}"
