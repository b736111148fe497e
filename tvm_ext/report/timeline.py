# SPDX-License-Identifier: Apache-2.0
"""Simulated pipelines as a picture: cycles across, a row for each pipe.

A run has the colour of the buffer that it writes, or reads where it writes none on the chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from passes.planning import Problem
from passes.simulation import Cause, Run, Simulation
from tvm_ext.report import drawing
from tvm_ext.report.drawing import EDGE, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAITS = {
    Cause.DATA: ("waits for data", "#f2f2f2"),
    Cause.SLOT: ("waits for a slot", "#d5d5d5"),
    Cause.REUSE: ("waits for reused bytes", "#d9a0a6"),
}
"""The name of each wait of a pipe, and its colour. Only a wait for bytes of another buffer is the
plan's doing."""

_WIDTH = 9.6
"""Inches of a picture."""
_ROW, _MARGIN = 0.36, 1.1
"""Inches of a row, and of what stands above and below the rows of a simulation."""
_BAR, _WAIT = 0.76, 0.3
"""The shares of a row's height that a run takes, and a wait."""


def pipeline_timelines(
    simulations: Iterable[tuple[str, Simulation]],
    problems: Iterable[Problem] = (),
    *,
    until: int | None = None,
) -> Figure:
    """Draw simulations below each other on one scale: a row for each pipe, a box for each run.

    Between its runs a pipe waits for data, for a slot or for reused bytes, in three shades. Its
    name has the part of the makespan that it is idle. The picture is a simulation's timeline, which
    may end before the makespan. Raises ImportError if there is no matplotlib, TypeError if
    something is no simulation, ValueError if there is nothing to draw.

    Parameters
    ----------
    simulations : iterable of (str, Simulation)
        Title and simulation of each panel of the figure, from the top down.
    problems : iterable of Problem
        Those of the kernel that all of them run: the buffers take colours in their order. Without
        them colours follow from the order in which buffers appear.
    until : int, optional
        The cycle at which the picture ends; by default the end of the longest timeline.
    """
    drawing.need_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = list(simulations)
    for _, simulation in panels:
        if not isinstance(simulation, Simulation):
            raise TypeError(f"pipeline_timelines: needs a Simulation, got {simulation!r}")
    runs = [run for _, simulation in panels for run in simulation.timeline]
    if not runs:
        raise ValueError("pipeline_timelines: there is no run to draw")
    end = until or max(run.end for run in runs)
    named = dict.fromkeys(buffer.name for problem in problems for buffer in problem.buffers)
    named |= dict.fromkeys(name for run in runs for name, _ in (*run.writes, *run.reads))
    palette = drawing.PALETTE
    colours = {name: palette[place % len(palette)] for place, name in enumerate(named)}
    handles = [Patch(fc=colour, ec="#999999", label=name) for name, colour in WAITS.values()]
    handles.append(Patch(fc="none", ec="none", label="boxes: each buffer has its colour"))
    rows = [max(1, len(simulation.pipes)) for _, simulation in panels]
    with style.context("default"):
        size = _WIDTH, sum(rows) * _ROW + len(panels) * _MARGIN
        figure = Figure(size, facecolor="none", layout="constrained")
        axes = figure.subplots(len(panels), squeeze=False, height_ratios=rows)[:, 0]
        for ax, (title, simulation) in zip(axes, panels, strict=True):
            _draw(ax, simulation, colours, end, title)
        axes[-1].set_xlabel("cycles", color=INK, fontsize=9)
        figure.legend(handles=handles, loc="outside lower left", ncols=4, **drawing.LEGEND)
        figure.draw_without_rendering()  # Sizes are known once all are laid out.
        for ax, (_, simulation) in zip(axes, panels, strict=True):
            _draw_names(ax, simulation, end)
    return figure


def _rows(simulation: Simulation) -> dict[str, int]:
    """Return the row of each pipe, from the bottom up."""
    return {time.pipe: row for row, time in enumerate(reversed(simulation.pipes))}


def _draw(
    ax: Axes, simulation: Simulation, colours: Mapping[str, str], end: int, title: str
) -> None:
    rows = _rows(simulation)
    idle = {time.pipe: time.idle / simulation.makespan for time in simulation.pipes}
    runs = [run for run in simulation.timeline if run.begin < end]
    ax.set_xlim(0, end)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    ax.set_yticks([*rows.values()], [f"{pipe}\n{idle[pipe]:.0%} idle" for pipe in rows])
    ax.tick_params(axis="y", length=0)
    summary = f"makespan {simulation.makespan:,} cycles"
    if len(runs) != simulation.runs:
        summary += f", the first {len(runs):,} of {simulation.runs:,} runs"
    drawing.draw_frame(ax, title, summary, "bottom")
    waits: dict[Cause, list[drawing.Box]] = {cause: [] for cause in WAITS}
    for run in runs:
        begin = run.begin - sum(cycles for _, cycles in run.waits)
        for cause, cycles in run.waits:
            waits[cause].append(_box(begin, begin + cycles, rows[run.pipe], _WAIT))
            begin += cycles
    for cause, (name, shade) in WAITS.items():
        style = {"facecolor": shade, "edgecolor": "none", "label": name}
        drawing.draw_boxes(ax, waits[cause], zorder=1, **style)
    drawing.draw_boxes(
        ax,
        [_box(run.begin, run.end, rows[run.pipe], _BAR) for run in runs],
        facecolors=[colours.get(_buffer(run)[0], "#ffffff") for run in runs],
        edgecolors="none" if len(runs) > drawing.RASTER_SLOTS else EDGE,
        linewidths=min(0.7, 28 / (1 + len(runs))),
        label="runs",
        zorder=2,
    )


def _box(begin: int, end: int, row: int, height: float) -> drawing.Box:
    return begin, row - height / 2, end, row + height / 2


def _buffer(run: Run) -> tuple[str, int]:
    """Return the buffer that gives a run its colour, and its slot."""
    return next(iter((*run.writes, *run.reads)), ("", 0))


def _draw_names(ax: Axes, simulation: Simulation, end: int) -> None:
    """Write into each box what of its statement and buffer fits."""
    rows = _rows(simulation)
    slotted = {name for run in simulation.timeline for name, slot in run.writes if slot}
    for run in simulation.timeline:
        name, slot = _buffer(run)
        buffer = f"{name}[{slot}]" if name in slotted else name
        box = _box(run.begin, min(run.end, end), rows[run.pipe], _BAR)
        texts = filter(None, (f"{run.statement}: {buffer}", run.statement, buffer))
        drawing.write_fitting(ax, box, texts, zorder=3)
