# SPDX-License-Identifier: Apache-2.0
"""Memories as a picture: time across and addresses up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from passes.planning import Plan, Problem
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
from tvm_ext.report.memory_view import BufferNote, MemoryView, PlannedProblem, written
from tvm_ext.text import counted, format_bytes

_WIDTH, _LEAST_WIDTH, _HEIGHT = 760, 480, 400
"""Pixels of a map: alone, at least among others, and of its height without what is around it."""
_ABOVE, _BELOW, _LEFT = 44, 44, 74
"""Pixels above, below and to the left of a map."""
_SHORTEST = 4
"""Letters of a name that still say something."""
_WORDS = re.compile(r"(?<=[./ ])(?=[^./ \[])")
AT_PEAK, OTHERS = PALETTE[2], "#8cc8ee"
"""Buffers that are live at the peak of their plan, and all others."""
_LINES = {"capacity": (INK, "none"), "peak": ("#d1495b", "5 2"), "lower bound": ("#3f7fd0", "2 2")}
"""The colour of each line, and its dashes."""

_Panel = tuple[str, MemoryView, PlannedProblem]
"""A map: its title, a memory, and one of its plans."""


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
        rows.append([(f"{name}: {one.label}", view, one) for one in view.plans])
    return _drawn(rows, title if len(rows) > 1 else "")


def draw_plans(
    maps: Iterable[tuple[str, Problem, Plan]], *, labels: Mapping[str, str] | None = None
) -> Picture:
    """Draw plans of one or several problems, each with a title, side by side on one scale.

    A plan is drawn as it is, right or wrong: `tvm_ext.verify` judges it. `labels` say what to call
    a buffer, by its name. Raises ValueError, which names the buffer, if a plan lacks an offset for
    a slot, or where there is no plan.
    """
    notes = {name: BufferNote(label) for name, label in (labels or {}).items()}
    panels: list[_Panel] = []
    for title, problem, plan in maps:
        placed = PlannedProblem(plan.planner, problem, plan)
        panels.append((title, MemoryView(problem.name, (placed,), written(notes=notes)), placed))
    if not panels:
        raise ValueError("draw_plans: there is no plan to draw")
    return _drawn([panels])


def _drawn(rows: Sequence[Sequence[_Panel]], title: str = "") -> Picture:
    """Draw rows of maps, those of a row on one scale, and a title above all."""
    columns = max(map(len, rows))
    width, top = max(_WIDTH // columns, _LEAST_WIDTH), 24 if title else 0
    parts = [words(14, 18, title, size=16, font_weight="bold")] if title else []
    for row in rows:
        placed, below = [one for _, _, one in row], 0
        for at, panel in enumerate(row):
            place = at * width + _LEFT, top + _ABOVE, (at + 1) * width - 14, top + _ABOVE + _HEIGHT
            chart, entries = _map(panel, Chart(place, *_scales(placed)))
            parts += [*chart.parts, *legend(place[0], place[3] + _BELOW - 8, entries)]
            below = max(below, len(entries) * LINE)
        top += _ABOVE + _HEIGHT + _BELOW + below
    return picture(columns * width, top, parts)


def _scales(row: Sequence[PlannedProblem]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the positions and the addresses that all maps of a row show.

    A few KiB in a memory of many GiB would be a line at the bottom: such a capacity is left out.
    """
    live = [at for one in row for b in one.problem.buffers for pair in b.live for at in pair]
    top = max(1, *(nbytes for one in row for nbytes in (one.bound, one.plan.peak)))
    capacities = (one.problem.capacity or 0 for one in row)
    top = max([top, *(nbytes for nbytes in capacities if nbytes <= 2 * top)])
    return (min(live, default=0), max(live, default=1)), (0, top + -(-top // 40))


def _shorter(name: str) -> Iterator[str]:
    """Yield a name ever shorter: its last words say more than the first, which many have."""
    parts = _WORDS.split(name)
    yield from (f"…{''.join(parts[at:])}" for at in range(1, len(parts)))
    yield from (f"{parts[-1][:n]}…" for n in range(len(parts[-1]) - 1, _SHORTEST - 1, -1))


def _map(panel: _Panel, chart: Chart) -> tuple[Chart, list[tuple[str, str, str]]]:
    """Draw a map; return the entries of its legend, too."""
    title, view, placed = panel
    problem, plan, (slots, shared) = placed.problem, placed.plan, placed.slots()
    (begin, end), (_, top) = chart.across, chart.up
    peak = {problem.index[name] for name in placed.peak().live}
    by_peak: dict[bool, list[Box]] = {True: [], False: []}
    for slot in slots:
        by_peak[slot.buffer in peak].append((slot.begin, slot.low, slot.end, slot.high))
    entries: list[tuple[str, str, str]] = []
    for label, fill, boxes in (
        ("live at the peak", AT_PEAK, by_peak[True]),
        ("other buffers", OTHERS, by_peak[False]),
        ("reserved", "url(#rising)", [(begin, a, end, b) for a, b in problem.memory.reserved]),
        ("live in place", "url(#falling)", shared),
    ):
        chart.boxes(boxes, fill)
        entries += [(label, fill, EDGE)] if boxes else []
    for rule in view.axis.rules if view.axis else ():
        chart.line((rule, 0, rule, top), INK, width=0.8)
    values = problem.capacity, plan.peak, placed.bound
    for (name, (colour, dashes)), value in zip(_LINES.items(), values, strict=True):
        if value is not None:
            if value <= top:
                chart.line((begin, value, end, value), colour, dashes)
            above = ", above the map" if value > top else ""
            entries.append((f"{name}: {format_bytes(value)}{above}", colour, "none"))
    for slot in slots:
        buffer = problem.buffers[slot.buffer]
        name = view.notes.get(buffer.name, BufferNote()).label or buffer.name
        if len(plan.offsets[buffer.name]) > 1:
            name += f"[{slot.number}]"
        texts = chain([[name, format_bytes(buffer.size)], [name]], ([n] for n in _shorter(name)))
        chart.name((slot.first, slot.low, slot.last, slot.high), texts)
    summary = [counted(len(problem.buffers), "buffer")]
    if 0 < placed.bound < plan.peak:
        summary.append(f"{plan.peak / placed.bound:.4g} × the lower bound")
    ticks = [(begin + at, f"{begin + at:,}") for at in steps(end - begin, 6)]
    addresses = [(at, format_bytes(at)) for at in steps(top, 12, binary=True)]
    said = " · ".join([*summary, *placed.said()])
    chart.frame(title, said, "program step", ticks, addresses)
    return chart, entries
