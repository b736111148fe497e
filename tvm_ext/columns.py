# SPDX-License-Identifier: Apache-2.0
"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Lay rows out in columns two spaces apart.

    Parameters
    ----------
    rows : sequence of sequence of str
        Equally long.
    left : sequence of int
        The columns that are flush left; the others are flush right.

    Returns
    -------
    list of str
        A line for each row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
