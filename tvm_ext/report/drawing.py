# SPDX-License-Identifier: Apache-2.0
"""Colours, text and files of all pictures.

Matplotlib is imported when something is drawn. No figure goes through pyplot, so that nothing
global changes and no window opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]
"""Left, bottom, right and top."""

PALETTE = (
    *("#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99"),
    *("#ffaabb", "#aaaa00", "#dddddd", "#bbcc33"),
)
"""Paul Tol's light colours (SRON/EPS/TN/09-002), which carry black text and are distinct to
colour-blind readers. Dark and light ones take turns, so that neighbours differ in grey."""

RASTER_SLOTS = 5000
"""More rectangles than this are one image in a vector format: thousands take megabytes."""

INK = "#777c85"
"""Text and axes: readable on white and on black, as pictures have no background."""
EDGE = "#333333"
"""Edges of rectangles."""
FONT_SIZE = 8.0
"""Points of labels in rectangles and of legends."""
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": FONT_SIZE, "labelcolor": INK}
"""The style of legends."""
_LINE = 16 / 13
"""Height of a line, as a multiple of the size of its letters."""
RESOLUTION = 200
"""Dots an inch of ``.png``, and of rectangles stored as an image."""


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a map or a timeline as its suffix says: ``.svg``, ``.png``, ``.pdf``.

    The same figure gives the same bytes in every process: matplotlib's own ``savefig`` puts the
    date and random identifiers into SVG and PDF. Other suffixes are those of ``savefig``, which
    raises ValueError for one that it does not know; ImportError is raised without matplotlib.
    """
    need_matplotlib()
    from matplotlib import rc_context, style

    suffix = Path(path).suffix.lower()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    # Text becomes outlines: it looks the same wherever the file is shown.
    fixed: dict[Any, Any] = {"svg.hashsalt": "tvm-ext", "svg.fonttype": "path"}
    with style.context("default"), rc_context(fixed):
        figure.savefig(path, dpi=RESOLUTION, metadata=undated.get(suffix))


def need_matplotlib() -> None:
    """Raise `ImportError`, saying what to install, unless matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "pictures are drawn with matplotlib, which is not there; "
            "install it, or in the folder of tvm-ext's README: pip install '.[plot]'"
        ) from error


def draw_frame(ax: Axes, title: str, summary: str, *sides: str) -> None:
    """Count across, show the axes on some sides only, and write a title and a line above."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_facecolor("none")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value):,}"))
    ax.tick_params(labelsize=FONT_SIZE, colors=INK)
    for side, spine in ax.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in sides)
    style: dict[str, Any] = {"loc": "left", "color": INK, "parse_math": False}
    ax.set_title(title, fontsize=11, fontweight="bold", pad=18, **style)
    above: dict[str, Any] = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": FONT_SIZE}
    ax.annotate(summary, (0, 1), xycoords="axes fraction", color=INK, **above).set_in_layout(False)


def draw_boxes(ax: Axes, boxes: Iterable[Box], **style: Any) -> None:
    """Draw rectangles as one collection, which does not change the scale; many as an image."""
    from matplotlib.collections import PolyCollection

    corners = [((x, y), (end, y), (end, top), (x, top)) for x, y, end, top in boxes]
    many = len(corners) > RASTER_SLOTS
    ax.add_collection(PolyCollection(corners, rasterized=many, **style), autolim=False)


def write_fitting(
    ax: Axes, box: Box, texts: Iterable[str], *, size: float = FONT_SIZE, zorder: float
) -> None:
    """Write the first text that fits into a rectangle, upright where that is higher than wide.

    The axes have been laid out. A text may have several lines.
    """
    (left, bottom, right, top), area, dpi = box, ax.get_window_extent(), ax.figure.figure.dpi
    (x, end), (y, highest) = ax.get_xlim(), ax.get_ylim()
    wide = (right - left) / (end - x) * area.width / dpi * 72  # Points
    high = (top - bottom) / (highest - y) * area.height / dpi * 72
    line = size * _LINE
    for text in texts if min(wide, high) >= line else ():
        width = (text_width(text) + FONT_SIZE / 2) * size / FONT_SIZE
        if width <= max(wide, high) and (text.count("\n") + 1) * line <= min(wide, high):
            style: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
            style |= {"rotation": 90 if wide < high else 0, "fontsize": size, "zorder": zorder}
            middle = (left + right) / 2, (bottom + top) / 2
            ax.text(*middle, text, color="black", parse_math=False, **style)
            break


@cache
def text_width(text: str) -> float:
    """Return the width of the widest line of a text in points, at `FONT_SIZE`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=FONT_SIZE)
    measure = text_to_path.get_text_width_height_descent
    return max(float(measure(line, font, False)[0]) for line in text.split("\n"))
