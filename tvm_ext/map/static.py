# SPDX-License-Identifier: Apache-2.0
"""A memory map as a picture: a row for each memory, a column for each plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_ext.drawing.memory_map import figure_of
from tvm_ext.drawing.panel import Panel
from tvm_ext.drawing.picture import INK, need_matplotlib
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import Placement, ScopeMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(shown: MemoryMap) -> Figure:
    """Draw a memory map with matplotlib; raise ImportError if that is not there."""
    need_matplotlib()
    rows = [
        [
            Panel(p.problem, p.plan, _title(shown, scope, p), labels_of(scope))
            for p in scope.placements
        ]
        for scope in shown.scopes
    ]
    figure = figure_of(rows, shown.title if len(rows) > 1 else None)
    scopes = [scope for scope in shown.scopes for _ in scope.placements]
    for axes, scope in zip(figure.axes, scopes, strict=True):
        _draw_rules(axes, scope)
    return figure


def _draw_rules(axes: Axes, scope: ScopeMap) -> None:
    for line in scope.listing.rules if scope.listing else ():
        axes.axvline(line, color=INK, linewidth=0.8, zorder=5)


def labels_of(scope: ScopeMap) -> dict[str, str]:
    """Return what a picture calls each buffer, by its name, where its notes have a label."""
    return {name: note.label for name, note in scope.notes.items() if note.label}


def _title(shown: MemoryMap, scope: ScopeMap, placement: Placement) -> str:
    if len(shown.scopes) == 1:
        return f"{shown.title}, {scope.name}: {placement.label}"
    several = len({one.function for one in shown.scopes}) > 1
    return f"{scope.function + ' ' if several else ''}{scope.name}: {placement.label}"
