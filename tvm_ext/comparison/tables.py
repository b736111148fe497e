# SPDX-License-Identifier: Apache-2.0
"""Comparisons as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from passes.planning.html_table import html_table
from tvm_ext.columns import in_columns
from tvm_ext.comparison.memory_comparison import ActivationMemory
from tvm_ext.comparison.storage_rewrite import (
    Allocations,
    ByScope,
    Comparison,
    FunctionComparison,
)

DEFAULT_WIDTH = 80
"""Columns, where no terminal says how many it has."""


HEADER = ("function", "scope", "allocs", "bytes", "equal", "time")
LEGEND = "allocations, bytes: before/after stock/after ours; time: stock/ours"


def render(
    comparison: Comparison, width: int = DEFAULT_WIDTH, lowering_seconds: float | None = None
) -> list[str]:
    """Write a comparison as a table, with totals at the end.

    Parameters
    ----------
    comparison : Comparison
        The data.
    width : int
        Columns of the terminal; names and scopes are shortened to fit.
    lowering_seconds : float, optional
        Time that TVM took to lower the program up to the passes, to hold theirs against.

    Returns
    -------
    list of str
        Lines of at most `width` characters, where `width` is 80 or more.
    """
    table = [[*HEADER], *(cells for row in comparison.functions for cells in _rows(row))]
    return [LEGEND, "", *_align(table, width), "", *_render_totals(comparison, lowering_seconds)]


def html_of(comparison: Comparison) -> str:
    """Write a comparison as a table of HTML.

    Parameters
    ----------
    comparison : Comparison
        The data.
    """
    rows = (cells for row in comparison.functions for cells in _rows(row))
    return html_table(LEGEND, HEADER, rows, notes=_render_totals(comparison, None))


def _rows(row: FunctionComparison) -> list[list[str]]:
    scopes = sorted({*row.before, *row.stock, *row.ours}) or [""]
    rows = []
    for scope in scopes:
        groups = [use.get(scope, Allocations()) for use in (row.before, row.stock, row.ours)]
        rows.append(["", scope or "-", _counts(groups), _sizes(groups), "", ""])
    times = _times(row.stock_seconds, row.ours_seconds)
    rows[0][0] = row.name
    rows[0][4:] = ["yes" if row.equal else "NO", times]
    return rows


def _counts(groups: Sequence[Allocations]) -> str:
    """Write counts, with those of a size that is not constant behind a plus sign."""
    return "/".join(
        f"{group.count}+{group.symbolic}" if group.symbolic else str(group.count)
        for group in groups
    )


def _sizes(groups: Sequence[Allocations]) -> str:
    """Write sizes in the one unit that suits the largest of them."""
    return _scaled([group.nbytes for group in groups], 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _times(*seconds: float) -> str:
    """Write times likewise."""
    return _scaled([t * 1e6 for t in seconds], 1000, ("us", "ms", "s"))


def _scaled(values: Sequence[float], step: int, units: Sequence[str]) -> str:
    power = 0
    while max(values) >= step ** (power + 1) and power + 1 < len(units):
        power += 1
    return "/".join(_three_digits(value / step**power) for value in values) + f" {units[power]}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _align(table: list[list[str]], width: int) -> list[str]:
    """Lay a table out in columns two spaces apart: the first two to the left, the rest right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    spare = width - sum(widths) - gap * (len(widths) - 1)
    for column, least in ((0, 16), (1, 8), (0, 4), (1, 4)):
        change = min(0, max(spare, least - widths[column]))
        widths[column] += change
        spare -= change
    return [
        (" " * gap)
        .join(
            _shorten(cell, n).ljust(n) if column < 2 else cell.rjust(n)
            for column, (cell, n) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in table
    ]


def _render_totals(comparison: Comparison, lowering_seconds: float | None) -> list[str]:
    totals = comparison.totals
    share = ""
    if lowering_seconds:
        part = totals.ours_seconds / lowering_seconds
        share = (
            f"; ours is {part:.1%} of the {_times(lowering_seconds)} that the rest of lowering took"
        )
    different = totals.functions - totals.equal
    lines = [f"{totals.functions} functions: {totals.equal} equal, {different} different"]
    for scope in sorted({*totals.before, *totals.stock, *totals.ours}):
        lines += _render_scope(scope, totals.before, totals.stock, totals.ours)
    return [*lines, f"time: {_times(totals.stock_seconds, totals.ours_seconds)}{share}"]


def _render_scope(scope: str, *uses: ByScope) -> list[str]:
    groups = [use.get(scope, Allocations()) for use in uses]
    lines = [f"{scope}: {_counts(groups)} allocations, {_sizes(groups)}"]
    if any(group.symbolic for group in groups):
        lines.append("  n+m: n of constant size, and m whose size the running program knows")
    return lines


MEMORY_TITLE = "'s tensors: bytes, and their share of the stock pass's"


def render_memory(memories: Sequence[ActivationMemory], width: int = DEFAULT_WIDTH) -> list[str]:
    """Write what the tensors of one function take as a table.

    Parameters
    ----------
    memories : sequence of ActivationMemory
        Of the same function, with operators fused and not: a column each.
    width : int
        Columns of the terminal; the function's name is shortened to fit.

    Returns
    -------
    list of str
        Lines of at most `width` characters, where `width` is 80 or more.
    """
    name = _shorten(memories[0].function, width - len(MEMORY_TITLE))
    notes = [
        line for note in _notes(memories) for line in wrap(note, width, subsequent_indent="  ")
    ]
    return [f"{name}{MEMORY_TITLE}", "", *in_columns(_memory_rows(memories)), "", *notes]


def html_of_memory(memory: ActivationMemory) -> str:
    """Write what the tensors of one function take as a table of HTML.

    Parameters
    ----------
    memory : ActivationMemory
        The data.
    """
    header, *rows = _memory_rows((memory,))
    return html_table(f"{memory.function}{MEMORY_TITLE}", header, rows, notes=_notes((memory,)))


def _memory_rows(memories: Sequence[ActivationMemory]) -> list[list[str]]:
    rows: list[tuple[str, list[int]]] = [
        ("no reuse", [memory.no_reuse for memory in memories]),
        ("stock", [memory.stock.nbytes for memory in memories]),
        *(
            (planner, [memory.bytes_of(planner) for memory in memories])
            for planner in _planners_of(memories)
        ),
        ("lower bound", [memory.lower_bound for memory in memories]),
    ]
    header = ["", *("fused" if memory.fused else "not fused" for memory in memories)]
    table = [header, ["tensors", *(str(memory.tensors) for memory in memories)]]
    for what, values in rows:
        shares = (_share(value, m.stock.nbytes) for value, m in zip(values, memories, strict=True))
        cells = (f"{value:,} {share}" for value, share in zip(values, shares, strict=True))
        table.append([what, *cells])
    return table


def _planners_of(memories: Sequence[ActivationMemory]) -> list[str]:
    """List the planners that planned every one."""
    asked = [[plan.planner for plan in memory.plans] for memory in memories]
    return [name for name in asked[0] if all(name in names for names in asked)]


def _share(value: int, stock: int) -> str:
    return f"{value / stock:7.1%}" if stock else " " * 7


def _notes(memories: Sequence[ActivationMemory]) -> list[str]:
    """Say what the planner with the best plans saves, and what the table leaves out."""
    notes = []
    for memory in memories:
        how = "fused" if memory.fused else "not fused"
        best = min(memory.plans, key=lambda plan: plan.nbytes)
        saved = memory.stock.nbytes - best.nbytes
        notes.append(f"{how}: {best.planner} saves {saved:,} bytes against the stock pass")
        too_large = [plan.planner for plan in memory.plans if not plan.fits]
        if too_large:
            notes.append(f"{how}: above the memory's capacity: {', '.join(too_large)}")
        notes += memory.not_counted()
    weights = dict.fromkeys((memory.weights, memory.weight_bytes) for memory in memories)
    notes += [f"weights: {count} in a region of {nbytes:,} bytes" for count, nbytes in weights]
    return notes


def _shorten(text: str, width: int) -> str:
    """Take out the middle of a text: both ends of a function's name tell it from others."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[len(text) - tail :]}"
