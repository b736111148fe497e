# SPDX-License-Identifier: Apache-2.0
"""Memory maps: a plan as a picture, time across and addresses up.

Matplotlib is needed to draw and is imported then, not before; no figure here goes through pyplot,
so nothing global changes and no window opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from passes.planning import Plan, Problem
from tvm_ext.drawing.panel import Panel, common_scale
from tvm_ext.drawing.panel_axes import GAP, LEGEND_LINE, LEGEND_LINES, draw_panel
from tvm_ext.drawing.picture import INK, need_matplotlib, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 4.0
"""Inches of one map alone, without its margins."""
_LEAST_WIDTH = 3.7
"""Inches of each map among others: two stay readable at the width of a page."""
_LEFT, _TOP, _BOTTOM = 0.85, 0.7, 0.55
"""Inches around each map; on the right, what the names of the lines take."""
_TITLE = 0.5
"""Inches above all maps."""


def memory_map(
    problem: Problem,
    plan: Plan,
    *,
    title: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """Draw a plan: the steps of the program across, addresses up, a rectangle for each buffer.

    A buffer with several slots or live ranges has a rectangle for each. The colour says what part
    the buffer plays in the height of the plan, and the legend names it: whether it is live when
    the most bytes are live, reaches the peak at another time, or neither.

    Lines show the capacity, the peak and the lower bound; reserved ranges are hatched. Where the
    destination of an in-place pair takes the offset of its source, a triangle points from one to
    the other, and the positions at which both are live are hatched the other way. Buffers are
    named where the name, or enough of its beginning, fits. Those too low to be seen are grey lines,
    counted in the legend. A capacity far above the peak is named only: the map would shrink to
    nothing.

    The background is transparent, and all colours can be read on white and on black. In a
    notebook, the figure is shown once ``%matplotlib inline`` has run.

    Parameters
    ----------
    problem : Problem
        What was asked.
    plan : Plan
        What was decided. It is drawn as it is, right or wrong: `passes.planning.verify` judges it.
    title : str, optional
        By default the names of the problem and of the planner.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a figure of its own by default.
    labels : mapping of str to str, optional
        What to call a buffer, by its name; by default its name.

    Returns
    -------
    matplotlib.figure.Figure
        The figure drawn on. `save_picture` writes it to a file.

    Raises
    ------
    ImportError
        If there is no matplotlib.
    ValueError
        If the plan lacks an offset for a slot; the message names the buffer.
    """
    need_matplotlib()
    panels = [Panel(problem, plan, title, labels)]
    if ax is None:
        return figure_of([panels])
    draw_panel(ax, panels[0], common_scale(panels))
    return ax.figure.figure


def memory_maps(
    maps: Iterable[tuple[str | None, Problem, Plan]], *, labels: Mapping[str, str] | None = None
) -> Figure:
    """Draw several plans side by side on the same scales; all else is as in `memory_map`.

    Parameters
    ----------
    maps : iterable of (str or None, Problem, Plan)
        Title, problem and plan of each map, from left to right; at least one.
    labels : mapping of str to str, optional
        What to call a buffer, by its name, on all maps; by default its name.
    """
    need_matplotlib()
    panels = [Panel(problem, plan, title, labels) for title, problem, plan in maps]
    if not panels:
        raise ValueError("memory_maps: there is no plan to draw")
    return figure_of([panels])


def figure_of(rows: Sequence[Sequence[Panel]], title: str | None = None) -> Figure:
    """Return a figure with rows of panels, those of a row on one scale, whatever style is in force.

    A title stands above all of them.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    scales = [common_scale(row) for row in rows]
    columns = max(map(len, rows))
    inner = max(_WIDTH / columns, _LEAST_WIDTH)
    texts = [
        level.text(scale)
        for row, scale in zip(rows, scales, strict=True)
        for panel in row
        for level in panel.levels
    ]
    bottom = _BOTTOM + LEGEND_LINES * LEGEND_LINE
    outer = _LEFT + inner + (max(map(text_width, texts)) + 2 * GAP) / 72
    high = bottom + _HEIGHT + _TOP
    width, height = columns * outer, len(rows) * high + (_TITLE if title else 0)
    with style.context("default"):
        figure = Figure(figsize=(width, height), facecolor="none")
        if title is not None:
            bold: dict[str, Any] = {"fontsize": 13, "fontweight": "bold", "color": INK}
            at = (_LEFT / width, 1 - _TITLE / 2 / height)
            figure.text(*at, title, **bold, parse_math=False)
        for below, row, scale in zip(reversed(range(len(rows))), rows, scales, strict=True):
            for column, panel in enumerate(row):
                left = (column * outer + _LEFT) / width
                box = (left, (below * high + bottom) / height, inner / width, _HEIGHT / height)
                ax = figure.add_axes(box, facecolor="none")
                draw_panel(ax, panel, scale)
                if column:
                    ax.set_ylabel("")
    return figure
