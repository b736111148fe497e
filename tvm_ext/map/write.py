# SPDX-License-Identifier: Apache-2.0
"""Memory maps in files: what a file is follows from the end of its name.

A picture has a row for each memory, and a column for each plan.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_ext.drawing.map_picture import Panel, figure_of
from tvm_ext.drawing.picture import INK, save_picture
from tvm_ext.map.memory_map import MemoryMap
from tvm_ext.map.model import ScopeMap
from tvm_ext.map.snapshot import write_snapshot
from tvm_ext.map.trace import write_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_map(shown: MemoryMap, path: str | Path) -> None:
    """Write a memory map to a file.

    Parameters
    ----------
    shown : MemoryMap
        What to write.
    path : str or pathlib.Path
        Its suffix names the format: ``.html`` a page for a browser; ``.svg``, ``.png`` or
        ``.pdf`` a picture; ``.pickle`` a snapshot for PyTorch's memory visualiser; ``.json`` a
        trace for Perfetto.

    Raises
    ------
    TypeError
        If `shown` is no map.
    ValueError
        If the suffix is none of these.
    ImportError
        If a picture is asked for, and there is no matplotlib.
    OSError
        If the file cannot be written.
    """
    if not isinstance(shown, MemoryMap):
        raise TypeError(f"write_map: needs a MemoryMap, got {shown!r}")
    _WRITERS[known_suffix(path)](shown, Path(path))


def known_suffix(path: str | Path) -> str:
    """Return the suffix of a file that `write_map` can write; ValueError with those otherwise."""
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"{path}: the name must end in one of {', '.join(_WRITERS)}")
    return suffix


def picture(shown: MemoryMap) -> Figure:
    """Draw a memory map with matplotlib; raise ImportError if that is not there."""
    several = len({scope.function for scope in shown.scopes}) > 1
    rows = []
    for scope in shown.scopes:
        name = f"{scope.function} {scope.name}" if several else scope.name
        name = name if len(shown.scopes) > 1 else f"{shown.title}, {name}"
        labels = labels_of(scope)
        placements = scope.placements
        rows.append([Panel(f"{name}: {p.label}", p.problem, p.plan, labels) for p in placements])
    figure = figure_of(rows, shown.title if len(rows) > 1 else None)
    scopes = [scope for scope in shown.scopes for _ in scope.placements]
    for axes, scope in zip(figure.axes, scopes, strict=True):
        for line in scope.listing.rules if scope.listing else ():
            axes.axvline(line, color=INK, linewidth=0.8, zorder=5)
    return figure


def labels_of(scope: ScopeMap) -> dict[str, str]:
    """Return what a picture calls each buffer, by its name, where its notes have a label."""
    return {name: note.label for name, note in scope.notes.items() if note.label}


_WRITERS: dict[str, Callable[[MemoryMap, Path], object]] = {
    ".html": lambda shown, path: path.write_text(shown.page(), encoding="utf-8"),
    **dict.fromkeys(
        (".svg", ".png", ".pdf"), lambda shown, path: save_picture(picture(shown), path)
    ),
    ".pickle": lambda shown, path: path.write_bytes(write_snapshot(shown)),
    ".json": lambda shown, path: path.write_text(write_trace(shown), encoding="utf-8"),
}
