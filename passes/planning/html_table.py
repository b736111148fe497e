# SPDX-License-Identifier: Apache-2.0
"""Rows of cells as a table of HTML: what a notebook shows of a plan, a problem or a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice

ROW_LIMIT = 40
"""Rows that are shown; of the others their number is said."""


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    limit: int = ROW_LIMIT,
) -> str:
    """Write a table as HTML, whatever its cells say: all text is escaped.

    Parameters
    ----------
    title : str
        What stands above it.
    header : sequence of str
        The names of the columns.
    rows : iterable of sequence of str
        As long as the header each; the first cell is flush left, the others are flush right.
    notes : sequence of str
        Lines below the table.
    limit : int
        Rows that are shown.

    Returns
    -------
    str
        One element, which needs no style and no script of the page that it is put in.
    """
    left = iter(rows)
    lines = [_row("th", header), *(_row("td", cells) for cells in islice(left, limit))]
    more = sum(1 for _ in left)
    below = [*([f"... and {more:,} more"] if more else []), *notes]
    return (
        f"<div><p>{escape(title)}</p><table>{''.join(lines)}</table>"
        f"{''.join(f'<p>{escape(line)}</p>' for line in below)}</div>"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(_cells(tag, cells))}</tr>"


def _cells(tag: str, cells: Sequence[str]) -> Iterator[str]:
    for column, cell in enumerate(cells):
        side = "right" if column else "left"
        yield f'<{tag} style="text-align:{side};white-space:pre-wrap">{escape(cell)}</{tag}>'
