# SPDX-License-Identifier: Apache-2.0
"""Simulated pipelines as a picture: cycles across, a row for each pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from passes.planning import Problem
from passes.simulation import Cause, Run, Simulation
from tvm_ext.report.chart import LINE, PALETTE, Box, Chart, Picture, legend, picture, steps, words

WAITS = {
    Cause.DATA: ("waits for data", "#f2f2f2"),
    Cause.SLOT: ("waits for a slot", "#d5d5d5"),
    Cause.REUSE: ("waits for reused bytes", "#d9a0a6"),
}
"""The name of each wait of a pipe, and its colour. Only a wait for bytes of another buffer is the
plan's doing."""

_WIDTH, _ROW, _AROUND, _LEFT = 960, 36, 44, 74
"""Pixels of a picture across, of the row of a pipe, above and below rows, and to their left."""
_BAR, _WAIT = 0.76, 0.3
"""The shares of a row's height that a run takes, and a wait."""


def pipeline_timelines(
    simulations: Iterable[tuple[str, Simulation]],
    problems: Iterable[Problem] = (),
    *,
    until: int | None = None,
) -> Picture:
    """Draw simulations below each other on one scale: a row for each pipe, a box for each run.

    A run has the colour of the buffer that it writes, or reads where it writes none on the chip.
    Between its runs a pipe waits for data, for a slot or for reused bytes, in three shades. Its
    name has the part of the makespan that it is idle. The picture is a simulation's timeline, which
    may end before the makespan. Raises TypeError if something is no simulation, ValueError if there
    is nothing to draw.

    Parameters
    ----------
    simulations : iterable of (str, Simulation)
        Title and simulation of each chart, from the top down.
    problems : iterable of Problem
        Those of the kernel that all of them run: the buffers take colours in their order. Without
        them colours follow from the order in which buffers appear.
    until : int, optional
        The cycle at which the picture ends; by default the end of the longest timeline.
    """
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
    colours = {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(named)}
    parts: list[str] = []
    top = 0
    for title, simulation in panels:
        high = max(1, len(simulation.pipes)) * _ROW
        place = _LEFT, top + _AROUND, _WIDTH - 14, top + _AROUND + high
        chart = Chart(place, (0, end), (-0.5, high / _ROW - 0.5))
        _timeline(chart, title, simulation, colours)
        parts += chart.parts
        top += _AROUND + high + _AROUND
    parts += legend(_LEFT, top, [(name, colour, "#999999") for name, colour in WAITS.values()])
    top += len(WAITS) * LINE
    parts.append(words(_LEFT, top + 9, "boxes: each buffer has its colour"))
    return picture(_WIDTH, top + LINE, parts)


def _timeline(chart: Chart, title: str, simulation: Simulation, colours: Mapping[str, str]) -> None:
    """Draw the runs and waits of a simulation's pipes, each in a row."""
    end, rows = chart.across[1], {time.pipe: row for row, time in enumerate(simulation.pipes[::-1])}
    runs = [run for run in simulation.timeline if run.begin < end]
    waits: dict[str, list[Box]] = {}
    boxes: dict[str, list[Box]] = {}
    for run in runs:
        row = rows[run.pipe]
        begin = run.begin - sum(cycles for _, cycles in run.waits)
        for cause, cycles in run.waits:
            last = min(begin + cycles, end)
            waits.setdefault(WAITS[cause][1], []).append(_box(begin, last, row, _WAIT))
            begin += cycles
        colour = colours.get(_buffer(run)[0], "#ffffff")
        boxes.setdefault(colour, []).append(_box(run.begin, min(run.end, end), row, _BAR))
    for shade, found in waits.items():
        chart.boxes(found, shade, "none")
    for colour, found in boxes.items():
        chart.boxes(found, colour)
    slotted = {name for run in simulation.timeline for name, slot in run.writes if slot}
    for run in runs:
        name, slot = _buffer(run)
        buffer = f"{name}[{slot}]" if name in slotted else name
        texts = [[f"{run.statement}: {buffer}"]] if buffer else []
        texts += [[text] for text in (str(run.statement), buffer) if text]
        chart.name(_box(run.begin, min(run.end, end), rows[run.pipe], _BAR), texts)
    summary = f"makespan {simulation.makespan:,} cycles"
    if len(runs) != simulation.runs:
        summary += f", the first {len(runs):,} of {simulation.runs:,} runs"
    idle = {time.pipe: time.idle / simulation.makespan for time in simulation.pipes}
    names = [(row, f"{pipe}\n{idle[pipe]:.0%} idle") for pipe, row in rows.items()]
    ticks = [(at, f"{at:,}") for at in steps(end, 6)]
    chart.frame(title, summary, "cycles", ticks, names)


def _box(begin: float, end: float, row: int, height: float) -> Box:
    return begin, row - height / 2, end, row + height / 2


def _buffer(run: Run) -> tuple[str, int]:
    """Return the buffer that gives a run its colour, and its slot."""
    return next(iter((*run.writes, *run.reads)), ("", 0))
