# SPDX-License-Identifier: Apache-2.0
"""Memory maps as plain data: as a page, and as a picture with a row a memory and a column a plan.

This module knows no TVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passes.planning import Problem, TextPlaces, charge, does_not_fit, html_table
from passes.simulation import Cause
from tvm_ext.drawing.map_picture import Panel, figure_of
from tvm_ext.drawing.picture import INK, save_picture
from tvm_ext.named_planners import STOCK
from tvm_ext.planned.placements import PlannedProblem, PlannedRun, remark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".html", ".svg", ".png", ".pdf")
"""How the name of a map ends: a page, or a picture."""

_SCRIPTS = ("model", "view", "colours", "draw", "program", "panel", "main")
"""The parts of the page's script, in the order in which they build upon each other."""

_MOST_WAITS = 8
"""Waits of a simulation for bytes of another buffer that are listed, the longest first."""


@dataclass(frozen=True)
class Listing(TextPlaces):
    """The text of a function, and where its positions are in it."""

    name: str  # The function's name
    rules: tuple[int, ...] = ()  # The lines with a rule above them, across all maps: barriers


@dataclass(frozen=True)
class BufferNote:
    """What is known of a buffer besides its problem."""

    label: str = ""  # A shorter name; empty for the buffer's own
    what: str = ""  # The type of its elements and its shape, or the operator that makes it
    allocated: int | None = None  # The line of the listing that allocates it
    reads: tuple[int, ...] = ()  # The lines that read it
    writes: tuple[int, ...] = ()  # The lines that write it
    pipes: tuple[str, ...] = ()  # The pipelines that touch it, sorted


@dataclass(frozen=True, eq=False)
class ScopeMap:
    """One memory of one function, as each planner fills it."""

    function: str  # The function's name, or the file's
    placements: tuple[PlannedProblem, ...]  # At least one. All have the same buffers.
    listing: Listing | None = None  # The function's text, where it has one
    notes: Mapping[str, BufferNote] = field(default_factory=dict)  # By the name of the buffer
    rules: str = ""  # For messages: the rules of the target that the lower bound rests on
    form: str = ""  # Of a network: in which form the device takes a plan, and why
    unit: str = ""  # Bytes are for each of this product of symbolic dimensions; empty for bytes

    @property
    def problem(self) -> Problem:
        """The problem of the first placement."""
        return self.placements[0].problem

    @property
    def scope(self) -> str:
        """The storage scope."""
        return self.problem.memory.name

    @property
    def name(self) -> str:
        """The storage scope, and where in the function its memory is there."""
        return self.problem.name if self.problem.name.startswith(self.scope) else self.scope

    @property
    def bound(self) -> int:
        """Bytes that no plan's peak can be below."""
        return self.placements[0].bound

    def explain(self, placement: PlannedProblem) -> str:
        """Say why a plan does not fit, and what would help; empty if it does."""
        if placement.plan.fits:
            return ""
        return does_not_fit(
            placement.problem, placement.plan, places=self.listing, rules=self.rules
        )

    def lines_of(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the first and the last line of each live range of a buffer."""
        if self.listing is not None:
            for begin, end in self.problem.buffers[self.problem.index[name]].live:
                yield self.listing.span(begin, end)


Shown = ScopeMap | PlannedRun | str
"""The parts of a map; a text names an allocation that is not planned, and why."""


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """All that is shown of a program's memory; ValueError if that is nothing."""

    title: str  # What the program is called
    scopes: tuple[ScopeMap, ...]  # At least one
    runs: tuple[PlannedRun, ...] = ()  # Simulations, for chips whose pipelines are described
    left: tuple[str, ...] = ()  # A line for each allocation that is not planned: which and why

    def __post_init__(self) -> None:
        if not self.scopes:
            left = f": {'; '.join(self.left)}" if self.left else ""
            raise ValueError(f"{self.title}: there is no buffer to plan{left}")

    @property
    def planners(self) -> tuple[str, ...]:
        """The planners, in the order in which they were asked."""
        return tuple(dict.fromkeys(p.planner for scope in self.scopes for p in scope.placements))

    def __str__(self) -> str:
        """Say in a line what the map shows."""
        memories = f"{len(self.scopes)} memor{'y' if len(self.scopes) == 1 else 'ies'}"
        return f"memory map of {self.title}: {memories}, by {', '.join(self.planners)}"

    def page(self) -> str:
        """Return the map as a page of HTML, which needs no network, and in which names are data."""
        data = json.dumps(page_data(self), separators=(",", ":"))
        for sign in "<>&":  # Nothing can end the element that the data stands in.
            data = data.replace(sign, f"\\u{ord(sign):04x}")
        parts = {
            "{{TITLE}}": escape(f"Memory of {self.title}"),
            "{{STYLE}}": _part("page.css"),
            "{{SCRIPT}}": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
            "{{DATA}}": data,
        }
        # In one step, so that no part is searched for the names of the others.
        return re.sub("|".join(parts), lambda place: parts[place[0]], _part("page.html"))

    def picture(self) -> Figure:
        """Draw the map with matplotlib; raise ImportError if that is not there."""
        several = len({scope.function for scope in self.scopes}) > 1
        rows = []
        for scope in self.scopes:
            name = f"{scope.function} {scope.name}" if several else scope.name
            name = name if len(self.scopes) > 1 else f"{self.title}, {name}"
            labels = {buffer: note.label for buffer, note in scope.notes.items()}
            rows.append([Panel(f"{name}: {p.label}", p, labels) for p in scope.placements])
        figure = figure_of(rows, self.title if len(rows) > 1 else None)
        scopes = [scope for scope in self.scopes for _ in scope.placements]
        for axes, scope in zip(figure.axes, scopes, strict=True):
            for line in scope.listing.rules if scope.listing else ():
                axes.axvline(line, color=INK, linewidth=0.8, zorder=5)
        return figure

    def _repr_html_(self) -> str:
        """Return a table, and the page in a frame whose scripts can reach nothing around it."""
        rows = (
            (
                f"{scope.function}, {scope.name}",
                placement.label,
                f"{placement.plan.peak:,}",
                f"{scope.bound:,}",
                "" if scope.problem.capacity is None else f"{scope.problem.capacity:,}",
            )
            for scope in self.scopes
            for placement in scope.placements
        )
        header = ("memory", "planner", "bytes", "lower bound", "capacity")
        return html_table(str(self), header, rows) + (
            f'<iframe sandbox="allow-scripts" title="{escape(f"Memory of {self.title}")}" '
            f'style="width:100%;height:640px;border:1px solid" srcdoc="{escape(self.page())}">'
            "</iframe>"
        )


def write_map(shown: MemoryMap, path: str | Path) -> None:
    """Write a memory map to a file, as its suffix says: ``.html``, ``.svg``, ``.png``, ``.pdf``.

    Raises TypeError if `shown` is no map, ValueError if the suffix is none of these, ImportError
    for a picture without matplotlib.
    """
    if not isinstance(shown, MemoryMap):
        raise TypeError(f"write_map: needs a MemoryMap, got {shown!r}")
    check_suffix(path)
    if Path(path).suffix.lower() == ".html":
        Path(path).write_text(shown.page(), encoding="utf-8")
    else:
        save_picture(shown.picture(), path)


def check_suffix(path: str | Path) -> None:
    """Refuse a file that `write_map` cannot write: raise ValueError, which names the suffixes."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}")


def page_data(shown: MemoryMap) -> dict[str, Any]:
    """Return all that the page shows of a memory map.

    Buffers are named by their place in ``buffers`` of their scope, lines by their number from 0.
    """
    listings = list(dict.fromkeys(scope.listing for scope in shown.scopes if scope.listing))
    spans = {(run.function, run.planner): run.simulation.makespan for run in shown.runs}
    return {
        "title": shown.title,
        "functions": len({scope.function for scope in shown.scopes}),
        "listings": [
            {"name": one.name, "lines": one.lines, "lineOf": one.line_of, "rules": one.rules}
            for one in listings
        ],
        "scopes": [
            _scope(scope, listings.index(scope.listing) if scope.listing else None, spans)
            for scope in shown.scopes
        ],
        "runs": [_run(run) for run in shown.runs],
        "left": shown.left,
    }


def _scope(
    scope: ScopeMap, listing: int | None, spans: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    problem = scope.problem
    live = [pair for buffer in problem.buffers for pair in buffer.live]
    begin = min((begin for begin, _ in live), default=0)
    return {
        "function": scope.function,
        "name": scope.name,
        "listing": listing,
        "capacity": problem.capacity,
        "bound": scope.bound,
        "form": scope.form,
        "unit": scope.unit,
        "begin": begin,
        "end": max((end for _, end in live), default=begin + 1),
        "buffers": [
            {
                "name": buffer.name,
                "size": buffer.size,
                "slots": buffer.slots,
                "alignment": problem.alignment_of(buffer),
                "live": buffer.live,
                "pinned": buffer.pinned,
                **asdict(scope.notes.get(buffer.name, BufferNote())),
            }
            for buffer in problem.buffers
        ],
        "inPlace": [[problem.index[name] for name in pair] for pair in problem.in_place],
        "plans": [
            _plan(scope, placement, spans.get((scope.function, placement.planner)))
            for placement in scope.placements
        ],
    }


def _plan(scope: ScopeMap, placement: PlannedProblem, makespan: int | None) -> dict[str, Any]:
    problem, plan, peak = placement.problem, placement.plan, placement.peak()
    index = problem.index
    paid = [(p, charge(problem, plan, p)) for p in problem.penalties]
    levels = [plan.reuse.get(buffer.name) for buffer in problem.buffers]
    return {
        "label": placement.label,
        "peak": plan.peak,
        "remark": remark(problem, plan) if placement.planner == STOCK else "",
        "penalty": plan.penalty,
        "status": plan.status.value,
        "offsets": [plan.offsets[buffer.name] for buffer in problem.buffers],
        "levels": [[r.level, r.reason] if r else [2, ""] for r in levels] if plan.reuse else None,
        "paid": [[index[p.first], index[p.second], cost] for p, cost in paid if cost],
        "reserved": problem.memory.reserved,
        "peakPosition": peak.places[0],
        "peakLive": [index[name] for name in peak.live],
        "peakOccupied": peak.occupied,
        "peakPlaces": peak.places,
        "below": peak.below,
        "makespan": makespan,
        "why": scope.explain(placement),
    }


def _run(run: PlannedRun) -> dict[str, Any]:
    waits = [stall for stall in run.simulation.stalls if stall.cause is Cause.REUSE]
    return {
        "function": run.function,
        "label": run.planner,
        "makespan": run.simulation.makespan,
        "pipes": [[time.pipe, time.busy, time.idle] for time in run.simulation.pipes],
        "waits": [[s.pipe, s.buffer, s.other_buffer, s.cycles] for s in waits[:_MOST_WAITS]],
    }


def _part(name: str) -> str:
    return (files("tvm_ext.map") / "page" / name).read_text(encoding="utf-8")
