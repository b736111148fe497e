# SPDX-License-Identifier: Apache-2.0
"""A report: the memories of a program with their plans, as tables, data, a page and a picture.

This module knows no TVM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from passes.planning import html_table
from tvm_ext.report.chart import Picture
from tvm_ext.report.memory_view import Fault, LeftAlone, MemoryView, PlannedRun
from tvm_ext.report.page import memory_data, page_of, run_data
from tvm_ext.report.picture import picture_of
from tvm_ext.report.tables import left_lines, memory_tables, run_tables
from tvm_ext.report.trace import trace_of
from tvm_ext.text import Table, folded

SUFFIXES = (".html", ".json", ".trace", ".svg")
"""The suffixes of files that a report is written to: a page, data, a trace, or a picture."""

Finding = MemoryView | PlannedRun | LeftAlone | Table | str
"""The findings that a reader of programs yields; a text is a note."""


@dataclass(frozen=True, eq=False)
class Report:
    """The report on a program's memory.

    Printed it is tables; a notebook shows the tables, and the page where there are memories.
    """

    title: str
    """The name of the program."""
    memories: tuple[MemoryView, ...] = ()
    """By function; what the tensors of a network need comes first."""
    runs: tuple[PlannedRun, ...] = ()
    """Simulations of kernels for chips whose pipelines are described."""
    left: tuple[LeftAlone, ...] = ()
    """The tensors or allocations that are not planned, and why."""
    facts: tuple[Table, ...] = ()
    """Tables of what a reader found besides memories."""
    notes: tuple[str, ...] = ()
    """The assumptions, and the omissions of the numbers: a line each."""

    @property
    def planners(self) -> tuple[str, ...]:
        """The planners, in the order in which they were asked."""
        return tuple(dict.fromkeys(one.planner for view in self.memories for one in view.plans))

    @property
    def fits(self) -> bool:
        """Whether each memory has a plan of ours that fits."""
        return all(any(one.plan.fits for one in view.plans) for view in self.memories)

    @property
    def is_right(self) -> bool:
        """Whether each memory has a plan that fits, and no note says that something is wrong."""
        return self.fits and not any(isinstance(note, Fault) for note in self.notes)

    def tables(self) -> list[Table]:
        """Return a table for each kind of memory, and those of cycles and of other facts."""
        return [*memory_tables(self.memories), *run_tables(self.runs, self.memories), *self.facts]

    def lines(self) -> list[str]:
        """Return the notes, with what is not planned, and why a plan does not fit."""
        lines = [*self.notes, *left_lines(self.left)]
        for view in self.memories:
            for one in [one for one in view.plans if not one.plan.fits][:1]:
                lines.append(f"{view.owner} {view.name}, {one.label}: {view.explain(one)}")
        return lines

    def __str__(self) -> str:
        """Return the tables, and the notes below them."""
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the tables, and the notes below them, folded within so many characters a line."""
        parts = ["\n".join(table.text(width)) for table in self.tables()]
        parts = parts or [f"{self.title}: there is nothing to plan"]
        if lines := self.lines():
            parts.append("\n".join(folded(f"- {line}", width) for line in lines))
        return "\n\n".join(parts)

    def data(self, *, timed: bool = True) -> dict[str, Any]:
        """Return everything as lists, maps, strings and numbers, with times if `timed`.

        A memory in ``memories`` has ``buffers`` and ``plans``. Of a plan, ``offsets`` are in the
        order of the buffers, ``slots`` have the fields of `Slot`, and ``said`` has in words how
        good it is and what it costs. Numbers stand for buffers and for the texts in ``listings``,
        by their places there, and for lines, from 0 on. Bytes are multiples of ``unit``, a product
        of symbolic dimensions, if there is one.
        """
        axes = list(dict.fromkeys(view.axis for view in self.memories if view.axis))
        listings = [None if view.axis is None else axes.index(view.axis) for view in self.memories]
        spans = {(run.function, run.planner): run.simulation.makespan for run in self.runs}
        found = [memory_data(*one, spans) for one in zip(self.memories, listings, strict=True)]
        if timed:
            for view, memory in zip(self.memories, found, strict=True):
                for placed, plan in zip(view.plans, memory["plans"], strict=True):
                    plan["seconds"] = placed.seconds
        return {
            "title": self.title,
            "functions": len({view.owner for view in self.memories}),
            "listings": [axis.data() for axis in axes],
            "memories": found,
            "runs": [run_data(run) for run in self.runs],
            "left": [str(one) for one in self.left],
            "facts": [{"title": t.title, "rows": t.rows, "notes": t.notes} for t in self.facts],
            "notes": [str(note) for note in self.notes],
        }

    def page(self) -> str:
        """Return a page of HTML, which needs no network, and in which names are data.

        Raises ValueError if there is no memory to show.
        """
        self.need_memories()
        return page_of(self.title, self.data(timed=False))

    def trace(self) -> dict[str, Any]:
        """Return events for Perfetto and ``chrome://tracing``; ValueError if there is no memory."""
        self.need_memories()
        return trace_of(self.memories, self.runs)

    def picture(self) -> Picture:
        """Draw a row for each memory and a column for each plan."""
        self.need_memories()
        return picture_of(self.title, self.memories)

    def save(self, path: str | Path) -> None:
        """Write the report as the suffix says.

        A page is ``.html``, a picture ``.svg``, `data` are ``.json``, and `trace` is ``.trace``.
        Raises ValueError if the suffix is another, or there is no memory to show.
        """
        check_suffix(path)
        texts: dict[str, Callable[[], str]] = {
            ".html": self.page,
            ".json": lambda: json.dumps(self.data(), indent=2) + "\n",
            ".trace": lambda: json.dumps(self.trace()) + "\n",
            ".svg": lambda: self.picture().svg,
        }
        Path(path).write_text(texts[Path(path).suffix.lower()](), encoding="utf-8")

    def need_memories(self) -> None:
        """Raise ValueError, which says what is left and why, if there is no memory to show."""
        if not self.memories:
            lines = ("there is no buffer to plan", *left_lines(self.left))
            raise ValueError(f"{self.title}: {'; '.join(lines)}")

    def _repr_html_(self) -> str:
        """Return the tables, and the page in a frame whose scripts can reach nothing around it."""
        lines, parts = self.lines(), [table.html() for table in self.tables()]
        if lines or not parts:
            parts.append(html_table(self.title, ("notes",), ((line,) for line in lines)))
        if self.memories:
            name, page = escape(f"Memory of {self.title}"), escape(self.page())
            parts.append(
                f'<iframe sandbox="allow-scripts allow-downloads" title="{name}" '
                f'style="width:100%;height:640px;border:1px solid" srcdoc="{page}"></iframe>'
            )
        return "".join(parts)


def report_of(title: str, found: Iterable[Finding]) -> Report:
    """Put together what a reader yields."""
    of: dict[type, list[Any]] = {
        kind: [] for kind in (MemoryView, PlannedRun, LeftAlone, Table, str)
    }
    for finding in found:
        next(kept for kind, kept in of.items() if isinstance(finding, kind)).append(finding)
    return Report(title, *map(tuple, of.values()))


def check_suffix(path: str | Path) -> None:
    """Refuse a file that `Report.save` cannot write: raise ValueError, which names the suffixes."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}")
