# SPDX-License-Identifier: Apache-2.0
"""Memories as a picture: time across and addresses up."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from passes.planning import Plan, Problem, live_bytes
from tvm_ext.report import drawing
from tvm_ext.report.drawing import EDGE, INK
from tvm_ext.report.memory_view import MemoryView, PlannedProblem
from tvm_ext.text import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LEAST_WIDTH, _HEIGHT = 7.6, 4.8, 5.6
"""Inches of a map with its margins: alone, and at least of each among others."""
_NAME_SIZE = 6.5
"""Points of the names of buffers."""
_SHORTEST = 4
"""Letters of a name that still say something."""


class Role(Enum):
    """The part of a buffer in the height of a plan; the value is what a legend says of it."""

    FULLEST = "live when the most bytes are live"
    TOP = "reaches the peak at another time"
    OTHER = "all other buffers"


ROLE_COLOURS = {Role.FULLEST: "#ee8866", Role.TOP: "#eedd88", Role.OTHER: "#8cc8ee"}
"""Colours that carry black text and differ in grey, after those of `drawing.PALETTE`."""


class Slot(NamedTuple):
    """A slot during one live range: positions ``[begin, end)``, bytes ``[low, high)``."""

    begin: int
    low: int
    end: int
    high: int
    label: str
    buffer: str  # The name in its problem, which no other has; labels may be the same


class Panel(NamedTuple):
    """One map of a figure."""

    title: str
    placed: PlannedProblem
    labels: Mapping[str, str]  # The label of a buffer, by its name


def picture_of(title: str, memories: Sequence[MemoryView]) -> Figure:
    """Draw memories: the steps of the program across, addresses up, a rectangle for each buffer.

    Each memory is a row, with its plans on one scale. A buffer with several slots or live ranges
    has a rectangle for each, in the colour of its `Role` in the height of the plan. Lines show the
    capacity, the peak and the lower bound. Reserved ranges are hatched, and so are the positions at
    which two buffers are live in place. Raises ImportError without matplotlib.
    """
    several, rows = len({view.owner for view in memories}) > 1, []
    for view in memories:
        name = f"{view.owner} {view.name}" if several else view.name
        name = name if len(memories) > 1 else f"{title}, {name}"
        labels = {buffer: note.label for buffer, note in view.notes.items()}
        rows.append([Panel(f"{name}: {one.label}", one, labels) for one in view.plans])
    figure = figure_of(rows, title if len(rows) > 1 else None)
    views = [view for view in memories for _ in view.plans]
    for axes, view in zip(figure.axes, views, strict=True):
        for line in view.axis.rules if view.axis else ():
            axes.axvline(line, color=INK, linewidth=0.8, zorder=5)
    return figure


def draw_plans(
    maps: Iterable[tuple[str, Problem, Plan]], *, labels: Mapping[str, str] | None = None
) -> Figure:
    """Draw plans of one or several problems, each with a title, side by side on one scale.

    A plan is drawn as it is, right or wrong: `tvm_ext.verify` judges it. `labels` say what to call
    a buffer, by its name. Raises ImportError without matplotlib; ValueError, which names the
    buffer, if a plan lacks an offset for a slot, or where there is no plan.
    """
    panels = [
        Panel(title, PlannedProblem(plan.planner, problem, plan), labels or {})
        for title, problem, plan in maps
    ]
    if not panels:
        raise ValueError("draw_plans: there is no plan to draw")
    return figure_of([panels])


def figure_of(rows: Sequence[Sequence[Panel]], title: str | None = None) -> Figure:
    """Return a figure with rows of panels, those of a row on one scale, and a title above all."""
    drawing.need_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    columns = max(map(len, rows))
    size = columns * max(_WIDTH / columns, _LEAST_WIDTH), len(rows) * _HEIGHT
    drawn = []
    with style.context("default"):
        figure = Figure(size, facecolor="none", layout="constrained")
        if title is not None:
            figure.suptitle(title, fontweight="bold", color=INK, parse_math=False)
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                ax = figure.add_subplot(len(rows), columns, row * columns + column + 1)
                _draw_frame(ax, panel, panels)
                slots = list(slots_of(panel.placed.problem, panel.placed.plan, panel.labels))
                _draw(ax, panel.placed, slots)
                drawn.append((ax, slots))
        figure.draw_without_rendering()  # Sizes are known once all are laid out.
        for ax, slots in drawn:
            _draw_names(ax, slots)
    return figure


def slots_of(
    problem: Problem, plan: Plan, labels: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Slot]:
    """Yield each slot of a buffer in each live range; ValueError where the plan lacks an offset."""
    for buffer in problem.buffers:
        offsets = plan.offsets.get(buffer.name, ())
        if len(offsets) < buffer.slots or (len(offsets) > buffer.slots and not buffer.may_widen):
            raise ValueError(
                f"{problem.name}: buffer {buffer.name!r} has {buffer.slots} slots, "
                f"the plan has {len(offsets)} offsets for it"
            )
        name = labels.get(buffer.name) or buffer.name
        for slot, low in enumerate(offsets if buffer.size else ()):
            label = name if len(offsets) == 1 else f"{name}[{slot}]"
            for begin, end in buffer.live:
                yield Slot(begin, low, end, low + buffer.size, label, buffer.name)


def roles_of(placed: PlannedProblem, slots: Iterable[Slot]) -> list[Role]:
    """Return the role of each slot. The most bytes may be live at several times."""
    changes = live_bytes(placed.problem)
    most = max((live for _, live in changes), default=0)
    fullest = [(begin, end) for (begin, live), (end, _) in pairwise(changes) if live == most]
    ends = [end for _, end in fullest]
    roles = []
    for slot in slots:
        at = bisect_right(ends, slot.begin)  # The first fullest time that ends after the beginning
        if at < len(fullest) and fullest[at][0] < slot.end:
            roles.append(Role.FULLEST)
        else:
            roles.append(Role.TOP if slot.high == placed.plan.peak else Role.OTHER)
    return roles


def _in_place(problem: Problem, slots: Sequence[Slot]) -> Iterator[drawing.Box]:
    """Yield where an in-place pair shares bytes while both are live."""
    of: dict[str, list[Slot]] = {}
    for slot in slots:
        of.setdefault(slot.buffer, []).append(slot)
    for source, destination in problem.in_place:
        for one in of.get(source, ()):
            for two in of.get(destination, ()):
                begin, end = max(one.begin, two.begin), min(one.end, two.end)
                if one.low == two.low and begin < end:
                    yield begin, one.low, end, min(one.high, two.high)


def _draw_frame(ax: Axes, panel: Panel, row: Sequence[Panel]) -> None:
    """Draw the axes of a map, which all maps of a row have alike, and what stands above it.

    A few KiB in a memory of many GiB would be a line at the bottom: such a capacity is left out.
    """
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    problems = [one.placed.problem for one in row]
    live = [at for problem in problems for b in problem.buffers for pair in b.live for at in pair]
    top = max(1, *(n for one in row for n in (one.placed.bound, one.placed.plan.peak)))
    top = max([top, *(p.capacity for p in problems if p.capacity and p.capacity <= 2 * top)])
    ax.set_xlim(min(live, default=0), max(live, default=1))
    ax.set_ylim(0, top + -(-top // 40))
    ax.set_xlabel("program step", color=INK, fontsize=9)
    ax.set_ylabel("address" if panel is row[0] else "", color=INK, fontsize=9)
    ax.yaxis.set_major_locator(MultipleLocator(1 << max(0, (top // 6).bit_length())))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(int(value))))
    placed, plan = panel.placed, panel.placed.plan
    parts = [counted(len(placed.problem.buffers), "buffer")]
    if 0 < placed.bound < plan.peak:
        parts.append(f"{plan.peak / placed.bound:.4g} × the lower bound")
    if plan.penalty:
        parts.append(f"penalty {plan.penalty:,}")
    summary = " · ".join([*parts, placed.verdict])
    drawing.draw_frame(ax, panel.title, summary, "left", "bottom")


def _draw(ax: Axes, placed: PlannedProblem, slots: Sequence[Slot]) -> None:
    """Draw the rectangles and lines of a map, and a legend below it."""
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    problem, roles = placed.problem, roles_of(placed, slots)
    drawing.draw_boxes(
        ax,
        [slot[:4] for slot in slots],
        facecolors=[ROLE_COLOURS[found] for found in roles],
        edgecolors="none" if len(slots) > drawing.RASTER_SLOTS else EDGE,
        linewidths=min(0.7, 8 / math.sqrt(1 + len(slots))),
        label="slots",
        zorder=2,
    )
    edge: dict[str, Any] = {"edgecolor": EDGE, "linewidth": 0.7}
    handles: list[Any] = [
        Patch(facecolor=ROLE_COLOURS[one], label=one.value, **edge) for one in Role if one in roles
    ]
    across = ax.get_xlim()
    reserved = [(across[0], low, across[1], high) for low, high in problem.memory.reserved]
    for label, boxes, hatch in (
        ("reserved", reserved, "////"),
        ("live in place", list(_in_place(problem, slots)), "\\\\\\\\"),
    ):
        if boxes:
            style: dict[str, Any] = {"facecolor": "none", "hatch": hatch, "linewidth": 0.5}
            drawing.draw_boxes(ax, boxes, label=label, edgecolor=EDGE, zorder=2.5, **style)
            handles.append(Patch(edgecolor=EDGE, label=label, **style))
    for name, value, colour, dashes in (
        ("capacity", problem.capacity, INK, "solid"),
        ("peak", placed.plan.peak, "#d1495b", (0, (5, 2))),
        ("lower bound", placed.bound, "#3f7fd0", (0, (1.2, 1.4))),
    ):
        if value is not None:
            above = value > ax.get_ylim()[1]
            label = f"{name}: {format_bytes(value)}{', above the map' if above else ''}"
            line: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.5}
            ends = ([], []) if above else (across, (value, value))
            handles += ax.plot(*ends, label=label, zorder=5, clip_on=False, **line)
    below = ScaledTranslation(0, -0.5, ax.figure.figure.dpi_scale_trans)  # Inches, of the axis
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=ax.transAxes + below,
        borderaxespad=0,
        **drawing.LEGEND,
    )


def _draw_names(ax: Axes, slots: Iterable[Slot]) -> None:
    """Write names into the rectangles that can hold them: with sizes, alone, or cut."""
    for slot in slots:
        name = slot.label
        cuts = (name[:letters] + "…" for letters in range(len(name) - 2, _SHORTEST - 1, -1))
        texts = chain([f"{name}\n{format_bytes(slot.high - slot.low)}", name], cuts)
        drawing.write_fitting(ax, slot[:4], texts, size=_NAME_SIZE, zorder=6)
