"""Memory maps: a plan as a picture, time across and addresses up.

Matplotlib is needed to draw and is imported then, not before; no figure here goes through pyplot,
so nothing global changes and no window opens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from passes.planning import Plan, Problem, Status, lower_bound
from tvm_ext.picture import (
    FAINT,
    FONT_SIZE,
    INK,
    PALETTE,
    RASTER_SLOTS,
    need_matplotlib,
    text_width,
    write_above,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOUND_INK = "#1f4e9c"
_PEAK_INK = "#a01c2c"
_LINE_HEIGHT = 1.25 * FONT_SIZE
_WIDTH, _HEIGHT = 6.4, 4.0
"""Inches of one map alone, without its margins."""
_LEAST_WIDTH = 3.7
"""Inches of each map among others: two stay readable at the width of a page."""
_LEFT, _TOP, _BOTTOM = 0.85, 0.7, 0.6
"""Inches around each map; on the right, what the names of the lines take."""
_GAP = 9.0
"""Points on both sides of the names of the lines."""
_LEGEND = 0.3
"""Inches more below, for a legend."""
_STATUS = {
    Status.OPTIMAL: "optimal",
    Status.FEASIBLE: "feasible",
    Status.INFEASIBLE: "proven not to fit",
    Status.NOT_FOUND: "does not fit",
}


@dataclass(frozen=True)
class _Slot:
    """A slot during one live range: positions ``[begin, end)``, bytes ``[low, high)``."""

    index: int
    label: str
    begin: int
    end: int
    low: int
    high: int

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        return (
            (self.begin, self.low),
            (self.end, self.low),
            (self.end, self.high),
            (self.begin, self.high),
        )


@dataclass(frozen=True)
class _Level:
    """A number of bytes drawn as a line right across a map."""

    name: str
    value: int
    colour: str
    dashes: str | tuple[int, tuple[float, ...]]
    width: float
    size: str = ""
    """The value in words."""

    def text(self, scale: _Scale) -> str:
        return f"{self.name}\n{self.size}" + ("" if self.value <= scale.top else " ↑")


@dataclass(frozen=True)
class _Scale:
    """What the axes show: positions ``[begin, end)``, bytes ``[0, top)``."""

    begin: int
    end: int
    top: int


def memory_map(
    problem: Problem, plan: Plan, *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw a plan: positions across, bytes up, a rectangle for each slot and live range.

    Lines show the capacity, the peak and the lower bound; reserved ranges are hatched. Where the
    destination of an in-place pair takes the offset of its source, a triangle points from one to
    the other, and the positions at which both are live are hatched the other way. Buffers are
    named where the name fits. A capacity far above the peak is named only: the map would shrink to
    nothing.

    The colour of a buffer follows from its place in the problem. In a notebook, the figure is
    shown once ``%matplotlib inline`` has run.

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

    Returns
    -------
    matplotlib.figure.Figure
        The figure drawn on. `save` writes it to a file.

    Raises
    ------
    ImportError
        If there is no matplotlib.
    ValueError
        If the plan lacks an offset for a slot; the message names the buffer.
    """
    need_matplotlib()
    panels = [_Panel(problem, plan, title)]
    if ax is None:
        return _figure(panels)
    panels[0].draw(ax, _scale(panels))
    return ax.figure.figure


def memory_maps(maps: Iterable[tuple[str | None, Problem, Plan]]) -> Figure:
    """Draw several plans side by side on the same scales.

    Parameters
    ----------
    maps : iterable of (str or None, Problem, Plan)
        Title, problem and plan of each map, from left to right; see `memory_map`.

    Returns
    -------
    matplotlib.figure.Figure
        A figure with one map each. `save` writes it to a file.

    Raises
    ------
    ImportError
        If there is no matplotlib.
    ValueError
        If there is nothing to draw, or a plan lacks an offset for a slot.
    """
    need_matplotlib()
    panels = [_Panel(problem, plan, title) for title, problem, plan in maps]
    if not panels:
        raise ValueError("memory_maps: there is no plan to draw")
    return _figure(panels)


def format_bytes(value: int) -> str:
    """Return a number of bytes, rounded, in the largest binary unit it fills: ``1.25 MiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    exponent = 0
    text = str(value)
    while float(text) >= 1024 and exponent + 1 < len(units):  # as written: never 1024 KiB
        exponent += 1
        scaled = value / (1 << 10 * exponent)
        # Three digits say enough.
        text = f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {units[exponent]}"


def _ratio(value: int, bound: int) -> str:
    """Return a ratio above one with as many digits as show that it is above one."""
    ratio = value / bound
    digits = 2 if ratio < 100 else 0
    while f"{ratio:.{digits}f}" == f"{1:.{digits}f}" and digits < 6:
        digits += 1
    return f"{ratio:.{digits}f}"


# ---------------------------------------------------------------------------- what is drawn


class _Panel:
    """One map, as data."""

    def __init__(self, problem: Problem, plan: Plan, title: str | None) -> None:
        self.problem, self.plan = problem, plan
        self.title = f"{problem.name}: {plan.planner}" if title is None else title
        self.slots = list(_slots(problem, plan))
        self.shared = list(_shared_in_place(problem, plan))
        self.bound = lower_bound(problem)
        self.extent = _Scale(
            min((begin for b in problem.buffers for begin, _ in b.live), default=0),
            max((end for b in problem.buffers for _, end in b.live), default=1),
            max(plan.peak, self.bound, 1),
        )

    @property
    def summary(self) -> str:
        count = len(self.problem.buffers)
        parts = [f"{count:,} buffer{'' if count == 1 else 's'}"]
        if self.bound and self.plan.peak > self.bound:
            parts.append(f"{_ratio(self.plan.peak, self.bound)} × the lower bound")
        if self.plan.penalty:
            parts.append(f"penalty {self.plan.penalty:,}")
        parts.append(_STATUS[self.plan.status])
        return " · ".join(parts)

    @property
    def levels(self) -> list[_Level]:
        """From the lowest to the highest; equal ones are one line with all their names."""
        levels = [
            _Level("lower bound", self.bound, _BOUND_INK, (0, (1.2, 1.4)), 1.5),
            _Level("peak", self.plan.peak, _PEAK_INK, (0, (5, 2)), 1.3),
        ]
        if self.problem.capacity is not None:
            levels.append(_Level("capacity", self.problem.capacity, INK, "solid", 1.6))
        joined: list[_Level] = []
        for level in sorted(levels, key=lambda level: level.value):
            if joined and joined[-1].value == level.value:
                level = replace(level, name=f"{level.name} =\n{joined.pop().name}")
            joined.append(level)
        sizes = _told_apart([level.value for level in joined])
        return [replace(level, size=size) for level, size in zip(joined, sizes, strict=True)]

    @property
    def has_legend(self) -> bool:
        return bool(self.shared or self.problem.memory.reserved)

    def draw(self, ax: Axes, scale: _Scale) -> None:
        """Draw on axes that show `scale`."""
        _draw_frame(ax, scale, self.title, self.summary)
        _draw_reserved(ax, self.problem.memory.reserved, scale)
        _draw_slots(ax, self.slots)
        _draw_in_place(ax, self.shared)
        _draw_names(ax, list(_uncovered(self.slots, self.shared)))
        _draw_levels(ax, self.levels, scale)
        if self.has_legend:
            _draw_legend(ax, bool(self.shared), bool(self.problem.memory.reserved))


def _slots(problem: Problem, plan: Plan) -> Iterator[_Slot]:
    """Yield each slot of each buffer that has bytes, in each of its live ranges."""
    for index, buffer in enumerate(problem.buffers):
        offsets = plan.offsets.get(buffer.name, ())
        if len(offsets) < buffer.slots or (len(offsets) > buffer.slots and not buffer.may_widen):
            raise ValueError(
                f"{problem.name}: buffer {buffer.name!r} has {buffer.slots} slots, "
                f"the plan has {len(offsets)} offsets for it"
            )
        for slot, low in enumerate(offsets if buffer.size else ()):
            label = buffer.name if len(offsets) == 1 else f"{buffer.name}[{slot}]"
            for begin, end in buffer.live:
                yield _Slot(index, label, begin, end, low, low + buffer.size)


def _shared_in_place(problem: Problem, plan: Plan) -> Iterator[_Slot]:
    """Yield where an in-place pair shares bytes while both are live, as slots of the destination.

    A pair that the plan keeps apart shares nothing.
    """
    for names in problem.in_place:
        source, destination = (problem.buffers[problem.index[name]] for name in names)
        ours, theirs = plan.offsets[source.name], plan.offsets[destination.name]
        for low, other in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
            high = low + min(source.size, destination.size)
            for begin, end in source.live if low == other and low < high else ():
                for other_begin, other_end in destination.live:
                    common = max(begin, other_begin), min(end, other_end)
                    if common[0] < common[1]:
                        index = problem.index[destination.name]
                        yield _Slot(index, destination.name, *common, low, high)


def _uncovered(slots: Iterable[_Slot], shared: Iterable[_Slot]) -> Iterator[_Slot]:
    """Yield the slots without what they share in place at their beginning or end."""
    at_offset: defaultdict[int, list[_Slot]] = defaultdict(list)
    for place in shared:
        at_offset[place.low].append(place)
    for slot in slots:
        begin, end = slot.begin, slot.end
        for place in at_offset.get(slot.low, ()):
            if place.begin == slot.begin:
                begin = max(begin, place.end)
            elif place.end == slot.end:
                end = min(end, place.begin)
        if begin < end:
            yield replace(slot, begin=begin, end=end)


def _scale(panels: Sequence[_Panel]) -> _Scale:
    """Return one scale for all panels.

    A capacity counts when it is at most twice as high as everything else: a map of a few KiB in a
    memory of many GiB would be a line at the bottom.
    """
    top = max(panel.extent.top for panel in panels)
    capacities = [p.problem.capacity for p in panels if p.problem.capacity is not None]
    top = max([top, *(capacity for capacity in capacities if capacity <= 2 * top)])
    return _Scale(
        min(panel.extent.begin for panel in panels),
        max(panel.extent.end for panel in panels),
        top + -(-top // 40),
    )


# ---------------------------------------------------------------------------- how it is drawn


def _figure(panels: Sequence[_Panel]) -> Figure:
    """Return a figure with all panels side by side, whatever style is in force."""
    from matplotlib import style
    from matplotlib.figure import Figure

    scale, count = _scale(panels), len(panels)
    inner = max(_WIDTH / count, _LEAST_WIDTH)
    texts = [level.text(scale) for panel in panels for level in panel.levels]
    outer = _LEFT + inner + (max(map(text_width, texts)) + 2 * _GAP) / 72
    bottom = _BOTTOM + (_LEGEND if any(panel.has_legend for panel in panels) else 0)
    width, height = count * outer, bottom + _HEIGHT + _TOP
    with style.context("default"):
        figure = Figure(figsize=(width, height))
        for at, panel in enumerate(panels):
            left = (at * outer + _LEFT) / width
            box = (left, bottom / height, inner / width, _HEIGHT / height)
            ax = figure.add_axes(box)
            panel.draw(ax, scale)
            if at:
                ax.set_ylabel("")
    return figure


def _draw_frame(ax: Axes, scale: _Scale, title: str, summary: str) -> None:
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


def _draw_reserved(ax: Axes, reserved: Sequence[tuple[int, int]], scale: _Scale) -> None:
    from matplotlib.collections import PolyCollection

    ranges = [_Slot(0, "", scale.begin, scale.end, low, high) for low, high in reserved]
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


def _draw_slots(ax: Axes, slots: Sequence[_Slot]) -> None:
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


def _draw_in_place(ax: Axes, shared: Sequence[_Slot]) -> None:
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


def _draw_names(ax: Axes, slots: Sequence[_Slot]) -> None:
    """Write names, with sizes where there is room, into the rectangles that can hold them."""
    room = _points(ax)
    for slot in slots:
        across, up = room(slot)
        if max(across, up) < 2 * _LINE_HEIGHT or min(across, up) < _LINE_HEIGHT:
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
        needed = text_width(text) + FONT_SIZE, (text.count("\n") + 1) * _LINE_HEIGHT
        for rotation, (along, over) in ((0, (across, up)), (90, (up, across))):
            if needed[0] <= along and needed[1] <= over:
                return text, rotation
    return None


def _points(ax: Axes) -> Callable[[_Slot], tuple[float, float]]:
    """Return what gives the width and height of a slot on `ax`, in points."""
    box, dpi = ax.get_window_extent(), ax.figure.figure.dpi
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    wide = box.width / dpi * 72 / (right - left)
    high = box.height / dpi * 72 / (top - bottom)
    return lambda slot: ((slot.end - slot.begin) * wide, (slot.high - slot.low) * high)


def _draw_levels(ax: Axes, levels: Sequence[_Level], scale: _Scale) -> None:
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
        height = _LINE_HEIGHT * (text.count("\n") + 1)
        at = min(level.value, scale.top) * points_a_byte
        middle = max(at, lowest + height / 2)
        lowest = middle + height / 2 + 2
        ax.annotate(
            text,
            (1, min(level.value, scale.top)),
            (_GAP, middle - at),
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


def _told_apart(values: Sequence[int]) -> list[str]:
    """Return numbers of bytes in words, exact where rounding would make two of them look equal."""
    rounded = [format_bytes(value) for value in values]
    return [
        text if rounded.count(text) == 1 else f"{value:,} B"
        for value, text in zip(values, rounded, strict=True)
    ]


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
