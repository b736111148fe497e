# SPDX-License-Identifier: Apache-2.0
"""Rows of cells as a table of HTML: what a notebook shows of a plan, a problem or a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

ROW_LIMIT = 40  # Rows, and notes, that are shown; of the others their number is said


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Sequence[str] = (),
) -> str:
    """Return a table as one element of HTML, which needs no style of the page that it is put in.

    All text is escaped. Rows are as long as the header; the first cell is flush left, the others
    are flush right. The notes stand below the table.
    """
    left, others = iter(rows), len(notes) - ROW_LIMIT
    lines = [_row("th", header), *(_row("td", cells) for cells in islice(left, ROW_LIMIT))]
    more = sum(1 for _ in left)
    below = [*([f"... and {more:,} more"] if more else []), *notes[:ROW_LIMIT]]
    below += [f"... and {others:,} more"] if others > 0 else []
    return (
        f"<div><p>{escape(title)}</p><table>{''.join(lines)}</table>"
        f"{''.join(f'<p>{escape(line)}</p>' for line in below)}</div>"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    sides = ("right" if column else "left" for column in range(len(cells)))
    shown = (
        f'<{tag} style="text-align:{side};white-space:pre-wrap">{escape(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"
