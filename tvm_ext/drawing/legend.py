# SPDX-License-Identifier: Apache-2.0
"""The legend of a memory map: what its colours, hatches and marks mean.

Matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_ext.byte_sizes import format_bytes
from tvm_ext.drawing.panel import Panel, Slot
from tvm_ext.drawing.picture import EDGE, FAINT, FONT_SIZE, INK
from tvm_ext.drawing.roles import ROLE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

LEGEND_LINE = 0.18
"""Inches of a line of a legend."""
_BELOW = 0.52
"""Inches between a map and its legend: room for the numbers and the name of the axis."""
_COLUMNS = 2
LEGEND_LINES = 3
"""Most lines of a legend: three roles, tiny buffers, in-place pairs and reserved ranges."""
TINY_COLOUR = "#8f949c"


def draw_legend(ax: Axes, panel: Panel, tiny: Sequence[Slot]) -> None:
    """Draw below a map what is on it; `tiny` are the slots that are too low to be seen."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    handles: list[Line2D | Patch] = [
        Patch(facecolor=ROLE_COLOURS[role], edgecolor=EDGE, linewidth=0.7, label=role.value)
        for role in panel.roles
    ]
    if tiny:
        handles.append(Patch(facecolor=TINY_COLOUR, label=_tiny_text(tiny)))
    if panel.shared:
        triangle = Line2D([], [], marker=">", linestyle="none", markersize=6, color=EDGE)
        triangle.set_markerfacecolor("white")
        triangle.set_label("in place over its source")
        handles.append(triangle)
    if panel.problem.memory.reserved:
        handles.append(Patch(facecolor="none", edgecolor=FAINT, hatch="////", label="reserved"))
    if handles:
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=ax.transAxes
            + ScaledTranslation(-3 / 72, -_BELOW, ax.figure.figure.dpi_scale_trans),
            ncols=_COLUMNS,
            frameon=False,
            fontsize=FONT_SIZE,
            labelcolor=INK,
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1.2,
        )


def _tiny_text(tiny: Sequence[Slot]) -> str:
    largest = format_bytes(max(slot.high - slot.low for slot in tiny))
    count = len({slot.buffer for slot in tiny})
    return f"{count:,} too low to be seen ({'up to ' if count > 1 else ''}{largest})"
