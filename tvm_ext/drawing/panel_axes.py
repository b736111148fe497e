# SPDX-License-Identifier: Apache-2.0
"""A memory map drawn on the axes of a figure.

Matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm_ext.drawing import picture
from tvm_ext.drawing.panel import ROLE_COLOURS, Level, Panel, Scale, Slot, uncovered
from tvm_ext.drawing.picture import EDGE, FAINT, FONT_SIZE, INK
from tvm_ext.text import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

LINE_HEIGHT = 1.25 * FONT_SIZE
GAP = 9.0
"""Points on both sides of the names of the lines."""
TINY = 2.0
"""Points: a rectangle that is lower cannot be told from a line."""
SMALL = 6.0
"""Points, of names where the usual size does not fit."""
SHORTEST = 4
"""Letters of a name that still say something."""

LEGEND_LINE = 0.18
"""Inches of a line of a legend."""
_BELOW = 0.52
"""Inches between a map and its legend: room for the numbers and the name of the axis."""
_COLUMNS = 2
LEGEND_LINES = 3
"""Most lines of a legend: three roles, tiny buffers, in-place pairs and reserved ranges."""

Room = Callable[["Slot"], tuple[float, float]]
"""What gives the width and the height of a slot on a map, in points."""


def draw_panel(ax: Axes, panel: Panel, scale: Scale) -> None:
    """Draw a map on axes, which then show `scale`."""
    _draw_frame(ax, scale, panel.title, panel.summary)
    room, shared = _points(ax), panel.shared
    tiny = [slot for slot in panel.slots if room(slot)[1] < TINY]
    _draw_slots(ax, panel.slots, room)
    reserved = [(scale.begin, low, scale.end, high) for low, high in panel.problem.memory.reserved]
    _outline(ax, reserved, "reserved", 1, edgecolor=FAINT, hatch="////", linewidth=0.5)
    # Few strokes: dots would take most of the bytes of an SVG.
    in_place = [place.box for place in shared]
    _outline(ax, in_place, "in place", 2.5, edgecolor=EDGE, hatch="\\\\\\\\", linewidth=0.5)
    # Lines over the others, thin ones where they are many.
    width = min(TINY, 40 / math.sqrt(1 + len(tiny)))
    lines = [slot.box for slot in tiny]
    _outline(ax, lines, "too low to be seen", 3, edgecolor=FAINT, linewidth=width)
    if shared:
        ax.scatter(
            [(place.begin + place.end) / 2 for place in shared],
            [(place.low + place.high) / 2 for place in shared],
            marker=">",
            s=40,
            facecolor="white",
            edgecolor=EDGE,
            linewidth=0.9,
            zorder=4,
            label="in place, from source to destination",
        )
    _draw_names(ax, list(uncovered(panel.slots, shared)), room)
    _draw_levels(ax, panel.levels, scale, room(Slot("", 0, 1, 0, 1))[1])
    _draw_legend(ax, panel, tiny)


def _draw_frame(ax: Axes, scale: Scale, title: str, summary: str) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    ax.set_xlim(scale.begin, scale.end)
    ax.set_ylim(0, scale.top)
    ax.set_xlabel("program step", color=INK, fontsize=9)
    ax.set_ylabel("address", color=INK, fontsize=9)
    step = 1 << max(0, (scale.top // 6).bit_length())
    ax.yaxis.set_major_locator(MultipleLocator(step))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(int(value))))
    picture.draw_frame(ax, title, summary, "left", "bottom")


def _outline(
    ax: Axes, boxes: Sequence[picture.Box], label: str, zorder: float, **style: Any
) -> None:
    if boxes:
        picture.draw_boxes(ax, boxes, label=label, zorder=zorder, facecolor="none", **style)


def _draw_slots(ax: Axes, slots: Sequence[Slot], room: Room) -> None:
    width = min(0.7, 8 / math.sqrt(1 + len(slots)))
    picture.draw_boxes(
        ax,
        [slot.box for slot in slots],
        facecolors=[ROLE_COLOURS[slot.role] for slot in slots],
        edgecolors="none" if len(slots) > picture.RASTER_SLOTS else EDGE,
        # The edges of a rectangle without an inside would be all that is seen of it.
        linewidths=[width if min(room(slot)) >= TINY else 0 for slot in slots] or width,
        label="slots",
        zorder=2,
    )


def _draw_names(ax: Axes, slots: Sequence[Slot], room: Room) -> None:
    """Write names, with sizes where there is room, into the rectangles that can hold them."""
    for slot in slots:
        across, up = room(slot)
        if max(across, up) < 2 * LINE_HEIGHT or min(across, up) < LINE_HEIGHT * SMALL / FONT_SIZE:
            continue
        found = _fitting(slot.label, format_bytes(slot.high - slot.low), across, up)
        if found is not None:
            text, rotation, font = found
            style: dict[str, Any] = {"rotation": rotation, "fontsize": font, "zorder": 6}
            picture.write_inside(ax, slot.box, text, **style)


def _fitting(name: str, size: str, across: float, up: float) -> tuple[str, int, float] | None:
    """Return the most text that fits a rectangle (in points), its rotation and its font size.

    A long name is cut to what fits of it, but not below `SHORTEST` letters.
    """
    cuts = [name[:letters] + "…" for letters in range(len(name) - 2, SHORTEST - 1, -1)]
    for text in (f"{name}\n{size}", name, *cuts):
        width, lines = picture.text_width(text) + FONT_SIZE / 2, text.count("\n") + 1
        for font in (FONT_SIZE, SMALL):
            along, over = width * font / FONT_SIZE, lines * LINE_HEIGHT * font / FONT_SIZE
            if along <= across and over <= up:
                return text, 0, font
            if along <= up and over <= across:
                return text, 90, font
    return None


def _points(ax: Axes) -> Room:
    """Return what gives the width and height of a slot on `ax`, in points."""
    box, dpi = ax.get_window_extent(), ax.figure.figure.dpi
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    wide = box.width / dpi * 72 / (right - left)
    high = box.height / dpi * 72 / (top - bottom)
    return lambda slot: ((slot.end - slot.begin) * wide, (slot.high - slot.low) * high)


def _draw_levels(ax: Axes, levels: Sequence[Level], scale: Scale, points_a_byte: float) -> None:
    """Draw the lines and their names, which go up as far as they need to stay apart."""
    lowest = -math.inf
    for level in levels:
        shown = level.value <= scale.top
        if shown:
            name = level.name.replace("\n", " ")
            style: dict[str, Any] = {"linestyle": level.dashes, "linewidth": level.width}
            ax.axhline(
                level.value, label=name, color=level.colour, zorder=5, clip_on=False, **style
            )
        text = level.text(scale)
        height = LINE_HEIGHT * (text.count("\n") + 1)
        at = min(level.value, scale.top) * points_a_byte
        middle = max(at, lowest + height / 2)
        lowest = middle + height / 2 + 2
        thread = {"arrowstyle": "-", "color": level.colour, "linewidth": 0.6, "relpos": (0, 0.5)}
        picture.write_outside(
            ax,
            text,
            (1, min(level.value, scale.top)),
            (GAP, middle - at),
            ("axes fraction", "data"),
            va="center",
            color=level.colour,
            arrowprops=thread | {"shrinkA": 0, "shrinkB": 0} if shown and middle - at > 1 else None,
        )


def _draw_legend(ax: Axes, panel: Panel, tiny: Sequence[Slot]) -> None:
    """Draw below a map what is on it; `tiny` are the slots that are too low to be seen."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    handles: list[Line2D | Patch] = [
        Patch(facecolor=ROLE_COLOURS[role], edgecolor=EDGE, linewidth=0.7, label=role.value)
        for role in panel.roles
    ]
    if tiny:
        count, largest = len({slot.buffer for slot in tiny}), max(s.high - s.low for s in tiny)
        size = ("up to " if count > 1 else "") + format_bytes(largest)
        text = f"{count:,} too low for a box ({size})"
        handles.append(Line2D([], [], color=FAINT, linewidth=TINY, label=text))
    if panel.shared:
        triangle = Line2D([], [], color=EDGE, marker=">", markersize=6, linestyle="none")
        triangle.set(markerfacecolor="white", label="in place over its source")
        handles.append(triangle)
    if panel.problem.memory.reserved:
        handles.append(Patch(facecolor="none", edgecolor=FAINT, hatch="////", label="reserved"))
    if handles:
        below = ScaledTranslation(-3 / 72, -_BELOW, ax.figure.figure.dpi_scale_trans)
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=ax.transAxes + below,
            ncols=_COLUMNS,
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1.2,
            **picture.LEGEND,
        )
