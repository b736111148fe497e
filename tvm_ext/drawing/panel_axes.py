"""A memory map drawn on the axes of a figure.

Matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tvm_ext.byte_sizes import format_bytes
from tvm_ext.drawing.panel import Level, Panel, Scale, Slot, uncovered
from tvm_ext.drawing.picture import (
    FAINT,
    FONT_SIZE,
    INK,
    PALETTE,
    RASTER_SLOTS,
    text_width,
    write_above,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_HEIGHT = 1.25 * FONT_SIZE
GAP = 9.0
"""Points on both sides of the names of the lines."""


def draw_panel(ax: Axes, panel: Panel, scale: Scale) -> None:
    """Draw a map on axes, which then show `scale`."""
    _draw_frame(ax, scale, panel.title, panel.summary)
    _draw_reserved(ax, panel.problem.memory.reserved, scale)
    _draw_slots(ax, panel.slots)
    _draw_in_place(ax, panel.shared)
    _draw_names(ax, list(uncovered(panel.slots, panel.shared)))
    _draw_levels(ax, panel.levels, scale)
    if panel.has_legend:
        _draw_legend(ax, bool(panel.shared), bool(panel.problem.memory.reserved))


def _draw_frame(ax: Axes, scale: Scale, title: str, summary: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    ax.set_xlim(scale.begin, scale.end)
    ax.set_ylim(0, scale.top)
    ax.set_xlabel("position in the access sequence", color=INK, fontsize=9)
    ax.set_ylabel("offset", color=INK, fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    step = 1 << max(0, (scale.top // 6).bit_length())
    ax.yaxis.set_major_locator(MultipleLocator(step))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value):,}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(int(value))))
    ax.tick_params(labelsize=FONT_SIZE, colors=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    write_above(ax, title, 22, fontsize=11, fontweight="bold", color=INK, parse_math=False)
    write_above(ax, summary, 9, fontsize=FONT_SIZE, color=FAINT)


def _draw_reserved(ax: Axes, reserved: Sequence[tuple[int, int]], scale: Scale) -> None:
    from matplotlib.collections import PolyCollection

    ranges = [Slot(0, "", scale.begin, scale.end, low, high) for low, high in reserved]
    if ranges:
        ax.add_collection(
            PolyCollection(
                [r.corners for r in ranges],
                facecolor="#f4f4f4",
                edgecolor="#999999",
                hatch="////",
                linewidth=0.5,
                label="reserved",
                zorder=1,
            ),
            autolim=False,
        )


def _draw_slots(ax: Axes, slots: Sequence[Slot]) -> None:
    from matplotlib.collections import PolyCollection

    many = len(slots) > RASTER_SLOTS
    ax.add_collection(
        PolyCollection(
            [slot.corners for slot in slots],
            facecolors=[PALETTE[slot.index % len(PALETTE)] for slot in slots],
            edgecolors="none" if many else INK,
            linewidths=min(0.7, 8 / math.sqrt(1 + len(slots))),
            rasterized=many,
            label="slots",
            zorder=2,
        ),
        autolim=False,
    )


def _draw_in_place(ax: Axes, shared: Sequence[Slot]) -> None:
    from matplotlib.collections import PolyCollection

    if not shared:
        return
    ax.add_collection(
        PolyCollection(
            [place.corners for place in shared],
            facecolor="none",
            edgecolor=INK,
            hatch="\\\\\\\\",  # few strokes: dots would take most of the bytes of an SVG
            linewidth=0.5,
            label="in place",
            zorder=2.5,
        ),
        autolim=False,
    )
    ax.scatter(
        [(place.begin + place.end) / 2 for place in shared],
        [(place.low + place.high) / 2 for place in shared],
        marker=">",
        s=40,
        facecolor="white",
        edgecolor=INK,
        linewidth=0.9,
        zorder=4,
        label="in place, from source to destination",
    )


def _draw_names(ax: Axes, slots: Sequence[Slot]) -> None:
    """Write names, with sizes where there is room, into the rectangles that can hold them."""
    room = _points(ax)
    for slot in slots:
        across, up = room(slot)
        if max(across, up) < 2 * LINE_HEIGHT or min(across, up) < LINE_HEIGHT:
            continue
        size = format_bytes(slot.high - slot.low)
        found = _fitting(slot.label, size, across, up)
        if found is not None:
            text, rotation = found
            ax.text(
                (slot.begin + slot.end) / 2,
                (slot.low + slot.high) / 2,
                text,
                rotation=rotation,
                ha="center",
                va="center",
                fontsize=FONT_SIZE,
                color="black",
                parse_math=False,
                clip_on=True,
                zorder=6,
            )


def _fitting(name: str, size: str, across: float, up: float) -> tuple[str, int] | None:
    """Return the most text that fits a rectangle (in points) and its rotation in degrees."""
    for text in (f"{name}\n{size}", name):
        needed = text_width(text) + FONT_SIZE, (text.count("\n") + 1) * LINE_HEIGHT
        for rotation, (along, over) in ((0, (across, up)), (90, (up, across))):
            if needed[0] <= along and needed[1] <= over:
                return text, rotation
    return None


def _points(ax: Axes) -> Callable[[Slot], tuple[float, float]]:
    """Return what gives the width and height of a slot on `ax`, in points."""
    box, dpi = ax.get_window_extent(), ax.figure.figure.dpi
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    wide = box.width / dpi * 72 / (right - left)
    high = box.height / dpi * 72 / (top - bottom)
    return lambda slot: ((slot.end - slot.begin) * wide, (slot.high - slot.low) * high)


def _draw_levels(ax: Axes, levels: Sequence[Level], scale: Scale) -> None:
    """Draw the lines and their names, which go up as far as they need to stay apart."""
    from matplotlib.patheffects import withStroke

    box, dpi = ax.get_window_extent(), ax.figure.figure.dpi
    points_a_byte = box.height / dpi * 72 / scale.top
    lowest = -math.inf
    for level in levels:
        shown = level.value <= scale.top
        if shown:
            ax.axhline(
                level.value,
                color=level.colour,
                linestyle=level.dashes,
                linewidth=level.width,
                label=level.name.replace("\n", " "),
                path_effects=[withStroke(linewidth=level.width + 1, foreground="white")],
                zorder=5,
                clip_on=False,
            )
        text = level.text(scale)
        height = LINE_HEIGHT * (text.count("\n") + 1)
        at = min(level.value, scale.top) * points_a_byte
        middle = max(at, lowest + height / 2)
        lowest = middle + height / 2 + 2
        ax.annotate(
            text,
            (1, min(level.value, scale.top)),
            (GAP, middle - at),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=FONT_SIZE,
            color=level.colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": level.colour,
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 0,
                "shrinkB": 0,
            }
            if shown and middle - at > 1
            else None,
        )


def _draw_legend(ax: Axes, in_place: bool, reserved: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    if in_place:
        triangle = Line2D([], [], marker=">", linestyle="none", markersize=6, color=INK)
        triangle.set_markerfacecolor("white")
        triangle.set_label("in place: takes the bytes of its source")
        handles.append(triangle)
    if reserved:
        handles.append(
            Patch(facecolor="#f4f4f4", edgecolor="#999999", hatch="////", label="reserved")
        )
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(-0.01, -0.13),
        ncols=2,
        frameon=False,
        fontsize=FONT_SIZE,
        borderaxespad=0,
    )
