# SPDX-License-Identifier: Apache-2.0
"""Memories as a picture: time across and addresses up; and the pipelines of simulated runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from passes.planning import Plan, Problem
from passes.simulation import Cause, Run, Simulation
from tvm_ext.report.chart import (
    EDGE,
    INK,
    LINE,
    PALETTE,
    Box,
    Chart,
    Picture,
    legend,
    picture,
    steps,
    words,
)
from tvm_ext.report.memory_view import MemoryView, PlannedProblem
from tvm_ext.text import counted, format_bytes

_WIDTH, _LEAST_WIDTH, _HEIGHT = 760, 480, 400
"""Pixels of a map: alone, at least among others, and of its height without what is around it."""
_ABOVE, _BELOW, _LEFT = 44, 44, 74
"""Pixels above, below and to the left of a chart."""
_SHORTEST = 4
"""Letters of a name that still say something."""
AT_PEAK, OTHERS = PALETTE[2], "#8cc8ee"
"""Buffers that are live at the peak of their plan, and all others."""
_LINES = {"capacity": (INK, "none"), "peak": ("#d1495b", "5 2"), "lower bound": ("#3f7fd0", "2 2")}
"""The colour of each line, and its dashes."""


class Slot(NamedTuple):
    """A slot during one live range: positions ``[begin, end)``, bytes ``[low, high)``."""

    begin: int
    low: int
    end: int
    high: int
    label: str
    buffer: str  # The name in its problem, which no other has; labels may be the same


class Panel(NamedTuple):
    """One map of a picture."""

    title: str
    placed: PlannedProblem
    labels: Mapping[str, str]  # The label of a buffer, by its name
    rules: Sequence[int] = ()  # Positions with a line across all addresses


def picture_of(title: str, memories: Sequence[MemoryView]) -> Picture:
    """Draw memories: the steps of the program across, addresses up, a rectangle for each buffer.

    Each memory is a row, with its plans on one scale. A buffer with several slots or live ranges
    has a rectangle for each; those live at the peak of their plan are orange. Lines show the
    capacity, the peak and the lower bound. Reserved ranges are hatched, and so are the positions at
    which two buffers are live in place.
    """
    several, rows = len({view.owner for view in memories}) > 1, []
    for view in memories:
        name = f"{view.owner} {view.name}" if several else view.name
        name = name if len(memories) > 1 else f"{title}, {name}"
        labels = {buffer: note.label for buffer, note in view.notes.items()}
        rules = view.axis.rules if view.axis else ()
        rows.append([Panel(f"{name}: {one.label}", one, labels, rules) for one in view.plans])
    return _maps(rows, title if len(rows) > 1 else "")


def draw_plans(
    maps: Iterable[tuple[str, Problem, Plan]], *, labels: Mapping[str, str] | None = None
) -> Picture:
    """Draw plans of one or several problems, each with a title, side by side on one scale.

    A plan is drawn as it is, right or wrong: `tvm_ext.verify` judges it. `labels` say what to call
    a buffer, by its name. Raises ValueError, which names the buffer, if a plan lacks an offset for
    a slot, or where there is no plan.
    """
    panels = [
        Panel(title, PlannedProblem(plan.planner, problem, plan), labels or {})
        for title, problem, plan in maps
    ]
    if not panels:
        raise ValueError("draw_plans: there is no plan to draw")
    return _maps([panels])


def _maps(rows: Sequence[Sequence[Panel]], title: str = "") -> Picture:
    """Draw rows of panels, those of a row on one scale, and a title above all."""
    columns = max(map(len, rows))
    width, top = max(_WIDTH // columns, _LEAST_WIDTH), 24 if title else 0
    parts = [words(14, 18, title, size=16, font_weight="bold")] if title else []
    for panels in rows:
        drawn = [_map(panel, panels, at * width, top, width) for at, panel in enumerate(panels)]
        parts += (part for own, _ in drawn for part in own)
        top += _ABOVE + _HEIGHT + _BELOW + max(entries for _, entries in drawn) * LINE
    return picture(columns * width, top, parts)


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


def _in_place(problem: Problem, slots: Sequence[Slot]) -> Iterator[Box]:
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


def _map(
    panel: Panel, row: Sequence[Panel], left: int, top: int, width: int
) -> tuple[list[str], int]:
    """Draw a map; return its parts, and how many lines its legend has.

    A few KiB in a memory of many GiB would be a line at the bottom: such a capacity is left out.
    """
    problems = [one.placed.problem for one in row]
    live = [at for problem in problems for b in problem.buffers for pair in b.live for at in pair]
    most = max(1, *(n for one in row for n in (one.placed.bound, one.placed.plan.peak)))
    most = max([most, *(p.capacity for p in problems if p.capacity and p.capacity <= 2 * most)])
    across, highest = (min(live, default=0), max(live, default=1)), most + -(-most // 40)
    place = left + _LEFT, top + _ABOVE, left + width - 14, top + _ABOVE + _HEIGHT
    chart = Chart(place, across, (0, highest))
    placed, plan = panel.placed, panel.placed.plan
    problem, slots = placed.problem, list(slots_of(placed.problem, plan, panel.labels))
    peak, reserved = {*placed.peak().live}, problem.memory.reserved
    entries = []
    for label, fill, boxes in (
        ("live at the peak", AT_PEAK, [slot[:4] for slot in slots if slot.buffer in peak]),
        ("other buffers", OTHERS, [slot[:4] for slot in slots if slot.buffer not in peak]),
        ("reserved", "url(#rising)", [(across[0], a, across[1], b) for a, b in reserved]),
        ("live in place", "url(#falling)", list(_in_place(problem, slots))),
    ):
        chart.boxes(boxes, fill)
        entries += [(label, fill, EDGE)] if boxes else []
    for rule in panel.rules:
        chart.line((rule, 0, rule, highest), INK, width=0.8)
    values = (problem.capacity, plan.peak, placed.bound)
    for (name, (colour, dashes)), value in zip(_LINES.items(), values, strict=True):
        if value is not None:
            above = value > highest
            if not above:
                chart.line((across[0], value, across[1], value), colour, dashes)
            said = f"{name}: {format_bytes(value)}{', above the map' if above else ''}"
            entries.append((said, colour, "none"))
    for slot in slots:
        name = slot.label
        cuts = ([f"{name[:letters]}…"] for letters in range(len(name) - 2, _SHORTEST - 1, -1))
        size = format_bytes(slot.high - slot.low)
        chart.name(slot[:4], chain([[name, size], [name]], cuts))
    summary = [counted(len(problem.buffers), "buffer")]
    if 0 < placed.bound < plan.peak:
        summary.append(f"{plan.peak / placed.bound:.4g} × the lower bound")
    if plan.penalty:
        summary.append(f"penalty {plan.penalty:,}")
    ticks = [(at + across[0], f"{at + across[0]:,}") for at in steps(across[1] - across[0], 6)]
    addresses = [(at, format_bytes(at)) for at in steps(highest, 12, binary=True)]
    said = " · ".join([*summary, placed.verdict])
    chart.frame(panel.title, said, "program step", ticks, addresses)
    below = legend(place[0], place[3] + _BELOW - 8, entries)
    return [*chart.parts, *below], len(entries)


# ------------------------------------------------------------------------------------ pipelines

WAITS = {
    Cause.DATA: ("waits for data", "#f2f2f2"),
    Cause.SLOT: ("waits for a slot", "#d5d5d5"),
    Cause.REUSE: ("waits for reused bytes", "#d9a0a6"),
}
"""The name of each wait of a pipe, and its colour. Only a wait for bytes of another buffer is the
plan's doing."""

_PICTURE, _ROW = 960, 36
"""Pixels of a picture across, and of the row of a pipe."""
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
        place = _LEFT, top + _ABOVE, _PICTURE - 14, top + _ABOVE + high
        chart = Chart(place, (0, end), (-0.5, high / _ROW - 0.5))
        _timeline(chart, title, simulation, colours)
        parts += chart.parts
        top += _ABOVE + high + _BELOW
    parts += legend(_LEFT, top, [(name, colour, "#999999") for name, colour in WAITS.values()])
    top += len(WAITS) * LINE
    parts.append(words(_LEFT, top + 9, "boxes: each buffer has its colour"))
    return picture(_PICTURE, top + LINE, parts)


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
